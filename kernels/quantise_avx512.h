/* The last step of compress with AVX-512: range, step and zero of each row, codes, packing
 * (quantise_row() of compress_ref.c). Included by compress_avx512.c only. */
#ifndef KVK_QUANTISE_AVX512_H
#define KVK_QUANTISE_AVX512_H

#include "kernels/simd_avx512.h"

/* Low bits of 64 codes, 32 bits each, -> 64 bytes in order. */
KVK_INLINE __m512i gather_bytes(const __m512i *code)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i low = _mm512_packs_epi32(code[0], code[1]);
    __m512i high = _mm512_packs_epi32(code[2], code[3]);

    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
}

KVK_INLINE void quantise_row(uint8_t *codes, const float *t, const float *w, float low,
                             float inverse, uint32_t cols, uint32_t bits)
{
    const __m512 lo = _mm512_set1_ps(low), inv = _mm512_set1_ps(inverse);
    const __m512 magic = _mm512_set1_ps(KVK_ROUND_MAGIC);
    const __m512i mask = _mm512_set1_epi32(bits == 2 ? 3 : 15);

    for (uint32_t c = 0; c < cols; c += 64) {
        __m512i code[4], bytes;

#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m512 x =
                _mm512_mul_ps(_mm512_load_ps(t + c + 16 * i), _mm512_load_ps(w + c + 16 * i));

            x = _mm512_fmadd_ps(_mm512_sub_ps(x, lo), inv, magic);
            code[i] = _mm512_and_si512(_mm512_castps_si512(x), mask);
        }
        bytes = gather_bytes(code);
        if (bits == 4) { /* two codes per 16-bit lane */
            bytes = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001));
            _mm256_storeu_si256((__m256i *)(codes + c / 2), _mm512_cvtepi16_epi8(bytes));
        } else { /* four codes per 32-bit lane */
            bytes = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x0401));
            bytes = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x00100001));
            _mm_storeu_si128((__m128i *)(codes + c / 4), _mm512_cvtepi32_epi8(bytes));
        }
    }
}

/* Step, zero and codes of 16 rows. */
KVK_INLINE void quantise_block(const struct kvk_balance *b, const struct kvk_side *side,
                               const float *t, uint32_t r, uint32_t bits)
{
    _Alignas(64) float low[16], inverse[16];
    __m512 lo[16], hi[16], least, most, step, gain = _mm512_set1_ps(b->gain);
    uint32_t cols = side->cols;

    for (uint32_t i = 0; i < 16; i++) {
        const float *row = t + (size_t)i * cols;

        lo[i] = hi[i] = _mm512_mul_ps(_mm512_load_ps(row), _mm512_load_ps(b->best_w));
        for (uint32_t c = 16; c < cols; c += 16) {
            __m512 x = _mm512_mul_ps(_mm512_load_ps(row + c), _mm512_load_ps(b->best_w + c));

            lo[i] = _mm512_min_ps(lo[i], x);
            hi[i] = _mm512_max_ps(hi[i], x);
        }
    }
    KVK_Z_FOLD16(least, lo, _mm512_min_ps);
    KVK_Z_FOLD16(most, hi, _mm512_max_ps);
    step = _mm512_div_ps(_mm512_sub_ps(most, least), _mm512_set1_ps(bits == 2 ? 3.0f : 15.0f));
    step = _mm512_max_ps(
        step, _mm512_mul_ps(_mm512_set1_ps(KVK_STEP_FLOOR), _mm512_load_ps(b->best_sr + r)));
    kvk_z_store_vector(side->step + 2 * (size_t)r, _mm512_mul_ps(step, gain));
    kvk_z_store_vector(side->zero + 2 * (size_t)r, _mm512_mul_ps(least, gain));
    _mm512_store_ps(low, least);
    _mm512_store_ps(inverse, _mm512_div_ps(_mm512_set1_ps(1.0f), step));
    for (uint32_t i = 0; i < 16; i++)
        quantise_row(side->codes + (size_t)(r + i) * cols * bits / 8, t + (size_t)i * cols,
                     b->best_w, low[i], inverse[i], cols, bits);
}

#endif
