/* Logits of N tokens a lane: soft cap, what a row sees, the maximum, the running maximum. */
#ifndef KVK_CUDA_ATTEND_SOFTMAX_CUH
#define KVK_CUDA_ATTEND_SOFTMAX_CUH

#include "kernels/cuda/attend_shape.cuh"

namespace attend
{

/* cap tanh(s / cap), s and cap in base 2 */
__device__ __forceinline__ float soften(float s, float cap)
{
    float x = __fdividef(s, cap), e = __expf(-2.0f * fabsf(x));

    return copysignf(cap * __fdividef(1.0f - e, 1.0f + e), x);
}

/* s[i] is of position + 8 i + g. Tokens from `tokens` on do not exist. */
template <int N>
__device__ __forceinline__ void hide(float (&s)[N], uint32_t position, uint32_t tokens,
                                     uint32_t first, uint32_t end)
{
    uint32_t g = lane_id() / 4;

#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t token = 8 * i + g;
        if (token >= tokens || position + token < first || position + token >= end)
            s[i] = -INFINITY;
    }
}

/* Over a lane's tokens and the eight lanes of its row. */
template <int N> __device__ __forceinline__ float top_of(const float (&s)[N])
{
    float top = LOWEST;

#pragma unroll
    for (int i = 0; i < N; i++)
        top = fmaxf(top, s[i]);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
    return top;
}

/* A row's maximum becomes at least top, and O and l are brought to it. After the first tiles there
 * is mostly nothing to do. */
template <class V> __device__ __forceinline__ void raise(state<V> &row, int j, float top)
{
    float m = fmaxf(row.m[j], top);

    if (__any_sync(~0u, m > row.m[j])) {
        float shrink = ex2(row.m[j] - m);
        row.l[j] *= shrink;
#pragma unroll
        for (int i = 0; i < V::D / 8; i++)
            row.o[j][i] *= shrink;
        row.m[j] = m;
    }
}

} // namespace attend

#endif
