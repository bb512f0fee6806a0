/* The decode worker: finds the prefix by key, then decodes layer by layer as an engine must: one
 * ATTEND per layer with that layer's new row of K and V, one COMMIT per token. What it gets is
 * measured against attention over the uncompressed rows, and beside the baselines over the same
 * tokens. */
#include "client/demo/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/demo/baseline.h"
#include "client/demo/report.h"

enum { PINGS = 2000, ROUNDS = 5 };

static float *widen(const uint16_t *half, size_t count)
{
    float *wide = malloc(count * sizeof *wide);

    for (size_t i = 0; wide != NULL && i < count; i++)
        wide[i] = demo_half(half[i]);
    return wide;
}

static int decode_init(struct demo_decode *run, struct demo_worker *worker)
{
    const struct demo_capture *c = &worker->capture;
    size_t rows = c->layers * c->tokens * c->kv_heads * c->dim;

    memset(run, 0, sizeof *run);
    run->worker = worker;
    run->first = worker->prefill_tokens;
    run->k = widen(c->k, rows);
    run->v = widen(c->v, rows);
    run->q = widen(c->q, c->layers * c->positions * c->q_heads * c->dim);
    run->exact = calloc(demo_answer_count(run), sizeof *run->exact);
    run->got = calloc(demo_answer_count(run), sizeof *run->got);
    run->scratch = calloc(c->tokens, sizeof *run->scratch);
    run->latency = calloc(c->positions * c->layers, sizeof *run->latency);
    if (run->k == NULL || run->v == NULL || run->q == NULL || run->exact == NULL ||
        run->got == NULL || run->scratch == NULL || run->latency == NULL) {
        fprintf(stderr, "kvarn-demo: out of memory\n");
        return -1;
    }
    return 0;
}

static void decode_free(struct demo_decode *run)
{
    free(run->k);
    free(run->v);
    free(run->q);
    free(run->exact);
    free(run->got);
    free(run->scratch);
    free(run->latency);
}

/* ------------------------------------------------------------------ through kvarnd */

/* Finds the prefix by key and makes a sequence over it. */
static kvarn_status open_sequence(struct demo_decode *run)
{
    struct demo_worker *worker = run->worker;
    kvarn_blocks_args find = KVARN_BLOCKS_INIT;
    kvarn_seq seq = {.position = KVARN_AT_END};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_status status;

    find.space = worker->space.space;
    find.keys = worker->keys;
    find.count = worker->whole_blocks;
    find.lease_ms = 10000;
    status = kvarn_lookup(worker->client, &find);
    if (status == KVARN_OK && find.matched != worker->whole_blocks) {
        fprintf(stderr, "kvarn-demo: the prefix has %zu blocks, kvarnd knows %zu of them\n",
                worker->whole_blocks, find.matched);
        return KVARN_NOT_FOUND;
    }
    if (status != KVARN_OK)
        return demo_fail(worker, "lookup", status);
    args.space = worker->space.space;
    args.seqs = &seq;
    args.count = 1;
    args.keys = worker->keys;
    args.key_count = worker->whole_blocks;
    status = kvarn_sequence_open(worker->client, &args);
    if (status != KVARN_OK)
        return demo_fail(worker, "sequence open", status);
    run->sequence = seq.sequence;
    /* The sequence holds the blocks now; the lease is not needed any longer. */
    status = kvarn_release(worker->client, &find);
    if (status != KVARN_OK)
        demo_fail(worker, "release", status);
    return status;
}

static kvarn_status commit(struct demo_decode *run, size_t from, size_t tokens)
{
    struct demo_worker *worker = run->worker;
    size_t group = worker->preset->group, block = from / group, end = (from + tokens) / group;
    kvarn_seq seq = {.sequence = run->sequence, .tokens = (uint32_t)tokens};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_status status;

    args.space = worker->space.space;
    args.seqs = &seq;
    args.count = 1;
    if (end > block) { /* blocks that fill up get the key that names their tokens */
        seq.keys = (uint32_t)(end - block);
        args.keys = &worker->keys[block];
        args.key_count = end - block;
    }
    status = kvarn_sequence_commit(worker->client, &args);
    if (status != KVARN_OK)
        demo_fail(worker, "commit", status);
    return status;
}

/* The rows of the prompt after its last whole block: the prefill host's tail, handed over as rows.
 */
