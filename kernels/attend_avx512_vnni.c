/* Attend with AVX-512 and VNNI: products with packed codes on the integer unit.
 *
 * VPDPBUSD adds four products u8 * s8 into each 32-bit lane. Codes are the u8 side, left where they
 * are in their byte (code k of a byte is code << k * bits: the power of two is taken out at the
 * end). The other side, x (folded q, or p b), becomes 16-bit fixed point relative to its largest
 * entry, split into two s8 digits: x = unit (256 high + low). Sums are exact in 32 bits:
 * 240 * 32512 * 256 rows < 2^31. So the only error is the rounding of x, at most 2^-16 of its
 * largest entry. Four rows are interleaved byte by byte first, once for all query rows. */
#include <math.h>

#include "kernels/attend.h"
#include "kernels/attend_codes.h"
#include "kernels/vec512.h"

enum { FIXED_MAX = 127 * 256 }; /* largest |256 high + low| with high in s8 */

static uint32_t unit_columns(uint32_t bits, uint32_t columns)
{
    return bits == 2 && columns % 128 == 0 ? 128 : 64;
}

/* Column of a unit that sums into lane place % 16 of vector place / 16. Vector v holds code v % per
 * of the bytes in interleaved vector v / per, per = codes in a byte. */
static uint32_t unit_column(uint32_t bits, uint32_t width, uint32_t place)
{
    uint32_t per = 8 / bits, lane = place % 16, vector = place / 16;
    uint32_t dword = vector / per * 16 + lane, byte = dword;

    if (width * bits == 256) /* interleaved from 32-byte rows, 16-byte halves side by side */
        byte = dword / 4 % 2 * 16 + dword / 8 * 4 + dword % 4;
    return byte * per + vector % per;
}

/* The same 32 bytes' place of two rows, one in each half. */
KVK_INLINE __m512i two_rows(const uint8_t *first, const uint8_t *second)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)first)),
                              _mm256_loadu_si256((const void *)second), 1);
}

KVK_INLINE void store_halves(uint8_t *to, __m512i x)
{
    _mm256_store_si256((void *)to, _mm512_castsi512_si256(x));
    _mm256_store_si256((void *)(to + 128), _mm512_extracti64x4_epi64(x, 1));
}

/* Twice four rows of 32 bytes -> twice 32 dwords, each one byte of every row of its four. */
KVK_INLINE void interleave_32(const uint8_t *const row[8], uint8_t *to)
{
    __m512i a = two_rows(row[0], row[4]), b = two_rows(row[1], row[5]);
    __m512i c = two_rows(row[2], row[6]), d = two_rows(row[3], row[7]);
    __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);

    store_halves(to, _mm512_unpacklo_epi16(ab, cd));
    store_halves(to + 32, _mm512_unpackhi_epi16(ab, cd));
    ab = _mm512_unpackhi_epi8(a, b);
    cd = _mm512_unpackhi_epi8(c, d);
    store_halves(to + 64, _mm512_unpacklo_epi16(ab, cd));
    store_halves(to + 96, _mm512_unpackhi_epi16(ab, cd));
}

/* Four rows of 16 bytes -> 16 dwords. */
KVK_INLINE void interleave_16(const uint8_t *const row[4], uint8_t *to)
{
    __m128i a = _mm_loadu_si128((const void *)row[0]), b = _mm_loadu_si128((const void *)row[1]);
    __m128i c = _mm_loadu_si128((const void *)row[2]), d = _mm_loadu_si128((const void *)row[3]);
    __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);

    _mm_store_si128((void *)to, _mm_unpacklo_epi16(ab, cd));
    _mm_store_si128((void *)(to + 16), _mm_unpackhi_epi16(ab, cd));
    ab = _mm_unpackhi_epi8(a, b);
    cd = _mm_unpackhi_epi8(c, d);
    _mm_store_si128((void *)(to + 32), _mm_unpacklo_epi16(ab, cd));
    _mm_store_si128((void *)(to + 48), _mm_unpackhi_epi16(ab, cd));
}

