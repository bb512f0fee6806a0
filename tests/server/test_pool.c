/* The pool against a slow model that knows chunks only by what the interface tells: the first slot
 * of a chunk starts it, the growth of the reserved bytes is its size, the wipe call ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/limits.h"
#include "server/store/pool.h"
#include "support/rng.h"

enum { CHUNKS_MAX = 4096, SLOTS_MAX = 16384 };

struct model_chunk {
    uint64_t offset, bytes, slot_bytes, taken;
    uint32_t tenant;
};

struct model_slot {
    uint64_t offset, bytes;
    uint32_t chunk;
};

struct model {
    struct kvd_pool *pool;
    uint64_t capacity, unit, used, reserved;
    struct model_chunk chunks[CHUNKS_MAX];
    struct model_slot slots[SLOTS_MAX];
    uint32_t slot_count;
    uint64_t wiped_offset, wiped_bytes, wipes;
};

static void on_wipe(void *context, uint64_t offset, uint64_t bytes)
{
    struct model *m = context;
    m->wiped_offset = offset;
    m->wiped_bytes = bytes;
    m->wipes++;
}

static struct model *model_open(uint64_t capacity, uint64_t unit)
{
    struct model *m = calloc(1, sizeof(*m));
    assert_int_equal(kvd_pool_open(&m->pool, capacity, 0, on_wipe, m), KVARN_OK);
    m->capacity = kvd_pool_capacity_bytes(m->pool);
    m->unit = unit;
    assert_true(m->capacity <= capacity && m->capacity + unit > capacity);
    return m;
}

static void model_close(struct model *m)
{
    kvd_pool_close(&m->pool);
    assert_null(m->pool);
    free(m);
}

static uint64_t stored_bytes(uint64_t bytes)
{
    return bytes < 1024 ? 1024 : (bytes + 127) / 128 * 128;
}

/* May the pool say NO_SPACE? Only when no chunk of the class has room and no run of units is long
 * enough for one slot. */
static void check_no_space(const struct model *m, uint32_t tenant, uint64_t bytes)
{
    uint64_t stored = stored_bytes(bytes), need = (stored + m->unit - 1) / m->unit, run = 0;
    uint8_t *taken = calloc(m->capacity / m->unit, 1);

    for (uint32_t i = 0; i < CHUNKS_MAX; i++) {
        const struct model_chunk *c = &m->chunks[i];
        if (c->bytes == 0)
            continue;
        if (c->tenant == tenant && c->slot_bytes == stored)
            assert_int_equal(c->taken, c->bytes / stored);
        memset(taken + c->offset / m->unit, 1, c->bytes / m->unit);
    }
    for (uint64_t u = 0; u < m->capacity / m->unit; u++) {
        run = taken[u] ? 0 : run + 1;
        assert_true(run < need);
    }
    free(taken);
}

static uint32_t chunk_holding(const struct model *m, uint64_t offset)
{
    for (uint32_t i = 0; i < CHUNKS_MAX; i++)
        if (m->chunks[i].bytes > 0 && offset >= m->chunks[i].offset &&
            offset < m->chunks[i].offset + m->chunks[i].bytes)
            return i;
    return CHUNKS_MAX;
}

static void model_new_chunk(struct model *m, uint64_t offset, uint64_t bytes, uint32_t tenant,
                            uint64_t stored)
{
    uint32_t free_chunk = 0;
    while (m->chunks[free_chunk].bytes > 0)
        free_chunk++;
    assert_true(free_chunk < CHUNKS_MAX);
    assert_int_equal(offset % m->unit, 0);
    assert_int_equal(bytes % m->unit, 0);
    assert_true(bytes > 0 && offset + bytes <= m->capacity);
    for (uint32_t i = 0; i < CHUNKS_MAX; i++)
        assert_true(m->chunks[i].bytes == 0 || offset + bytes <= m->chunks[i].offset ||
                    m->chunks[i].offset + m->chunks[i].bytes <= offset);
    m->chunks[free_chunk] = (struct model_chunk){
        .offset = offset, .bytes = bytes, .slot_bytes = stored, .tenant = tenant};
}

