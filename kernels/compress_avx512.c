/* K and V of one tile -> record with AVX-512: what compress_body.h leaves to the instruction set.
 */
#include "kernels/fwht.h"
#include "kernels/simd_avx512.h"

/* One row, checked and rotated inside 4, 8 or 16 registers. False when a value is not finite. */
KVK_INLINE int load_row(float *dst, const uint8_t *src, uint32_t dim, int bf16, int rotate)
{
    const __m512 limit = _mm512_set1_ps(KVK_INPUT_LIMIT), least = _mm512_set1_ps(-KVK_INPUT_LIMIT);
    const __m512 zero = _mm512_setzero_ps(), norm = _mm512_set1_ps(kvk_fwht_norm(dim));
    const size_t n = dim / 16;
    __m512 x[16], bad = zero;

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
    if (rotate) {
        kvk_z_butterfly(x, n);
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++)
            x[i] = _mm512_mul_ps(x[i], norm);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < n; i++)
        _mm512_store_ps(dst + 16 * i, x[i]);
    return 1;
}

/* 64 rounded values -> packed bytes; the code is in the low bits of each. */
KVK_INLINE void pack_codes(uint8_t *codes, const vf *rounded, uint32_t bits)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i mask = _mm512_set1_epi32(bits == 2 ? 3 : 15);
    __m512i code[4], bytes;

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        code[i] = _mm512_and_si512(_mm512_castps_si512(rounded[i]), mask);
    bytes = _mm512_packus_epi16(_mm512_packs_epi32(code[0], code[1]),
                                _mm512_packs_epi32(code[2], code[3]));
    bytes = _mm512_permutexvar_epi32(order, bytes);
    if (bits == 4) { /* two codes per 16-bit lane */
        bytes = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001));
        _mm256_storeu_si256((__m256i *)codes, _mm512_cvtepi16_epi8(bytes));
    } else { /* four codes per 32-bit lane */
        bytes = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x0401));
        bytes = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x00100001));
        _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(bytes));
    }
}

#define KVK_COMPRESS_ENTRY kvk_compress_avx512
#include "kernels/compress_body.h"

/* Both means in one pass. Column sums of a block go to registers before they join the total, as in
 * the reference. */
static void measure_means(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    memset(b->col_mean, 0, sizeof b->col_mean);
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        __m512 lane[16], folded;

        for (uint32_t i = 0; i < 16; i++)
            lane[i] = _mm512_setzero_ps();
        for (uint32_t c = 0; c < cols; c += 16) {
            __m512 block = _mm512_setzero_ps();

#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++) {
                __m512 x = _mm512_load_ps(t + (size_t)i * cols + c);

                lane[i] = _mm512_add_ps(lane[i], x);
                block = _mm512_add_ps(block, x);
            }
            _mm512_store_ps(b->col_mean + c, _mm512_add_ps(_mm512_load_ps(b->col_mean + c), block));
        }
        KVK_FOLD(folded, lane, _mm512_add_ps);
        folded = _mm512_mul_ps(folded, _mm512_set1_ps(1.0f / (float)cols));
        _mm512_store_ps(b->row_mean + r, folded);
    }
    scale_vector(b->col_mean, b->col_mean, 1.0f / (float)rows, cols);
}
