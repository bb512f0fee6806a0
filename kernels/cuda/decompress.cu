/* TILE cells -> K, V rows, bit for bit what decompress_ref.c defines.
 *
 * A thread holds up to 128 channels of a row in registers, so that butterflies are additions
 * between registers in the reference's order (D = 256: two threads a row, which exchange their
 * halves in the last stage). A warp takes the K or V rows of a strip of 32 (D = 256: 16) tokens;
 * the four warps of a thread block share a record, which bulk copies bring to shared memory, the
 * next tile's K while this one's V is at work and the other way round. Rows leave through shared
 * memory, so that a warp stores them in whole sectors. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/cells.cuh"
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

template <uint32_t DIM> __device__ __forceinline__ float orthonormal()
{
    return DIM == 64 ? 0.125f : DIM == 128 ? 0.08838834764831845f : 0.0625f;
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

template <uint32_t DIM> __device__ __forceinline__ void butterflies(float *x, uint32_t half)
{
#pragma unroll
    for (uint32_t distance = 1; distance < part<DIM>::channels; distance *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < part<DIM>::channels; i++) {
            if (i & distance)
                continue;
            float a = x[i], b = x[i + distance];

            x[i] = __fadd_rn(a, b);
            x[i + distance] = __fsub_rn(a, b);
        }
    }
    if (part<DIM>::halves == 1)
        return;
    const float sign = half ? -1.0f : 1.0f;
#pragma unroll
    for (uint32_t i = 0; i < part<DIM>::channels; i++)
        x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(~0u, x[i], part<DIM>::tokens));
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

/* The strip's rows from shared to global memory. */
template <uint32_t DIM>
__device__ __forceinline__ void store_rows(uint8_t *rows, uint64_t stride, const uint8_t *shared,
                                           uint32_t lane)
{
    constexpr uint32_t bytes = part<DIM>::bytes, lanes = bytes / 16; /* of one thread's part */

    if ((((uint64_t)rows | stride) & 15) == 0) {
        const uint32_t column = lane % lanes * 16;

#pragma unroll
        for (uint32_t i = 0; i < lanes; i++) {
            const uint32_t from = i * (32 / lanes) + lane / lanes;
            const uint32_t token = from % part<DIM>::tokens, half = from / part<DIM>::tokens;

            *(uint4 *)(rows + token * stride + half * bytes + column) =
                *(const uint4 *)(shared + from * part<DIM>::pitch + column);
        }
        return;
    }
    const bool even = (((uint64_t)rows | stride) & 1) == 0;
    for (uint32_t from = 0; from < 32; from++) {
        uint8_t *to = rows + from % part<DIM>::tokens * stride + from / part<DIM>::tokens * bytes;
        const uint8_t *at = shared + from * part<DIM>::pitch;

        if (even) {
            for (uint32_t i = 2 * lane; i < bytes; i += 64)
                *(uint16_t *)(to + i) = *(const uint16_t *)(at + i);
        } else {
            for (uint32_t i = lane; i < bytes; i += 32)
                to[i] = at[i];
        }
    }
}

/* What the thread block shares beside the record and the warps' rooms. The offsets are here and not
 * in registers, of which rows need all. */
struct state {
    uint64_t full[2], empty[2]; /* K, V: there; read, by all warps */
    struct {
        uint64_t rows[2], stride; /* of K, of V: 0 where not wanted */
        uint32_t index;           /* of the cell; the end is cell_count() */
    } tile[2];                    /* even, odd ones of this thread block */
    struct {
        uint32_t k_step, k_zero, k_token, v_codes, v_channel, v_step, v_zero, bytes;
    } at;
};

static_assert(sizeof(struct state) <= KVK_CUDA_DECOMPRESS_STATE, "room that the launch gives");

