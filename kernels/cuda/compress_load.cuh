/* Rows -> rotated rows, each divided by its root mean square, in fp16.
 *
 * A lane loads 8 adjacent channels, 16 bytes, and the registers are A fragments as they come: the
 * sum over k of an mma does not ask for an order. One mma with signs for B does the four
 * butterflies whose distance lies inside a fragment (channel bits 0, 1, 3, 4), fp32 additions do
 * the others.
 *
 * The statistics of a rotated row are known before it is rotated: H keeps the sum of squares, and
 * the sum of a rotated row is sqrt(D) times element 0. So the deviation is the sum of squares
 * without element 0, which no mean has to be taken from. Sums of squares are the diagonal of the
 * product of a strip with itself. */
#ifndef KVK_CUDA_COMPRESS_LOAD_CUH
#define KVK_CUDA_COMPRESS_LOAD_CUH

#include "kernels/cuda/compress_tile.cuh"
#include "kernels/cuda/rows.cuh"

/* A row whose squares sum to more is looked at element by element: NaN, infinity, or huge bf16. */
constexpr float kSuspect = 1e30f;

struct Rows {
    const uint8_t *at; /* token 0 */
    uint64_t stride;
    bool vectors; /* address and stride are multiples of 16 bytes */
    bool rotate;
    uint64_t fault;  /* KVK_CUDA_FAULT of the matrix' first element */
    uint64_t faults; /* its block's place in kvk_cuda_blocks.faults */
};

template <bool Bf16> __device__ __forceinline__ float low_value(uint32_t word)
{
    return Bf16 ? __uint_as_float(word << 16) : __low2float(half2_of(word));
}

/* The slow way in: this warp's rows to shared memory, where they can be loaded as vectors, and
 * looked at if asked. Returns whether a lane found a fault. */
template <uint32_t D, uint32_t G, bool Bf16>
__device__ __forceinline__ bool stage_rows(Shared<D, G> &shared, const Rows &rows, bool look,
                                           const Lane &at)
{
    constexpr uint32_t tokens = 16 * Plan<D, G>::token_strips;
    bool bad = false;

#pragma unroll 1
    for (uint32_t i = at.lane; i < tokens * (D / 8); i += 32) {
        uint32_t token = at.warp * tokens + i / (D / 8), chunk = i % (D / 8);
        uint4 x = load_unaligned(rows.at + token * rows.stride + 16 * chunk);

        if (look) {
            bad |= find_fault(x, Bf16, rows.fault + KVK_CUDA_FAULT(0, 0, token, 8 * chunk),
                              rows.faults);
            if (Bf16)
                x = make_uint4(clip_bf16(x.x), clip_bf16(x.y), clip_bf16(x.z), clip_bf16(x.w));
        }
        shared.tile[token * (D / 8) + chunk] = x;
    }
    __syncwarp();
    return bad;
}

/* A strip as it came: [chunk][row g, g + 8][word]. */
template <uint32_t D> struct Raw {
    uint32_t x[D / 32][2][4];

    /* from: first row of the strip, in global or shared memory. */
    __device__ __forceinline__ void load(const uint8_t *from, uint64_t stride, const Lane &at)
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const uint8_t *row = from + (8 * r + at.g) * stride + 16 * at.t;

#pragma unroll
            for (uint32_t j = 0; j < D / 32; j++) {
                uint4 v = *reinterpret_cast<const uint4 *>(row + 64 * j);

                x[j][r][0] = v.x;
                x[j][r][1] = v.y;
                x[j][r][2] = v.z;
                x[j][r][3] = v.w;
            }
        }
        __syncwarp(); /* staged rows give way to the strip */
    }
};

/* Of rows g and g + 8 of a strip: deviation and mean square of the rotated row. */
struct RowStatistics {
    float deviation[2], mean_square[2];
};

template <bool Bf16>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1)
{
    if (Bf16)
        mma_bf16(c, a0, a1, a2, a3, b0, b1);
    else
        mma_f16(c, a0, a1, a2, a3, b0, b1);
}

