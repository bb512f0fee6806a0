/* Record -> K, V rows with AVX-512, bit for bit what decompress_ref.c defines.
 *
 * A row of one token is decoded, un-rotated and rounded without leaving the registers (4, 8 or 16
 * of them). K codes lie channel by channel; one 32-bit gather per 16 channels brings the codes of
 * 8 or 16 consecutive tokens, each token then takes its bits by a shift, so that no fp32 value is
 * ever turned. V codes lie along the row; there step and zero belong to the token, and the few
 * possible values come from a table held in one register. */
#include "kernels/simd_avx512.h"

#define KVK_DECOMPRESS_ENTRY kvk_decompress_avx512
#include "kernels/decompress_body.h"

KVK_INLINE __m512 load_f16(const uint8_t *record, size_t offset, uint32_t index)
{
    return kvk_z_load_half(record + offset + 2 * (size_t)index, 0);
}

/* Two registers a time: whole cache lines when the row is aligned. */
KVK_INLINE void store_row(uint8_t *dst, const __m512 *x, size_t n, int bf16)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i += 2) {
        __m512i pair = _mm512_castsi256_si512(kvk_z_to_half(x[i], bf16));

        pair = _mm512_inserti64x4(pair, kvk_z_to_half(x[i + 1], bf16), 1);
        _mm512_storeu_si512(dst + 32 * i, pair);
    }
}

KVK_INLINE void decode_k(const struct kvk_decompress *op, const struct kvk_layout *at, uint32_t dim,
                         uint32_t bits, int bf16, int rotated)
{
    const uint32_t group = op->shape.group, per_word = 32 / bits;
    const size_t n = dim / 16, row_bytes = (size_t)group * bits / 8;
    const float norm = rotated ? 1.0f : kvk_fwht_norm(dim);
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    const __m512i lanes =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32((int)row_bytes));
    __m512 step[16], zero[16];
    __m512i words[16];

    for (size_t i = 0; i < n; i++) {
        step[i] = load_f16(op->record, at->k_step, 16 * (uint32_t)i);
        zero[i] = load_f16(op->record, at->k_zero, 16 * (uint32_t)i);
    }
    for (uint32_t g = 0; g < group; g += per_word) {
        for (size_t i = 0; i < n; i++)
            words[i] = _mm512_i32gather_epi32(
                lanes, op->record + at->k_codes + 16 * (size_t)i * row_bytes + g * bits / 8, 1);
        for (uint32_t j = 0; j < per_word; j++) {
            __m512 scale = _mm512_set1_ps(f16_at(op->record, at->k_token, g + j) * norm);
            __m512i shift = _mm512_set1_epi32((int)(j * bits));
            __m512 x[16];

#pragma GCC unroll 16
            for (size_t i = 0; i < n; i++) {
                __m512i code = _mm512_and_si512(_mm512_srlv_epi32(words[i], shift), mask);

                x[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), step[i], zero[i]);
                x[i] = _mm512_mul_ps(x[i], scale);
            }
            if (!rotated)
                kvk_z_butterfly(x, n);
            store_row((uint8_t *)op->k + (g + j) * op->k_token_stride_bytes, x, n, bf16);
        }
    }
}

/* 16 codes at `at`, one per 32-bit lane; bits above the code are not cleared. */
KVK_INLINE __m512i spread_codes(const uint8_t *at, uint32_t bits)
{
    if (bits == 2) {
        int word;

        __builtin_memcpy(&word, at, sizeof word);
        return _mm512_srlv_epi32(
            _mm512_set1_epi32(word),
            _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
    }
    return _mm512_srlv_epi32(
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                 _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)at))),
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
}

KVK_INLINE void decode_v(const struct kvk_decompress *op, const struct kvk_layout *at, uint32_t dim,
                         uint32_t bits, int bf16, int rotated)
{
    const size_t n = dim / 16, row_bytes = (size_t)dim * bits / 8;
    const __m512 norm = _mm512_set1_ps(rotated ? 1.0f : kvk_fwht_norm(dim));
    const __m512 values = _mm512_cvtepi32_ps(
        bits == 2 ? _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3)
                  : _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __m512 channel[16];

    for (size_t i = 0; i < n; i++)
        channel[i] = _mm512_mul_ps(load_f16(op->record, at->v_channel, 16 * (uint32_t)i), norm);
    for (uint32_t g = 0; g < op->shape.group; g++) {
        const uint8_t *codes = op->record + at->v_codes + g * row_bytes;
        __m512 table = _mm512_fmadd_ps(values, _mm512_set1_ps(f16_at(op->record, at->v_step, g)),
                                       _mm512_set1_ps(f16_at(op->record, at->v_zero, g)));
        __m512 x[16];

#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++) {
            __m512i code = spread_codes(codes + 2 * (size_t)i * bits, bits);

            x[i] =
                bits == 2 ? _mm512_permutevar_ps(table, code) : _mm512_permutexvar_ps(code, table);
            x[i] = _mm512_mul_ps(x[i], channel[i]);
        }
        if (!rotated)
            kvk_z_butterfly(x, n);
        store_row((uint8_t *)op->v + g * op->v_token_stride_bytes, x, n, bf16);
    }
}
