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
 * bits. This is the layout of the public KVarN vLLM backend. Device order, a permutation of it,
 * belongs here too when a device needs one. */
#ifndef KVK_TILE_H
#define KVK_TILE_H

#include <stddef.h>
#include <stdint.h>

struct kvk_layout {
    size_t k_codes, k_step, k_zero, k_token;
    size_t v_codes, v_channel, v_step, v_zero;
    size_t bytes;
};

static inline struct kvk_layout kvk_layout_of(uint32_t dim, uint32_t group, uint32_t bits_k,
                                              uint32_t bits_v)
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

#endif