template <uint32_t DIM> struct worker {
    const struct kvk_cuda_blocks &args;
    uint8_t *record, *room; /* shared: of the thread block, of this warp */
    struct state *state;

    /* Number of the lane, asked anew so that nothing made of it is kept over a whole tile. */
    __device__ __forceinline__ uint32_t lane() const
    {
        uint32_t number;

        asm volatile("mov.u32 %0, %%laneid;" : "=r"(number));
        return number;
    }

    __device__ __forceinline__ void open() const
    {
        const struct kvk_layout at =
            kvk_layout_of(DIM, args.shape.group, args.shape.bits_k, args.shape.bits_v);

        for (uint32_t i = 0; i < 2; i++) {
            barrier_init(state->full + i, 1);
            barrier_init(state->empty + i, KVK_CUDA_DECOMPRESS_THREADS / 32);
        }
        barrier_publish();
        state->at = {(uint32_t)at.k_step,  (uint32_t)at.k_zero,    (uint32_t)at.k_token,
                     (uint32_t)at.v_codes, (uint32_t)at.v_channel, (uint32_t)at.v_step,
                     (uint32_t)at.v_zero,  (uint32_t)at.bytes};
    }

    /* Names tile n, the first from cell `index` on. One thread does this and the loads. */
    __device__ __forceinline__ void name_tile(uint32_t n, uint32_t index) const
    {
        const uint32_t end = cell_count(args);
        auto &tile = state->tile[n & 1];

        while (index < end && __ldg(&cell_at(args, index).block->kind) != KVARN_BLOCK_TILE)
            index += gridDim.x;
        tile.index = index < end ? index : end;
        if (index >= end)
            return;
        const struct cell cell = cell_at(args, index);
        const uint64_t k = __ldg(&cell.block->k), v = __ldg(&cell.block->v);
        const uint64_t from_first = cell_in_rows(cell);

        tile.rows[0] = k != 0 ? k + from_first : 0;
        tile.rows[1] = v != 0 ? v + from_first : 0;
        tile.stride = __ldg(&cell.block->token_stride_bytes);
    }

    /* Brings K or V of tile n, or says at once that it is there when there is nothing to bring. */
    __device__ __forceinline__ void load(uint32_t n, uint32_t tensor) const
    {
        const auto &tile = state->tile[n & 1];
        const uint32_t from = tensor ? state->at.v_codes : 0;
        const uint32_t bytes = (tensor ? state->at.bytes : state->at.v_codes) - from;

        if (tile.index >= cell_count(args) || tile.rows[tensor] == 0) {
            barrier_arrive(state->full + tensor);
            return;
        }
        barrier_expect(state->full + tensor, bytes);
        bulk_load(record + from,
                  cell_in_slot(args, cell_at(args, tile.index), state->at.bytes) + from, bytes,
                  state->full + tensor);
    }

    /* fp16 vectors over channels as the decoders read them: into the warp's room. */
    __device__ __forceinline__ void expand(uint32_t tensor, float norm) const
    {
        const auto &at = state->at;

        for (uint32_t d = lane(); d < DIM; d += 32) {
            if (tensor == 0)
                ((float2 *)room)[d] = {half_at(record + at.k_step + 2 * d),
                                       half_at(record + at.k_zero + 2 * d)};
            else
                ((float *)room)[d] =
                    __fmul_rn(half_at(record + at.v_channel + 2 * kvk_device_vector(d, DIM)), norm);
        }
    }

    __device__ __forceinline__ void decode(float *x, uint32_t tensor, uint32_t token, uint32_t half,
                                           float norm) const
    {
        const auto &at = state->at;
        const uint32_t group = args.shape.group, of_token = 2 * kvk_device_vector(token, group);

        if (tensor == 0) {
            decode_k<DIM>(x, record, args.shape.bits_k, token, half, (const float2 *)room,
                          __fmul_rn(half_at(record + at.k_token + of_token), norm));
            return;
        }
        const float step = half_at(record + at.v_step + of_token);
        const float zero = half_at(record + at.v_zero + of_token);
        const uint8_t *codes = record + at.v_codes;

        if (args.shape.bits_v == 4)
            decode_v<DIM, 4>(x, codes, group, token, half, (const float *)room, step, zero);
        else
            decode_v<DIM, 2>(x, codes, group, token, half, (const float *)room, step, zero);
    }

    /* Strip `number` of K or V of tile n; after the last one of this warp the record is free. */
    __device__ __forceinline__ void strip(uint32_t n, uint32_t tensor, uint32_t number, bool last,
                                          float *x) const
    {
        using mine = part<DIM>;
        const bool rotated = tensor && args.shape.v_rotated;
        const float norm = rotated ? 1.0f : orthonormal<DIM>();
        const uint32_t half = lane() / mine::tokens;

        __syncwarp(); /* the rows of the last strip have left */
        expand(tensor, norm);
        __syncwarp();
        decode(x, tensor, number * mine::tokens + lane() % mine::tokens, half, norm);
        __syncwarp(); /* nobody reads the vectors any more, nor the codes */
        if (last && lane() == 0)
            barrier_arrive(state->empty + tensor);
        if (!rotated)
            butterflies<DIM>(x, half);
        if (args.shape.dtype == KVARN_BF16)
            round_to<mine::channels, true>(room + lane() * mine::pitch, x);
        else
            round_to<mine::channels, false>(room + lane() * mine::pitch, x);
        __syncwarp();
        const auto &tile = state->tile[n & 1];
        store_rows<DIM>((uint8_t *)tile.rows[tensor] + number * mine::tokens * tile.stride,
                        tile.stride, room, lane());
    }
};

