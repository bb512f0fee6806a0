/* Known-answer test of a table, run once at start.
 *
 * Fixed tiles, one or more per shape family, go through compress and decompress of the table and of
 * the reference, which must agree bit for bit, and attend over them within its tolerance; the
 * reference itself is held against digests of its records written down here. The input comes from
 * integers only, so that it is the same on every machine and compiler. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/tile.h"
#include "kernels/variants.h"

struct sample {
    struct kvk_shape shape;
    uint32_t digest; /* of the reference's record, then of its decoded K and V rows */
};

/* dim, group, bits of K and V, dtype, balance, range, k_rotated, v_rotated,
 * iterations */
static const struct sample samples[] = {
    {{64, 64, 2, 2, KVARN_F16, 0, 0, 0, 0, 8}, 0x00f4e765u},
    {{64, 128, 4, 2, KVARN_BF16, 1, 0, 0, 0, 8}, 0xfdf7e52bu},
    {{128, 64, 4, 4, KVARN_BF16, 0, 0, 0, 1, 8}, 0x5835bdb0u},
    {{128, 128, 2, 2, KVARN_F16, 1, 0, 0, 0, 8}, 0xe3f82936u},
    {{128, 128, 4, 2, KVARN_F16, 0, 0, 0, 0, 2}, 0x5c499e3bu},
    {{256, 64, 2, 4, KVARN_F16, 1, 0, 0, 1, 3}, 0x58113109u},
    {{256, 128, 2, 2, KVARN_BF16, 0, 0, 0, 0, 8}, 0xe5bd9750u},
    {{64, 128, 2, 2, KVARN_BF16, 1, 1, 1, 0, 8}, 0x7c043d81u},
    {{128, 128, 2, 2, KVARN_F16, 1, 1, 0, 0, 8}, 0x702fd41du},
    {{256, 64, 4, 2, KVARN_F16, 1, 1, 1, 1, 4}, 0xa1f96509u},
};

enum { MAX_ROWS_BYTES = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM * 2 };

struct run {
    uint8_t record[KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM + 6 * (KVARN_MAX_GROUP + 256)];
    uint8_t k[MAX_ROWS_BYTES], v[MAX_ROWS_BYTES];
};

#define SCALE 0.05f

enum { Q_TOKENS = 2, Q_HEADS = 5, Q_ROWS = Q_TOKENS * Q_HEADS };

struct attended {
    float out[Q_ROWS * KVARN_MAX_HEAD_DIM], lse[Q_ROWS];
};

struct bench {
    uint8_t k[MAX_ROWS_BYTES], v[MAX_ROWS_BYTES];
    struct run reference, candidate;
    float q[Q_ROWS * KVARN_MAX_HEAD_DIM];
    struct attended attended[2]; /* of the reference, of the candidate */
};

/* Sums of four uniform numbers, one loud channel, one loud and one silent token. */
static void fill(uint8_t *rows, const struct kvk_shape *shape, uint32_t state)
{
    for (uint32_t g = 0; g < shape->group; g++) {
        for (uint32_t d = 0; d < shape->dim; d++) {
            int32_t sum = 0;
            float x;

            for (int i = 0; i < 4; i++) {
                state = state * 1664525u + 1013904223u;
                sum += (int32_t)(state >> 22) - 512;
            }
            x = (float)sum * 0x1p-9f;
            x = d == 5 ? x + 12.0f : g == 7 ? x * 16.0f : g == 9 ? 0.0f : x;
            kvk_u16_store(rows + 2 * ((size_t)g * shape->dim + d),
                          kvk_half_from_f32(x, (kvarn_dtype)shape->dtype));
        }
    }
}

static int run(const struct kvk_table *table, const struct kvk_shape *shape, const struct bench *b,
               struct run *out, void *scratch)
{
    size_t stride = 2 * (size_t)shape->dim;
    struct kvk_compress c = {.shape = *shape,
                             .k = b->k,
                             .v = b->v,
                             .k_token_stride_bytes = stride,
                             .v_token_stride_bytes = stride,
                             .record = out->record,
                             .scratch = scratch};
    struct kvk_decompress d = {.shape = *shape,
                               .record = out->record,
                               .k = out->k,
                               .v = out->v,
                               .k_token_stride_bytes = stride,
                               .v_token_stride_bytes = stride,
                               .scratch = scratch};

    return table->compress(&c) == KVARN_OK && table->decompress(&d) == KVARN_OK;
}

