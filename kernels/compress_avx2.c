/* K and V of one tile -> record with AVX2, FMA and F16C: what compress_body.h leaves to the
 * instruction set. */
#include "kernels/fwht.h"
#include "kernels/simd_avx2.h"

/* 64 channels: load, note non-finite values in bad, distances 1 to 32, store. */
KVK_INLINE __m256 load_run(float *dst, const uint8_t *src, int bf16, int rotate, __m256 bad)
{
    const __m256 limit = _mm256_set1_ps(KVK_INPUT_LIMIT), least = _mm256_set1_ps(-KVK_INPUT_LIMIT);
    __m256 x[8];

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        x[i] = kvk_y_load_half(src + 16 * i, bf16);
        /* NaN as soon as one is not finite */
        bad = _mm256_fmadd_ps(x[i], _mm256_setzero_ps(), bad);
        if (bf16)
            x[i] = _mm256_min_ps(_mm256_max_ps(x[i], least), limit);
    }
    if (rotate)
        kvk_y_butterfly_64(x);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        _mm256_store_ps(dst + 8 * i, x[i]);
    return bad;
}

/* The distances above 32 and the factor 1 / sqrt(dim), in place. */
KVK_INLINE void finish_row(float *row, size_t runs, float norm)
{
    for (size_t i = 0; i < 64; i += 8) {
        __m256 x[4];

#pragma GCC unroll 4
        for (size_t j = 0; j < runs; j++)
            x[j] = _mm256_load_ps(row + 64 * j + i);
        kvk_y_butterfly_runs(x, runs);
#pragma GCC unroll 4
        for (size_t j = 0; j < runs; j++)
            _mm256_store_ps(row + 64 * j + i, _mm256_mul_ps(x[j], _mm256_set1_ps(norm)));
    }
}

/* One row, checked and rotated. False when a value is not finite. */
KVK_INLINE int load_row(float *dst, const uint8_t *src, uint32_t dim, int bf16, int rotate)
{
    const size_t runs = dim / 64;
    __m256 bad = _mm256_setzero_ps();

    for (size_t j = 0; j < runs; j++)
        bad = load_run(dst + 64 * j, src + 128 * j, bf16, rotate, bad);
    if (_mm256_movemask_ps(_mm256_cmp_ps(bad, bad, _CMP_UNORD_Q)) != 0)
        return 0;
    if (rotate)
        finish_row(dst, runs, kvk_fwht_norm(dim));
    return 1;
}

/* 32 rounded values -> packed bytes; the code is in the low bits of each. */
KVK_INLINE void pack_codes(uint8_t *codes, const vf *rounded, uint32_t bits)
{
    const __m256i mask = _mm256_set1_epi32(bits == 2 ? 3 : 15);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i code[4], bytes;

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        code[i] = _mm256_and_si256(_mm256_castps_si256(rounded[i]), mask);
    bytes = _mm256_packus_epi16(_mm256_packs_epi32(code[0], code[1]),
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

#define KVK_COMPRESS_ENTRY kvk_compress_avx2
#include "kernels/compress_body.h"

static void measure_means(struct kvk_balance *b, const float *t, uint32_t rows, uint32_t cols)
{
    memset(b->col_mean, 0, sizeof b->col_mean);
    for (uint32_t r = 0; r < rows; r++)
        b->row_mean[r] = mean_of(t + (size_t)r * cols, cols);
    for (uint32_t r = 0; r < rows; r += 16, t += (size_t)16 * cols) {
        for (uint32_t c = 0; c < cols; c += 16) {
            __m256 low = _mm256_setzero_ps(), high = low;

            for (uint32_t i = 0; i < 16; i++) {
                low = _mm256_add_ps(low, _mm256_load_ps(t + (size_t)i * cols + c));
                high = _mm256_add_ps(high, _mm256_load_ps(t + (size_t)i * cols + c + 8));
            }
            low = _mm256_add_ps(_mm256_load_ps(b->col_mean + c), low);
            high = _mm256_add_ps(_mm256_load_ps(b->col_mean + c + 8), high);
            _mm256_store_ps(b->col_mean + c, low);
            _mm256_store_ps(b->col_mean + c + 8, high);
        }
    }
    scale_vector(b->col_mean, b->col_mean, 1.0f / (float)rows, cols);
}
