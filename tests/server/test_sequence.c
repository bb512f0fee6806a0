/* Bookkeeping of sequences: queues, positions, tails, forks, handles. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "server/core/limits.h"
#include "server/store/sequence.h"
#include "support/rng.h"
#include "support/store_rig.h"

static struct store_rig rig;
static struct kvd_sequences sequences;
static struct kvd_space *space;
static char text[256];

static void setup(uint64_t pool_bytes)
{
    store_open(&rig, pool_bytes);
    space = store_space(&rig, 0, "a");
    assert_int_equal(kvd_sequences_open(&sequences, &rig.blocks, 8, 5), KVARN_OK);
}

static void teardown(void)
{
    kvd_sequences_close(&sequences);
    assert_int_equal(space->sequences, 0);
    store_close(&rig);
}

static struct kvd_sequence *fresh(void)
{
    struct kvd_sequence *sequence;

    assert_int_equal(kvd_sequence_new(&sequences, 1, space, NULL, 0, &sequence), KVARN_OK);
    return sequence;
}

static void test_queue(void **state)
{
    struct kvd_seq_wait a = {0}, b = {0}, c = {0}, again = {0};
    struct kvd_sequence *s, *found;
    int x, y, z;

    (void)state;
    setup(16 << 20);
    s = fresh();
    assert_true(kvd_sequence_enter(s, &a, &x));
    assert_false(kvd_sequence_enter(s, &again, &x));
    assert_true(kvd_sequence_enter(s, &b, &y));
    assert_true(kvd_sequence_enter(s, &c, &z));
    assert_true(kvd_seq_wait_first(&a));
    assert_false(kvd_seq_wait_first(&b));
    assert_null(kvd_sequence_leave(&sequences, &b)); /* from the middle: nobody comes to the head */
    assert_ptr_equal(kvd_sequence_leave(&sequences, &a), &z);
    assert_null(kvd_sequence_leave(&sequences, &a)); /* not in a queue any more */
    kvd_sequence_give(&sequences, s);                /* c works on it: doomed, not gone */
    assert_int_equal(sequences.count, 1);
    assert_int_equal(kvd_sequence_find(&sequences, 1, space, s->id, &found), KVARN_STALE);
    assert_null(kvd_sequence_leave(&sequences, &c));
    assert_int_equal(sequences.count, 0);
    teardown();
}

static void test_tail(void **state)
{
    struct kvd_sequence *s, *child;
    struct kvd_block *block;

    (void)state;
    setup(16 << 20);
    s = fresh();
    assert_int_equal(kvd_sequence_check_write(s, 0, 2, 0, 200, text, sizeof text), KVARN_OK);
    assert_int_equal(kvd_sequence_reserve(&sequences, s, 200), KVARN_OK);
    assert_int_equal(s->block_count, 4);
    kvd_sequence_wrote(s, &(struct kvd_seq_write){0, 1, 0, 200}, true);
    assert_int_equal(kvd_sequence_check_commit(s, 1, text, sizeof text), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(text, "layer 1 has only 0 rows"));
    kvd_sequence_wrote(s, &(struct kvd_seq_write){1, 1, 0, 200}, true);
    /* a write that failed takes back what stood there */
    kvd_sequence_wrote(s, &(struct kvd_seq_write){1, 1, 150, 50}, false);
    assert_int_equal(s->written[1], 150);
    assert_int_equal(kvd_sequence_check_commit(s, 150, text, sizeof text), KVARN_OK);
    /* rewriting a shorter continuation cuts the longer one off */
    kvd_sequence_wrote(s, &(struct kvd_seq_write){0, 2, 100, 10}, true);
    assert_int_equal(s->written[0], 110);
    assert_int_equal(kvd_block_take(&rig.blocks, space, KVARN_BLOCK_TILE, &block), KVARN_OK);
    kvd_sequence_replace(&sequences, s, 0, block);
    kvd_sequence_advance(&sequences, s, 70);
    assert_int_equal(s->committed, 70);
    assert_int_equal(s->block_count, 2); /* two tail slots without rows went */
    assert_int_equal(kvd_sequence_fork(&sequences, s, &child), KVARN_OK);
    assert_ptr_equal(child->blocks[0], s->blocks[0]);
    assert_ptr_not_equal(child->blocks[1], s->blocks[1]);
    assert_int_equal(child->written[0], 110);
    assert_int_equal(s->blocks[0]->references, 2);
    assert_int_equal(rig.blocks.live, 3);
    teardown();
}

static void wrote(struct kvd_sequence *s, uint32_t layer, uint32_t position, uint32_t tokens)
{
    assert_int_equal(kvd_sequence_check_write(s, layer, 1, position, tokens, text, sizeof text),
                     KVARN_OK);
    kvd_sequence_wrote(s, &(struct kvd_seq_write){layer, 1, position, tokens}, true);
}

static kvarn_status may_commit(const struct kvd_sequence *s, uint32_t tokens)
{
    return kvd_sequence_check_commit(s, tokens, text, sizeof text);
}

