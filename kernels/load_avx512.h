/* The first step of compress with AVX-512: rows of 16-bit elements checked, widened, rotated and
 * laid out as the fp32 matrix (load() of compress_ref.c). Included by compress_avx512.c only. */
#ifndef KVK_LOAD_AVX512_H
#define KVK_LOAD_AVX512_H

#include "kernels/fwht.h"
#include "kernels/simd_avx512.h"

/* The first channel of a row that is NaN or infinity. */
static kvarn_status name_fault(struct kvk_compress *op, char tensor, uint32_t token,
                               const __m512 *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned bad = _mm512_fpclass_ps_mask(x[i], 0x99); /* quiet, +inf, -inf, signalling */

        if (bad != 0) {
            op->fault =
                (struct kvk_fault){tensor, token, 16 * (uint32_t)i + (uint32_t)__builtin_ctz(bad)};
            return KVARN_NON_FINITE;
        }
    }
    return KVARN_INTERNAL;
}

/* One row: load, look for non-finite values, rotate, store. 1: fine. */
KVK_INLINE int load_row(float *dst, const uint8_t *src, size_t n, int bf16, float norm, __m512 *x)
{
    const __m512 limit = _mm512_set1_ps(KVK_INPUT_LIMIT), least = _mm512_set1_ps(-KVK_INPUT_LIMIT);
    const __m512 zero = _mm512_setzero_ps();
    __m512 bad = zero;

#pragma GCC unroll 16
    for (size_t i = 0; i < n; i++) {
        x[i] = kvk_z_load_half(src + 32 * i, bf16);
        bad = _mm512_fmadd_ps(x[i], zero, bad); /* NaN as soon as one is not finite */
    }
    if (_mm512_cmp_ps_mask(bad, bad, _CMP_UNORD_Q) != 0)
        return 0;
    if (bf16) {
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++)
            x[i] = _mm512_min_ps(_mm512_max_ps(x[i], least), limit);
    }
    if (norm != 0.0f) {
        kvk_z_butterfly(x, n);
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++)
            x[i] = _mm512_mul_ps(x[i], _mm512_set1_ps(norm));
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < n; i++)
        _mm512_store_ps(dst + 16 * i, x[i]);
    return 1;
}

/* n registers per token row. K passes through 16 rows of scratch to be turned. */
KVK_INLINE kvarn_status load_rows(struct kvk_compress *op, const struct kvk_side *side, size_t n,
                                  int bf16)
{
    struct kvk_compress_scratch *s = op->scratch;
    uint32_t dim = 16 * (uint32_t)n, group = op->shape.group;
    float norm = side->rotate ? kvk_fwht_norm(dim) : 0.0f;
    __m512 x[16];

    for (uint32_t g = 0; g < group; g += 16) {
        float *dst = side->transposed ? s->rows : s->matrix + (size_t)g * dim;

        for (uint32_t i = 0; i < 16; i++) {
            if (!load_row(dst + (size_t)i * dim, side->src + (g + i) * side->stride, n, bf16, norm,
                          x))
                return name_fault(op, side->tensor, g + i, x, n);
        }
        if (!side->transposed)
            continue;
        for (uint32_t d = 0; d < dim; d += 16)
            kvk_z_transpose(s->matrix + (size_t)d * group + g, group, s->rows + d, dim);
    }
    return KVARN_OK;
}

static kvarn_status load(struct kvk_compress *op, const struct kvk_side *side)
{
    int bf16 = op->shape.dtype == KVARN_BF16;

    switch (op->shape.dim) {
    case 64:
        return bf16 ? load_rows(op, side, 4, 1) : load_rows(op, side, 4, 0);
    case 128:
        return bf16 ? load_rows(op, side, 8, 1) : load_rows(op, side, 8, 0);
    default:
        return bf16 ? load_rows(op, side, 16, 1) : load_rows(op, side, 16, 0);
    }
}

#endif
