/* A matrix (K or V of one cell) as one thread block of compress holds it.
 *
 * Rotated rows, each divided by its root mean square, in fp16, twice:
 *   - in registers, as A fragments of mma.m16n8k16: every warp has Side::token_strips strips of 16
 *     tokens x D channels;
 *   - in shared memory, [token][channel], from where ldmatrix.trans makes strips of 16 channels x G
 *     tokens, Side::channel_strips a warp.
 * A lane is 4 g + t. The owner of a row (a token or a channel) computes its scale: rows g and g + 8
 * of two strips go to the four lanes of a quad, so no scalar work is done twice where there are two
 * strips or more. */
#ifndef KVK_CUDA_COMPRESS_TILE_CUH
#define KVK_CUDA_COMPRESS_TILE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/compress_plan.h"
#include "kernels/tile.h"

constexpr uint32_t kAll = 0xffffffffu;

template <uint32_t D, uint32_t G> struct Plan {
    static constexpr uint32_t warps = KVK_CUDA_COMPRESS_WARPS(D, G);
    static constexpr uint32_t threads = 32 * warps;
    static constexpr uint32_t token_strips = G / 16 / warps, channel_strips = D / 16 / warps;
    static constexpr uint32_t token_rows = token_strips < 2 ? 1 : token_strips / 2;
    static constexpr uint32_t channel_rows = channel_strips < 2 ? 1 : channel_strips / 2;
    static constexpr uint32_t chunks = D / 32; /* of 32 channels, 8 of them adjacent in a lane */
    static constexpr uint32_t steps = G / 16;  /* along tokens */
    /* Largest element of a row in units of its root mean square. */
    static constexpr float peak = D == 64 ? 8.0f : D == 128 ? 11.4f : 16.0f;
};

/* What a warp tells the others at the end of an iteration. */
struct Verdict {
    float first_high, first_low, second_high, second_low;
    float first_top, second_top;
};

/* Weights are stored as they are and squared, the square in two parts, what fp16 holds of it and
 * the rest times 2048: were squares rounded, then rows whose mean is many times their deviation
 * would have none. Those of tokens lie as B fragments want them: [t][step][token % 16 / 8][token %
 * 2], rows padded against bank conflicts. What codes are made of takes their places afterwards (of
 * tokens one more). */
template <uint32_t D, uint32_t G> struct Shared {
    uint4 tile[G * D / 8]; /* 16-byte chunks, swizzled within each token */
    __half2 token_weight[4][G / 8 + 4], token_square[3][4][G / 8 + 4];
    __half channel_weight[D], channel_square[2][D];
    Verdict verdict[8];
    float part[3][8]; /* of block_max, block_min */
};

/* fp16 words of a strip in registers: [chunk][word][row g, g + 8]; channel 32 chunk + 8 t + 2 word.
 */
template <uint32_t D> struct Strip {
    uint32_t x[D / 32][4][2];
};

/* What the owner of a token knows of it. */
template <uint32_t Rows> struct TokenRows {
    float deviation[Rows], scale[Rows]; /* scale: root mean square, by which it was divided */
};

struct Lane {
    uint32_t lane, warp, g, t;
};

__device__ __forceinline__ Lane lane_of()
{
    Lane at;

    at.lane = threadIdx.x % 32;
    at.warp = threadIdx.x / 32;
    at.g = at.lane / 4;
    at.t = at.lane % 4;
    return at;
}

/* Row (token or channel) number i that a lane owns, and its place: strip, half of the strip. */
template <uint32_t Strips> __device__ __forceinline__ uint32_t row_of(const Lane &at, uint32_t i)
{
    uint32_t strip = Strips == 1 ? 0 : 2 * i + at.t / 2;

    return 16 * (at.warp * Strips + strip) + 8 * (at.t % 2) + at.g;
}

/* With one strip the upper two lanes of a quad repeat what the lower two do. */
template <uint32_t Strips> __device__ __forceinline__ bool owns(const Lane &at)
{
    return Strips > 1 || at.t < 2;
}

/* Of values [strip][half] the one that belongs to row i of this lane. */
template <uint32_t Strips>
__device__ __forceinline__ float pick(const float (&value)[Strips][2], const Lane &at, uint32_t i)
{
    uint32_t strip = Strips == 1 ? 0 : 2 * i, next = Strips == 1 ? 0 : 2 * i + 1;
    float low = at.t % 2 ? value[strip][1] : value[strip][0];
    float high = at.t % 2 ? value[next][1] : value[next][0];

    return at.t / 2 ? high : low;
}

