/* Up to 16 exact rows met by 4 NT query rows, in one warp. K, V in fp16 or bf16; q and p enter as
 * the sum of two such numbers, in two columns of B as in attend_tile.cuh. */
#ifndef KVK_CUDA_ATTEND_EXACT_CUH
#define KVK_CUDA_ATTEND_EXACT_CUH

#include "kernels/cuda/attend_softmax.cuh"

namespace attend
{

template <bool BF16> __device__ __forceinline__ uint16_t rounded(float x)
{
    return BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                : __half_as_ushort(__float2half_rn(x));
}

template <bool BF16> __device__ __forceinline__ float widened(uint16_t bits)
{
    return BF16 ? __uint_as_float((uint32_t)bits << 16) : __half2float(__ushort_as_half(bits));
}

/* x as the sum of two halves: the larger one in the low 16 bits. */
template <bool BF16> __device__ __forceinline__ uint32_t in_two(float x)
{
    uint16_t high = rounded<BF16>(x);

    return high | (uint32_t)rounded<BF16>(x - widened<BF16>(high)) << 16;
}

template <class V, bool BF16>
__device__ __forceinline__ void exact_logits(float (&s)[V::NT][2], const uint8_t *rows,
                                             const shared<V> &mem)
{
    int lane = lane_id(), g = lane / 4, t = lane % 4;

#pragma unroll
    for (int j = 0; j < V::NT; j++) {
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < V::D / 32; i++) {
            uint4 x = load<uint4>(rows + g * V::EXACT_ROW + 64 * i + 16 * t);
            uint4 y = load<uint4>(rows + (g + 8) * V::EXACT_ROW + 64 * i + 16 * t);
            uint4 q = mem.q_exact[j][i][lane];
            mma_half<BF16>(sum, x.x, y.x, x.y, y.y, q.x, q.y);
            mma_half<BF16>(sum, x.z, y.z, x.w, y.w, q.z, q.w);
        }
        float scale = mem.row_scale[1][4 * j + t];
        s[j][0] = (sum[0] + sum[1]) * scale;
        s[j][1] = (sum[2] + sum[3]) * scale;
    }
}

template <class V, bool BF16>
__device__ __forceinline__ void exact_values(const float (&s)[V::NT][2], const uint8_t *rows,
                                             state<V> &row)
{
    int lane = lane_id();
    uint32_t b[V::NT][2];

#pragma unroll
    for (int j = 0; j < V::NT; j++) {
        raise<V>(row, j, top_of(s[j]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float p = ex2(s[j][i] - row.m[j]);
            row.l[j] += p;
            b[j][i] = transpose(in_two<BF16>(p));
        }
    }
    uint32_t at =
        shared_address(rows) + (lane / 16 * 8 + lane % 8) * V::EXACT_ROW + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < V::D / 16; i++) {
        uint32_t x[4];
        load_transposed(x, at + 32 * i);
#pragma unroll
        for (int j = 0; j < V::NT; j++) {
            float sum[4] = {0, 0, 0, 0};
            mma_half<BF16>(sum, x[0], x[1], x[2], x[3], b[j][0], b[j][1]);
            row.o[j][2 * i] += sum[0] + sum[1];
            row.o[j][2 * i + 1] += sum[2] + sum[3];
        }
    }
}

} // namespace attend

#endif
