/* Rows of K or V in registers: decoding, butterflies, rounding, and their way out.
 *
 * A thread holds up to 128 channels of a row, so that butterflies are additions between registers
 * in the reference's order (D = 256: two threads a row, which exchange their halves in the last
 * stage). A warp has a strip of 32 (D = 256: 16) tokens. */
#ifndef KVK_CUDA_DECOMPRESS_ROWS_CUH
#define KVK_CUDA_DECOMPRESS_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/launch.h"

namespace
{

/* What one thread has of a row, and one warp of a matrix. */
template <uint32_t DIM> struct part {
    static constexpr uint32_t channels = DIM < 128 ? DIM : 128;
    static constexpr uint32_t halves = DIM / channels; /* threads a row */
    static constexpr uint32_t tokens = 32 / halves;    /* of a strip */
    static constexpr uint32_t bytes = channels * 2;    /* of a row, as they leave */
    static constexpr uint32_t pitch = KVK_CUDA_DECOMPRESS_PITCH(DIM);
    static constexpr uint32_t pieces = bytes / 16;        /* stores of a lane for a strip */
    static constexpr uint32_t rows_at_once = 32 / pieces; /* by one store of the warp */
};

/* 2^23 + code: a code as it is in the low bits of the mantissa. */
constexpr uint32_t MAGIC = 0x4b000000;

__device__ __forceinline__ float from_magic(uint32_t bits)
{
    return __fadd_rn(__uint_as_float(bits), -8388608.0f);
}

__device__ __forceinline__ float half_at(const uint8_t *at)
{
    return __half2float(*(const __half *)at);
}

/* x = (code * a[d] + z[d]) * scale for this thread's channels of K of one token. a and z have been
 * laid out in pairs of fp32 at `pairs`. A lane of the record's order has 16 bytes at a time: 8
 * channels of each of two steps, `slot` of them this token's. */
template <uint32_t DIM>
__device__ __forceinline__ void decode_k(float *x, const uint8_t *codes, uint32_t bits,
                                         uint32_t token, uint32_t half, const float2 *pairs,
                                         float scale)
{
    const uint32_t per_block = 64 / bits, block = token / per_block;
    const uint32_t shift = token % per_block / 8 * bits, mask = bits == 4 ? 0x0f0f0f0f : 0x03030303;
    const uint8_t *lane =
        codes + block * (DIM / 64) * 512 + half * (part<DIM>::channels / 64) * 512 + token % 8 * 64;

    pairs += half * part<DIM>::channels;
#pragma unroll
    for (uint32_t i = 0; i < part<DIM>::channels / 16; i++) {
        uint4 words = *(const uint4 *)(lane + i / 4 * 512 + i % 4 * 16);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};

#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            const uint32_t d = i / 4 * 64 + n / 2 * 32 + i % 4 * 8 + n % 2 * 4;
            const uint32_t four = word[n] >> shift & mask;

#pragma unroll
            for (uint32_t j = 0; j < 4; j += 2) {
                float4 az = *(const float4 *)(pairs + d + j);
                float c0 = from_magic(__byte_perm(four, MAGIC, 0x7650 + j));
                float c1 = from_magic(__byte_perm(four, MAGIC, 0x7651 + j));

                x[d + j] = __fmul_rn(__fmaf_rn(c0, az.x, az.y), scale);
                x[d + j + 1] = __fmul_rn(__fmaf_rn(c1, az.z, az.w), scale);
            }
        }
    }
}

/* x = (code * step + zero) * w[d] for this thread's channels of V of one token. A word has the
 * codes of 8 / BITS channels, 8 apart, in the token's byte. */