/* Query rows over a tile and over the same tokens as EXACT rows. */
static int attend(const struct kvk_table *table, const struct kvk_shape *s, const struct bench *b,
                  struct attended *result, void *scratch)
{
    size_t row = 2 * (size_t)s->dim;
    const struct kvk_span spans[2] = {
        {.kind = KVARN_BLOCK_TILE, .tokens = s->group, .data = b->reference.record},
        {.kind = KVARN_BLOCK_EXACT,
         .position = s->group,
         .tokens = 40,
         .data = b->k,
         .v = b->v,
         .token_stride_bytes = row},
    };
    struct kvk_attend op = {.shape = *s,
                            .q = b->q,
                            .q_dtype = KVARN_F32,
                            .q_tokens = Q_TOKENS,
                            .q_heads = Q_HEADS,
                            .q_token_stride_bytes = 4 * (size_t)Q_HEADS * s->dim,
                            .q_head_stride_bytes = 4 * (size_t)s->dim,
                            .scale = SCALE,
                            .limit = s->group + 30u,
                            .spans = spans,
                            .span_count = 2,
                            .out = result->out,
                            .lse = result->lse,
                            .scratch = scratch};

    return table->attend(&op) == KVARN_OK;
}

/* The largest scale * sum |q_d k_d|, which the tolerance of attend depends on. */
static float spread_of(const struct kvk_shape *s, const struct bench *b)
{
    float largest = 0.0f;

    for (size_t r = 0; r < Q_ROWS; r++) {
        for (size_t g = 0; g < s->group; g++) {
            float sum = 0.0f;

            for (size_t d = 0; d < s->dim; d++) {
                uint16_t half = kvk_u16_load(b->k + 2 * (g * s->dim + d));

                sum += fabsf(b->q[r * s->dim + d] * kvk_half_to_f32(half, (kvarn_dtype)s->dtype));
            }
            largest = fmaxf(largest, sum * SCALE);
        }
    }
    return largest;
}

static const char *check_attend(const struct kvk_table *table, const struct kvk_shape *s,
                                struct bench *b, void *scratch)
{
    float allowed;

    for (size_t i = 0; i < (size_t)Q_ROWS * s->dim; i++)
        b->q[i] = (float)(int)(i * 7919u % 201u) * 0.01f - 1.0f;
    if (!attend(&kvk_table_ref, s, b, &b->attended[0], scratch) ||
        !attend(table, s, b, &b->attended[1], scratch))
        return "self-test: attend refused a valid call";
    allowed = KVK_ATTEND_TOLERANCE * fmaxf(1.0f, spread_of(s, b) / 8.0f);
    for (size_t r = 0; r < Q_ROWS; r++) {
        float error = 0.0f, norm = 0.0f;

        for (size_t d = 0; d < s->dim; d++) {
            float x = b->attended[0].out[r * s->dim + d], y = b->attended[1].out[r * s->dim + d];

            error += (x - y) * (x - y);
            norm += x * x;
        }
        if (!(sqrtf(error) <= allowed * sqrtf(norm)) ||
            !(fabsf(b->attended[0].lse[r] - b->attended[1].lse[r]) <= allowed))
            return "self-test: attend differs from the reference";
    }
    return NULL;
}

static const char *check(const struct kvk_table *table, const struct sample *sample,
                         struct bench *b, void *scratch)
{
    const struct kvk_shape *s = &sample->shape;
    size_t rows = 2 * (size_t)s->dim * s->group;
    size_t bytes = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v).bytes;
    uint32_t digest;

    fill(b->k, s, 1);
    fill(b->v, s, 2);
    if (!run(&kvk_table_ref, s, b, &b->reference, scratch) ||
        !run(table, s, b, &b->candidate, scratch))
        return "self-test: a kernel refused a valid tile";
    digest = kvk_digest(0, b->reference.record, bytes);
    digest = kvk_digest(digest, b->reference.k, rows);
    digest = kvk_digest(digest, b->reference.v, rows);
    if (digest != sample->digest)
        return "self-test: the reference gives other bits than it should";
    if (memcmp(b->reference.record, b->candidate.record, bytes) != 0)
        return "self-test: compress differs from the reference";
    if (memcmp(b->reference.k, b->candidate.k, rows) != 0 ||
        memcmp(b->reference.v, b->candidate.v, rows) != 0)
        return "self-test: decompress differs from the reference";
    return check_attend(table, s, b, scratch);
}

int kvk_selftest_passes(const struct kvk_table *table, const char **why)
{
    struct kvk_shape largest = {.dim = KVARN_MAX_HEAD_DIM, .group = KVARN_MAX_GROUP};
    struct bench *b = malloc(sizeof *b);
    size_t bytes = kvk_scratch_bytes(&largest);
    size_t attend_bytes = kvk_attend_scratch_bytes(Q_TOKENS, Q_HEADS, KVARN_MAX_HEAD_DIM);
    void *scratch =
        aligned_alloc(64, ((bytes > attend_bytes ? bytes : attend_bytes) + 63) / 64 * 64);
    const char *fault = NULL;

    if (b == NULL || scratch == NULL)
        fault = "self-test: no memory";
    else if (kvk_digest(0, "123456789", 9) != 0xE3069283u)
        fault = "self-test: the digest is not CRC-32C";
    for (size_t i = 0; i < sizeof samples / sizeof samples[0] && fault == NULL; i++)
        fault = check(table, &samples[i], b, scratch);
    free(b);
    free(scratch);
    if (fault != NULL)
        *why = fault;
    return fault == NULL;
}
