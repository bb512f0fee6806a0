/* CRC-32C of words, by a group of KVK_CUDA_CONVERT_THREADS threads (server/device/digest.c has the
 * arithmetic: polynomials modulo Castagnoli's, bit 31 is x^0).
 *
 * A digest is linear: of words w[0..n) it is the sum of w[i] x^(32 (n - i)), the first word
 * complemented and the sum too. Thread u takes the words whose distance from the end is u modulo
 * 128, by Horner's rule with the one factor x^(32 * 128), and multiplies by x^(32 (u + 1)) at the
 * end: by a table of its lane, then, one warp for all, by the warp's power. A product is eight
 * look-ups, one of each four bits; every lane has tables of its own, so that no look-up meets
 * another's bank. */
#ifndef KVK_CUDA_DIGEST_CUH
#define KVK_CUDA_DIGEST_CUH

#include <stdint.h>

#include "kernels/cuda/launch.h"

namespace digest
{

constexpr uint32_t THREADS = KVK_CUDA_CONVERT_THREADS, WARPS = THREADS / 32;
constexpr uint32_t TABLE_WORDS = 8 * 16 * 32; /* [four bits][their value][lane] */

static_assert(2 * TABLE_WORDS * 4 == KVK_CUDA_CONVERT_TABLES, "both tables");

/* times x */
__host__ __device__ constexpr uint32_t times_x(uint32_t a)
{
    return a >> 1 ^ (0x82f63b78u & (0u - (a & 1)));
}

/* Powers of x^4 that tables are made of: of lanes, of Horner's factor, of warps. */
struct powers {
    uint32_t lane[32 * 8 + 8]; /* x^(4 i) */
    uint32_t step[8];          /* x^(32 * 128 + 4 i) */
    uint32_t warp[WARPS][8];   /* x^(32 * 32 w + 4 i) */
};

constexpr struct powers make_powers()
{
    struct powers made = {};
    uint32_t power = 1u << 31;

    for (uint32_t i = 0; i < 32 * THREADS / 4 + 8; i++) {
        if (i < 32 * 8 + 8)
            made.lane[i] = power;
        if (i >= 32 * THREADS / 4)
            made.step[i - 32 * THREADS / 4] = power;
        if (i % (32 * 32 / 4) < 8 && i / (32 * 32 / 4) < WARPS)
            made.warp[i / (32 * 32 / 4)][i % (32 * 32 / 4)] = power;
        for (uint32_t bit = 0; bit < 4; bit++)
            power = times_x(power);
    }
    return made;
}

static __device__ constexpr struct powers powers = make_powers();

/* Both tables, by all threads of the thread block; a __syncthreads() must follow. Bits 4 k to
 * 4 k + 3 of a factor stand for x^(31 - 4 k) to x^(28 - 4 k). */
static __device__ __forceinline__ void make_tables(uint32_t *tables)
{
    for (uint32_t i = threadIdx.x; i < 2 * 8 * 32; i += blockDim.x) {
        const uint32_t lane = i % 32, k = i / 32 % 8;
        uint32_t bit[4];

        bit[3] = i < 8 * 32 ? powers.step[7 - k] : powers.lane[8 * lane + 15 - k];
        for (int b = 2; b >= 0; b--)
            bit[b] = times_x(bit[b + 1]);
        uint32_t *at = tables + (i < 8 * 32 ? 0 : TABLE_WORDS) + k * 16 * 32 + lane;
        for (uint32_t value = 0; value < 16; value++)
            at[value * 32] = (value & 1 ? bit[0] : 0) ^ (value & 2 ? bit[1] : 0) ^
                             (value & 4 ? bit[2] : 0) ^ (value & 8 ? bit[3] : 0);
    }
}

/* a times the table's factor. lane: 4 * number of the lane. */
static __device__ __forceinline__ uint32_t times(const uint32_t *table, uint32_t a, uint32_t lane)
{
    const uint8_t *at = (const uint8_t *)table;
    uint32_t product = 0;

#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t four = k < 2 ? a << (7 - 4 * k) : a >> (4 * k - 7);

        product ^= *(const uint32_t *)(at + k * 2048 + ((four & 0x780) | lane));
    }
    return product;
}

/* What thread u of the group adds over its words: first(count, u), then in steps of THREADS. */
static __device__ __forceinline__ uint32_t first_word(uint32_t count, uint32_t u)
{
    return (count - 1 - u) % THREADS;
}

static __device__ __forceinline__ uint32_t add_word(const uint32_t *tables, uint32_t sum,
                                                    uint32_t word, uint32_t index)
{
    return times(tables, sum, threadIdx.x % 32 * 4) ^ word ^ (index == 0 ? ~0u : 0u);
}

/* The group's threads' sums -> one value a warp, which join() makes the digest of. */
static __device__ __forceinline__ void leave_part(const uint32_t *tables, uint32_t *parts,
                                                  uint32_t sum)
{
    const uint32_t lane = threadIdx.x % 32;

    sum = __reduce_xor_sync(~0u, times(tables + TABLE_WORDS, sum, lane * 4));
    if (lane == 0)
        parts[threadIdx.x % THREADS / 32] = sum;
}

/* By a whole warp, after all of the group's parts are there. Lane 8 w + k takes four bits of warp
 * w's part. */
static __device__ __forceinline__ uint32_t join(const uint32_t *parts)
{
    const uint32_t lane = threadIdx.x % 32, w = lane / 8, k = lane % 8;
    const uint32_t part = parts[w] >> 4 * k;
    uint32_t power = powers.warp[w][7 - k], product = 0;

    static_assert(WARPS == 4, "a lane for each four bits");
#pragma unroll
    for (int bit = 3; bit >= 0; bit--) {
        product ^= part >> bit & 1 ? power : 0;
        power = times_x(power);
    }
    return ~__reduce_xor_sync(~0u, product);
}

} // namespace digest

#endif
