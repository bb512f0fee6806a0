/* The requests of kvarnctl bench: their inputs, their keys, and starting one. */
#include "client/ctl/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STORE_BYTES_MAX = 8 << 20 };

/* ---- inputs */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A sum of four uniform numbers, nearly normal with deviation 1, as an f16. */
static uint16_t random_half(uint64_t *state)
{
    uint64_t bits = next_random(state);
    int sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (int)(bits >> (16 * i) & 0xffff) - 32768;
    float value = (float)sum * (1.0f / 37837.0f);
    uint32_t raw;
    memcpy(&raw, &value, sizeof raw);
    uint32_t sign = raw >> 16 & 0x8000, exponent = raw >> 23 & 0xff;
    if (exponent < 113) /* below the smallest normal f16 */
        return (uint16_t)sign;
    return (uint16_t)(sign | (exponent - 112) << 10 | (raw >> 13 & 0x3ff));
}

static void *random_rows(size_t bytes, uint64_t *state)
{
    uint16_t *rows = malloc(bytes ? bytes : 1);

    for (size_t i = 0; rows && i < bytes / sizeof *rows; i++)
        rows[i] = random_half(state);
    return rows;
}

/* Of this process alone. */
kvarn_key bench_work_key(const struct bench_work *work, char kind, uint64_t number)
{
    const uint64_t process = (uint64_t)getpid();
    kvarn_key key = {{0}};

    memcpy(key.bytes, "kvarnctl", 7);
    key.bytes[7] = (uint8_t)kind;
    memcpy(key.bytes + 8, &process, sizeof process);
    memcpy(key.bytes + 16, &work->options->seed, sizeof work->options->seed);
    memcpy(key.bytes + 24, &number, sizeof number);
    return key;
}

bool bench_work_make(struct bench_work *work, const struct bench_options *options)
{
    const kvarn_preset *preset = kvarn_preset_find(options->preset);

    *work = (struct bench_work){.options = options, .group = preset->group};
    work->blocks = (options->context + preset->group - 1) / preset->group;
    size_t tokens = (size_t)work->blocks * preset->group;
    work->rows_bytes = (size_t)options->layers * tokens * options->kv_heads * options->head_dim * 2;
    work->q_bytes = (size_t)options->q_heads * options->head_dim * 2;
    work->keys = calloc(work->blocks, sizeof *work->keys);
    work->kinds = calloc(work->blocks, sizeof *work->kinds);
    work->results = calloc(work->blocks, sizeof *work->results);
    if (!work->keys || !work->kinds || !work->results)
        return false;
    for (uint32_t i = 0; i < work->blocks; i++) {
        work->keys[i] = bench_work_key(work, 'c', i);
        /* As an engine would: the sink stays exact. */
        work->kinds[i] = i * preset->group < KVARN_SINK_TOKENS && options->op != BENCH_IMPORT
                             ? KVARN_BLOCK_EXACT
                             : KVARN_BLOCK_TILE;
    }
    return true;
}

bool bench_work_fill(struct bench_work *work)
{
    uint64_t state = work->options->seed * 0x9e3779b97f4a7c15u + 1;

    if (work->options->op == BENCH_PING)
        return true;
    work->k = random_rows(work->rows_bytes, &state);
    work->v = random_rows(work->rows_bytes, &state);
    work->q = random_rows(work->q_bytes, &state);
    return work->k && work->v && work->q;
}

void bench_work_free(struct bench_work *work)
{
    free(work->keys);
    free(work->kinds);
    free(work->results);
    free(work->k);
    free(work->v);
    free(work->q);
    free(work->exported);
}

/* ---- connections */

