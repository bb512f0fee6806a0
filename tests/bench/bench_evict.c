/* Hit ratios of S3-FIFO against LRU on generated traces, in the store as it is: pool, index,
 * blocks.
 *
 * A request is a chain of blocks, as the prefixes of prompts are: it looks the chain up, the
 * longest run from its head is what it need not compute, it stores the rest and opens a sequence
 * over all of them. The ratio is blocks found by blocks asked for. Three traces: zipf   documents
 * of 4 to 32 blocks behind one of 16 system prompts of 8; popularity ~ 1/rank chat   conversations
 * that come back with all they said before and 1 to 4 blocks more, 8 turns long in the mean, 1,500
 * of them at once, behind the same prompts scan   a hot set of a fifth of the pool, and between its
 * requests a flood of documents that nobody reads again; of the hot ones' blocks alone */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/block.h"
#include "server/store/pool.h"
#include "server/store/space.h"
#include "support/rng.h"
#include "support/store_rig.h"
#include "tests/bench/row.h"

enum {
    PROMPTS = 16,
    PROMPT = 8,
    CHAIN_MAX = 512,
    DOCUMENTS = 20000,
    CHATS = 1500,
    POOL_BLOCKS = 20000,
};

struct counts {
    uint64_t asked, found;
};

struct trace {
    struct store_rig rig;
    struct kvd_space *space;
    struct rng rng;
    struct counts counts, hot;
    double *popularity; /* [DOCUMENTS] sums */
    struct chat {
        uint64_t id;
        uint32_t blocks;
    } chats[CHATS];
    uint64_t next_id;
};

/* Block `at` of chain `id`; the first ones are those of its prompt. */
static kvarn_key key_of(uint64_t id, uint32_t at)
{
    struct rng rng;
    kvarn_key key;

    if (at < PROMPT)
        id = id % PROMPTS;
    rng = rng_make(id * 4096 + at + 1);
    for (size_t word = 0; word < sizeof key.bytes; word += 8) {
        uint64_t value = rng_next(&rng);

        memcpy(key.bytes + word, &value, sizeof value);
    }
    return key;
}

static void request(struct trace *trace, uint64_t id, uint32_t blocks, struct counts *counts)
{
    struct kvd_blocks *store = &trace->rig.blocks;
    struct kvd_block *held[CHAIN_MAX];
    uint32_t run = 0, count = 0;

    for (uint32_t i = 0; i < blocks; i++) {
        kvarn_key key = key_of(id, i);
        struct kvd_block *block = kvd_block_find(store, trace->space, &key);

        if (block && run == i)
            run = i + 1;
        if (block)
            kvd_block_hold(store, block);
        else if (kvd_block_claim(store, trace->space, &key, KVARN_BLOCK_TILE, &block) != KVARN_OK)
            break;
        else
            kvd_block_publish(store, block, i);
        held[count++] = block;
    }
    for (uint32_t i = 0; i < count; i++) {
        kvarn_key key = key_of(id, i);

        kvd_block_find(store, trace->space, &key);
    }
    while (count)
        kvd_block_release(store, held[--count]);
    counts->asked += blocks;
    counts->found += run;
}

static void zipf_step(struct trace *trace)
{
    double at = rng_unit(&trace->rng) * trace->popularity[DOCUMENTS - 1];
    uint32_t low = 0, high = DOCUMENTS - 1;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (trace->popularity[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    request(trace, low, PROMPT + 4 + low * 7 % 29, &trace->counts);
}

static void chat_step(struct trace *trace)
{
    struct chat *chat = &trace->chats[rng_below(&trace->rng, CHATS)];

    if (!chat->blocks || rng_below(&trace->rng, 8) == 0)
        *chat = (struct chat){++trace->next_id, PROMPT};
    chat->blocks += 1 + rng_below(&trace->rng, 4);
    if (chat->blocks > CHAIN_MAX)
        chat->blocks = CHAIN_MAX;
    request(trace, chat->id, chat->blocks, &trace->counts);
}

static void scan_step(struct trace *trace)
{
    /* 12 blocks of their own each: 333 of them are a fifth of the pool */
    if (rng_below(&trace->rng, 10) < 3)
        request(trace, rng_below(&trace->rng, POOL_BLOCKS / 60), PROMPT + 12, &trace->hot);
    else
        request(trace, 1000000 + ++trace->next_id, PROMPT + 64, &trace->counts);
}

static struct counts play(enum kvd_evict_policy policy, void (*step)(struct trace *),
                          uint32_t steps, struct counts *hot)
{
    static struct trace trace;

    memset(&trace, 0, sizeof trace);
    store_open_policy(&trace.rig, 1 << 20, policy);
    trace.space = store_space(&trace.rig, 0, "trace");
    kvd_pool_close(&trace.rig.pool);
    if (kvd_pool_open(&trace.rig.pool, POOL_BLOCKS * trace.space->tile_bytes, 0, NULL, NULL))
        exit(1);
    trace.space->pool = trace.rig.pool;
    trace.rng = rng_make(1);
    trace.popularity = calloc(DOCUMENTS, sizeof *trace.popularity);
    for (uint32_t i = 0; trace.popularity && i < DOCUMENTS; i++)
        trace.popularity[i] = (i ? trace.popularity[i - 1] : 0) + 1 / pow(i + 1, 0.9);
    for (uint32_t i = 0; trace.popularity && i < steps; i++) {
        if (i == steps / 4) /* the pool is warm from here on */
            trace.counts = trace.hot = (struct counts){0, 0};
        step(&trace);
    }
    free(trace.popularity);
    *hot = trace.hot;
    store_close(&trace.rig);
    return trace.counts;
}

static double ratio(const struct counts *counts)
{
    return counts->asked ? 100.0 * (double)counts->found / (double)counts->asked : 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*step)(struct trace *);
        uint32_t steps;
        int hot;
        double reach;
    } traces[] = {
        {"zipf, blocks found, S3-FIFO against LRU", zipf_step, 200000, 0, 1},
        {"chat, blocks found, S3-FIFO against LRU", chat_step, 100000, 0, 0.95},
        {"scan, hot blocks found, S3-FIFO against LRU", scan_step, 40000, 1, 1},
    };
    uint32_t part = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 4 : 1;
    int ok = 1;

    for (size_t i = 0; i < sizeof traces / sizeof traces[0]; i++) {
        struct counts hot[2], all[2];

        all[0] = play(KVD_EVICT_S3FIFO, traces[i].step, traces[i].steps / part, &hot[0]);
        all[1] = play(KVD_EVICT_LRU, traces[i].step, traces[i].steps / part, &hot[1]);
        ok &= bench_row_print(
            &(struct bench_row){traces[i].name, "%", ratio(traces[i].hot ? &hot[0] : &all[0]),
                                ratio(traces[i].hot ? &hot[1] : &all[1]), '>', traces[i].reach});
    }
    return !ok;
}
