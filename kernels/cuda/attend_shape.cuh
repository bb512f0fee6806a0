/* One variant of attend: its constants, where things stand in shared memory, what a warp keeps. */
#ifndef KVK_CUDA_ATTEND_SHAPE_CUH
#define KVK_CUDA_ATTEND_SHAPE_CUH

#include "kernels/cuda/args.h"
#include "kernels/cuda/attend_config.h"
#include "kernels/cuda/attend_ptx.cuh"

namespace attend
{

template <int D_, int G_, int KB_, int VB_, int NT_> struct variant {
    static constexpr int D = D_, G = G_, KB = KB_, VB = VB_, NT = NT_;
    static constexpr int ROWS = 4 * NT;
    static constexpr int WARPS = KVK_ATTEND_WARPS(D, G, KB, VB, NT);
    static constexpr int STAGES = KVK_ATTEND_STAGES(D, G, KB, VB, NT);
    static_assert(WARPS >= 4 && STAGES >= 1, "four rows are finished by a warp each");

    /* the record, tile.h; V's offsets are from v_codes on, where its slot begins */
    static constexpr int K_STEP = D * G * KB / 8, K_ZERO = K_STEP + 2 * D, K_TOKEN = K_ZERO + 2 * D;
    static constexpr int K_BYTES = KVK_ATTEND_K_BYTES(D, G, KB);
    static constexpr int V_CHANNEL = D * G * VB / 8, V_STEP = V_CHANNEL + 2 * D;
    static constexpr int V_ZERO = V_STEP + 2 * G;
    static constexpr int V_BYTES = KVK_ATTEND_V_BYTES(D, G, VB);
    static constexpr int EXACT_BYTES = 2 * G * D; /* of K, and of V, of a cell */

    static constexpr int K_SLOT = KVK_ATTEND_K_SLOT(D, G, KB), V_SLOT = KVK_ATTEND_V_SLOT(D, G, VB);
    static constexpr int EXACT_ROW = KVK_ATTEND_ROW_BYTES(D);
    static constexpr int MERGE_ROW = KVK_ATTEND_ROW_FLOATS(D);
    static constexpr int STRETCHES = G / KVK_ATTEND_SPAN_ROWS; /* of an exact span */
    static constexpr int PART_BYTES = KVK_ATTEND_PART_BYTES(D, NT);
};

/* Shared memory of a block. */
template <class V> struct shared {
    uint8_t k[V::WARPS][V::STAGES][V::K_SLOT];
    uint8_t v[V::WARPS][V::STAGES][V::V_SLOT];
    float merge[V::WARPS][4][V::MERGE_ROW]; /* four rows of every warp */
    float done[4][V::MERGE_ROW];            /* four joined rows */
    float4 q[V::NT][V::D / 32][2][4][4]; /* [step][half][row][t]: four channels, q~ times 16319 */
    uint4 q_half[V::NT][V::D / 32][32];  /* [step][lane]: eight channels, high or low part */
    uint4 q_exact[V::NT][V::D / 32][32]; /* the same, not rotated, in the type of exact rows */
    float2 top[V::WARPS][V::ROWS];       /* maximum and sum */
    uint64_t barrier[V::WARPS][V::STAGES][2];
    float row_scale[2][V::ROWS]; /* for tiles, for exact rows */
    uint32_t last;               /* this block joins the rows */
};

/* What a lane keeps of query rows t + 4 j: channels 8 i + g of the output, in units of 2^m. */
template <class V> struct state {
    float o[V::NT][V::D / 8];
    float m[V::NT], l[V::NT];          /* l: the lane's own tokens only */
    float scale[V::NT];                /* of q~ . k in fixed point to a logit in base 2 */
    uint32_t first[V::NT], end[V::NT]; /* positions the row sees */
};

/* Below every logit, and finite so that differences are numbers. */
constexpr float LOWEST = -1e30f;

__device__ __forceinline__ int lane_id()
{
    return threadIdx.x & 31;
}

__device__ __forceinline__ int warp_id()
{
    return threadIdx.x >> 5;
}

template <class T> __device__ __forceinline__ T load(const void *at)
{
    return *(const T *)at;
}

__device__ __forceinline__ float2 halves(uint32_t pair)
{
    __half2 h;
    memcpy(&h, &pair, sizeof h);
    return __half22float2(h);
}

__device__ __forceinline__ float half_value(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

} // namespace attend

#endif
