/* store/evict: order of use, owners, slot sizes, what S3-FIFO keeps and lets go, and both policies
 * against a slow model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/block.h"
#include "server/store/evict.h"
#include "support/rng.h"

enum { BLOCKS = 96, LISTS = 4, OPS = 300000 };

static const uint64_t secret[2] = {3, 4};
static struct kvd_evict evict;
static struct kvd_block blocks[BLOCKS];

static void begin(enum kvd_evict_policy policy)
{
    kvd_evict_free(&evict);
    kvd_evict_init(&evict, policy, secret);
    memset(blocks, 0, sizeof blocks);
    for (uint32_t i = 0; i < BLOCKS; i++)
        memcpy(blocks[i].key.bytes, &i, sizeof i);
}

static int finish(void **state)
{
    (void)state;
    kvd_evict_free(&evict);
    memset(&evict, 0, sizeof evict);
    return 0;
}

static void the_oldest_goes_first(void **state)
{
    (void)state;
    begin(KVD_EVICT_LRU);
    kvd_evict_list_set(&evict, 0, 0, 100);
    assert_null(kvd_evict_choose(&evict, 0, 100));
    for (int i = 0; i < 3; i++)
        kvd_evict_add(&evict, 0, &blocks[i]);
    kvd_evict_use(&evict, &blocks[0]); /* goes to the young end */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(evict.listed, 3 - i);
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[(i + 1) % 3]);
    }
    assert_null(kvd_evict_choose(&evict, 0, 100));
    assert_int_equal(evict.listed, 0);
}

/* Over lists of one size: the oldest of all; a group of the wanted size is preferred. */
static void the_wanted_size_is_preferred(void **state)
{
    (void)state;
    for (int policy = KVD_EVICT_S3FIFO; policy <= KVD_EVICT_LRU; policy++) {
        begin((enum kvd_evict_policy)policy);
        kvd_evict_list_set(&evict, 1, 0, 100);
        kvd_evict_list_set(&evict, 2, 0, 700);
        kvd_evict_list_set(&evict, 9, 0, 100);
        kvd_evict_add(&evict, 2, &blocks[0]); /* the oldest of all */
        kvd_evict_add(&evict, 9, &blocks[1]);
        kvd_evict_add(&evict, 1, &blocks[2]);
        kvd_evict_add(&evict, 2, &blocks[3]);
        kvd_evict_add(&evict, 2, &blocks[4]);
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[1]);
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 700), &blocks[0]);
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 5), &blocks[2]); /* none of this size */
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[3]);
        kvd_evict_remove(&evict, &blocks[4]);
        assert_null(kvd_evict_choose(&evict, 0, 700));
    }
}

static void tenants_do_not_pay_for_each_other(void **state)
{
    uint32_t last = KVD_EVICT_LISTS - 1;

    (void)state;
    begin(KVD_EVICT_S3FIFO);
    kvd_evict_list_set(&evict, 0, 1, 100);
    kvd_evict_list_set(&evict, last, 2, 100);
    kvd_evict_add(&evict, 0, &blocks[0]);
    assert_null(kvd_evict_choose(&evict, 2, 100));
    kvd_evict_add(&evict, last, &blocks[1]);
    assert_ptr_equal(kvd_evict_choose(&evict, 2, 100), &blocks[1]);
    assert_null(kvd_evict_choose(&evict, 0, 100));
    assert_ptr_equal(kvd_evict_choose(&evict, 1, 100), &blocks[0]);
    kvd_evict_list_set(&evict, 0, 2, 300); /* the place is another tenant's space now */
    kvd_evict_add(&evict, 0, &blocks[2]);
    assert_null(kvd_evict_choose(&evict, 1, 100));
    assert_ptr_equal(kvd_evict_choose(&evict, 2, 300), &blocks[2]);
}

/* Ten blocks used twice, then a hundred times as many that nobody asks for again: the ten stay. */
static void a_scan_passes_through(void **state)
{
    uint32_t hot = 10, next = hot;

    (void)state;
    begin(KVD_EVICT_S3FIFO);
    kvd_evict_list_set(&evict, 0, 0, 100);
    for (uint32_t i = 0; i < hot; i++) {
        kvd_evict_add(&evict, 0, &blocks[i]);
        kvd_evict_use(&evict, &blocks[i]);
        kvd_evict_use(&evict, &blocks[i]);
    }
    for (uint32_t i = 0; i < 100 * hot; i++) {
        struct kvd_block *block = &blocks[next];

        memset(block, 0, sizeof *block);
        memcpy(block->key.bytes, &i, sizeof i);
        block->key.bytes[31] = 1;
        kvd_evict_add(&evict, 0, block);
        if (evict.listed > 2 * hot) {
            block = kvd_evict_choose(&evict, 0, 100);
            assert_true(block >= &blocks[hot]);
        }
        next = next + 1 < BLOCKS ? next + 1 : hot;
    }
    for (uint32_t i = 0; i < hot; i++)
        assert_int_equal(blocks[i].queue, KVD_QUEUE_MAIN);
}

