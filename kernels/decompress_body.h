/* Decompress for any vector width, bit for bit what decompress_ref.c defines: one body per head
 * dimension, bits and dtype.
 *
 * A template: decompress_avx2.c and decompress_avx512.c include this file, which defines
 * KVK_DECOMPRESS_ENTRY, and then define decode_k() and decode_v(). */
#include "kernels/fwht.h"
#include "kernels/tile.h"
#include "kernels/variants.h"

KVK_INLINE void decode_k(const struct kvk_decompress *op, const struct kvk_layout *at, uint32_t dim,
                         uint32_t bits, int bf16, int rotated);
KVK_INLINE void decode_v(const struct kvk_decompress *op, const struct kvk_layout *at, uint32_t dim,
                         uint32_t bits, int bf16, int rotated);

/* One value of the fp16 vector at `offset`. */
KVK_INLINE float f16_at(const uint8_t *record, size_t offset, uint32_t index)
{
    uint16_t h;

    __builtin_memcpy(&h, record + offset + 2 * (size_t)index, sizeof h);
    return _cvtsh_ss(h);
}

#define BODY(dim, bits, bf16)                                                                      \
    static void decode_k_##dim##_##bits##_##bf16(const struct kvk_decompress *op,                  \
                                                 const struct kvk_layout *at)                      \
    {                                                                                              \
        if (op->shape.k_rotated)                                                                   \
            decode_k(op, at, dim, bits, bf16, 1);                                                  \
        else                                                                                       \
            decode_k(op, at, dim, bits, bf16, 0);                                                  \
    }                                                                                              \
    static void decode_v_##dim##_##bits##_##bf16(const struct kvk_decompress *op,                  \
                                                 const struct kvk_layout *at)                      \
    {                                                                                              \
        if (op->shape.v_rotated)                                                                   \
            decode_v(op, at, dim, bits, bf16, 1);                                                  \
        else                                                                                       \
            decode_v(op, at, dim, bits, bf16, 0);                                                  \
    }
#define BODIES(dim) BODY(dim, 2, 0) BODY(dim, 2, 1) BODY(dim, 4, 0) BODY(dim, 4, 1)
BODIES(64)
BODIES(128)
BODIES(256)

typedef void (*decoder)(const struct kvk_decompress *op, const struct kvk_layout *at);

/* clang-format off */
#define PAIR(tensor, dim, bits) \
    {decode_##tensor##_##dim##_##bits##_0, decode_##tensor##_##dim##_##bits##_1}
#define ROW(tensor, dim) {PAIR(tensor, dim, 2), PAIR(tensor, dim, 4)}
/* clang-format on */
static const decoder decoders_k[3][2][2] = {ROW(k, 64), ROW(k, 128), ROW(k, 256)};
static const decoder decoders_v[3][2][2] = {ROW(v, 64), ROW(v, 128), ROW(v, 256)};

kvarn_status KVK_DECOMPRESS_ENTRY(struct kvk_decompress *op)
{
    const struct kvk_shape *s = &op->shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);
    int dim = s->dim == 64 ? 0 : s->dim == 128 ? 1 : 2, bf16 = s->dtype == KVARN_BF16;

    if (op->k != NULL)
        decoders_k[dim][s->bits_k == 4][bf16](op, &at);
    if (op->v != NULL)
        decoders_v[dim][s->bits_v == 4][bf16](op, &at);
    return KVARN_OK;
}