template <uint32_t D, bool Bf16>
__device__ __forceinline__ RowStatistics measure_rotated(const uint32_t (&raw)[D / 32][2][4],
                                                         const Lane &at)
{
    RowStatistics row;
    float low[4] = {}, high[4] = {}, square[2];
    uint32_t mask = at.t == 0 ? 0xffff0000u : kAll;

#pragma unroll
    for (uint32_t j = 0; j < D / 32; j++) {
#pragma unroll
        for (uint32_t f = 0; f < 2; f++) {
            uint32_t a0 = raw[j][0][2 * f], a1 = raw[j][1][2 * f], a2 = raw[j][0][2 * f + 1],
                     a3 = raw[j][1][2 * f + 1];

            if (j == 0 && f == 0) {
                a0 &= mask;
                a1 &= mask;
            }
            mma<Bf16>(low, a0, a1, a2, a3, a0, a2);
            mma<Bf16>(high, a0, a1, a2, a3, a1, a3);
        }
    }
    diagonal(low, high, at, square);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float first = __shfl_sync(kAll, low_value<Bf16>(raw[0][r][0]), at.lane & 28u);

        row.deviation[r] = root(square[r] * (1.0f / (D - 1)));
        row.mean_square[r] = (square[r] + first * first) * (1.0f / D);
    }
    return row;
}

/* Sums of squares of a strip's rows: their products are exact. */
template <uint32_t D, bool Bf16>
__device__ __forceinline__ void square_rows(const uint32_t (&raw)[D / 32][2][4], const Lane &at,
                                            float (&square)[2])
{
    float low[4] = {}, high[4] = {};

#pragma unroll
    for (uint32_t j = 0; j < D / 32; j++) {
#pragma unroll
        for (uint32_t f = 0; f < 2; f++) {
            uint32_t a0 = raw[j][0][2 * f], a1 = raw[j][1][2 * f], a2 = raw[j][0][2 * f + 1],
                     a3 = raw[j][1][2 * f + 1];

            mma<Bf16>(low, a0, a1, a2, a3, a0, a2);
            mma<Bf16>(high, a0, a1, a2, a3, a1, a3);
        }
    }
    diagonal(low, high, at, square);
}

/* The same of rows that are not rotated: about element 0, in halves, which cannot overflow. */
template <uint32_t D, bool Bf16>
__device__ __forceinline__ RowStatistics measure_plain(const uint32_t (&raw)[D / 32][2][4],
                                                       const Lane &at)
{
    RowStatistics row;
    float low[4] = {}, high[4] = {}, sum[4] = {}, about_first[2], square[2];
    uint32_t shift[2], one = Bf16 ? 0x3f803f80u : 0x3c003c00u;

#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t word = __shfl_sync(kAll, raw[0][r][0], at.lane & 28u);

        shift[r] = __byte_perm(word, 0, 0x1010) ^ 0x80008000u;
    }
    auto about = [&](uint32_t x, uint32_t r) {
        if (Bf16) {
            __nv_bfloat162 half = __float2bfloat162_rn(0.5f);
            __nv_bfloat162 y =
                __hfma2(*reinterpret_cast<__nv_bfloat162 *>(&x), half,
                        __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&shift[r]), half));
            return *reinterpret_cast<uint32_t *>(&y);
        }
        __half2 half = __float2half2_rn(0.5f);
        return word_of(__hfma2(half2_of(x), half, __hmul2(half2_of(shift[r]), half)));
    };
#pragma unroll
    for (uint32_t j = 0; j < D / 32; j++) {
#pragma unroll
        for (uint32_t f = 0; f < 2; f++) {
            uint32_t a0 = about(raw[j][0][2 * f], 0), a1 = about(raw[j][1][2 * f], 1),
                     a2 = about(raw[j][0][2 * f + 1], 0), a3 = about(raw[j][1][2 * f + 1], 1);

            mma<Bf16>(low, a0, a1, a2, a3, a0, a2);
            mma<Bf16>(high, a0, a1, a2, a3, a1, a3);
            mma<Bf16>(sum, a0, a1, a2, a3, one, one);
        }
    }
    diagonal(low, high, at, about_first);
    square_rows<D, Bf16>(raw, at, square);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float s = 2.0f * sum[2 * r], q = 4.0f * about_first[r];

        row.deviation[r] = root(fmaxf(q - s * s * (1.0f / D), 0.0f) * (1.0f / (D - 1)));
        row.mean_square[r] = square[r] * (1.0f / D);
    }
    return row;
}