template <uint32_t DIM>
__device__ __forceinline__ void decompress(const struct kvk_cuda_blocks &args)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr uint32_t warps = KVK_CUDA_DECOMPRESS_THREADS / 32;
    const uint32_t warp = threadIdx.x / 32, strips = args.shape.group / part<DIM>::tokens;
    uint8_t *rooms = shared + KVK_CUDA_DECOMPRESS_STATE;
    const worker<DIM> w = {args, rooms + warps * 32 * part<DIM>::pitch,
                           rooms + warp * 32 * part<DIM>::pitch, (struct state *)shared};
    float x[part<DIM>::channels];

    if (threadIdx.x == 0) {
        w.open();
        w.name_tile(0, blockIdx.x);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        w.load(0, 0);
        w.load(0, 1);
    }
    for (uint32_t n = 0;; n++) {
#pragma unroll 1
        for (uint32_t tensor = 0; tensor < 2; tensor++) {
            barrier_wait(w.state->full + tensor, n & 1);
            if (w.state->tile[n & 1].index >= cell_count(args))
                return;
            /* with two strips of each, warps 0 and 1 take K, the others V */
            const uint32_t first = strips < warps && tensor ? warp ^ strips : warp;
            const bool idle = first >= strips || w.state->tile[n & 1].rows[tensor] == 0;

            /* idle warps arrive too: none may fall a phase behind */
            if (idle && w.lane() == 0)
                barrier_arrive(w.state->empty + tensor);
#pragma unroll 1
            for (uint32_t i = first; i < strips && !idle; i += warps)
                w.strip(n, tensor, i, i + warps >= strips, x);
            if (threadIdx.x == 0) {
                barrier_wait(w.state->empty + tensor, n & 1);
                if (tensor == 0)
                    w.name_tile(n + 1, w.state->tile[n & 1].index + gridDim.x);
                w.load(n + 1, tensor);
            }
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(KVK_CUDA_DECOMPRESS_THREADS, 5)
    kvk_cuda_decompress_64(const __grid_constant__ struct kvk_cuda_blocks args)
{
    decompress<64>(args);
}

extern "C" __global__ void __launch_bounds__(KVK_CUDA_DECOMPRESS_THREADS, 3)
    kvk_cuda_decompress_128(const __grid_constant__ struct kvk_cuda_blocks args)
{
    decompress<128>(args);
}

extern "C" __global__ void __launch_bounds__(KVK_CUDA_DECOMPRESS_THREADS, 3)
    kvk_cuda_decompress_256(const __grid_constant__ struct kvk_cuda_blocks args)
{
    decompress<256>(args);
}