/* Given up and stored again while its key is remembered: the main queue; another one: the small. */
static void what_comes_back_stays(void **state)
{
    (void)state;
    begin(KVD_EVICT_S3FIFO);
    kvd_evict_list_set(&evict, 0, 0, 100);
    for (int i = 0; i < 20; i++) {
        kvd_evict_add(&evict, 0, &blocks[i]);
        blocks[i].uses = i < 10 ? 2 : 0;
    }
    for (int i = 10; i < 15; i++) /* the first ten move on, on the way */
        assert_ptr_equal(kvd_evict_choose(&evict, 0, 100), &blocks[i]);
    blocks[10].queue = blocks[50].queue = KVD_QUEUE_NONE;
    kvd_evict_add(&evict, 0, &blocks[10]);
    kvd_evict_add(&evict, 0, &blocks[50]);
    assert_int_equal(blocks[10].queue, KVD_QUEUE_MAIN);
    assert_int_equal(blocks[50].queue, KVD_QUEUE_SMALL);
}

/* ---- a slow model: plain arrays, searched and moved from end to end */

struct model {
    enum kvd_evict_policy policy;
    uint32_t queue[LISTS][2][BLOCKS * 4], length[LISTS][2]; /* [group][small, main] */
    uint32_t ghosts[LISTS][BLOCKS * 8], ghost_count[LISTS];
    uint64_t queued_at[BLOCKS], now;
    bool in[BLOCKS], listed[BLOCKS], known[BLOCKS];
    uint32_t place[BLOCKS], uses[BLOCKS]; /* place: 0 none yet, 1 small, 2 main */
};

/* Lists 0 and 1 share their owner and size. */
static const uint32_t owner_of[LISTS] = {5, 5, 5, 6}, size_of[LISTS] = {100, 100, 300, 100};

static uint32_t group_of(uint32_t block)
{
    uint32_t list = block % LISTS;

    return list == 1 ? 0 : list;
}

static void drop_from(uint32_t *array, uint32_t *length, uint32_t value)
{
    for (uint32_t i = 0; i < *length; i++) {
        if (array[i] != value)
            continue;
        memmove(array + i, array + i + 1, (*length - i - 1) * sizeof *array);
        --*length;
        return;
    }
}

/* Taken out of the middle its place still counts. */
static bool ghost_take(struct model *m, uint32_t block)
{
    for (uint32_t i = 0; i < m->ghost_count[group_of(block)]; i++) {
        uint32_t *ghost = &m->ghosts[group_of(block)][i];

        if (*ghost != block)
            continue;
        *ghost = BLOCKS;
        return true;
    }
    return false;
}

static void model_push(struct model *m, uint32_t block, uint32_t place)
{
    uint32_t group = group_of(block);

    m->place[block] = place;
    m->in[block] = true;
    m->queued_at[block] = ++m->now;
    m->queue[group][place - 1][m->length[group][place - 1]++] = block;
}

static void model_unlink(struct model *m, uint32_t block)
{
    uint32_t group = group_of(block), place = m->place[block] - 1;

    if (m->in[block])
        drop_from(m->queue[group][place], &m->length[group][place], block);
    m->in[block] = false;
}

static void model_add(struct model *m, uint32_t block)
{
    uint32_t place = m->place[block];

    m->listed[block] = true;
    if (m->in[block])
        return;
    if (m->policy == KVD_EVICT_LRU) {
        place = 2;
    } else if (place == 0) {
        place = ghost_take(m, block) ? 2 : 1;
    }
    model_push(m, block, place);
}

static void model_ghost(struct model *m, uint32_t block)
{
    uint32_t group = group_of(block), most = m->length[group][1];

    ghost_take(m, block);
    while (m->ghost_count[group] && m->ghost_count[group] >= most)
        memmove(m->ghosts[group], m->ghosts[group] + 1,
                --m->ghost_count[group] * sizeof m->ghosts[group][0]);
    if (most)
        m->ghosts[group][m->ghost_count[group]++] = block;
}