kvarn_status bench_client_open(const struct bench_work *work, struct bench_client *client)
{
    const struct bench_options *options = work->options;
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;

    if (options->op == BENCH_PING)
        return KVARN_OK;
    space.model = "kvarnctl-bench";
    space.layers = options->layers;
    space.kv_heads = options->kv_heads;
    space.head_dim = options->head_dim;
    space.dtype = KVARN_F16;
    space.preset = options->preset;
    kvarn_status status = kvarn_open_space(client->client, &space);
    if (status != KVARN_OK)
        return status;
    client->space = space.space;
    client->tile_bytes = space.tile_block_bytes;
    client->exact_bytes = space.exact_block_bytes;
    client->keys = calloc(work->blocks, sizeof *client->keys);
    if (options->op == BENCH_DECOMPRESS) {
        client->k = malloc(work->rows_bytes);
        client->v = malloc(work->rows_bytes);
    } else if (options->op == BENCH_ATTEND) {
        client->k = malloc((size_t)options->q_heads * options->head_dim * sizeof(float));
        client->lse = malloc(options->q_heads * sizeof(float));
    }
    return KVARN_OK;
}

void bench_client_close(struct bench_client *client)
{
    kvarn_call_free(&client->call);
    kvarn_close(&client->client);
    free(client->keys);
    free(client->k);
    free(client->v);
    free(client->lse);
}

/* ---- the stored context */

/* In pieces that any daemon takes. All layers of a block travel together, so a piece is a view of
 * the whole tensor with strides. */
static kvarn_status store_piece(struct bench_work *work, struct bench_client *client,
                                uint32_t first, uint32_t count)
{
    const struct bench_options *options = work->options;
    const uint64_t row = (uint64_t)options->head_dim * 2, token = options->kv_heads * row;
    const uint64_t block = work->group * token;
    uint8_t *k = malloc((size_t)((uint64_t)options->layers * count * block));
    uint8_t *v = malloc((size_t)((uint64_t)options->layers * count * block));
    kvarn_compress_args args = KVARN_COMPRESS_INIT;

    for (uint32_t layer = 0; k && v && layer < options->layers; layer++) {
        size_t from = (size_t)((layer * (uint64_t)work->blocks + first) * block);
        size_t to = (size_t)(layer * (uint64_t)count * block);
        memcpy(k + to, (const uint8_t *)work->k + from, (size_t)(count * block));
        memcpy(v + to, (const uint8_t *)work->v + from, (size_t)(count * block));
    }
    args.space = client->space;
    args.keys = work->keys + first;
    args.kinds = work->kinds + first;
    args.count = count;
    args.k = k;
    args.v = v;
    kvarn_status status = kvarn_compress(client->client, &args);
    free(k);
    free(v);
    if (status == KVARN_OK && args.stored < count)
        return KVARN_NO_SPACE;
    return status;
}

static kvarn_status export_context(struct bench_work *work, struct bench_client *client)
{
    kvarn_export_args args = KVARN_EXPORT_INIT;

    work->exported = malloc(2 * work->rows_bytes); /* tiles are smaller than rows */
    args.space = client->space;
    args.keys = work->keys;
    args.count = work->blocks;
    args.bytes = work->exported;
    args.bytes_capacity = 2 * work->rows_bytes;
    args.results = work->results;
    kvarn_status status = kvarn_export(client->client, &args);
    work->exported_bytes = args.bytes_used;
    work->origin = args.origin;
    return status;
}

kvarn_status bench_work_store(struct bench_work *work, struct bench_client *client)
{
    const enum bench_op op = work->options->op;

    if (op == BENCH_PING || op == BENCH_COMPRESS)
        return KVARN_OK;
    size_t block_bytes = 2 * work->rows_bytes / work->blocks;
    uint32_t piece = block_bytes < STORE_BYTES_MAX ? (uint32_t)(STORE_BYTES_MAX / block_bytes) : 1;
    for (uint32_t first = 0; first < work->blocks; first += piece) {
        uint32_t count = work->blocks - first < piece ? work->blocks - first : piece;
        if (ctl_interrupted)
            return KVARN_CANCELLED;
        kvarn_status status = store_piece(work, client, first, count);
        if (status != KVARN_OK)
            return status;
    }
    return op == BENCH_IMPORT ? export_context(work, client) : KVARN_OK;
}

uint64_t bench_work_pool_bytes(const struct bench_work *work, const struct bench_client *client)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; work->options->op != BENCH_PING && i < work->blocks; i++)
        bytes += work->options->op != BENCH_COMPRESS && work->kinds[i] == KVARN_BLOCK_EXACT
                     ? client->exact_bytes
                     : client->tile_bytes;
    return bytes;
}

/* ---- one request */