static kvarn_status append_tail(struct demo_decode *run)
{
    struct demo_worker *worker = run->worker;
    const struct demo_capture *c = &worker->capture;
    size_t from = worker->whole_blocks * worker->preset->group, tokens = run->first - from;
    uint64_t row_bytes = (uint64_t)c->kv_heads * c->dim * sizeof(uint16_t);
    kvarn_strides strides = {
        .layer = c->tokens * row_bytes, .token = row_bytes, .head = c->dim * sizeof(uint16_t)};
    kvarn_seq seq = {
        .sequence = run->sequence, .position = KVARN_AT_END, .tokens = (uint32_t)tokens};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_status status;

    if (tokens == 0)
        return KVARN_OK;
    args.space = worker->space.space;
    args.seqs = &seq;
    args.count = 1;
    args.k = c->k + from * c->kv_heads * c->dim;
    args.v = c->v + from * c->kv_heads * c->dim;
    args.strides = &strides;
    status = kvarn_sequence_append(worker->client, &args);
    if (status != KVARN_OK)
        return demo_fail(worker, "append", status);
    return commit(run, from, tokens);
}

static kvarn_status attend_layer(struct demo_decode *run, size_t position, uint32_t layer)
{
    struct demo_worker *worker = run->worker;
    const struct demo_capture *c = &worker->capture;
    size_t row = (size_t)c->kv_heads * c->dim, q_row = (size_t)c->q_heads * c->dim;
    size_t token = run->first + position;
    kvarn_seq seq = {
        .sequence = run->sequence, .position = KVARN_AT_END, .q_tokens = 1, .tokens = 1};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    float lse[KVARN_MAX_GQA * 8];
    kvarn_status status;
    double begin;

    args.space = worker->space.space;
    args.seqs = &seq;
    args.count = 1;
    args.layer_begin = layer;
    args.k = c->k + (layer * c->tokens + token) * row;
    args.v = c->v + (layer * c->tokens + token) * row;
    args.q = c->q + (layer * c->positions + position) * q_row;
    args.query.q_heads = c->q_heads;
    args.out = run->got + (position * c->layers + layer) * q_row;
    args.lse = lse;
    begin = demo_seconds();
    status = kvarn_sequence_attend(worker->client, &args);
    run->latency[position * c->layers + layer] = demo_seconds() - begin;
    if (status != KVARN_OK)
        demo_fail(worker, "attend", status);
    return status;
}

static kvarn_status decode_tokens(struct demo_decode *run)
{
    const struct demo_capture *c = &run->worker->capture;
    double *seconds = calloc(c->positions, sizeof *seconds);
    kvarn_status status = seconds != NULL ? KVARN_OK : KVARN_INTERNAL;

    for (size_t position = 0; status == KVARN_OK && position < c->positions; position++) {
        double begin;

        for (uint32_t layer = 0; status == KVARN_OK && layer < c->layers; layer++)
            status = attend_layer(run, position, layer);
        begin = demo_seconds();
        if (status == KVARN_OK)
            status = commit(run, run->first + position, 1);
        seconds[position] = demo_seconds() - begin;
    }
    if (status == KVARN_OK)
        run->commit_p50 = demo_percentile(seconds, c->positions, 0.5);
    free(seconds);
    return status;
}

/* Rows of the tiles as a reader gets them, for the errors of the keys' norms. */
static kvarn_status read_back(struct demo_decode *run, float *k_back)
{
    struct demo_worker *worker = run->worker;
    const struct demo_capture *c = &worker->capture;
    size_t tokens = worker->whole_blocks * worker->preset->group;
    size_t row = (size_t)c->kv_heads * c->dim, count = c->layers * tokens * row;
    uint16_t *rows = malloc(2 * count * sizeof *rows);
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
    kvarn_status status = rows != NULL ? KVARN_OK : KVARN_INTERNAL;
    double seconds[ROUNDS];

    get.space = worker->space.space;
    get.keys = worker->keys;
    get.count = worker->whole_blocks;
    get.k = rows;
    get.v = rows + count;
    for (int round = 0; status == KVARN_OK && round < ROUNDS; round++) {
        double begin = demo_seconds();

        status = kvarn_decompress(worker->client, &get);
        seconds[round] = demo_seconds() - begin;
    }
    if (status != KVARN_OK)
        demo_fail(worker, "decompress", status);
    for (uint32_t layer = 0; status == KVARN_OK && layer < c->layers; layer++) {
        for (size_t i = 0; i < tokens * row; i++)
            k_back[layer * c->tokens * row + i] = demo_half(rows[layer * tokens * row + i]);
    }
    if (status == KVARN_OK)
        run->decompress_seconds = demo_percentile(seconds, ROUNDS, 0.5);
    free(rows);
    return status;
}