/* One unit: row i of its input is row_at[i] (NULL: i) of `packed`. */
KVK_INLINE void interleave_unit(const uint8_t *packed, uint32_t rows, size_t row_bytes, size_t part,
                                const int32_t *row_at, uint8_t *store)
{
    for (uint32_t first = 0; first < rows; first += 8, store += 8 * part) {
        const uint8_t *row[8];
        KVK_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            row[i] = packed + (row_at ? (size_t)row_at[first + i] : first + i) * row_bytes;
        if (part == 32) {
            interleave_32(row, store);
        } else {
            interleave_16(row, store);
            interleave_16(row + 4, store + 64);
        }
    }
}

/* store: [unit][step of 4 rows][width * bits / 2 bytes] */
static struct kvk_codes codes_prepare(const uint8_t *packed, uint32_t bits, uint32_t rows,
                                      uint32_t columns, const int32_t *row_at, uint8_t *store)
{
    uint32_t width = unit_columns(bits, columns);
    size_t row_bytes = (size_t)columns * bits / 8, part = (size_t)width * bits / 8;
    uint8_t *to = store;

    for (size_t at = 0; at < row_bytes; at += part, to += rows * part) {
        if (part == 16)
            interleave_unit(packed + at, rows, row_bytes, 16, row_at, to);
        else if (row_at != NULL)
            interleave_unit(packed + at, rows, row_bytes, 32, row_at, to);
        else
            interleave_unit(packed + at, rows, row_bytes, 32, NULL, to);
    }
    return (struct kvk_codes){store, 4 * part, rows * part, bits, rows, columns, NULL};
}

struct fixed {
    float unit; /* x = unit (256 high + low) + what rounding lost */
    float lost; /* sum of that times the middle code, which leaves an error of mean 0 */
};

/* x -> digits: per four entries, four low digits, then four high digits. */
static struct fixed make_digits(const float *x, uint32_t count, uint32_t bits, int8_t *digits)
{
    /* halves of 32 words into order, then low and high bytes of four words apart */
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    const __m512i apart =
        _mm512_broadcast_i32x4(_mm_set_epi8(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0));
    const __m512i flip = _mm512_set1_epi64(0x80808080);
    vf top = v_set(0.0f), top_odd = top, lost = top, lost_odd = top;

    for (uint32_t i = 0; i < count; i += 32) {
        top = v_max(top, _mm512_abs_ps(v_load(x + i)));
        top_odd = v_max(top_odd, _mm512_abs_ps(v_load(x + i + 16)));
    }
    float largest = v_reduce_max(v_max(top, top_odd));
    /* below this the whole product is under 1e-24, and its inverse might overflow */
    if (!(largest > 1e-30f)) {
        memset(digits, 0, (size_t)2 * count);
        return (struct fixed){0.0f, 0.0f};
    }
    vf factor = v_set((float)FIXED_MAX / largest);
    for (uint32_t i = 0; i < count; i += 32) {
        vf exact_a = v_mul(v_load(x + i), factor), exact_b = v_mul(v_load(x + i + 16), factor);
        __m512i a = _mm512_cvtps_epi32(exact_a), b = _mm512_cvtps_epi32(exact_b);
        lost = v_add(lost, _mm512_sub_ps(exact_a, _mm512_cvtepi32_ps(a)));
        lost_odd = v_add(lost_odd, _mm512_sub_ps(exact_b, _mm512_cvtepi32_ps(b)));
        __m512i words = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(a, b));
        /* low digit: the low byte as s8; high digit: what is left, so 128 is carried up */
        words = _mm512_add_epi16(words, _mm512_set1_epi16(128));
        words = _mm512_xor_si512(_mm512_shuffle_epi8(words, apart), flip);
        _mm512_storeu_si512(digits + 2 * (size_t)i, words);
    }
    float unit = largest / (float)FIXED_MAX;
    return (struct fixed){unit,
                          v_reduce_add(v_add(lost, lost_odd)) * unit * (bits == 2 ? 1.5f : 7.5f)};
}

KVK_INLINE __m512i digits_load(const int8_t *digits, int high)
{
    int32_t four;

    memcpy(&four, digits + 4 * (size_t)high, sizeof(four));
    return _mm512_set1_epi32(four);
}

KVK_INLINE __m512i code_mask(int bits, int k)
{
    return _mm512_set1_epi32((int)((bits == 2 ? 0x03030303u : 0x0f0f0f0fu) << k * bits));
}

/* sum + code * x. Not the intrinsic: with that, GCC 12 copies every sum to another register. */
KVK_INLINE __m512i multiply_add(__m512i sum, __m512i code, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(code), "v"(x));
    return sum;
}