/* B fragments of the rotation: [n tile][register]. Without rotation they copy k to n. */
struct Signs {
    uint32_t b[2][2];
};

template <bool Bf16> __device__ __forceinline__ Signs signs_of(bool rotate, const Lane &at)
{
    constexpr uint32_t one = Bf16 ? 0x3f80u : 0x3c00u;
    Signs signs;

    if (rotate) {
        uint32_t even = __popc(at.t & at.g / 2) & 1, odd = even ^ (at.g & 1);
        uint32_t pair = one * 0x10001u | even << 15 | odd << 31;

        signs.b[0][0] = signs.b[0][1] = signs.b[1][0] = pair;
        signs.b[1][1] = pair ^ 0x80008000u;
    } else {
        uint32_t pair = at.t == at.g / 2 ? one << 16 * (at.g & 1) : 0;

        signs.b[0][0] = signs.b[1][1] = pair;
        signs.b[0][1] = signs.b[1][0] = 0;
    }
    return signs;
}

/* Butterflies over f and the chunks, for one n tile: y[chunk][f][4]. */
template <uint32_t Chunks> __device__ __forceinline__ void butterflies(float (&y)[Chunks][2][4])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
        for (uint32_t j = 0; j < Chunks; j++) {
            float a = y[j][0][i], b = y[j][1][i];

            y[j][0][i] = a + b;
            y[j][1][i] = a - b;
        }
#pragma unroll
        for (uint32_t distance = 1; distance < Chunks; distance *= 2) {
#pragma unroll
            for (uint32_t j = 0; j < Chunks; j++) {
                if (j & distance)
                    continue;
#pragma unroll
                for (uint32_t f = 0; f < 2; f++) {
                    float a = y[j][f][i], b = y[j + distance][f][i];

                    y[j][f][i] = a + b;
                    y[j + distance][f][i] = a - b;
                }
            }
        }
    }
}