template <uint32_t DIM, uint32_t BITS>
__device__ __forceinline__ void decode_v(float *x, const uint8_t *codes, uint32_t group,
                                         uint32_t token, uint32_t half, const float *channel,
                                         float step, float zero)
{
    constexpr uint32_t slots = 8 / BITS, blocks = part<DIM>::channels / 8 / slots;
    const uint32_t quads = group / 64, word = token / 16, t = token % 8 / 2;
    const uint32_t select = 0x7650 + token % 2 * 2 + token % 16 / 8;
    const uint8_t *lane =
        codes + half * blocks * quads * 512 + word / 4 * 512 + t * 16 + word % 4 * 4;

    channel += half * part<DIM>::channels;
#pragma unroll
    for (uint32_t i = 0; i < blocks * 2; i++) {
        uint32_t byte[4];

#pragma unroll
        for (uint32_t g = 0; g < 4; g++) {
            uint32_t four = *(const uint32_t *)(lane + i / 2 * quads * 512 + (i % 2 * 4 + g) * 64);

            byte[g] = __byte_perm(four, MAGIC, select);
        }
#pragma unroll
        for (uint32_t slot = 0; slot < slots; slot++) {
            const uint32_t d = (i / 2 * slots + slot) * 8 + i % 2 * 4;
            const uint32_t mask = MAGIC | ((1u << BITS) - 1) << BITS * slot;
            const float unit = __fmul_rn(step, 1.0f / (1u << BITS * slot));
            const float4 w = *(const float4 *)(channel + d);

            x[d] = __fmul_rn(__fmaf_rn(from_magic(byte[0] & mask), unit, zero), w.x);
            x[d + 1] = __fmul_rn(__fmaf_rn(from_magic(byte[1] & mask), unit, zero), w.y);
            x[d + 2] = __fmul_rn(__fmaf_rn(from_magic(byte[2] & mask), unit, zero), w.z);
            x[d + 3] = __fmul_rn(__fmaf_rn(from_magic(byte[3] & mask), unit, zero), w.w);
        }
    }
}

/* The compiler does not see that rows are in global memory. */
__device__ __forceinline__ void store16(uint8_t *to, uint4 piece)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece.x), "r"(piece.y),
                 "r"(piece.z), "r"(piece.w)
                 : "memory");
}

template <bool BF16> __device__ __forceinline__ uint32_t pack(float a, float b)
{
    if (BF16) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
        return *(uint32_t *)&pair;
    }
    __half2 pair = __floats2half2_rn(a, b);
    return *(uint32_t *)&pair;
}

template <uint32_t COUNT, bool BF16>
__device__ __forceinline__ void round_to(uint8_t *shared, const float *x)
{
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i += 8)
        *(uint4 *)(shared + 2 * i) = {pack<BF16>(x[i], x[i + 1]), pack<BF16>(x[i + 2], x[i + 3]),
                                      pack<BF16>(x[i + 4], x[i + 5]),
                                      pack<BF16>(x[i + 6], x[i + 7])};
}

template <uint32_t DIM> __device__ __forceinline__ void butterflies(float *x, uint32_t half)
{
    using mine = part<DIM>;

#pragma unroll
    for (uint32_t distance = 1; distance < mine::channels; distance *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < mine::channels; i++) {
            if (i & distance)
                continue;
            float a = x[i], b = x[i + distance];

            x[i] = __fadd_rn(a, b);
            x[i + distance] = __fsub_rn(a, b);
        }
    }
    if (mine::halves == 1)
        return;
    const float sign = half ? -1.0f : 1.0f;
#pragma unroll
    for (uint32_t i = 0; i < mine::channels; i++)
        x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(~0u, x[i], mine::tokens));
}

/* Rows of a strip from shared to global memory, 16 bytes a lane at a time: a warp stores whole
 * sectors. */
template <uint32_t DIM>
__device__ __forceinline__ void store_aligned(uint8_t *rows, uint64_t stride, const uint8_t *room,
                                              uint32_t lane)
{
    using mine = part<DIM>;
    const uint32_t row = lane / mine::pieces, column = lane % mine::pieces * 16;
    const uint8_t *from = room + row * mine::pitch + column;
    const uint64_t step = mine::rows_at_once * stride;
    uint8_t *to = rows + row * stride + column;

#pragma unroll
    for (uint32_t i = 0; i < mine::pieces; i++) {
        /* the second halves of the same rows */
        if (mine::halves == 2 && i == mine::pieces / 2)
            to += mine::bytes - mine::tokens * stride;
        store16(to, *(const uint4 *)(from + i * mine::rows_at_once * mine::pitch));
        to += step;
    }
}

/* The same at any alignment. */
template <uint32_t DIM>
__device__ void store_unaligned(uint8_t *rows, uint64_t stride, const uint8_t *room, uint32_t lane)
{
    using mine = part<DIM>;
    const bool even = (((uint64_t)rows | stride) & 1) == 0;

    for (uint32_t from = 0; from < 32; from++) {
        uint8_t *to = rows + from % mine::tokens * stride + from / mine::tokens * mine::bytes;
        const uint8_t *at = room + from * mine::pitch;

        for (uint32_t i = 2 * lane; i < mine::bytes; i += 64) {
            if (even) {
                *(uint16_t *)(to + i) = *(const uint16_t *)(at + i);
            } else {
                to[i] = at[i];
                to[i + 1] = at[i + 1];
            }
        }
    }
}

} // namespace

#endif