/* Vectors v0 .. v0 + n - 1 of a unit for `rows` query rows; rows, bits, v0, n constant. */
KVK_INLINE void block(const struct kvk_codes *codes, const uint8_t *z, const int8_t *digits,
                      const struct fixed *fixed, float *sum, int rows, int bits, int v0, int n)
{
    const int per = 8 / bits;
    const size_t stride = (size_t)2 * KVARN_MAX_HEAD_DIM;
    __m512i low[8], high[8], code[8];

    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        low[i] = high[i] = _mm512_setzero_si512();
    for (uint32_t s = 0; s < codes->rows / 4; s++, z += codes->step_bytes, digits += 8) {
        KVK_UNROLL
        for (int i = 0; i < n; i++)
            code[i] = _mm512_and_si512(_mm512_load_si512(z + (size_t)((v0 + i) / per) * 64),
                                       code_mask(bits, (v0 + i) % per));
        KVK_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i x_low = digits_load(digits + (size_t)r * stride, 0);
            __m512i x_high = digits_load(digits + (size_t)r * stride, 1);
            KVK_UNROLL
            for (int i = 0; i < n; i++) {
                low[r * n + i] = multiply_add(low[r * n + i], code[i], x_low);
                high[r * n + i] = multiply_add(high[r * n + i], code[i], x_high);
            }
        }
    }
    KVK_UNROLL
    for (int i = 0; i < rows * n; i++) {
        int r = i / n, v = v0 + i % n;
        __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
        vf factor = v_set(fixed[r].unit / (float)(1 << v % per * bits));
        v_store(sum + (size_t)r * KVARN_MAX_HEAD_DIM + 16 * (size_t)v,
                v_fma(_mm512_cvtepi32_ps(whole), factor, v_set(fixed[r].lost)));
    }
}

/* One unit of `vectors` (4 or 8) sum vectors, up to KVK_ROWS query rows. */
KVK_INLINE void multiply_unit(const struct kvk_codes *codes, const uint8_t *z, const int8_t *digits,
                              const struct fixed *fixed, float *sum, uint32_t rows, int bits,
                              int vectors)
{
    while (rows > 0) {
        uint32_t now = rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        if (now == 4) {
            block(codes, z, digits, fixed, sum, 4, bits, 0, 2);
            block(codes, z, digits, fixed, sum, 4, bits, 2, 2);
            if (vectors == 8) {
                block(codes, z, digits, fixed, sum, 4, bits, 4, 2);
                block(codes, z, digits, fixed, sum, 4, bits, 6, 2);
            }
        } else if (now == 2) {
            block(codes, z, digits, fixed, sum, 2, bits, 0, 4);
            if (vectors == 8)
                block(codes, z, digits, fixed, sum, 2, bits, 4, 4);
        } else {
            block(codes, z, digits, fixed, sum, 1, bits, 0, vectors);
        }
        rows -= now;
        digits += (size_t)now * 2 * KVARN_MAX_HEAD_DIM;
        fixed += now;
        sum += (size_t)now * KVARN_MAX_HEAD_DIM;
    }
}

/* work->sum[r] = work->x[r] times the codes, in column order, for r < rows. */
static void codes_multiply(const struct kvk_codes *codes, struct kvk_attend_work *work,
                           uint32_t rows)
{
    uint32_t width = unit_columns(codes->bits, codes->columns);
    int8_t *digits = (int8_t *)work->tables;
    struct fixed fixed[KVK_ROWS];
    float *sum = work->sum[0];

    for (uint32_t r = 0; r < rows; r++)
        fixed[r] = make_digits(work->x[r], codes->rows, codes->bits,
                               digits + (size_t)r * 2 * KVARN_MAX_HEAD_DIM);
    for (uint32_t unit = 0; unit < codes->columns / width; unit++, sum += width) {
        const uint8_t *z = codes->base + unit * codes->unit_bytes;
        if (codes->bits == 4)
            multiply_unit(codes, z, digits, fixed, sum, rows, 4, 4);
        else if (width == 64)
            multiply_unit(codes, z, digits, fixed, sum, rows, 2, 4);
        else
            multiply_unit(codes, z, digits, fixed, sum, rows, 2, 8);
    }
}

#define KVK_ATTEND_ENTRY kvk_attend_avx512_vnni
#include "kernels/attend_body.h"