static void fresh_keys(struct bench_work *work, struct bench_client *client)
{
    for (uint32_t i = 0; i < work->blocks; i++)
        client->keys[i] = bench_work_key(work, 'f', work->fresh++);
}

static kvarn_status start_compress(struct bench_work *work, struct bench_client *client)
{
    kvarn_compress_args *args = &client->args.compress;

    fresh_keys(work, client);
    *args = (kvarn_compress_args)KVARN_COMPRESS_INIT;
    args->space = client->space;
    args->keys = client->keys;
    args->count = work->blocks;
    args->k = work->k;
    args->v = work->v;
    return kvarn_compress_start(client->client, args, &client->call);
}

static kvarn_status start_decompress(struct bench_work *work, struct bench_client *client)
{
    kvarn_decompress_args *args = &client->args.decompress;

    *args = (kvarn_decompress_args)KVARN_DECOMPRESS_INIT;
    args->space = client->space;
    args->keys = work->keys;
    args->count = work->blocks;
    args->k = client->k;
    args->v = client->v;
    return kvarn_decompress_start(client->client, args, &client->call);
}

static kvarn_status start_attend(struct bench_work *work, struct bench_client *client)
{
    kvarn_attend_args *args = &client->args.attend;

    *args = (kvarn_attend_args)KVARN_ATTEND_INIT;
    args->space = client->space;
    args->layer = (uint32_t)(work->attended++ % work->options->layers);
    args->keys = work->keys;
    args->count = work->blocks;
    args->query.q_heads = work->options->q_heads;
    args->q_tokens = 1;
    args->q = work->q;
    args->out = client->k;
    args->lse = client->lse;
    return kvarn_attend_start(client->client, args, &client->call);
}

static kvarn_status start_import(struct bench_work *work, struct bench_client *client)
{
    kvarn_import_args *args = &client->args.import;

    fresh_keys(work, client);
    *args = (kvarn_import_args)KVARN_IMPORT_INIT;
    args->space = client->space;
    args->keys = client->keys;
    args->blocks = work->results;
    args->count = work->blocks;
    args->bytes = work->exported;
    args->bytes_count = work->exported_bytes;
    args->origin = &work->origin;
    return kvarn_import_blocks_start(client->client, args, &client->call);
}

kvarn_status bench_work_start(struct bench_work *work, struct bench_client *client)
{
    switch (work->options->op) {
    case BENCH_COMPRESS:
        return start_compress(work, client);
    case BENCH_DECOMPRESS:
        return start_decompress(work, client);
    case BENCH_ATTEND:
        return start_attend(work, client);
    case BENCH_IMPORT:
        return start_import(work, client);
    case BENCH_LOOKUP:
        client->args.blocks = (kvarn_blocks_args)KVARN_BLOCKS_INIT;
        client->args.blocks.space = client->space;
        client->args.blocks.keys = work->keys;
        client->args.blocks.count = work->blocks;
        return kvarn_lookup_start(client->client, &client->args.blocks, &client->call);
    case BENCH_PING:
    case BENCH_OPS:
        break;
    }
    client->args.ping = (kvarn_ping_args)KVARN_PING_INIT;
    return kvarn_ping_start(client->client, &client->args.ping, &client->call);
}

uint64_t bench_work_bytes(const struct bench_work *work)
{
    const struct bench_options *options = work->options;

    switch (options->op) {
    case BENCH_COMPRESS:
    case BENCH_DECOMPRESS:
        return 2 * work->rows_bytes;
    case BENCH_ATTEND: /* q, f32 output and LSE, keys */
        return work->q_bytes + (uint64_t)options->q_heads * (options->head_dim + 1) * 4 +
               (uint64_t)work->blocks * sizeof(kvarn_key);
    case BENCH_LOOKUP:
        return (uint64_t)work->blocks * (sizeof(kvarn_key) + 16);
    case BENCH_IMPORT:
        return work->exported_bytes;
    case BENCH_PING:
    case BENCH_OPS:
        break;
    }
    return 0;
}

uint64_t bench_work_tokens(const struct bench_work *work)
{
    return work->options->op == BENCH_PING ? 0 : (uint64_t)work->blocks * work->group;
}
