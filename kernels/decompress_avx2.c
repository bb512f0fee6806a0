/* Record -> K, V rows with AVX2, FMA and F16C, bit for bit what decompress_ref.c defines.
 *
 * Same plan as decompress_avx512.c. A row goes through scratch once: 64 channels are decoded and
 * rotated inside eight registers, then the distances above 32 are done together with the rounding.
 */
#include "kernels/simd_avx2.h"

#define KVK_DECOMPRESS_ENTRY kvk_decompress_avx2
#include "kernels/decompress_body.h"

struct decoder {
    _Alignas(32) float step[KVARN_MAX_HEAD_DIM];  /* K */
    _Alignas(32) float zero[KVARN_MAX_HEAD_DIM];  /* K */
    _Alignas(32) float scale[KVARN_MAX_HEAD_DIM]; /* V: w / sqrt(D) */
    _Alignas(32) float row[KVARN_MAX_HEAD_DIM];
    _Alignas(32) uint32_t words[KVARN_MAX_HEAD_DIM]; /* K: codes of 8 or 16 tokens per channel */
};

_Static_assert(sizeof(struct decoder) <= sizeof(struct kvk_compress_scratch),
               "fits the scratch of compress");

static void load_vector(float *dst, const uint8_t *at, float factor, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += 8)
        _mm256_store_ps(
            dst + i, _mm256_mul_ps(kvk_y_load_half(at + 2 * (size_t)i, 0), _mm256_set1_ps(factor)));
}

/* The distances above 32 and the rounding of a row whose runs of 64 channels are done. */
KVK_INLINE void finish_row(uint8_t *dst, const float *row, size_t runs, int bf16)
{
    for (size_t i = 0; i < 64; i += 16) {
        __m256 a[4], b[4];

#pragma GCC unroll 4
        for (size_t j = 0; j < runs; j++) {
            a[j] = _mm256_load_ps(row + 64 * j + i);
            b[j] = _mm256_load_ps(row + 64 * j + i + 8);
        }
        kvk_y_butterfly_runs(a, runs);
        kvk_y_butterfly_runs(b, runs);
#pragma GCC unroll 4
        for (size_t j = 0; j < runs; j++)
            kvk_y_store_half(dst + 2 * (64 * j + i), a[j], b[j], bf16);
    }
}

/* 64 decoded channels: rotated ones are done, others go to scratch for finish_row(). */
KVK_INLINE void end_run(uint8_t *dst, float *row, __m256 *x, int bf16, int rotated)
{
    if (rotated) {
#pragma GCC unroll 4
        for (size_t i = 0; i < 8; i += 2)
            kvk_y_store_half(dst + 16 * i, x[i], x[i + 1], bf16);
        return;
    }
    kvk_y_butterfly_64(x);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        _mm256_store_ps(row + 8 * i, x[i]);
}

KVK_INLINE void decode_k(const struct kvk_decompress *op, const struct kvk_layout *at, uint32_t dim,
                         uint32_t bits, int bf16, int rotated)
{
    struct decoder *s = op->scratch;
    const uint32_t group = op->shape.group, per_word = 32 / bits;
    const size_t row_bytes = (size_t)group * bits / 8;
    const float norm = rotated ? 1.0f : kvk_fwht_norm(dim);
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);

    load_vector(s->step, op->record + at->k_step, 1.0f, dim);
    load_vector(s->zero, op->record + at->k_zero, 1.0f, dim);
    for (uint32_t g = 0; g < group; g += per_word) {
        const uint8_t *codes = op->record + at->k_codes + g * bits / 8;

        for (uint32_t d = 0; d < dim; d++)
            __builtin_memcpy(&s->words[d], codes + d * row_bytes, sizeof s->words[d]);
        for (uint32_t j = 0; j < per_word; j++) {
            uint8_t *dst = (uint8_t *)op->k + (g + j) * op->k_token_stride_bytes;
            __m256 scale = _mm256_set1_ps(f16_at(op->record, at->k_token, g + j) * norm);
            __m256i shift = _mm256_set1_epi32((int)(j * bits));

            for (uint32_t d = 0; d < dim; d += 64) {
                __m256 x[8];

#pragma GCC unroll 8
                for (uint32_t i = 0; i < 8; i++) {
                    uint32_t c = d + 8 * i;
                    __m256i code = _mm256_load_si256((const __m256i *)(s->words + c));

                    code = _mm256_and_si256(_mm256_srlv_epi32(code, shift), mask);
                    x[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), _mm256_load_ps(s->step + c),
                                           _mm256_load_ps(s->zero + c));
                    x[i] = _mm256_mul_ps(x[i], scale);
                }
                end_run(dst + 2 * (size_t)d, s->row + d, x, bf16, rotated);
            }
            if (!rotated)
                finish_row(dst, s->row, dim / 64, bf16);
        }
    }
}

/* Values of 8 codes at bit position 8 * bits * i behind `at`. */
KVK_INLINE __m256 decode_8(const uint8_t *at, uint32_t i, uint32_t bits, __m256 step, __m256 zero,
                           __m256 table)
{
    const __m256i shift =
        _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)bits));
    __m256i code;
    uint32_t word;

    if (bits == 2) {
        uint16_t half;

        __builtin_memcpy(&half, at + 2 * (size_t)i, sizeof half);
        code = _mm256_srlv_epi32(_mm256_set1_epi32(half), shift);
        return _mm256_permutevar_ps(table, code); /* looks at the two low bits only */
    }
    __builtin_memcpy(&word, at + 4 * (size_t)i, sizeof word);
    code = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)word), shift),
                            _mm256_set1_epi32(15));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), step, zero);
}

KVK_INLINE void decode_v(const struct kvk_decompress *op, const struct kvk_layout *at, uint32_t dim,
                         uint32_t bits, int bf16, int rotated)
{
    struct decoder *s = op->scratch;
    const __m256 values = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);

    load_vector(s->scale, op->record + at->v_channel, rotated ? 1.0f : kvk_fwht_norm(dim), dim);
    for (uint32_t g = 0; g < op->shape.group; g++) {
        const uint8_t *codes = op->record + at->v_codes + (size_t)g * dim * bits / 8;
        uint8_t *dst = (uint8_t *)op->v + g * op->v_token_stride_bytes;
        __m256 step = _mm256_set1_ps(f16_at(op->record, at->v_step, g));
        __m256 zero = _mm256_set1_ps(f16_at(op->record, at->v_zero, g));
        __m256 table = _mm256_fmadd_ps(values, step, zero);

        for (size_t d = 0; d < dim; d += 64) {
            __m256 x[8];

#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++)
                x[i] =
                    _mm256_mul_ps(decode_8(codes, (uint32_t)(d / 8 + i), bits, step, zero, table),
                                  _mm256_load_ps(s->scale + d + 8 * i));
            end_run(dst + 2 * d, s->row + d, x, bf16, rotated);
        }
        if (!rotated)
            finish_row(dst, s->row, dim / 64, bf16);
    }
}
