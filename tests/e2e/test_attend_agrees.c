/* Through client library, daemon and worker: ATTEND and SEQ_ATTEND agree with attention in double
 * over what DECOMPRESS gives back, and a sequence that was appended and sealed is the sequence that
 * COMPRESS makes, for every head dimension, group and element type. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/client.h>

#include "support/rng.h"

enum { LAYERS = 2, HEADS = 2, Q_HEADS = 6, BLOCKS = 4, TAIL = 5 };

struct world {
    kvarn_client *client;
    kvarn_space_options space;
    uint32_t dim, group, tokens;
    kvarn_key keys[BLOCKS];
    uint16_t *k, *v; /* [LAYERS][tokens][HEADS][dim] */
    float *q;        /* [Q_HEADS][dim] */
};

static float load(uint16_t h, kvarn_dtype dtype)
{
    int exponent = h >> 10 & 31;
    uint32_t wide = (uint32_t)h << 16;
    float value;

    if (dtype == KVARN_BF16) {
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    value = exponent ? ldexpf((float)(1024 + (h & 1023)), exponent - 25)
                     : ldexpf((float)(h & 1023), -24);
    return h & 0x8000 ? -value : value;
}

/* Normal numbers of moderate size in either type. */
static uint16_t draw(struct rng *rng, kvarn_dtype dtype)
{
    uint32_t sign = rng_below(rng, 2) << 15;

    if (dtype == KVARN_BF16)
        return (uint16_t)(sign | (123 + rng_below(rng, 5)) << 7 | rng_below(rng, 128));
    return (uint16_t)(sign | (11 + rng_below(rng, 5)) << 10 | rng_below(rng, 1024));
}

static void must(struct world *w, kvarn_status status)
{
    if (status != KVARN_OK)
        fail_msg("%s: %s", kvarn_status_name(status), kvarn_client_error(w->client));
}

static void make(struct world *w, const char *preset, uint32_t dim, kvarn_dtype dtype,
                 int k_rotated)
{
    struct rng rng = rng_make(dim + dtype);
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;
    size_t count;

    memset(w, 0, sizeof *w);
    options.kvarnd_path = KVARND;
    options.spawn_pool = "host:64MiB";
    assert_int_equal(kvarn_connect(&w->client, "spawn:", &options), KVARN_OK);
    w->space = (kvarn_space_options)KVARN_SPACE_OPTIONS_INIT;
    w->space.model = "test/attend";
    w->space.layers = LAYERS;
    w->space.kv_heads = HEADS;
    w->space.head_dim = dim;
    w->space.dtype = dtype;
    w->space.preset = preset;
    w->space.k_rotated = k_rotated;
    must(w, kvarn_open_space(w->client, &w->space));
    w->dim = dim;
    w->group = w->space.group;
    w->tokens = BLOCKS * w->group + TAIL;
    count = (size_t)LAYERS * w->tokens * HEADS * dim;
    w->k = malloc(count * 2);
    w->v = malloc(count * 2);
    w->q = malloc(sizeof(float) * Q_HEADS * dim);
    for (size_t i = 0; i < count; i++) {
        w->k[i] = draw(&rng, dtype);
        w->v[i] = draw(&rng, dtype);
    }
    for (size_t i = 0; i < (size_t)Q_HEADS * dim; i++)
        w->q[i] = (float)rng_normal(&rng);
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_int_equal(
            kvarn_block_key(&w->keys[b], b ? &w->keys[b - 1] : NULL, NULL, &b, 1, "seal"),
            KVARN_OK);
}

static void unmake(struct world *w)
{
    kvarn_close(&w->client);
    free(w->k);
    free(w->v);
    free(w->q);
}

/* Attention of head h in double over rows [tokens][HEADS][dim]. */
static void expect(const struct world *w, uint32_t h, const uint16_t *k, const uint16_t *v,
                   uint32_t tokens, double *out, double *lse)
{
    uint32_t kv = h / (Q_HEADS / HEADS);
    double *score = malloc(sizeof(double) * tokens), top = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < tokens; t++) {
        score[t] = 0;
        for (uint32_t d = 0; d < w->dim; d++)
            score[t] += (double)w->q[h * w->dim + d] *
                        (double)load(k[(t * HEADS + kv) * w->dim + d], w->space.dtype);
        score[t] /= sqrt(w->dim);
        top = fmax(top, score[t]);
    }
    memset(out, 0, sizeof(double) * w->dim);
    for (uint32_t t = 0; t < tokens; t++) {
        double p = exp(score[t] - top);

        sum += p;
        for (uint32_t d = 0; d < w->dim; d++)
            out[d] += p * (double)load(v[(t * HEADS + kv) * w->dim + d], w->space.dtype);
    }
    for (uint32_t d = 0; d < w->dim; d++)
        out[d] /= sum;
    *lse = top + log(sum);
    free(score);
}