static kvarn_status model_take(struct model *m, uint32_t tenant, uint64_t bytes)
{
    uint64_t offset = 1, stored = stored_bytes(bytes);
    kvarn_status status = kvd_pool_take(m->pool, tenant, bytes, &offset);

    if (status == KVARN_NO_SPACE) {
        assert_int_equal(offset, 1);
        check_no_space(m, tenant, bytes);
        return status;
    }
    assert_int_equal(status, KVARN_OK);
    assert_int_equal(offset % 128, 0);
    if (kvd_pool_reserved_bytes(m->pool) != m->reserved) {
        uint64_t grown = kvd_pool_reserved_bytes(m->pool) - m->reserved;
        model_new_chunk(m, offset, grown, tenant, stored);
        m->reserved += grown;
    }
    uint32_t in = chunk_holding(m, offset);
    assert_true(in < CHUNKS_MAX);
    struct model_chunk *chunk = &m->chunks[in];
    assert_int_equal(chunk->tenant, tenant);
    assert_int_equal(chunk->slot_bytes, stored);
    assert_true(offset + stored <= chunk->offset + chunk->bytes);
    assert_int_equal((offset - chunk->offset) % stored, 0);
    for (uint32_t i = 0; i < m->slot_count; i++)
        assert_true(m->slots[i].offset != offset);
    chunk->taken++;
    m->used += stored;
    assert_int_equal(kvd_pool_used_bytes(m->pool), m->used);
    assert_true(m->slot_count < SLOTS_MAX);
    m->slots[m->slot_count++] = (struct model_slot){offset, stored, in};
    return KVARN_OK;
}

static void model_give(struct model *m, uint32_t at)
{
    struct model_slot slot = m->slots[at];
    struct model_chunk *chunk = &m->chunks[slot.chunk];
    uint64_t wipes = m->wipes;

    m->slots[at] = m->slots[--m->slot_count];
    kvd_pool_give(m->pool, slot.offset);
    m->used -= slot.bytes;
    if (--chunk->taken == 0) {
        assert_int_equal(m->wipes, wipes + 1);
        assert_int_equal(m->wiped_offset, chunk->offset);
        assert_int_equal(m->wiped_bytes, chunk->bytes);
        m->reserved -= chunk->bytes;
        chunk->bytes = 0;
    } else {
        assert_int_equal(m->wipes, wipes);
    }
    assert_int_equal(kvd_pool_used_bytes(m->pool), m->used);
    assert_int_equal(kvd_pool_reserved_bytes(m->pool), m->reserved);
}

static void agrees_with_the_model(void **state)
{
    (void)state;
    /* TILE and EXACT slots of small and large geometries, in bytes */
    static const uint64_t sizes[] = {600,    2816,    13824,   110592,  131072,
                                     442368, 1048576, 3538944, 4194304, 20000000};
    static const struct {
        uint64_t capacity, unit;
    } pools[] = {{3 << 20, 64 << 10}, {128 << 20, 2 << 20}, {(1 << 30) + 12345, 2 << 20}};
    uint64_t seed = rng_seed(20);

    for (uint32_t p = 0; p < 3; p++, seed++) {
        print_message("pool of %llu bytes, seed %llu\n", (unsigned long long)pools[p].capacity,
                      (unsigned long long)seed);
        struct rng rng = rng_make(seed);
        struct model *m = model_open(pools[p].capacity, pools[p].unit);
        uint32_t refused = 0;
        for (uint32_t op = 0; op < 34000; op++) {
            /* waves: fill, then drain, so that chunks come and go */
            uint32_t bias = (op / 1000) % 2 ? 35 : 65;
            uint64_t bytes = sizes[rng_below(&rng, 10)];
            if (m->slot_count == 0 || (rng_below(&rng, 100) < bias && m->slot_count < 1500)) {
                if (bytes <= m->capacity)
                    refused += model_take(m, rng_below(&rng, 3), bytes) != KVARN_OK;
            } else {
                model_give(m, rng_below(&rng, m->slot_count));
            }
        }
        assert_true(p > 0 || refused > 0);
        while (m->slot_count > 0)
            model_give(m, rng_below(&rng, m->slot_count));
        assert_int_equal(kvd_pool_used_bytes(m->pool), 0);
        assert_int_equal(kvd_pool_reserved_bytes(m->pool), 0);
        assert_int_equal(model_take(m, 9, m->capacity), KVARN_OK);
        assert_int_equal(kvd_pool_reserved_bytes(m->pool), m->capacity);
        model_give(m, 0);
        model_close(m);
    }
}

