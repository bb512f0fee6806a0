/* From the warps' sums to the output: warps join in shared memory, pieces of the same rows in
 * global memory. The piece that arrives last joins them all, un-rotates and writes. */
#ifndef KVK_CUDA_ATTEND_JOIN_CUH
#define KVK_CUDA_ATTEND_JOIN_CUH

#include "kernels/cuda/attend_query.cuh"

namespace attend
{

/* Sums of one row over part of its tokens, in units of 2^m. */
struct partial {
    float x, m, l;
};

/* Element (r, channel) of rows 4 j .. 4 j + 3 over all warps. */
template <class V>
__device__ __forceinline__ partial join_warps(const shared<V> &mem, int j, int r, int channel)
{
    partial sum = {0, LOWEST, 0};

#pragma unroll
    for (int warp = 0; warp < V::WARPS; warp++)
        sum.m = fmaxf(sum.m, mem.top[warp][4 * j + r].x);
#pragma unroll
    for (int warp = 0; warp < V::WARPS; warp++) {
        float2 top = mem.top[warp][4 * j + r];
        float share = ex2(top.x - sum.m);
        sum.l = fmaf(top.y, share, sum.l);
        sum.x = fmaf(mem.merge[warp][r][channel], share, sum.x);
    }
    return sum;
}

/* Partial results of a row group: [ROWS][D] floats and [ROWS] of (m, l) each. */
template <class V>
__device__ __forceinline__ char *part_at(const kvk_cuda_attend &a, uint32_t index)
{
    return (char *)a.parts + (uint64_t)index * V::PART_BYTES;
}

template <class V>
__device__ __forceinline__ void store_part(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                           int row, int channel, const partial &sum)
{
    char *part = part_at<V>(a, __ldg(&piece->part_first) + __ldg(&piece->part));

    __stcg((float *)part + row * V::D + channel, sum.x);
    if (channel == 0) /* a sign that cannot be l's says what kind of tokens these were */
        __stcg((float2 *)(part + V::ROWS * V::D * 4) + row,
               make_float2(sum.m, __ldg(&piece->kind) == KVARN_BLOCK_EXACT ? -sum.l : sum.l));
}

/* Four joined rows in mem.done (normalised) -> output, a warp each. */
template <class V>
__device__ __forceinline__ void finish_rows(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                            const shared<V> &mem, int j)
{
    constexpr int N = V::D / 32;
    int r = warp_id();
    float x[N];

    if (r >= 4)
        return;
    place p = place_of(a, piece, 4 * j + r);
    if (!p.valid)
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = mem.done[0][r][lane_id() + 32 * i];
    if (!a.shape.v_rotated)
        rotate(x);
    uint64_t row = ((uint64_t)p.token * a.q_heads + p.head) * V::D;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint64_t at = row + lane_id() + 32 * i;
        float y = x[i] + mem.done[1][r][lane_id() + 32 * i];
        if (a.out_dtype == KVARN_F32)
            ((float *)__ldg(&piece->of.out))[at] = y;
        else
            ((uint16_t *)__ldg(&piece->of.out))[at] =
                a.out_dtype == KVARN_F16 ? rounded<false>(y) : rounded<true>(y);
    }
}

/* done = the row's element of tiles and of exact tokens, over its sum; LSE to the output. */
template <class V>
__device__ __forceinline__ void set_done(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                         shared<V> &mem, int row, int channel, float tiles,
                                         float exact, float m, float l)
{
    float share = l > 0 ? 1.0f / l : 0.0f;

    mem.done[0][row % 4][channel] = tiles * share;
    mem.done[1][row % 4][channel] = exact * share;
    if (channel == 0) {
        place p = place_of(a, piece, row);
        if (p.valid)
            ((float *)__ldg(&piece->of.lse))[(uint64_t)p.token * a.q_heads + p.head] =
                l > 0 ? (m + log2f(l)) * 0.6931471805599453f : -INFINITY;
    }
}

/* Element of a row over all its pieces, in the order of their numbers. */
template <class V>
__device__ __forceinline__ void join_parts(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                           shared<V> &mem, int row, int channel)
{
    uint32_t parts = __ldg(&piece->parts);
    const char *part = part_at<V>(a, __ldg(&piece->part_first));
    const char *top = part + V::ROWS * V::D * 4 + row * sizeof(float2);
    float m = LOWEST, l = 0, x[2] = {0, 0};

#pragma unroll 8
    for (uint32_t i = 0; i < parts; i++)
        m = fmaxf(m, __ldcg((const float2 *)(top + (uint64_t)i * V::PART_BYTES)).x);
#pragma unroll 8
    for (uint32_t i = 0; i < parts; i++) {
        float2 t = __ldcg((const float2 *)(top + (uint64_t)i * V::PART_BYTES));
        float y =
            __ldcg((const float *)(part + (uint64_t)i * V::PART_BYTES) + row * V::D + channel);
        float share = ex2(t.x - m);
        l = fmaf(fabsf(t.y), share, l);
        x[0] = fmaf(signbit(t.y) ? 0.0f : y, share, x[0]);
        x[1] = fmaf(signbit(t.y) ? y : 0.0f, share, x[1]);
    }
    set_done(a, piece, mem, row, channel, x[0], x[1], m, l);
}

/* All threads: has every piece of these rows been stored? True in one block, once. */
template <class V>
__device__ __forceinline__ bool arrive(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                       shared<V> &mem)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = (uint32_t *)a.joins + __ldg(&piece->join);
        __threadfence();
        mem.last = atomicAdd(counter, 1) == __ldg(&piece->parts) - 1;
        if (mem.last) {
            *counter = 0;
            __threadfence();
        }
    }
    __syncthreads();
    return mem.last;
}

/* The end of a piece. All warps; mem.q may be written again afterwards. */
template <class V>
__device__ __forceinline__ void finish_piece(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                             shared<V> &mem, state<V> &row)
{
    constexpr int THREADS = V::WARPS * 32;
    int warp = warp_id(), g = lane_id() / 4, t = lane_id() % 4;
    bool alone = __ldg(&piece->parts) == 1;
    bool exact = __ldg(&piece->kind) == KVARN_BLOCK_EXACT;

#pragma unroll
    for (int j = 0; j < V::NT; j++) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            row.l[j] += __shfl_xor_sync(~0u, row.l[j], lanes);
        if (g == 0)
            mem.top[warp][4 * j + t] = make_float2(row.m[j], row.l[j]);
#pragma unroll
        for (int i = 0; i < V::D / 8; i++)
            mem.merge[warp][t][8 * i + g] = row.o[j][i];
        __syncthreads();
        for (int at = threadIdx.x; at < 4 * V::D; at += THREADS) {
            int r = at / V::D, channel = at % V::D;
            partial sum = join_warps(mem, j, r, channel);
            if (alone)
                set_done(a, piece, mem, 4 * j + r, channel, exact ? 0 : sum.x, exact ? sum.x : 0,
                         sum.m, sum.l);
            else
                store_part<V>(a, piece, 4 * j + r, channel, sum);
        }
        __syncthreads();
        if (alone)
            finish_rows(a, piece, mem, j);
    }
    if (alone || !arrive(a, piece, mem))
        return;
#pragma unroll 1
    for (int j = 0; j < V::NT; j++) {
        for (int at = threadIdx.x; at < 4 * V::D; at += THREADS)
            join_parts(a, piece, mem, 4 * j + at / V::D, at % V::D);
        __syncthreads();
        finish_rows(a, piece, mem, j);
        __syncthreads();
    }
}

} // namespace attend

#endif
