/* Record -> K, V rows, scalar: the definition of a decoded tile.
 *
 *      K^[g,d] = (cK[d,g] * a[d] + z[d]) * (u[g] / sqrt(D)), then butterflies over d
 *      V^[g,d] = (cV[g,d] * b[g] + y[g]) * (w[d] / sqrt(D)), then butterflies over d
 *
 * (K with k_rotated, V with v_rotated: u[g], w[d] alone and no butterflies; METHOD.md, sections 1
 * and 5). c * a is exact in fp32, since a code has at most 4 and an fp16 at most 11 significant
 * bits, so fused or not makes no difference there. Rounded to the tile's dtype at the end, half to
 * even; beyond the largest fp16 the result is infinity. A record with a non-finite vector decodes
 * to non-finite rows whose NaN bits are unspecified. */
#include "kernels/fwht.h"
#include "kernels/half.h"
#include "kernels/tile.h"
#include "kernels/variants.h"

static void load_vector(float *dst, const uint8_t *at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        dst[i] = kvk_f16_to_f32(kvk_u16_load(at + 2 * (size_t)i));
}

static uint32_t code_at(const uint8_t *codes, size_t index, uint32_t bits)
{
    uint32_t per_byte = 8 / bits;

    return (uint32_t)codes[index / per_byte] >> (index % per_byte * bits) & ((1u << bits) - 1);
}

static void store_row(uint8_t *dst, const float *x, uint32_t dim, kvarn_dtype dtype)
{
    for (uint32_t d = 0; d < dim; d++)
        kvk_u16_store(dst + 2 * (size_t)d, kvk_half_from_f32(x[d], dtype));
}

static void decode_k(const struct kvk_decompress *op, const struct kvk_layout *at, float *x)
{
    const struct kvk_shape *shape = &op->shape;
    uint32_t dim = shape->dim, group = shape->group;
    const uint8_t *codes = op->record + at->k_codes;
    float step[KVARN_MAX_HEAD_DIM], zero[KVARN_MAX_HEAD_DIM], token[KVARN_MAX_GROUP];
    float norm = shape->k_rotated ? 1.0f : kvk_fwht_norm(dim);

    load_vector(step, op->record + at->k_step, dim);
    load_vector(zero, op->record + at->k_zero, dim);
    load_vector(token, op->record + at->k_token, group);
    for (uint32_t g = 0; g < group; g++) {
        float scale = token[g] * norm;

        for (uint32_t d = 0; d < dim; d++) {
            float code = (float)(int)code_at(codes, (size_t)d * group + g, shape->bits_k);

            x[d] = (code * step[d] + zero[d]) * scale;
        }
        if (!shape->k_rotated)
            kvk_fwht_butterfly(x, dim);
        store_row((uint8_t *)op->k + g * op->k_token_stride_bytes, x, dim,
                  (kvarn_dtype)shape->dtype);
    }
}

static void decode_v(const struct kvk_decompress *op, const struct kvk_layout *at, float *x)
{
    const struct kvk_shape *shape = &op->shape;
    uint32_t dim = shape->dim, group = shape->group;
    const uint8_t *codes = op->record + at->v_codes;
    float step[KVARN_MAX_GROUP], zero[KVARN_MAX_GROUP], channel[KVARN_MAX_HEAD_DIM];
    float norm = shape->v_rotated ? 1.0f : kvk_fwht_norm(dim);

    load_vector(step, op->record + at->v_step, group);
    load_vector(zero, op->record + at->v_zero, group);
    load_vector(channel, op->record + at->v_channel, dim);
    for (uint32_t d = 0; d < dim; d++)
        channel[d] *= norm;
    for (uint32_t g = 0; g < group; g++) {
        for (uint32_t d = 0; d < dim; d++) {
            float code = (float)(int)code_at(codes, (size_t)g * dim + d, shape->bits_v);

            x[d] = (code * step[g] + zero[g]) * channel[d];
        }
        if (!shape->v_rotated)
            kvk_fwht_butterfly(x, dim);
        store_row((uint8_t *)op->v + g * op->v_token_stride_bytes, x, dim,
                  (kvarn_dtype)shape->dtype);
    }
}

kvarn_status kvk_decompress_ref(struct kvk_decompress *op)
{
    const struct kvk_shape *shape = &op->shape;
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);

    if (op->k != NULL)
        decode_k(op, &at, op->scratch);
    if (op->v != NULL)
        decode_v(op, &at, op->scratch);
    return KVARN_OK;
}