static kvarn_status measure_pings(struct demo_decode *run)
{
    double seconds[PINGS];
    kvarn_ping_args ping = KVARN_PING_INIT;

    for (int i = 0; i < PINGS; i++) {
        double begin = demo_seconds();
        kvarn_status status = kvarn_ping(run->worker->client, &ping);

        if (status != KVARN_OK)
            return demo_fail(run->worker, "ping", status);
        seconds[i] = demo_seconds() - begin;
    }
    run->ping_p50 = demo_percentile(seconds, PINGS, 0.5);
    run->ping_p99 = demo_percentile(seconds, PINGS, 0.99);
    return KVARN_OK;
}

/* ------------------------------------------------------------------ report */

static json_t *method_row(const struct demo_decode *run, const char *name, int slot, double bytes)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:f}", "name", name, "bytes_per_token", bytes,
                     "attention_error", demo_error_relative(&run->attention[slot]), "norm_mean",
                     run->norm_mean[slot], "norm_p99", run->norm_p99[slot]);
}

static int report(struct demo_decode *run, const struct demo_options *options)
{
    const struct demo_worker *worker = run->worker;
    const struct demo_capture *c = &worker->capture;
    const kvarn_preset *preset = worker->preset;
    size_t calls = c->positions * c->layers;
    size_t stored = worker->whole_blocks * preset->group;
    size_t sink = worker->sink_blocks * preset->group;
    double tile_bytes = (double)worker->space.record_bytes / preset->group;
    json_t *rows = json_array();

    json_array_append_new(rows, method_row(run, worker->label, 0, tile_bytes));
    for (int i = 0; i < 2; i++) {
        enum demo_method method = i == 0 ? DEMO_KIVI : DEMO_RTN;

        json_array_append_new(
            rows, method_row(run, demo_method_name(method), 1 + i,
                             demo_baseline_bytes(method, c->dim, preset->bits_k, preset->bits_v)));
    }
    return demo_report(
        options->report,
        json_pack(
            "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f, "
            "s:f, s:f, "
            "s:f, s:f, s:f, s:f}",
            "stage", "decode", "preset", worker->label, "model", c->model, "bits_k",
            (int)preset->bits_k, "bits_v", (int)preset->bits_v, "layers", (int)c->layers,
            "kv_heads", (int)c->kv_heads, "q_heads", (int)c->q_heads, "dim", (int)c->dim, "tokens",
            (json_int_t)c->tokens, "positions", (json_int_t)c->positions, "sink_tokens",
            (json_int_t)worker->space.sink_tokens, "prompt_sink_tokens", (json_int_t)sink,
            "prompt_tile_tokens", (json_int_t)(stored - sink), "prompt_tail_tokens",
            (json_int_t)(worker->prefill_tokens - stored), "methods", rows, "read_bytes",
            4.0 * (double)worker->whole_blocks * preset->group * c->layers * c->kv_heads * c->dim,
            "read_seconds", run->decompress_seconds, "attend_p50",
            demo_percentile(run->latency, calls, 0.5), "attend_p99",
            demo_percentile(run->latency, calls, 0.99), "commit_p50", run->commit_p50, "ping_p50",
            run->ping_p50, "ping_p99", run->ping_p99));
}

static int decode(struct demo_worker *worker, const struct demo_options *options)
{
    const struct demo_capture *c = &worker->capture;
    struct demo_decode run;
    float *k_back = NULL;
    int code = 1;

    if (decode_init(&run, worker) == 0)
        k_back = calloc(c->layers * c->tokens * c->kv_heads * c->dim, sizeof *k_back);
    if (k_back != NULL && open_sequence(&run) == KVARN_OK && append_tail(&run) == KVARN_OK &&
        decode_tokens(&run) == KVARN_OK && read_back(&run, k_back) == KVARN_OK &&
        measure_pings(&run) == KVARN_OK && demo_measure_errors(&run, k_back) == 0) {
        fprintf(stderr, "decode:  %zu tokens over %u layers, prefix of %zu blocks found by key\n",
                c->positions, c->layers, worker->whole_blocks);
        code = report(&run, options) == 0 ? 0 : 1;
    }
    free(k_back);
    decode_free(&run);
    return code;
}

int demo_decode(const struct demo_options *options)
{
    struct demo_worker worker;
    int code = 1;

    if (demo_worker_open(&worker, options) == 0)
        code = decode(&worker, options);
    demo_worker_close(&worker);
    return code;
}
