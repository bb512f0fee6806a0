/* Queries of a piece: loaded, rotated for tiles, brought to at most 1 and laid out for the mma. */
#ifndef KVK_CUDA_ATTEND_QUERY_CUH
#define KVK_CUDA_ATTEND_QUERY_CUH

#include "kernels/cuda/attend_exact.cuh"
#include "kernels/cuda/attend_tile.cuh"

namespace attend
{

/* Hadamard over a lane's own elements, without the factor. */
template <int N> __device__ __forceinline__ void butterflies(float (&x)[N])
{
#pragma unroll
    for (int far = 1; far < N; far *= 2) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if ((i & far) == 0) {
                float a = x[i], b = x[i + far];
                x[i] = a + b;
                x[i + far] = a - b;
            }
        }
    }
}

/* A row as a warp holds it: element lane + 32 i in x[i]. H is its own inverse. */
template <int N> __device__ __forceinline__ void rotate(float (&x)[N])
{
    int lane = lane_id();

#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float other = __shfl_xor_sync(~0u, x[i], far);
            x[i] = lane & far ? other - x[i] : x[i] + other;
        }
    }
    butterflies(x);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= N == 2 ? 0.125f : N == 4 ? 0.08838834764831845f : 0.0625f; /* 1 / sqrt(32 N) */
}

/* Where row `row` of a piece stands in the batch's tensors. */
struct place {
    uint32_t token, head; /* head: among all query heads */
    bool valid;
};

__device__ __forceinline__ place place_of(const kvk_cuda_attend &a, const kvk_cuda_piece *piece,
                                          uint32_t row)
{
    uint32_t heads = a.q_heads / a.kv_heads, at = __ldg(&piece->row_begin) + row;
    place p;

    p.token = at / heads;
    p.head = __ldg(&piece->kv_head) * heads + at % heads;
    p.valid = p.token < __ldg(&piece->of.q_tokens);
    return p;
}

/* A lane's elements of a row as they stand in memory, so that all loads are under way together. */
template <class V>
__device__ __forceinline__ void load_row(uint32_t (&bits)[V::D / 32], const kvk_cuda_attend &a,
                                         const kvk_cuda_piece *piece, const place &p)
{
    uint64_t row = __ldg(&piece->of.q) + p.token * __ldg(&piece->of.q_token_stride_bytes) +
                   p.head * __ldg(&piece->of.q_head_stride_bytes);

#pragma unroll
    for (int i = 0; i < V::D / 32; i++)
        bits[i] = 0;
    if (!p.valid)
        return;
    if (a.q_dtype == KVARN_F32) {
#pragma unroll
        for (int i = 0; i < V::D / 32; i++)
            bits[i] = __ldg((const uint32_t *)row + lane_id() + 32 * i);
    } else {
#pragma unroll
        for (int i = 0; i < V::D / 32; i++)
            bits[i] = __ldg((const uint16_t *)row + lane_id() + 32 * i);
    }
}

__device__ __forceinline__ float element(uint32_t bits, uint32_t dtype)
{
    return dtype == KVARN_F32   ? __uint_as_float(bits)
           : dtype == KVARN_F16 ? widened<false>((uint16_t)bits)
                                : widened<true>((uint16_t)bits);
}

/* Rows of the next piece on their way to a warp: row, row + WARPS, ... */
template <class V> struct queries {
    static constexpr int PASSES = (V::ROWS + V::WARPS - 1) / V::WARPS;
    uint32_t bits[PASSES][V::D / 32];
};

template <class V>
__device__ __forceinline__ void load_queries(queries<V> &q, const kvk_cuda_attend &a,
                                             const kvk_cuda_piece *piece)
{
#pragma unroll
    for (int pass = 0; pass < queries<V>::PASSES; pass++) {
        int row = warp_id() + pass * V::WARPS;
        if (row < V::ROWS)
            load_row<V>(q.bits[pass], a, piece, place_of(a, piece, row));
    }
}

/* What is not finite counts as 0 here, and is told. */
template <class V>
__device__ __forceinline__ void drop_non_finite(float (&x)[V::D / 32], const kvk_cuda_attend &a,
                                                const kvk_cuda_piece *piece, int row)
{
    bool finite = true;

#pragma unroll
    for (int i = 0; i < V::D / 32; i++)
        finite &= isfinite(x[i]);
    if (finite)
        return;
    place p = place_of(a, piece, row);
#pragma unroll
    for (int i = 0; i < V::D / 32; i++) {
        if (isfinite(x[i]))
            continue;
        atomicMin((unsigned long long *)a.faults + __ldg(&piece->of.fault),
                  (unsigned long long)KVK_CUDA_FAULT(p.head, 2, p.token, lane_id() + 32 * i));
        x[i] = 0.0f;
    }
}

/* x over the largest of the row, which is returned. */
template <int N> __device__ __forceinline__ float normalise(float (&x)[N])
{
    float top = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        top = fmaxf(top, fabsf(x[i]));
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
    top = top < 1e-30f ? 0.0f : top;
    float inverse = top > 0 ? __frcp_rn(top) : 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= inverse;
    return top;
}

