/* One tile met by 4 NT query rows, in one warp: codes go into the tensor cores as they are.
 *
 * A word of codes AND a mask is an A register of mma.m16n8k32 (u8); which slot of the byte it was
 * is a power of two that belongs to the row (token of K, channel of V) and goes into its scale.
 * q~ a and p b become 16-bit fixed point, of which the high and the low byte are two columns of B,
 * so that an n8 tile of B is 4 query rows and a lane holds both sums of a row: 256 high + low.
 *
 * Sums are read as floats without conversion: they start at the bits of a float 1.5 * 2^23 (signed)
 * or 2^23 and count its last bits. Both must stay within that float's binade: |sum| < 2^22 (192 *
 * 128 * D and 240 * 128 * D at D = 128), sum < 2^23 (240 * 255 * G). At D = 256 the first does not
 * hold, and K's sums are converted. */
#ifndef KVK_CUDA_ATTEND_TILE_CUH
#define KVK_CUDA_ATTEND_TILE_CUH

#include "kernels/cuda/attend_softmax.cuh"

namespace attend
{

constexpr float SIGNED_ZERO = 12582912.0f, UNSIGNED_ZERO = 8388608.0f; /* 1.5 * 2^23, 2^23 */
constexpr float Q_TOP = 16319.0f; /* times less than 2 is at most 127 * 256 + 127 */
constexpr float P_TOP = 65500.0f;

/* Maximum of the halves (none negative) in N words of all lanes that differ in bits `near` .. `end`
 * of their number; above 0. */
template <int N>
__device__ __forceinline__ float half_top(const uint32_t (&pairs)[N], int near, int end)
{
    uint32_t top = 0x00010001u; /* the smallest subnormal */

#pragma unroll
    for (int i = 0; i < N; i++)
        top = __vmaxu2(top, pairs[i]);
#pragma unroll
    for (int lanes = near; lanes < end; lanes *= 2)
        top = __vmaxu2(top, __shfl_xor_sync(~0u, top, lanes));
    return half_value(max(top & 0xffff, top >> 16));
}

/* The low 16 bits of four numbers' mantissas -> their high bytes (columns of even g) or low ones.
 */
__device__ __forceinline__ uint32_t digits(float x0, float x1, float x2, float x3)
{
    uint32_t pick = lane_id() / 4 % 2 == 0 ? 0x0051 : 0x0040;
    uint32_t low = __byte_perm(__float_as_uint(x0), __float_as_uint(x1), pick);
    uint32_t high = __byte_perm(__float_as_uint(x2), __float_as_uint(x3), pick);

    return __byte_perm(low, high, 0x5410);
}

/* Of the K part of a tile: B registers of q~ a for all rows, and what turns sums into logits. */
template <class V> struct folded {
    uint32_t b[V::NT][V::D / 16];
    float scale;       /* of fixed point */
    float beta[V::NT]; /* sum of q z, row's scale not applied */
};

template <class V>
__device__ __forceinline__ void fold_q(folded<V> &to, const uint8_t *tile, const shared<V> &mem)
{
    constexpr int STEPS = V::D / 32;
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    uint32_t a[STEPS * 4];

#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint4 x = load<uint4>(tile + V::K_STEP + 64 * s + 16 * t);
        a[4 * s] = x.x, a[4 * s + 1] = x.y, a[4 * s + 2] = x.z, a[4 * s + 3] = x.w;
    }
    float top = half_top(a, 1, 4);
    to.scale = __uint_as_float(__float_as_uint(top) & 0x7f800000u); /* 2^e <= top < 2^(e+1) */
    /* the high byte is rounded by its 128 */
    float zero = (g % 2 == 0 ? SIGNED_ZERO + 128.0f : SIGNED_ZERO) * to.scale;
#pragma unroll
    for (int j = 0; j < V::NT; j++) {
        float beta[4] = {0, 0, 0, 0};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 q = mem.q[j][s][half][g / 2][t];
                float2 x = halves(a[4 * s + 2 * half]), y = halves(a[4 * s + 2 * half + 1]);
                to.b[j][2 * s + half] = digits(fmaf(x.x, q.x, zero), fmaf(x.y, q.y, zero),
                                               fmaf(y.x, q.z, zero), fmaf(y.y, q.w, zero));
            }
            uint4 z = load<uint4>(tile + V::K_ZERO + 64 * s + 16 * t);
            uint4 q = mem.q_half[j][s][lane];
            mma_half<false>(beta, z.x, z.x, z.y, z.y, q.x, q.y);
            mma_half<false>(beta, z.z, z.z, z.w, z.w, q.z, q.w);
        }
        to.beta[j] = beta[0] + beta[1];
    }
}

