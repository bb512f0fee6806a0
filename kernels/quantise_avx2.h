/* The last step of compress with AVX2: range, step and zero of each row, codes, packing
 * (quantise_row() of compress_ref.c). Included by compress_avx2.c only. */
#ifndef KVK_QUANTISE_AVX2_H
#define KVK_QUANTISE_AVX2_H

#include "kernels/simd_avx2.h"

/* 32 codes, one per 32-bit lane -> packed bytes. */
KVK_INLINE void pack_32(uint8_t *codes, const __m256i *code, uint32_t bits)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(code[0], code[1]),
                                        _mm256_packs_epi32(code[2], code[3]));

    bytes = _mm256_permutevar8x32_epi32(bytes, order);
    if (bits == 4) { /* two codes per 16-bit lane */
        bytes = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001));
        bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(bytes, bytes), 0xd8);
        _mm_storeu_si128((__m128i *)codes, _mm256_castsi256_si128(bytes));
    } else { /* four codes per 32-bit lane */
        __m128i four;

        bytes = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0401));
        bytes = _mm256_madd_epi16(bytes, _mm256_set1_epi32(0x00100001));
        four = _mm_packus_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        _mm_storel_epi64((__m128i *)codes, _mm_packus_epi16(four, four));
    }
}

KVK_INLINE void quantise_row(uint8_t *codes, const float *t, const float *w, float low,
                             float inverse, uint32_t cols, uint32_t bits)
{
    const __m256 lo = _mm256_set1_ps(low), inv = _mm256_set1_ps(inverse);
    const __m256 magic = _mm256_set1_ps(KVK_ROUND_MAGIC);
    const __m256i mask = _mm256_set1_epi32(bits == 2 ? 3 : 15);

    for (uint32_t c = 0; c < cols; c += 32) {
        __m256i code[4];

#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m256 x = _mm256_mul_ps(_mm256_load_ps(t + c + 8 * i), _mm256_load_ps(w + c + 8 * i));

            x = _mm256_fmadd_ps(_mm256_sub_ps(x, lo), inv, magic);
            code[i] = _mm256_and_si256(_mm256_castps_si256(x), mask);
        }
        pack_32(codes + c * bits / 8, code, bits);
    }
}

/* Step, zero and codes of 8 rows. */
KVK_INLINE void quantise_block(const struct kvk_balance *b, const struct kvk_side *side,
                               const float *t, uint32_t r, uint32_t bits)
{
    _Alignas(32) float low[8], inverse[8];
    __m256 lo[8], hi[8], least, most, step, gain = _mm256_set1_ps(b->gain);
    uint32_t cols = side->cols;

    for (uint32_t i = 0; i < 8; i++) {
        const float *row = t + (size_t)i * cols;

        lo[i] = hi[i] = _mm256_mul_ps(_mm256_load_ps(row), _mm256_load_ps(b->best_w));
        for (uint32_t c = 8; c < cols; c += 8) {
            __m256 x = _mm256_mul_ps(_mm256_load_ps(row + c), _mm256_load_ps(b->best_w + c));

            lo[i] = _mm256_min_ps(lo[i], x);
            hi[i] = _mm256_max_ps(hi[i], x);
        }
    }
    KVK_Y_FOLD8(least, lo, _mm256_min_ps);
    KVK_Y_FOLD8(most, hi, _mm256_max_ps);
    step = _mm256_div_ps(_mm256_sub_ps(most, least), _mm256_set1_ps(bits == 2 ? 3.0f : 15.0f));
    step = _mm256_max_ps(
        step, _mm256_mul_ps(_mm256_set1_ps(KVK_STEP_FLOOR), _mm256_load_ps(b->best_sr + r)));
    kvk_y_store_vector(side->step + 2 * (size_t)r, _mm256_mul_ps(step, gain));
    kvk_y_store_vector(side->zero + 2 * (size_t)r, _mm256_mul_ps(least, gain));
    _mm256_store_ps(low, least);
    _mm256_store_ps(inverse, _mm256_div_ps(_mm256_set1_ps(1.0f), step));
    for (uint32_t i = 0; i < 8; i++)
        quantise_row(side->codes + (size_t)(r + i) * cols * bits / 8, t + (size_t)i * cols,
                     b->best_w, low[i], inverse[i], cols, bits);
}

#endif