/* A lane's channel of a row, as the two columns of B want it. */
__device__ __forceinline__ void put_halves(uint4 (&to)[32], int r, uint32_t two)
{
    int t = lane_id() / 8, e = lane_id() % 8;

    ((uint16_t *)&to[8 * r + t])[e] = (uint16_t)two;
    ((uint16_t *)&to[8 * r + 4 + t])[e] = (uint16_t)(two >> 16);
}

/* For exact rows. One warp a row. */
template <class V>
__device__ __forceinline__ void prepare_exact(const float (&given)[V::D / 32], float scale,
                                              bool bf16, int row, shared<V> &mem)
{
    float x[V::D / 32];

#pragma unroll
    for (int i = 0; i < V::D / 32; i++)
        x[i] = given[i];
    float top = normalise(x);
#pragma unroll
    for (int i = 0; i < V::D / 32; i++)
        put_halves(mem.q_exact[row / 4][i], row % 4,
                   bf16 ? in_two<true>(x[i]) : in_two<false>(x[i]));
    if (lane_id() == 0)
        mem.row_scale[1][row] = top * scale;
}

/* For tiles, whose K is in the basis that rows are rotated into, or in the queries' own. */
template <class V>
__device__ __forceinline__ void prepare_rotated(float (&x)[V::D / 32], bool k_rotated, float scale,
                                                int row, shared<V> &mem)
{
    int t = lane_id() / 8, e = lane_id() % 8;

    if (!k_rotated)
        rotate(x);
    float top = normalise(x);
#pragma unroll
    for (int i = 0; i < V::D / 32; i++) {
        ((float *)&mem.q[row / 4][i][e / 4][row % 4][t])[e % 4] = x[i] * Q_TOP;
        put_halves(mem.q_half[row / 4][i], row % 4, in_two<false>(x[i]));
    }
    if (lane_id() == 0)
        mem.row_scale[0][row] = top * scale;
}

template <class V>
__device__ __forceinline__ void prepare_queries(queries<V> &q, const kvk_cuda_attend &a,
                                                const kvk_cuda_piece *piece, shared<V> &mem)
{
    bool exact = __ldg(&piece->lead) + __ldg(&piece->trail) > 0;
    float scale = __ldg(&piece->of.scale) * 1.4426950408889634f;

#pragma unroll
    for (int pass = 0; pass < queries<V>::PASSES; pass++) {
        int row = warp_id() + pass * V::WARPS;
        if (row < V::ROWS) {
            float x[V::D / 32];
#pragma unroll
            for (int i = 0; i < V::D / 32; i++)
                x[i] = element(q.bits[pass][i], a.q_dtype);
            drop_non_finite<V>(x, a, piece, row);
            if (exact)
                prepare_exact<V>(x, scale, a.shape.dtype == KVARN_BF16, row, mem);
            prepare_rotated<V>(x, a.shape.k_rotated, scale, row, mem);
        }
    }
}

__device__ __forceinline__ uint32_t saturated(uint64_t x)
{
    return x > ~0u ? ~0u : (uint32_t)x;
}

/* A lane's rows at the start of a piece. */
template <class V>
__device__ __forceinline__ void start_rows(state<V> &row, const kvk_cuda_attend &a,
                                           const kvk_cuda_piece *piece, const shared<V> &mem)
{
    uint32_t limit = __ldg(&piece->of.limit), window = __ldg(&piece->of.window);

#pragma unroll
    for (int j = 0; j < V::NT; j++) {
        uint32_t r = lane_id() % 4 + 4 * j;
        uint64_t end = (uint64_t)limit;
        if (!__ldg(&piece->of.full))
            end += place_of(a, piece, r).token;
        row.m[j] = LOWEST;
        row.l[j] = 0;
        row.scale[j] = mem.row_scale[0][r];
        row.first[j] = window > 0 && end > window ? saturated(end - window) : 0;
        row.end[j] = saturated(end);
#pragma unroll
        for (int i = 0; i < V::D / 8; i++)
            row.o[j][i] = 0;
    }
}

/* The output's sums so far, of exact rows, into the basis of tiles: H over channel 8 i + g. */
template <class V> __device__ __forceinline__ void rotate_sums(state<V> &row)
{
    constexpr int N = V::D / 8;
    const float norm = N == 8 ? 0.125f : N == 16 ? 0.08838834764831845f : 0.0625f;

#pragma unroll
    for (int j = 0; j < V::NT; j++) {
        float(&x)[N] = row.o[j];
#pragma unroll
        for (int far = 4; far < 32; far *= 2) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                float other = __shfl_xor_sync(~0u, x[i], far);
                x[i] = lane_id() & far ? other - x[i] : x[i] + other;
            }
        }
        butterflies(x);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] *= norm;
    }
}

} // namespace attend

#endif
