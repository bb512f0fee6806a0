/* The record of a tile: byte offsets of its six vectors and two code matrices in canonical order.
 *
 *      offset        field     type    elements   meaning
 *      0             K codes   bits_k  [D][G]     row = channel d, then token g
 *      k_step        a         fp16    [D]        K^[g,d] = (cK[d,g] * a[d] + z[d]) * u[g]
 *      k_zero        z         fp16    [D]
 *      k_token       u         fp16    [G]
 *      v_codes       V codes   bits_v  [G][D]     row = token g, then channel d
 *      v_channel     w         fp16    [D]        V^[g,d] = (cV[g,d] * b[g] + y[g]) * w[d]
 *      v_step        b         fp16    [G]
 *      v_zero        y         fp16    [G]
 *      bytes         (end)                        no padding anywhere
 *
 * K^ and V^ are rotated rows (x H, H the orthonormal Sylvester-Hadamard matrix of size D).
 * Codes are packed LSB first: element c of a row lies in byte c / (8/bits), bits (c mod (8/bits)) *
 * bits. This is the layout of the public KVarN vLLM backend.
 *
 * Device order is a pure permutation of the record's bits, the same for compress, attend,
 * decompress and convert on a GPU. Sections keep their offsets; inside them
 *   - codes are 32-bit words in the order in which a warp feeds them to mma.m16n8k32 (u8 codes as
 * A): one AND per word makes an A register, and no bit moves between lanes;
 *   - vectors over tokens and v_channel are transposed 8 x N/8, so that a lane's values are
 * adjacent. Both are defined by the functions at the end. */
#ifndef KVK_TILE_H
#define KVK_TILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KVK_EVERYWHERE __host__ __device__
#else
#define KVK_EVERYWHERE
#endif

struct kvk_layout {
    size_t k_codes, k_step, k_zero, k_token;
    size_t v_codes, v_channel, v_step, v_zero;
    size_t bytes;
};

KVK_EVERYWHERE static inline struct kvk_layout kvk_layout_of(uint32_t dim, uint32_t group,
                                                             uint32_t bits_k, uint32_t bits_v)
{
    struct kvk_layout at;
    size_t d = dim, g = group;

    at.k_codes = 0;
    at.k_step = at.k_codes + d * g * bits_k / 8;
    at.k_zero = at.k_step + 2 * d;
    at.k_token = at.k_zero + 2 * d;
    at.v_codes = at.k_token + 2 * g;
    at.v_channel = at.v_codes + g * d * bits_v / 8;
    at.v_step = at.v_channel + 2 * d;
    at.v_zero = at.v_step + 2 * g;
    at.bytes = at.v_zero + 2 * g;
    return at;
}

/* Where device order puts a code: bits [bit, bit + bits) of a little-endian 32-bit word of the
 * section. */
struct kvk_device_code {
    uint32_t word, bit;
};

/* row: what varies inside a byte, so that one AND picks rows g of one half of an A fragment. A
 * block of 8 n rows (n = 8 / bits codes a byte) is row = 8 n block + 8 slot + g. half, t, byte:
 * where the column stands along k of the m16n8k32 step `step`. lane = 4 g + t. */
KVK_EVERYWHERE static inline struct kvk_device_code
kvk_device_code_at(uint32_t row, uint32_t step, uint32_t half, uint32_t t, uint32_t byte,
                   uint32_t columns, uint32_t bits)
{
    struct kvk_device_code at;
    uint32_t per_byte = 8 / bits;
    uint32_t block = row / (8 * per_byte), slot = row / 8 % per_byte, g = row % 8;
    uint32_t word = 2 * step + half; /* of the lane, columns / 16 of them a block, in fours */

    at.word = ((block * (columns / 64) + word / 4) * 32 + 4 * g + t) * 4 + word % 4;
    at.bit = 8 * byte + bits * slot;
    return at;
}

/* K codes: rows are tokens; a lane holds 8 adjacent channels a step. */
KVK_EVERYWHERE static inline struct kvk_device_code
kvk_device_k_code(uint32_t token, uint32_t channel, uint32_t dim, uint32_t bits)
{
    return kvk_device_code_at(token, channel / 32, channel % 8 / 4, channel % 32 / 8, channel % 4,
                              dim, bits);
}

/* V codes: rows are channels; along k stand tokens as movmatrix leaves the probabilities. */
KVK_EVERYWHERE static inline struct kvk_device_code
kvk_device_v_code(uint32_t token, uint32_t channel, uint32_t group, uint32_t bits)
{
    uint32_t t = token % 8 / 2, byte = token % 2 * 2 + token % 16 / 8;

    return kvk_device_code_at(channel, token / 32, token % 32 / 16, t, byte, group, bits);
}

/* Element of a transposed vector of `count` values: k_token, v_step, v_zero (count = group) and
 * v_channel (count = dim). k_step and k_zero stay as they are. */
KVK_EVERYWHERE static inline uint32_t kvk_device_vector(uint32_t index, uint32_t count)
{
    return index % 8 * (count / 8) + index / 8;
}

#endif
