/* From the warps' sums to the output: warps join in shared memory, pieces of the same rows in
 * global memory. The piece that arrives last joins them all, un-rotates and writes. */
#ifndef KVK_CUDA_ATTEND_JOIN_CUH
#define KVK_CUDA_ATTEND_JOIN_CUH

#include "kernels/cuda/attend_query.cuh"

namespace attend
{

/* Sums of four channels of one row over part of its tokens, in units of 2^m. */
struct partial {
    float4 x;
    float m, l;
};

__device__ __forceinline__ float4 scaled(float4 x, float by)
{
    return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}

__device__ __forceinline__ void add(float4 &sum, float4 x, float share)
{
    sum.x = fmaf(x.x, share, sum.x);
    sum.y = fmaf(x.y, share, sum.y);
    sum.z = fmaf(x.z, share, sum.z);
    sum.w = fmaf(x.w, share, sum.w);
}

/* Row 4 j + r, channels 4 quad .. 4 quad + 3, over all warps. */
template <class V>
__device__ __forceinline__ partial join_warps(const shared<V> &mem, int j, int r, int quad)
{
    partial sum = {{0, 0, 0, 0}, LOWEST, 0};

#pragma unroll
    for (int warp = 0; warp < V::WARPS; warp++)
        sum.m = fmaxf(sum.m, mem.top[warp][4 * j + r].x);
#pragma unroll
    for (int warp = 0; warp < V::WARPS; warp++) {
        float2 top = mem.top[warp][4 * j + r];
        float share = ex2(top.x - sum.m);
        sum.l = fmaf(top.y, share, sum.l);
        add(sum.x, ((const float4 *)mem.merge[warp][r])[quad], share);
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
                                           int row, int quad, const partial &sum)
{
    char *part = part_at<V>(a, __ldg(&piece->part_first) + __ldg(&piece->part));

    __stcg((float4 *)part + row * (V::D / 4) + quad, sum.x);
    if (quad == 0)
        __stcg((float2 *)(part + V::ROWS * V::D * 4) + row, make_float2(sum.m, sum.l));
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
        x[i] = mem.done[r][lane_id() + 32 * i];
    if (!a.shape.v_rotated)
        rotate(x);
    uint64_t row = ((uint64_t)p.token * a.q_heads + p.head) * V::D;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint64_t at = row + lane_id() + 32 * i;
        if (a.out_dtype == KVARN_F32)
            ((float *)__ldg(&piece->of.out))[at] = x[i];
        else
            ((uint16_t *)__ldg(&piece->of.out))[at] =
                a.out_dtype == KVARN_F16 ? rounded<false>(x[i]) : rounded<true>(x[i]);
    }
}

/* done = the row's channels over its sum; LSE to the output. */
template <class V>
__device__ __forceinline__ void set_done(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                         shared<V> &mem, int row, int quad, const partial &sum)
{
    ((float4 *)mem.done[row % 4])[quad] = scaled(sum.x, sum.l > 0 ? 1.0f / sum.l : 0.0f);
    if (quad == 0) {
        place p = place_of(a, piece, row);
        if (p.valid)
            ((float *)__ldg(&piece->of.lse))[(uint64_t)p.token * a.q_heads + p.head] =
                sum.l > 0 ? (sum.m + log2f(sum.l)) * 0.6931471805599453f : -INFINITY;
    }
}

/* Both are brought to the larger maximum. */
__device__ __forceinline__ void join(partial &sum, const partial &more)
{
    float top = fmaxf(sum.m, more.m), shrink = ex2(sum.m - top), share = ex2(more.m - top);

    sum.m = top;
    sum.l = fmaf(more.l, share, sum.l * shrink);
    sum.x = scaled(sum.x, shrink);
    add(sum.x, more.x, share);
}

/* Every `step`th part from `first` on, in the order of their numbers, several loads at a time. */
template <class V>
__device__ __forceinline__ partial join_some(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                             int row, int quad, uint32_t first, uint32_t step)
{
    constexpr int AT_ONCE = 6;
    uint32_t parts = __ldg(&piece->parts);
    const char *part = part_at<V>(a, __ldg(&piece->part_first));
    partial sum = {{0, 0, 0, 0}, LOWEST, 0};

#pragma unroll 1
    for (uint32_t i = first; i < parts; i += AT_ONCE * step) {
        partial some[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const char *at = part + (uint64_t)(i + k * step) * V::PART_BYTES;
            some[k] = {{0, 0, 0, 0}, LOWEST, 0};
            if (i + k * step < parts) {
                float2 top = __ldcg((const float2 *)(at + V::ROWS * V::D * 4) + row);
                some[k].x = __ldcg((const float4 *)at + row * (V::D / 4) + quad);
                some[k].m = top.x;
                some[k].l = top.y;
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            join(sum, some[k]);
    }
    return sum;
}

/* Rows 4 j .. 4 j + 3 over all their pieces into mem.done: groups of threads take every GROUPSth
 * piece, the first group joins what they have. */
template <class V>
__device__ __forceinline__ void join_parts(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                           shared<V> &mem, int j)
{
    constexpr int THREADS = V::WARPS * 32, FULL = THREADS / V::D;
    constexpr int GROUPS = FULL < 1 ? 1 : FULL > 4 ? 4 : FULL;
    partial *sums = (partial *)mem.merge;
    static_assert(sizeof(partial) * V::D * GROUPS <= sizeof(mem.merge), "room of the warps' rows");

    for (int at = threadIdx.x; at < V::D * GROUPS; at += THREADS) {
        int row = 4 * j + at % V::D / (V::D / 4), quad = at % (V::D / 4);
        sums[at] = join_some<V>(a, piece, row, quad, at / V::D, GROUPS);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < V::D; at += THREADS) {
        partial sum = sums[at];
#pragma unroll
        for (int i = 1; i < GROUPS; i++)
            join(sum, sums[at + i * V::D]);
        set_done(a, piece, mem, 4 * j + at / (V::D / 4), at % (V::D / 4), sum);
    }
    __syncthreads();
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
        for (int at = threadIdx.x; at < V::D; at += THREADS) {
            int r = at / (V::D / 4), quad = at % (V::D / 4);
            partial sum = join_warps(mem, j, r, quad);
            if (alone)
                set_done(a, piece, mem, 4 * j + r, quad, sum);
            else
                store_part<V>(a, piece, 4 * j + r, quad, sum);
        }
        __syncthreads();
        if (alone)
            finish_rows(a, piece, mem, j);
    }
    if (alone || !arrive(a, piece, mem))
        return;
#pragma unroll 1
    for (int j = 0; j < V::NT; j++) {
        join_parts(a, piece, mem, j);
        finish_rows(a, piece, mem, j);
        __syncthreads();
    }
}

} // namespace attend

#endif