/* Where chunk c of a token lies: stores of 16 bytes by quads and ldmatrix both meet every bank
 * once.
 */
__device__ __forceinline__ uint32_t swizzle(uint32_t token)
{
    return (token & 1) << 2 | (token >> 1 & 3);
}

/* ---- instructions ---- */

__device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The diagonal of a strip's product with itself, or with another: row g of `low`, row g + 8 of
 * `high`. */
__device__ __forceinline__ void diagonal(const float (&low)[4], const float (&high)[4],
                                         const Lane &at, float (&sum)[2])
{
    uint32_t from = (at.lane & 28u) | at.lane >> 3;

    sum[0] = __shfl_sync(kAll, at.g % 2 ? low[1] : low[0], from);
    sum[1] = __shfl_sync(kAll, at.g % 2 ? high[3] : high[2], from);
}

/* Reciprocal and square root to 2^-22: what they feed is a scale, and any positive scale is valid.
 */
__device__ __forceinline__ float reciprocal(float x)
{
    float r;

    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float root(float x)
{
    float r;

    asm("sqrt.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ uint32_t word_of(__half2 x)
{
    return *reinterpret_cast<uint32_t *>(&x);
}

__device__ __forceinline__ __half2 half2_of(uint32_t x)
{
    return *reinterpret_cast<__half2 *>(&x);
}

__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b)
{
    return word_of(__hmul2(half2_of(a), half2_of(b)));
}

/* Volatile, or the compiler takes the squares of a whole tile out of the loop, and registers run
 * out.
 */
__device__ __forceinline__ uint32_t square(uint32_t x)
{
    uint32_t r;

    asm volatile("mul.f16x2 %0,%1,%1;" : "=r"(r) : "r"(x));
    return r;
}

__device__ __forceinline__ uint32_t twice(__half x)
{
    return word_of(__half2half2(x));
}

/* Of numbers that are not negative: their bits compare as they do. */
__device__ __forceinline__ float warp_max(float x)
{
    return __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(x)));
}

__device__ __forceinline__ float warp_min(float x)
{
    return __uint_as_float(__reduce_min_sync(kAll, __float_as_uint(x)));
}

/* The largest of all warps; a barrier must lie between two uses of one `part`. `any` of a condition
 * comes along. */
template <uint32_t Warps>
__device__ __forceinline__ float block_max(float (&part)[8], float x, const Lane &at,
                                           bool condition = false, bool *any = nullptr)
{
    float high = warp_max(x);

    if (at.lane == 0)
        part[at.warp] = high;
    if (any != nullptr)
        *any = __syncthreads_or(condition);
    else
        __syncthreads();
    return warp_max(part[at.lane % Warps]);
}

template <uint32_t Warps>
__device__ __forceinline__ float block_min(float (&part)[8], float x, const Lane &at)
{
    float low = warp_min(x);

    if (at.lane == 0)
        part[at.warp] = low;
    __syncthreads();
    return warp_min(part[at.lane % Warps]);
}

/* A strip of 16 channels x 16 tokens (step `step`) as an A fragment: x[0] row g, x[1] row g + 8,
 * and tokens 2 t, 2 t + 1; x[2], x[3] the same 8 tokens on. */
template <uint32_t D, uint32_t G> struct ChannelStrips {
    uint32_t base[Plan<D, G>::channel_strips];

    __device__ __forceinline__ ChannelStrips(const Shared<D, G> &shared, const Lane &at)
    {
        uint32_t token = at.lane % 8 + 8 * (at.lane / 16);

#pragma unroll
        for (uint32_t s = 0; s < Plan<D, G>::channel_strips; s++) {
            uint32_t chunk = 2 * (at.warp * Plan<D, G>::channel_strips + s) + at.lane / 8 % 2;

            base[s] = static_cast<uint32_t>(__cvta_generic_to_shared(shared.tile)) + token * 2 * D +
                      16 * (chunk ^ swizzle(token));
        }
    }

    __device__ __forceinline__ void load(uint32_t (&x)[4], uint32_t strip, uint32_t step) const
    {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(base[strip] + step * 16 * 2 * D));
    }
};

#endif