static void compare(const struct world *w, const uint16_t *k, const uint16_t *v, uint32_t tokens,
                    const float *out, const float *lse)
{
    double *wanted = malloc(sizeof(double) * w->dim);

    for (uint32_t h = 0; h < Q_HEADS; h++) {
        double lse_wanted, error = 0, size = 0;

        expect(w, h, k, v, tokens, wanted, &lse_wanted);
        for (uint32_t d = 0; d < w->dim; d++) {
            error += pow((double)out[h * w->dim + d] - wanted[d], 2);
            size += wanted[d] * wanted[d];
        }
        /* DECOMPRESS rounds to 16 bits, attention over the record does not: 2^-9 for bf16 */
        if (!(error <= 4e-4 * size) || !(fabs((double)lse[h] - lse_wanted) < 0.02))
            fail_msg("head %u: relative error %g, lse %g instead of %g", h, sqrt(error / size),
                     (double)lse[h], lse_wanted);
    }
    free(wanted);
}

/* Appends everything, commits, attends in each layer over sealed blocks, sink and tail. */
static uint64_t run_sequence(struct world *w, float *out, float *lse)
{
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_seq seq = {0};

    args.space = w->space.space;
    args.seqs = &seq;
    args.count = 1;
    must(w, kvarn_sequence_open(w->client, &args));
    seq.position = KVARN_AT_END;
    seq.tokens = w->tokens;
    args.k = w->k;
    args.v = w->v;
    must(w, kvarn_sequence_append(w->client, &args));
    seq.keys = BLOCKS;
    args.keys = w->keys;
    args.key_count = BLOCKS;
    must(w, kvarn_sequence_commit(w->client, &args));
    assert_int_equal(seq.blocks, BLOCKS);
    assert_int_equal(seq.committed, w->tokens);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        args = (kvarn_seq_args)KVARN_SEQ_ARGS_INIT;
        args.space = w->space.space;
        args.seqs = &seq;
        args.count = 1;
        args.layer_begin = layer;
        args.query.q_heads = Q_HEADS;
        args.query.q_dtype = KVARN_F32;
        args.q = w->q;
        args.out = out + (size_t)layer * Q_HEADS * w->dim;
        args.lse = lse + (size_t)layer * Q_HEADS;
        seq.q_tokens = 1;
        seq.tokens = 0;
        must(w, kvarn_sequence_attend(w->client, &args));
    }
    return seq.sequence;
}