/* Drafts layer by layer: rows of two continuations never count together. */
static void test_continuations(void **state)
{
    struct kvd_sequence *s;

    (void)state;
    setup(16 << 20);
    s = fresh();
    wrote(s, 0, 0, 4);
    wrote(s, 1, 0, 4);
    wrote(s, 1, 0, 4); /* the answer was lost: the same again */
    assert_int_equal(may_commit(s, 4), KVARN_OK);
    kvd_sequence_advance(&sequences, s, 2);
    /* the next draft begins over what was not accepted */
    wrote(s, 0, 2, 4);
    assert_int_equal(may_commit(s, 1), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(text, "layer 1 has only 0 rows"));
    wrote(s, 0, 2, 4);
    wrote(s, 1, 2, 3);
    assert_int_equal(may_commit(s, 4), KVARN_INVALID_SHAPE);
    assert_int_equal(may_commit(s, 3), KVARN_OK);
    /* nothing was accepted: the same place anew */
    wrote(s, 0, 2, 4);
    assert_int_equal(may_commit(s, 1), KVARN_INVALID_SHAPE);
    wrote(s, 1, 2, 4);
    assert_int_equal(may_commit(s, 4), KVARN_OK);
    /* a draft that fails in its first layer */
    kvd_sequence_wrote(s, &(struct kvd_seq_write){0, 1, 3, 4}, false);
    wrote(s, 0, 3, 4);
    assert_int_equal(may_commit(s, 1), KVARN_OK);
    assert_int_equal(may_commit(s, 2), KVARN_INVALID_SHAPE);
    /* and one that only goes on keeps everything */
    wrote(s, 1, 3, 4);
    wrote(s, 0, 7, 1);
    assert_int_equal(may_commit(s, 5), KVARN_OK);
    teardown();
}

static void test_bounds(void **state)
{
    struct kvd_sequence *s;

    (void)state;
    setup(16 << 20);
    s = fresh();
    assert_int_equal(kvd_sequence_check_write(s, 0, 2, 1, 1, text, sizeof text),
                     KVARN_INVALID_SHAPE);
    assert_int_equal(
        kvd_sequence_check_write(s, 0, 2, UINT64_MAX - 1, UINT32_MAX, text, sizeof text),
        KVARN_INVALID_SHAPE);
    assert_int_equal(
        kvd_sequence_check_write(s, 0, 2, 0, KVD_PENDING_TOKENS_MAX, text, sizeof text), KVARN_OK);
    assert_int_equal(kvd_sequence_check_write(s, 0, 2, 0, UINT32_MAX, text, sizeof text),
                     KVARN_TOO_LARGE);
    s->committed = s->written[0] = s->written[1] = KVD_SEQUENCE_TOKENS_MAX - 1;
    assert_int_equal(kvd_sequence_check_write(s, 0, 2, s->committed, 2, text, sizeof text),
                     KVARN_TOO_LARGE);
    s->committed = 0;
    assert_int_equal(kvd_sequence_check_commit(s, UINT32_MAX, text, sizeof text),
                     KVARN_INVALID_SHAPE);
    for (int i = 0; i < 7; i++)
        fresh();
    assert_int_equal(kvd_sequence_new(&sequences, 1, space, NULL, 0, &s), KVARN_RETRY);
    kvd_sequences_conn_gone(&sequences, 2);
    assert_int_equal(sequences.count, 8);
    kvd_sequences_conn_gone(&sequences, 1);
    assert_int_equal(sequences.count, 0);
    teardown();
}

/* No room for the tail: what was taken stays the sequence's and goes with it. */
static void test_no_space(void **state)
{
    struct kvd_sequence *s;

    (void)state;
    setup(1 << 20);
    s = fresh();
    assert_int_equal(kvd_sequence_reserve(&sequences, s, 8000), KVARN_NO_SPACE);
    assert_true(s->block_count > 4);
    kvd_sequence_give(&sequences, s);
    assert_int_equal(rig.blocks.live, 0);
    teardown();
}

/* Handles of sequences that come and go never name another one. */
static void test_handles(void **state)
{
    struct rng rng = rng_make(rng_seed(6));
    uint64_t live[8] = {0}, old[64] = {0};
    struct kvd_sequence *s;

    (void)state;
    setup(16 << 20);
    for (int i = 0; i < 100000; i++) {
        uint32_t slot = rng_below(&rng, 8);

        if (!live[slot]) {
            live[slot] = fresh()->id;
        } else {
            assert_int_equal(kvd_sequence_find(&sequences, 1, space, live[slot], &s), KVARN_OK);
            assert_int_equal(s->id, live[slot]);
            assert_int_equal(kvd_sequence_find(&sequences, 2, space, live[slot], &s),
                             KVARN_NOT_FOUND);
            kvd_sequence_find(&sequences, 1, space, live[slot], &s);
            kvd_sequence_give(&sequences, s);
            old[rng_below(&rng, 64)] = live[slot];
            live[slot] = 0;
        }
        slot = rng_below(&rng, 64);
        if (old[slot])
            assert_int_equal(kvd_sequence_find(&sequences, 1, space, old[slot], &s), KVARN_STALE);
    }
    teardown();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue),   cmocka_unit_test(test_tail),
        cmocka_unit_test(test_bounds),  cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_handles), cmocka_unit_test(test_continuations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
