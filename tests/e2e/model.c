/* A small made-up model for end-to-end tests; see model.h. */
#include "tests/e2e/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

float model_half(uint16_t half)
{
    float value = (float)(half & 0x3ffu) / 1024.0f;
    int exponent = (half >> 10) & 31;

    /* The model holds normal numbers and zero only. */
    value = exponent == 0 ? 0.0f : ldexpf(1.0f + value, exponent - 15);
    return (half & 0x8000u) != 0 ? -value : value;
}

static uint32_t next(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Values of about 0.25 to 2, either sign: exponents 13 to 15. */
static void fill(uint16_t *rows, size_t count, uint32_t *state)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t r = next(state);

        rows[i] = (uint16_t)((r & 0x83ffu) | ((13u + (r >> 16) % 3u) << 10));
    }
}

void model_fill(struct model *model, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1u, tokens[MODEL_GROUP];

    fill(&model->k[0][0][0][0], sizeof model->k / 2, &state);
    fill(&model->v[0][0][0][0], sizeof model->v / 2, &state);
    fill(&model->q[0][0][0][0], sizeof model->q / 2, &state);
    for (size_t b = 0; b < MODEL_BLOCKS; b++) {
        for (uint32_t t = 0; t < MODEL_GROUP; t++)
            tokens[t] = next(&state) % 50000u;
        assert_int_equal(kvarn_block_key(&model->keys[b], b > 0 ? &model->keys[b - 1] : NULL, NULL,
                                         tokens, MODEL_GROUP, NULL),
                         KVARN_OK);
        model->kinds[b] =
            b * MODEL_GROUP < KVARN_SINK_TOKENS ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE;
    }
}

kvarn_space_options model_space(const char *name)
{
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;

    space.model = name;
    space.rope = "theta=10000";
    space.layers = MODEL_LAYERS;
    space.kv_heads = MODEL_KV_HEADS;
    space.head_dim = MODEL_DIM;
    space.dtype = KVARN_F16;
    space.preset = "kvarn_k2v2_g64";
    return space;
}

kvarn_strides model_strides(void)
{
    return (kvarn_strides){.layer = MODEL_TOKENS * MODEL_ROW * 2,
                           .block = MODEL_GROUP * MODEL_ROW * 2,
                           .token = MODEL_ROW * 2,
                           .head = MODEL_DIM * 2};
}

void model_expect(kvarn_client *client, kvarn_status status, kvarn_status want, const char *what)
{
    if (status != want)
        fail_msg("%s: %s, expected %s: %s", what, kvarn_status_name(status),
                 kvarn_status_name(want), kvarn_client_error(client));
}

kvarn_client *model_connect(const char *address)
{
    kvarn_client *client = NULL;
    kvarn_status status = kvarn_connect(&client, address, NULL);

    model_expect(client, status, KVARN_OK, address);
    return client;
}

uint64_t model_open(kvarn_client *client, const char *name)
{
    return model_open_as(client, name, model_space(name).preset, 0);
}

uint64_t model_open_as(kvarn_client *client, const char *name, const char *preset, int k_rotated)
{
    kvarn_space_options space = model_space(name);

    space.preset = preset;
    space.k_rotated = k_rotated;
    model_expect(client, kvarn_open_space(client, &space), KVARN_OK, "open space");
    assert_int_equal(space.group, MODEL_GROUP);
    assert_int_equal(space.record_bytes,
                     kvarn_record_bytes(kvarn_preset_find(space.preset), MODEL_DIM));
    return space.space;
}

kvarn_status model_put(kvarn_client *client, uint64_t space, const struct model *model,
                       size_t count, kvarn_block_result *results)
{
    kvarn_compress_args args = KVARN_COMPRESS_INIT;
    kvarn_strides strides = model_strides();

    args.space = space;
    args.keys = model->keys;
    args.kinds = model->kinds;
    args.count = count;
    args.k = model->k;
    args.v = model->v;
    args.strides = &strides;
    args.results = results;
    return kvarn_compress(client, &args);
}

uint64_t model_sequence(kvarn_client *client, uint64_t space, const struct model *model,
                        size_t keys, uint32_t *blocks)
{
    kvarn_seq seq = {.position = KVARN_AT_END};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = space;
    args.seqs = &seq;
    args.count = 1;
    args.keys = model->keys;
    args.key_count = keys;
    model_expect(client, kvarn_sequence_open(client, &args), KVARN_OK, "sequence open");
    *blocks = seq.blocks;
    assert_int_equal(seq.committed, (uint64_t)seq.blocks * MODEL_GROUP);
    return seq.sequence;
}

static void commit(kvarn_client *client, uint64_t space, const struct model *model,
                   uint64_t sequence, size_t from, size_t count)
{
    size_t block = from / MODEL_GROUP, end = (from + count) / MODEL_GROUP;
    kvarn_seq seq = {
        .sequence = sequence, .tokens = (uint32_t)count, .keys = (uint32_t)(end - block)};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = space;
    args.seqs = &seq;
    args.count = 1;
    args.keys = &model->keys[block];
    args.key_count = end - block;
    model_expect(client, kvarn_sequence_commit(client, &args), KVARN_OK, "commit");
    assert_int_equal(seq.committed, from + count);
    assert_int_equal(seq.blocks, end - block);
}

void model_extend(kvarn_client *client, uint64_t space, const struct model *model,
                  uint64_t sequence, size_t from, size_t count)
{
    kvarn_strides strides = model_strides();
    kvarn_seq seq = {.sequence = sequence, .position = KVARN_AT_END, .tokens = (uint32_t)count};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = space;
    args.seqs = &seq;
    args.count = 1;
    args.k = model->k[0][from];
    args.v = model->v[0][from];
    args.strides = &strides;
    model_expect(client, kvarn_sequence_append(client, &args), KVARN_OK, "append");
    commit(client, space, model, sequence, from, count);
}

kvarn_status model_attend(kvarn_client *client, uint64_t space, const struct model *model,
                          uint64_t sequence, uint32_t layer, size_t token, float *out, float *lse)
{
    kvarn_seq seq = {.sequence = sequence, .position = KVARN_AT_END, .q_tokens = 1, .tokens = 1};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = space;
    args.seqs = &seq;
    args.count = 1;
    args.layer_begin = layer;
    args.k = model->k[layer][token];
    args.v = model->v[layer][token];
    args.q = model->q[layer][token];
    args.query.q_heads = MODEL_Q_HEADS;
    args.out = out;
    args.lse = lse;
    return kvarn_sequence_attend(client, &args);
}

void model_attention(const float *k, const float *v, const uint16_t *q, size_t tokens, double *out)
{
    double weights[MODEL_TOKENS];

    for (size_t head = 0; head < MODEL_Q_HEADS; head++) {
        size_t kv = head / (MODEL_Q_HEADS / MODEL_KV_HEADS) * MODEL_DIM;
        double total = 0.0;

        for (size_t t = 0; t < tokens; t++) {
            double dot = 0.0;

            for (size_t d = 0; d < MODEL_DIM; d++)
                dot +=
                    (double)model_half(q[head * MODEL_DIM + d]) * (double)k[t * MODEL_ROW + kv + d];
            weights[t] = exp(dot / sqrt(MODEL_DIM)); /* |dot| is a few dozen at most here */
            total += weights[t];
        }
        for (size_t d = 0; d < MODEL_DIM; d++) {
            double sum = 0.0;

            for (size_t t = 0; t < tokens; t++)
                sum += weights[t] * (double)v[t * MODEL_ROW + kv + d];
            out[head * MODEL_DIM + d] = sum / total;
        }
    }
}