/* s[j][i] = logit in base 2 of query row t + 4 j and token 8 i + g. */
template <class V>
__device__ __forceinline__ void tile_logits(float (&s)[V::NT][V::G / 8], const uint8_t *tile,
                                            const shared<V> &mem, const state<V> &row)
{
    constexpr int SLOTS = 8 / V::KB, QUADS = V::D / 64;
    constexpr bool WIDE = V::D > 128;
    constexpr int ZERO = WIDE ? 0 : 0x4b400000;
    constexpr uint32_t MASK = V::KB == 2 ? 0x03030303u : 0x0f0f0f0fu;
    int lane = lane_id(), g = lane / 4;
    folded<V> q;
    float scale[V::NT][SLOTS], base[V::NT][SLOTS];

    fold_q(q, tile, mem);
#pragma unroll
    for (int j = 0; j < V::NT; j++) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            scale[j][slot] = row.scale[j] * q.scale * (1.0f / Q_TOP / (1 << V::KB * slot));
            base[j][slot] = row.scale[j] * q.beta[j] - (WIDE ? 0 : SIGNED_ZERO) * scale[j][slot];
        }
    }
#pragma unroll
    for (int block = 0; block < V::G / 8 / SLOTS; block++) {
        int sum[V::NT][SLOTS / 2][4];
        float2 u[SLOTS / 2];
#pragma unroll
        for (int h = 0; h < SLOTS / 2; h++)
            u[h] = halves(
                load<uint32_t>(tile + V::K_TOKEN + g * (V::G / 4) + 2 * (block * SLOTS + 2 * h)));
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            uint4 w = load<uint4>(tile + ((block * QUADS + i) * 32 + lane) * 16);
#pragma unroll
            for (int h = 0; h < SLOTS / 2; h++) {
                uint32_t m0 = MASK << V::KB * 2 * h, m1 = m0 << V::KB;
                uint32_t x[4] = {w.x & m0, w.x & m1, w.y & m0, w.y & m1};
                uint32_t y[4] = {w.z & m0, w.z & m1, w.w & m0, w.w & m1};
#pragma unroll
                for (int j = 0; j < V::NT; j++) {
                    if (i == 0)
                        mma_first<true>(sum[j][h], x, q.b[j][0], q.b[j][1], ZERO);
                    else
                        mma_next<true>(sum[j][h], x, q.b[j][4 * i], q.b[j][4 * i + 1]);
                    mma_next<true>(sum[j][h], y, q.b[j][4 * i + 2], q.b[j][4 * i + 3]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < V::NT; j++) {
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++) {
                const int *c = &sum[j][slot / 2][slot % 2 * 2];
                float high = WIDE ? (float)c[0] : __int_as_float(c[0]) - SIGNED_ZERO;
                float low = WIDE ? (float)c[1] : __int_as_float(c[1]);
                float token = slot % 2 == 0 ? u[slot / 2].x : u[slot / 2].y;
                s[j][block * SLOTS + slot] =
                    fmaf(fmaf(high, 256.0f, low), scale[j][slot], base[j][slot]) * token;
            }
        }
    }
}

/* B registers of p b, and what turns sums into outputs. */
template <class V> struct weighed {
    uint32_t b[V::NT][V::G / 16];
    float unit[V::NT];  /* of fixed point and of p here, in units of the row's 2^m */
    float gamma[V::NT]; /* sum of p y, in those of the output */
};

/* Logits -> p. Fixed point is relative to the largest p of this tile and row, so its precision does
 * not hang on what came before. */
