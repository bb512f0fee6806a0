/* Rows in a 16-bit type: search for NaN and infinity, copy, and conversion of fp32 rows.
 *
 * An element is non-finite when its exponent bits are all ones: adding one exponent unit to the
 * masked exponent then carries into the sign's place, four elements per 64-bit word. Rows that are
 * fine, nearly all of them, are looked at once in words; a row that is not is searched again for
 * the place. */
#include <string.h>

#include "kernels/half.h"
#include "kernels/variants.h"

struct exponent {
    uint64_t mask, unit;
};

static struct exponent exponent_of(kvarn_dtype dtype)
{
    if (dtype == KVARN_BF16)
        return (struct exponent){0x7f807f807f807f80u, 0x0080008000800080u};
    return (struct exponent){0x7c007c007c007c00u, 0x0400040004000400u};
}

static uint64_t word_overflows(const uint8_t *at, struct exponent e)
{
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return ((word & e.mask) + e.unit) & 0x8000800080008000u;
}

static uint16_t element_is_bad(const uint8_t *at, kvarn_dtype dtype)
{
    return !kvk_half_is_finite(kvk_u16_load(at), dtype);
}

static int row_is_bad(const uint8_t *row, uint32_t dim, kvarn_dtype dtype)
{
    struct exponent e = exponent_of(dtype);
    uint64_t bad = 0;
    uint32_t d = 0;

    for (; d + 16 <= dim; d += 16) {
        bad |= word_overflows(row + 2 * (size_t)d, e) | word_overflows(row + 2 * (size_t)d + 8, e);
        bad |= word_overflows(row + 2 * (size_t)d + 16, e) |
               word_overflows(row + 2 * (size_t)d + 24, e);
    }
    for (; d < dim; d++)
        bad |= element_is_bad(row + 2 * (size_t)d, dtype);
    return bad != 0;
}

static kvarn_status name_fault(const uint8_t *row, uint32_t token, uint32_t dim, kvarn_dtype dtype,
                               char tensor, struct kvk_fault *fault)
{
    for (uint32_t d = 0; d < dim; d++) {
        if (element_is_bad(row + 2 * (size_t)d, dtype)) {
            *fault = (struct kvk_fault){tensor, token, d};
            return KVARN_NON_FINITE;
        }
    }
    return KVARN_INTERNAL; /* not reached: the caller found one */
}

kvarn_status kvk_rows_check(const void *src, size_t token_stride_bytes, uint32_t tokens,
                            uint32_t dim, kvarn_dtype dtype, char tensor, struct kvk_fault *fault)
{
    *fault = (struct kvk_fault){0};
    for (uint32_t g = 0; g < tokens; g++) {
        const uint8_t *row = (const uint8_t *)src + g * token_stride_bytes;

        if (row_is_bad(row, dim, dtype))
            return name_fault(row, g, dim, dtype, tensor, fault);
    }
    return KVARN_OK;
}

kvarn_status kvk_copy_rows(void *dst, size_t dst_token_stride_bytes, const void *src,
                           size_t src_token_stride_bytes, uint32_t tokens, uint32_t dim,
                           kvarn_dtype dtype, char tensor, struct kvk_fault *fault)
{
    *fault = (struct kvk_fault){0};
    for (uint32_t g = 0; g < tokens; g++) {
        const uint8_t *row = (const uint8_t *)src + g * src_token_stride_bytes;
        uint8_t *to = (uint8_t *)dst + g * dst_token_stride_bytes;

        /* looks at what was copied: the source may be memory a client can still write */
        memcpy(to, row, 2 * (size_t)dim);
        if (row_is_bad(to, dim, dtype)) {
            if (name_fault(to, g, dim, dtype, tensor, fault) == KVARN_NON_FINITE)
                return KVARN_NON_FINITE;
            return KVARN_INTERNAL;
        }
    }
    return KVARN_OK;
}

void kvk_store_rows(void *dst, kvarn_dtype dtype, const float *src, size_t count)
{
    uint8_t *to = dst;

    if (dtype == KVARN_F32) {
        memcpy(to, src, count * sizeof *src);
        return;
    }
    for (size_t i = 0; i < count; i++)
        kvk_u16_store(to + 2 * i, kvk_half_from_f32(src[i], dtype));
}