/* The block at the old end that goes, or BLOCKS when it was passed over. */
static uint32_t model_step(struct model *m, uint32_t group)
{
    uint32_t small = m->length[group][0], main = m->length[group][1], block;
    bool first = m->policy == KVD_EVICT_S3FIFO && (main == 0 || small * 4 > small + main);

    block = m->queue[group][first ? 0 : 1][0];
    model_unlink(m, block);
    if (!m->listed[block])
        return BLOCKS;
    if (m->policy == KVD_EVICT_S3FIFO && m->uses[block] >= (first ? 2u : 1u)) {
        m->uses[block] = first ? 0 : m->uses[block] - 1;
        model_push(m, block, 2);
        return BLOCKS;
    }
    if (first)
        model_ghost(m, block);
    m->listed[block] = false;
    return block;
}

static uint32_t model_choose(struct model *m, uint32_t owner, uint32_t size)
{
    for (int wanted = 1; wanted >= 0; wanted--) {
        for (;;) {
            uint32_t best = LISTS, block = BLOCKS;
            uint64_t age = UINT64_MAX;

            for (uint32_t i = 0; i < BLOCKS; i++) {
                uint32_t group = group_of(i);

                if (m->in[i] && owner_of[group] == owner && (size_of[group] == size) == wanted &&
                    m->queued_at[i] < age) {
                    age = m->queued_at[i];
                    best = group;
                }
            }
            if (best == LISTS)
                break;
            while (block == BLOCKS && m->length[best][0] + m->length[best][1])
                block = model_step(m, best);
            if (block != BLOCKS)
                return block;
        }
    }
    return BLOCKS;
}

/* Out of the store: the descriptor is zeroed before it is used again. */
static void forget(struct model *m, uint32_t i)
{
    m->place[i] = m->uses[i] = 0;
    m->known[i] = false;
    memset(&blocks[i], 0, sizeof blocks[i]);
    memcpy(blocks[i].key.bytes, &i, sizeof i);
}

static void random_op(struct model *m, struct rng *rng)
{
    uint32_t i = rng_below(rng, BLOCKS), op = rng_below(rng, 100);

    if (op < 30 && !m->listed[i]) { /* stored, or its last reference goes */
        m->known[i] = true;
        kvd_evict_add(&evict, i % LISTS, &blocks[i]);
        model_add(m, i);
    } else if (op < 55 && m->known[i]) {
        kvd_evict_use(&evict, &blocks[i]);
        if (m->policy == KVD_EVICT_LRU && m->in[i]) {
            model_unlink(m, i);
            model_push(m, i, 2);
        }
        m->uses[i] += m->uses[i] < 3;
    } else if (op < 75 && m->listed[i]) {
        kvd_evict_hold(&evict, &blocks[i]);
        m->listed[i] = false;
        if (m->policy == KVD_EVICT_LRU)
            model_unlink(m, i);
    } else if (op < 78 && m->known[i]) {
        kvd_evict_remove(&evict, &blocks[i]);
        model_unlink(m, i);
        m->listed[i] = false;
        forget(m, i);
    } else if (op >= 78) {
        uint32_t list = rng_below(rng, LISTS);
        struct kvd_block *chosen = kvd_evict_choose(&evict, owner_of[list], size_of[list]);
        uint32_t expected = model_choose(m, owner_of[list], size_of[list]);

        assert_ptr_equal(chosen, expected < BLOCKS ? &blocks[expected] : NULL);
        if (chosen)
            forget(m, expected);
    }
}

static void both_agree_with_the_model(void **state)
{
    static struct model m;
    struct rng rng = rng_make(rng_seed(8));

    (void)state;
    for (int policy = KVD_EVICT_S3FIFO; policy <= KVD_EVICT_LRU; policy++) {
        begin((enum kvd_evict_policy)policy);
        memset(&m, 0, sizeof m);
        m.policy = (enum kvd_evict_policy)policy;
        for (uint32_t list = 0; list < LISTS; list++)
            kvd_evict_list_set(&evict, list, owner_of[list], size_of[list]);
        for (int op = 0; op < OPS; op++) {
            uint32_t listed = 0;

            random_op(&m, &rng);
            for (uint32_t i = 0; i < BLOCKS; i++)
                listed += m.listed[i];
            assert_int_equal(evict.listed, listed);
        }
    }
}

#define TEST(name) cmocka_unit_test_teardown(name, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_oldest_goes_first),
        TEST(the_wanted_size_is_preferred),
        TEST(tenants_do_not_pay_for_each_other),
        TEST(a_scan_passes_through),
        TEST(what_comes_back_stays),
        TEST(both_agree_with_the_model),
    };
    return cmocka_run_group_tests_name("evict", tests, NULL, NULL);
}