template <class V>
__device__ __forceinline__ void weigh(weighed<V> &to, const float (&s)[V::NT][V::G / 8],
                                      const uint8_t *tile, state<V> &row)
{
    constexpr int N = V::G / 8;
    int g = lane_id() / 4;
    uint32_t b[N / 2], y[N / 2];

#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        uint4 x = load<uint4>(tile + V::V_STEP + g * 2 * N + 16 * i);
        b[4 * i] = x.x, b[4 * i + 1] = x.y, b[4 * i + 2] = x.z, b[4 * i + 3] = x.w;
        x = load<uint4>(tile + V::V_ZERO + g * 2 * N + 16 * i);
        y[4 * i] = x.x, y[4 * i + 1] = x.y, y[4 * i + 2] = x.z, y[4 * i + 3] = x.w;
    }
    float room = lg2(P_TOP) - lg2(half_top(b, 4, 32));
#pragma unroll
    for (int j = 0; j < V::NT; j++) {
        float top = top_of(s[j]), reference = top - room, sum = 0, gamma = 0;
        raise<V>(row, j, top);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float2 step = halves(b[i]), zero = halves(y[i]);
            float p0 = ex2(s[j][2 * i] - reference), p1 = ex2(s[j][2 * i + 1] - reference);
            sum += p0 + p1;
            gamma = fmaf(p0, zero.x, fmaf(p1, zero.y, gamma));
            float x0 = fmaf(p0, step.x, UNSIGNED_ZERO), x1 = fmaf(p1, step.y, UNSIGNED_ZERO);
            /* (high 0, high 1), (low 0, low 1): two elements of an 8 x 8 matrix of 16 bits */
            to.b[j][i] = transpose(__byte_perm(__float_as_uint(x0), __float_as_uint(x1), 0x4051));
        }
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            gamma += __shfl_xor_sync(~0u, gamma, lanes);
        to.unit[j] = ex2(reference - row.m[j]);
        to.gamma[j] = gamma * to.unit[j];
        row.l[j] = fmaf(sum, to.unit[j], row.l[j]);
    }
}

template <class V>
__device__ __forceinline__ void tile_values(const weighed<V> &p, const uint8_t *tile, state<V> &row)
{
    constexpr int SLOTS = 8 / V::VB, QUADS = V::G / 64;
    constexpr uint32_t MASK = V::VB == 2 ? 0x03030303u : 0x0f0f0f0fu;
    int lane = lane_id(), g = lane / 4;
    float unit[V::NT][SLOTS], base[V::NT][SLOTS];

#pragma unroll
    for (int j = 0; j < V::NT; j++) {
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            unit[j][slot] = p.unit[j] * (1.0f / (1 << V::VB * slot));
            base[j][slot] = fmaf(-UNSIGNED_ZERO, unit[j][slot], p.gamma[j]);
        }
    }
#pragma unroll
    for (int block = 0; block < V::D / 8 / SLOTS; block++) {
        int sum[V::NT][SLOTS / 2][4];
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            uint4 w = load<uint4>(tile + ((block * QUADS + i) * 32 + lane) * 16);
#pragma unroll
            for (int h = 0; h < SLOTS / 2; h++) {
                uint32_t m0 = MASK << V::VB * 2 * h, m1 = m0 << V::VB;
                uint32_t x[4] = {w.x & m0, w.x & m1, w.y & m0, w.y & m1};
                uint32_t y[4] = {w.z & m0, w.z & m1, w.w & m0, w.w & m1};
#pragma unroll
                for (int j = 0; j < V::NT; j++) {
                    if (i == 0)
                        mma_first<false>(sum[j][h], x, p.b[j][0], p.b[j][1], 0x4b000000);
                    else
                        mma_next<false>(sum[j][h], x, p.b[j][4 * i], p.b[j][4 * i + 1]);
                    mma_next<false>(sum[j][h], y, p.b[j][4 * i + 2], p.b[j][4 * i + 3]);
                }
            }
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            int channel = block * SLOTS + slot; /* times 8, plus g */
            float2 w =
                halves(load<uint32_t>(tile + V::V_CHANNEL + g * (V::D / 4) + 2 * (channel & ~1)));
#pragma unroll
            for (int j = 0; j < V::NT; j++) {
                const int *c = &sum[j][slot / 2][slot % 2 * 2];
                float x = fmaf(__int_as_float(c[0]) - UNSIGNED_ZERO, 256.0f, __int_as_float(c[1]));
                row.o[j][channel] = fmaf(slot % 2 == 0 ? w.x : w.y,
                                         fmaf(x, unit[j][slot], base[j][slot]), row.o[j][channel]);
            }
        }
    }
}

} // namespace attend

#endif
