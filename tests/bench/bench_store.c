/* The store at scale: LOOKUP with 10 M keys indexed, what the index takes of memory, and the pool
 * at 95 % fill. Nothing of it touches a block's bytes, so a pool of 10 M slots is bookkeeping
 * alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/pool.h"
#include "support/rpc_rig.h"
#include "tests/bench/row.h"

enum { CHAIN = 256, SLOT = 1024, POOL_SLOTS = 1 << 20, CALLS = 2000 };

static kvarn_key *chain_keys(uint32_t first)
{
    static kvarn_key keys[CHAIN];

    for (uint32_t i = 0; i < CHAIN; i++) {
        struct rng rng = rng_make(first + i + 1);

        for (size_t word = 0; word < sizeof keys[i].bytes; word += 8) {
            uint64_t value = rng_next(&rng);

            memcpy(keys[i].bytes + word, &value, sizeof value);
        }
    }
    return keys;
}

static void fill(struct rig *rig, struct kvd_space *space, uint32_t count)
{
    struct kvd_blocks *blocks = &rig->service->blocks;
    struct kvd_block *block;

    for (uint32_t at = 0; at < count; at += CHAIN) {
        const kvarn_key *keys = chain_keys(at);

        for (uint32_t i = 0; i < CHAIN; i++) {
            if (kvd_block_claim(blocks, space, &keys[i], KVARN_BLOCK_TILE, &block) != KVARN_OK) {
                fprintf(stderr, "bench_store: block %u of %u was refused\n", at + i, count);
                exit(1);
            }
            kvd_block_publish(blocks, block, at);
            kvd_block_release(blocks, block);
        }
    }
}

/* One LOOKUP from the complete frame to the reply, as net calls it; the lease is given back outside
 * of the time. */
static double lookup_us(struct rig *rig, const struct rig_space *space, uint32_t first,
                        uint32_t *matched)
{
    struct kvw_blocks args = {.space = space->handle, .lease_ms = 1000};
    const kvarn_key *keys = chain_keys(first);
    uint8_t metadata[256];
    size_t bytes;
    double began, took;
    struct rig_call *call;

    args.block_count = CHAIN;
    bytes = kvw_blocks_encode(metadata, sizeof metadata, &args);
    rig->hold = true;
    began = bench_seconds();
    call = rig_start(rig, KVW_LOOKUP, metadata, bytes, keys, CHAIN * sizeof *keys);
    took = bench_seconds() - began;
    *matched = rig_blocks_reply(call).matched;
    rig_done(call);
    rig_free(call);
    kvd_service_conn_gone(rig->service, rig->conn_id);
    return took * 1e6;
}

static int bench_lookup(uint32_t count)
{
    static struct rig rig;
    struct rig_options options = {0};
    static double hits[CALLS], misses[CALLS];
    struct rig_space opened;
    struct kvd_space *space;
    struct kvd_pool *pool;
    struct rng rng = rng_make(5);
    char name[96];
    uint32_t matched;
    double bytes;
    int ok = 1;

    rig_open(&rig, &options);
    opened = rig_open_space(&rig, NULL);
    space = kvd_space_find(&rig.service->spaces, 0, opened.handle);
    if (kvd_pool_open(&pool, (uint64_t)count * space->tile_bytes * 21 / 20, 0, NULL, NULL))
        return 0;
    space->pool = pool;
    fill(&rig, space, count);
    for (int i = 0; i < CALLS; i++) {
        uint32_t first = rng_below(&rng, count / CHAIN) * CHAIN;

        hits[i] = lookup_us(&rig, &opened, first, &matched);
        if (matched != CHAIN)
            return 0;
        misses[i] = lookup_us(&rig, &opened, count + first, &matched);
        if (matched != 0)
            return 0;
    }
    snprintf(name, sizeof name, "LOOKUP of %d stored keys, %u indexed, p50", CHAIN, count);
    ok &= bench_row_print_share(
        &(struct bench_row){name, "us", bench_percentile(hits, CALLS, 0.5), 0, '<', 25}, 0);
    snprintf(name, sizeof name, "LOOKUP of %d absent keys, %u indexed, p50", CHAIN, count);
    ok &= bench_row_print_share(
        &(struct bench_row){name, "us", bench_percentile(misses, CALLS, 0.5), 0, '<', 25}, 0);
    bytes = (double)(space->index.capacity * sizeof(struct kvd_index_entry)) / count +
            sizeof(kvarn_key);
    ok &= bench_row_print_share(
        &(struct bench_row){"index of these, keys included", "bytes a block", bytes, 0, '<', 64},
        0);
    return ok;
}

/* Takes and gives in random places of a pool that is 95 % full. */
static int bench_pool(uint32_t rounds)
{
    uint64_t *offsets = calloc(POOL_SLOTS, sizeof *offsets);
    uint32_t held = POOL_SLOTS / 20 * 19;
    struct rng rng = rng_make(6);
    struct kvd_pool *pool;
    double began, took;

    if (!offsets || kvd_pool_open(&pool, (uint64_t)POOL_SLOTS * SLOT, 0, NULL, NULL))
        return 0;
    kvd_pool_linger(pool);
    for (uint32_t i = 0; i < held; i++)
        if (kvd_pool_take(pool, 0, SLOT, &offsets[i]))
            return 0;
    for (uint32_t i = 0; i < rounds / 4; i++) { /* scatters the free ones */
        uint32_t at = rng_below(&rng, held);

        kvd_pool_give(pool, offsets[at]);
        if (kvd_pool_take(pool, 0, SLOT, &offsets[at]))
            return 0;
    }
    began = bench_seconds();
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t at = rng_below(&rng, held);

        kvd_pool_give(pool, offsets[at]);
        if (kvd_pool_take(pool, 0, SLOT, &offsets[at]))
            return 0;
    }
    took = bench_seconds() - began;
    kvd_pool_close(&pool);
    free(offsets);
    return bench_row_print_share(&(struct bench_row){"pool, take or give at 95 % fill", "ns",
                                                     took / (2.0 * rounds) * 1e9, 0, '<', 100},
                                 0);
}

int main(int argc, char **argv)
{
    int quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    int ok = bench_pool(quick ? 1u << 21 : 1u << 23);

    return !(bench_lookup(quick ? 1u << 20 : 39063u * CHAIN) & ok);
}