static void check(const char *preset, uint32_t dim, kvarn_dtype dtype, int k_rotated)
{
    struct world w;
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
    kvarn_attend_args by_key = KVARN_ATTEND_INIT;
    uint16_t *k, *v;
    float *out, *lse;
    size_t plane, whole, row;

    make(&w, preset, dim, dtype, k_rotated);
    row = (size_t)HEADS * dim;
    plane = w.tokens * row;
    whole = (size_t)BLOCKS * w.group * row;
    k = malloc(LAYERS * plane * 2);
    v = malloc(LAYERS * plane * 2);
    out = malloc(sizeof(float) * LAYERS * Q_HEADS * dim);
    lse = malloc(sizeof(float) * LAYERS * Q_HEADS);
    run_sequence(&w, out, lse);
    get.space = by_key.space = w.space.space;
    get.keys = by_key.keys = w.keys;
    get.count = by_key.count = BLOCKS;
    get.layer_count = 1;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        get.layer_begin = by_key.layer = layer;
        get.k = k;
        get.v = v;
        must(&w, kvarn_decompress(w.client, &get));
        memcpy(k + whole, w.k + layer * plane + whole, TAIL * row * 2);
        memcpy(v + whole, w.v + layer * plane + whole, TAIL * row * 2);
        compare(&w, k, v, w.tokens, out + (size_t)layer * Q_HEADS * dim, lse + layer * Q_HEADS);
        by_key.query.q_heads = Q_HEADS;
        by_key.query.q_dtype = KVARN_F32;
        by_key.q_tokens = 1;
        by_key.q = w.q;
        by_key.out = out;
        by_key.lse = lse;
        if (layer == LAYERS - 1) {
            must(&w, kvarn_attend(w.client, &by_key));
            compare(&w, k, v, BLOCKS * w.group, out, lse);
        }
    }
    free(k);
    free(v);
    free(out);
    free(lse);
    unmake(&w);
}

static void test_all(void **state)
{
    static const struct {
        const char *preset;
        int k_rotated;
    } forms[] = {{"kvarn_k2v2_g128", 0},
                 {"kvarn_k4v2_g128", 0},
                 {"kvarn_k4v4_g64", 0},
                 {"tight_k2v2_g128", 0},
                 {"tight_k4v2_g64", 1}};

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++)
        for (uint32_t dim = 64; dim <= 256; dim *= 2)
            for (int dtype = KVARN_F16; dtype <= KVARN_BF16; dtype++)
                check(forms[f].preset, dim, (kvarn_dtype)dtype, forms[f].k_rotated);
}

/* The blocks that sealing made are the blocks that COMPRESS makes, digest by digest. */
static void check_seal(const char *preset, int k_rotated)
{
    struct world w;
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_blocks_args look = KVARN_BLOCKS_INIT;
    kvarn_block_kind kinds[BLOCKS];
    kvarn_block_result sealed[BLOCKS], stored[BLOCKS];
    kvarn_key keys[BLOCKS];
    kvarn_strides strides;
    float *out, *lse;

    make(&w, preset, 128, KVARN_F16, k_rotated);
    out = malloc(sizeof(float) * LAYERS * Q_HEADS * w.dim);
    lse = malloc(sizeof(float) * LAYERS * Q_HEADS);
    run_sequence(&w, out, lse);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        kinds[b] = b ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT;
        kvarn_block_key(&keys[b], b ? &keys[b - 1] : NULL, NULL, &b, 1, "compress");
    }
    strides.head = (uint64_t)w.dim * 2;
    strides.token = strides.head * HEADS;
    strides.block = strides.token * w.group;
    strides.layer = strides.token * w.tokens;
    put.space = look.space = w.space.space;
    put.keys = keys;
    put.kinds = kinds;
    put.count = look.count = BLOCKS;
    put.k = w.k;
    put.v = w.v;
    put.strides = &strides;
    put.results = stored;
    must(&w, kvarn_compress(w.client, &put));
    look.keys = w.keys;
    look.results = sealed;
    must(&w, kvarn_lookup(w.client, &look));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(sealed[b].status, KVARN_OK);
        assert_int_equal(sealed[b].kind, kinds[b]);
        assert_int_equal(sealed[b].digest, stored[b].digest);
    }
    free(out);
    free(lse);
    unmake(&w);
}

static void test_seal_equals_compress(void **state)
{
    (void)state;
    check_seal("kvarn_k2v2_g128", 0);
    check_seal("tight_k2v2_g128", 0);
    check_seal("tight_k4v2_g128", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_seal_equals_compress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