/* One strip, rotated, times factor[row], rounded to fp16, to its place in shared memory. */
template <uint32_t D, uint32_t G, bool Bf16>
__device__ __forceinline__ void
rotate_strip(Shared<D, G> &shared, const Raw<D> &raw, const Signs &signs, bool rotate,
             const float (&factor)[2], uint32_t first_token, const Lane &at)
{
    uint32_t x[D / 32][4][2];

#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        float y[D / 32][2][4];

#pragma unroll
        for (uint32_t j = 0; j < D / 32; j++) {
#pragma unroll
            for (uint32_t f = 0; f < 2; f++) {
                y[j][f][0] = y[j][f][1] = y[j][f][2] = y[j][f][3] = 0.0f;
                mma<Bf16>(y[j][f], raw.x[j][0][2 * f], raw.x[j][1][2 * f], raw.x[j][0][2 * f + 1],
                          raw.x[j][1][2 * f + 1], signs.b[n][0], signs.b[n][1]);
            }
        }
        if (rotate)
            butterflies<D / 32>(y);
#pragma unroll
        for (uint32_t j = 0; j < D / 32; j++) {
#pragma unroll
            for (uint32_t f = 0; f < 2; f++) {
#pragma unroll
                for (uint32_t r = 0; r < 2; r++)
                    x[j][2 * f + n][r] = word_of(__floats2half2_rn(y[j][f][2 * r] * factor[r],
                                                                   y[j][f][2 * r + 1] * factor[r]));
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t token = first_token + 8 * r + at.g;

#pragma unroll
        for (uint32_t j = 0; j < D / 32; j++)
            shared.tile[token * (D / 8) + ((4 * j + at.t) ^ swizzle(at.g))] =
                make_uint4(x[j][0][r], x[j][1][r], x[j][2][r], x[j][3][r]);
    }
}

/* All strips of a warp to shared memory. Returns whether a row is suspect. */
template <uint32_t D, uint32_t G, bool Bf16>
__device__ __forceinline__ bool
make_strips(Shared<D, G> &shared, TokenRows<Plan<D, G>::token_rows> &tokens, const uint8_t *from,
            uint64_t stride, bool rotate, const Lane &at)
{
    using P = Plan<D, G>;
    constexpr float turn = D == 64 ? 0.125f : D == 128 ? 0.08838834764831845f : 0.0625f;
    Signs signs = signs_of<Bf16>(rotate, at);
    float unit = rotate ? turn : 1.0f;
    bool suspect = false;

#pragma unroll 1
    for (uint32_t s = 0; s < P::token_strips; s++) {
        uint32_t first_token = 16 * (at.warp * P::token_strips + s);
        Raw<D> raw;
        RowStatistics row;
        float factor[2], scale[2];

        raw.load(from + first_token * stride, stride, at);
        row = rotate ? measure_rotated<D, Bf16>(raw.x, at) : measure_plain<D, Bf16>(raw.x, at);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            suspect = suspect || !(row.mean_square[r] < kSuspect);
            scale[r] = root(row.mean_square[r]);
            factor[r] = scale[r] > 0.0f ? unit * reciprocal(scale[r]) : 0.0f;
        }
        rotate_strip<D, G, Bf16>(shared, raw, signs, rotate, factor, first_token, at);
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            if (P::token_strips > 1 && s != 2 * i + at.t / 2)
                continue;
            tokens.deviation[i] = at.t % 2 ? row.deviation[1] : row.deviation[0];
            tokens.scale[i] = at.t % 2 ? scale[1] : scale[0];
        }
    }
    return suspect;
}

/* The strips of this warp back into registers. */
template <uint32_t D, uint32_t G>
__device__ __forceinline__ void take_strips(Strip<D> (&strips)[Plan<D, G>::token_strips],
                                            const Shared<D, G> &shared, const Lane &at)
{
#pragma unroll
    for (uint32_t s = 0; s < Plan<D, G>::token_strips; s++) {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t token = 16 * (at.warp * Plan<D, G>::token_strips + s) + 8 * r + at.g;

#pragma unroll
            for (uint32_t j = 0; j < D / 32; j++) {
                uint4 v = shared.tile[token * (D / 8) + ((4 * j + at.t) ^ swizzle(at.g))];

                strips[s].x[j][0][r] = v.x;
                strips[s].x[j][1][r] = v.y;
                strips[s].x[j][2][r] = v.z;
                strips[s].x[j][3][r] = v.w;
            }
        }
    }
}

/* Rows -> strips in shared memory. top: the largest scale of a token. Returns false when a fault
 * was found. */
template <uint32_t D, uint32_t G, bool Bf16>
__device__ __forceinline__ bool load_tile(Shared<D, G> &shared,
                                          TokenRows<Plan<D, G>::token_rows> &tokens, float &top,
                                          const Rows &rows, const Lane &at)
{
    using P = Plan<D, G>;
    bool look = false;

    for (;;) {
        const uint8_t *from = rows.at;
        uint64_t stride = rows.stride;
        bool suspect, any;
        float high = 0.0f;

        if (look || !rows.vectors) {
            bool bad = stage_rows<D, G, Bf16>(shared, rows, look, at);

            if (look && __syncthreads_or(bad))
                return false;
            from = reinterpret_cast<const uint8_t *>(shared.tile);
            stride = 2 * D;
        }
        suspect = make_strips<D, G, Bf16>(shared, tokens, from, stride, rows.rotate, at);
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++)
            high = fmaxf(high, tokens.scale[i]);
        top = block_max<P::warps>(shared.part[0], high, at, suspect, &any);
        if (look || !any)
            return true;
        look = true;
    }
}

#endif