static void small_pool_has_many_chunks(void **state)
{
    (void)state;
    struct model *m = model_open(64 << 20, 2 << 20);
    uint32_t tenant = 0;
    while (model_take(m, tenant, 50000) == KVARN_OK)
        tenant++;
    assert_int_equal(tenant, 16);
    while (m->slot_count > 0)
        model_give(m, 0);
    model_close(m);
}

static void large_pool_has_full_chunks(void **state)
{
    (void)state;
    struct model *m = model_open(4ull << 30, 2 << 20);
    assert_int_equal(model_take(m, 0, 50000), KVARN_OK);
    assert_int_equal(m->reserved, KVD_CHUNK_BYTES);
    /* a slot larger than a chunk gets one of its own */
    assert_int_equal(model_take(m, 0, KVD_CHUNK_BYTES + 1), KVARN_OK);
    assert_int_equal(m->reserved, 2 * KVD_CHUNK_BYTES + KVD_CHUNK_ALIGN_BYTES);
    while (m->slot_count > 0)
        model_give(m, 0);
    model_close(m);
}

/* Memory that is made in large pieces: chunks keep to them, and waste little of them. */
static void large_units_are_used_well(void **state)
{
    enum { UNIT = 64 << 20, UNITS = 32 };
    static const struct {
        uint64_t slot_bytes;
        uint32_t units, slots; /* of a chunk */
    } table[] = {{1 << 20, 1, 64},     {2830000, 1, 23}, {18874368, 2, 7}, {41943040, 2, 3},
                 {UNIT / 2 + 1, 4, 7}, {UNIT, 1, 1},     {UNIT + 1, 8, 7}, {3 * (UNIT / 4), 3, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint64_t stored = stored_bytes(table[i].slot_bytes), offset = 0;
        struct kvd_pool *pool;

        assert_int_equal(kvd_pool_open(&pool, (uint64_t)UNITS * UNIT, UNIT, NULL, NULL), KVARN_OK);
        assert_int_equal(kvd_pool_capacity_bytes(pool), (uint64_t)UNITS * UNIT);
        for (uint32_t slot = 0; slot < table[i].slots; slot++) {
            assert_int_equal(kvd_pool_take(pool, 0, table[i].slot_bytes, &offset), KVARN_OK);
            assert_int_equal(offset, slot * stored);
        }
        assert_int_equal(kvd_pool_reserved_bytes(pool), (uint64_t)table[i].units * UNIT);
        assert_int_equal(kvd_pool_take(pool, 0, table[i].slot_bytes, &offset), KVARN_OK);
        assert_int_equal(offset, (uint64_t)table[i].units * UNIT);
        assert_int_equal(kvd_pool_take(pool, 1, table[i].slot_bytes, &offset), KVARN_OK);
        assert_int_equal(offset % UNIT, 0); /* another tenant, another piece */
        kvd_pool_close(&pool);
    }
}

static void bounds_are_told(void **state)
{
    (void)state;
    struct kvd_pool *pool = NULL;
    uint64_t offset;
    assert_int_equal(kvd_pool_open(&pool, 1000, 0, NULL, NULL), KVARN_TOO_LARGE);
    assert_null(pool);
    assert_int_equal(kvd_pool_open(&pool, 1 << 20, 0, NULL, NULL), KVARN_OK);
    assert_int_equal(kvd_pool_take(pool, 0, (1 << 20) + 1, &offset), KVARN_TOO_LARGE);
    assert_int_equal(kvd_pool_take(pool, 0, UINT64_MAX, &offset), KVARN_TOO_LARGE);
    assert_int_equal(kvd_pool_take(pool, 0, 1 << 20, &offset), KVARN_OK);
    assert_int_equal(kvd_pool_take(pool, 0, 1, &offset), KVARN_NO_SPACE);
    kvd_pool_give(pool, 0);
    kvd_pool_close(&pool);
}

/* Empty chunks stay with their tenant for a while; who needs their bytes gets them wiped. */
static void empty_chunks_linger(void **state)
{
    struct model *m = model_open(4 << 20, 64 * 1024);
    uint64_t first, again;

    (void)state;
    kvd_pool_linger(m->pool);
    assert_int_equal(kvd_pool_take(m->pool, 1, 4096, &first), KVARN_OK);
    kvd_pool_give(m->pool, first);
    assert_int_equal(m->wipes, 0);
    assert_int_equal(kvd_pool_take(m->pool, 1, 4096, &again), KVARN_OK);
    assert_int_equal(again, first);
    for (int i = 0; i < 10; i++)
        kvd_pool_trim(m->pool, 2); /* in use: not idle */
    assert_int_equal(m->wipes, 0);
    kvd_pool_give(m->pool, first);
    kvd_pool_trim(m->pool, 2);
    kvd_pool_trim(m->pool, 2);
    assert_int_equal(m->wipes, 0);
    kvd_pool_trim(m->pool, 2);
    assert_int_equal(m->wipes, 1);
    assert_int_equal(kvd_pool_reserved_bytes(m->pool), 0);
    /* another tenant wants everything: what lingers is wiped and handed out */
    assert_int_equal(kvd_pool_take(m->pool, 1, 4096, &first), KVARN_OK);
    kvd_pool_give(m->pool, first);
    assert_int_equal(kvd_pool_take(m->pool, 2, m->capacity, &first), KVARN_OK);
    assert_int_equal(m->wipes, 2);
    assert_int_equal(m->wiped_offset, 0);
    kvd_pool_give(m->pool, first);
    assert_int_equal(kvd_pool_used_bytes(m->pool), 0);
    model_close(m);
}

/* Chunks of one tenant end at its maximum, and where they would take what others are owed. */
static void shares_hold(void **state)
{
    struct kvd_pool *pool;
    uint64_t offset, unit, count = 0, capacity;
    kvarn_status status;

    (void)state;
    assert_int_equal(kvd_pool_open(&pool, 64 << 20, 0, NULL, NULL), KVARN_OK);
    capacity = kvd_pool_capacity_bytes(pool);
    unit = capacity / 16;
    assert_int_equal(kvd_pool_quota(pool, 1, 9 * unit, UINT64_MAX), KVARN_OK);
    assert_int_equal(kvd_pool_quota(pool, 2, 8 * unit, UINT64_MAX), KVARN_TOO_LARGE);
    assert_int_equal(kvd_pool_quota(pool, 2, UINT64_MAX, UINT64_MAX), KVARN_TOO_LARGE);
    assert_int_equal(kvd_pool_quota(pool, 2, 2 * unit, 3 * unit), KVARN_OK);
    while ((status = kvd_pool_take(pool, 0, unit / 4, &offset)) == KVARN_OK)
        count++;
    assert_int_equal(status, KVARN_QUOTA);
    assert_int_equal(count, 4 * (16 - 9 - 2));
    assert_int_equal(kvd_pool_tenant_bytes(pool, 0), 5 * unit);
    for (count = 0; (status = kvd_pool_take(pool, 2, unit / 4, &offset)) == KVARN_OK;)
        count++;
    assert_int_equal(status, KVARN_QUOTA); /* what is left is tenant 1's */
    assert_int_equal(count, 4 * 2);
    for (count = 0; (status = kvd_pool_take(pool, 1, unit / 4, &offset)) == KVARN_OK;)
        count++;
    assert_int_equal(status, KVARN_NO_SPACE);
    assert_int_equal(count, 4 * 9);
    assert_int_equal(kvd_pool_reserved_bytes(pool), capacity);
    kvd_pool_close(&pool);
}

/* Own empty chunks that linger count, until their bytes are wanted for another size. */
static void lingering_chunks_make_room_in_a_share(void **state)
{
    struct kvd_pool *pool;
    uint64_t offset;

    (void)state;
    assert_int_equal(kvd_pool_open(&pool, 64 << 20, 0, NULL, NULL), KVARN_OK);
    kvd_pool_linger(pool);
    assert_int_equal(kvd_pool_quota(pool, 1, 0, 4 << 20), KVARN_OK);
    assert_int_equal(kvd_pool_take(pool, 1, 4 << 20, &offset), KVARN_OK);
    assert_int_equal(kvd_pool_take(pool, 1, 4096, &offset), KVARN_QUOTA);
    kvd_pool_give(pool, offset);
    assert_int_equal(kvd_pool_tenant_bytes(pool, 1), 4 << 20);
    assert_int_equal(kvd_pool_take(pool, 1, 4096, &offset), KVARN_OK);
    assert_true(kvd_pool_tenant_bytes(pool, 1) <= 4 << 20);
    assert_int_equal(kvd_pool_take(pool, 1, 5 << 20, &offset), KVARN_QUOTA); /* more than it all */
    kvd_pool_close(&pool);
}

/* Random takes and gives of four tenants with shares: each stays within its own, and who has less
 * than its guarantee is never refused for want of bytes that others have. */
static void shares_hold_in_any_order(void **state)
{
    enum { UNITS = 64, TENANTS = 4, HELD = 4096 };
    static const uint64_t guaranteed[TENANTS] = {0, 10, 20, 4}, most[TENANTS] = {64, 12, 64, 4};
    static uint64_t held[HELD];
    struct rng rng = rng_make(rng_seed(17));
    uint32_t count = 0, refused = 0;
    struct kvd_pool *pool;
    uint64_t unit;

    (void)state;
    assert_int_equal(kvd_pool_open(&pool, 4 << 20, 0, NULL, NULL), KVARN_OK);
    unit = kvd_pool_capacity_bytes(pool) / UNITS;
    for (uint32_t i = 0; i < TENANTS; i++)
        assert_int_equal(kvd_pool_quota(pool, i, guaranteed[i] * unit, most[i] * unit), KVARN_OK);
    for (int op = 0; op < 200000; op++) {
        uint32_t tenant = rng_below(&rng, TENANTS), bias = op / 2000 % 2 ? 6 : 3;

        if (count < HELD && rng_below(&rng, 8) < bias) {
            kvarn_status status = kvd_pool_take(pool, tenant, 4096, &held[count]);

            count += status == KVARN_OK;
            refused += status != KVARN_OK;
            if (status != KVARN_OK)
                assert_true(kvd_pool_tenant_bytes(pool, tenant) >= guaranteed[tenant] * unit);
        } else if (count) {
            uint32_t at = rng_below(&rng, count);

            kvd_pool_give(pool, held[at]);
            held[at] = held[--count];
        }
        for (uint32_t i = 0; i < TENANTS; i++)
            assert_true(kvd_pool_tenant_bytes(pool, i) <= most[i] * unit);
    }
    assert_true(refused > 1000);
    kvd_pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_model),
        cmocka_unit_test(small_pool_has_many_chunks),
        cmocka_unit_test(large_pool_has_full_chunks),
        cmocka_unit_test(large_units_are_used_well),
        cmocka_unit_test(bounds_are_told),
        cmocka_unit_test(empty_chunks_linger),
        cmocka_unit_test(shares_hold),
        cmocka_unit_test(lingering_chunks_make_room_in_a_share),
        cmocka_unit_test(shares_hold_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
