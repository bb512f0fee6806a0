/* Variance normalisation (METHOD.md, sections 2 and 3).
 *
 * A sum of weighted elements along one axis is an mma whose B columns are all the weight vector, a
 * sum of squares the same of squared elements and squared weights; every lane of a quad receives
 * the results of its rows. Weights are fp16 in units of the largest one seen before (`top`), so
 * that squares stay inside fp16 for data of any scale. Statistics and scales are fp32.
 *
 * Two barriers an iteration: each after new weights were stored. The verdict on an iterate is
 * written before the first and read after it, when its successor is already on the way. */
#ifndef KVK_CUDA_COMPRESS_BALANCE_CUH
#define KVK_CUDA_COMPRESS_BALANCE_CUH

#include "kernels/cuda/compress_tile.cuh"

constexpr float kStdLow = 1e-3f, kStdHigh = 1e3f; /* clamp of one measurement */
constexpr float kScaleLow = 0.7408182206817179f;  /* e^-0.3 */
constexpr float kScaleHigh = 22026.465794806718f; /* e^10 */
constexpr float kSpreadFloor = 1e-8f;
constexpr float kGainShare = 1e-4f, kGainLow = 1e-18f;
constexpr float kWeightMax = 240.0f; /* squares stay in fp16; a guard, not reached in practice */

/* One axis, as the owners of its rows hold it. */
template <uint32_t Rows> struct Axis {
    float base[Rows]; /* by which stored elements have to be multiplied: tokens only, else 1 */
    float measured[Rows], scale[Rows], inverse[Rows], ratio[Rows];
    float best[Rows], prior[Rows];
    float top; /* largest base / scale, tile-uniform, one update old */

    __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (uint32_t i = 0; i < Rows; i++) {
            base[i] = scale[i] = inverse[i] = best[i] = prior[i] = 1.0f;
            ratio[i] = measured[i];
        }
    }

    __device__ __forceinline__ float next_scale(uint32_t i, bool &held) const
    {
        float change = measured[i] * inverse[i];
        float clipped = fminf(fmaxf(change, kStdLow), kStdHigh);
        float wanted = scale[i] * clipped;
        float next = fminf(fmaxf(wanted, kScaleLow), kScaleHigh);

        held = clipped != change || next != wanted;
        return next;
    }

    /* Renews the scales. Returns whether one moved by more than `share` of itself. */
    __device__ __forceinline__ bool update(float share)
    {
        bool moved = false;

#pragma unroll
        for (uint32_t i = 0; i < Rows; i++) {
            bool held;
            float next = next_scale(i, held);

            prior[i] = scale[i];
            moved = moved || fabsf(next - scale[i]) > share * scale[i];
            scale[i] = next;
            inverse[i] = reciprocal(next);
            ratio[i] = held ? measured[i] * inverse[i] : 1.0f;
        }
        return moved;
    }

    __device__ __forceinline__ float largest(const float (&x)[Rows]) const
    {
        float high = x[0];

#pragma unroll
        for (uint32_t i = 1; i < Rows; i++)
            high = fmaxf(high, x[i]);
        return high;
    }

    __device__ __forceinline__ float smallest(const float (&x)[Rows]) const
    {
        float low = x[0];

#pragma unroll
        for (uint32_t i = 1; i < Rows; i++)
            low = fminf(low, x[i]);
        return low;
    }

    /* Largest weight with the scales there are, or with those of the next update. */
    __device__ __forceinline__ float largest_weight(bool next) const
    {
        float high = 0.0f;

#pragma unroll
        for (uint32_t i = 0; i < Rows; i++) {
            bool held;
            float by = next ? reciprocal(next_scale(i, held)) : inverse[i];

            high = fmaxf(high, base[i] * by);
        }
        return high;
    }
};

__device__ __forceinline__ float or_one(float top)
{
    return top > 0.0f ? top : 1.0f;
}

constexpr float kRestUnit = 2048.0f;

/* A weight's square: what fp16 holds, and the rest. */
struct Square {
    __half high, rest;

    explicit __device__ __forceinline__ Square(__half w)
    {
        float exact = __half2float(w) * __half2float(w);

        high = __float2half(exact);
        rest = __float2half((exact - __half2float(high)) * kRestUnit);
    }
};

__device__ __forceinline__ uint32_t pair_of(uint32_t token)
{
    return token / 16 * 2 + token % 16 / 8;
}

template <uint32_t D, uint32_t G>
__device__ __forceinline__ __half &token_weight(Shared<D, G> &shared, uint32_t token)
{
    return reinterpret_cast<__half *>(
        &shared.token_weight[token % 8 / 2][pair_of(token)])[token % 2];
}

template <uint32_t D, uint32_t G>
__device__ __forceinline__ __half &token_square(Shared<D, G> &shared, uint32_t part, uint32_t token)
{
    return reinterpret_cast<__half *>(
        &shared.token_square[part][token % 8 / 2][pair_of(token)])[token % 2];
}

template <uint32_t D, uint32_t G> struct Balance {
    using P = Plan<D, G>;
    Shared<D, G> &shared;
    const Strip<D> (&strips)[P::token_strips];
    const ChannelStrips<D, G> channels;
    const Lane at;
    Axis<P::token_rows> token;
    Axis<P::channel_rows> channel;
    float gain;

    __device__ __forceinline__ Balance(Shared<D, G> &shared_,
                                       const Strip<D> (&strips_)[P::token_strips], const Lane &at_)
        : shared(shared_), strips(strips_), channels(shared_, at_), at(at_), gain(1.0f)
    {
    }

    __device__ __forceinline__ void store_tokens()
    {
        float unit = reciprocal(or_one(token.top));

#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            __half w = __float2half(fminf(token.base[i] * token.inverse[i] * unit, kWeightMax));
            uint32_t g = row_of<P::token_strips>(at, i);
            Square square(w);

            if (owns<P::token_strips>(at)) {
                token_weight(shared, g) = w;
                token_square(shared, 0, g) = square.high;
                token_square(shared, 1, g) = square.rest;
            }
        }
    }

    __device__ __forceinline__ void store_channels()
    {
        float unit = reciprocal(or_one(channel.top));

#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++) {
            __half w = __float2half(fminf(channel.inverse[i] * unit, kWeightMax));
            uint32_t c = row_of<P::channel_strips>(at, i);
            Square square(w);

            if (owns<P::channel_strips>(at)) {
                shared.channel_weight[c] = w;
                shared.channel_square[0][c] = square.high;
                shared.channel_square[1][c] = square.rest;
            }
        }
    }

    static __device__ __forceinline__ float deviation(float sum, float squares, uint32_t n)
    {
        float inverse_n = 1.0f / static_cast<float>(n);

        return root(fmaxf(fmaf(-sum * inverse_n, sum, squares), 0.0f) *
                    (1.0f / static_cast<float>(n - 1)));
    }

    /* Deviations of channels with the token weights that are stored. */
    __device__ __forceinline__ void measure_channels()
    {
        float sum[P::channel_strips][4] = {}, squares[P::channel_strips][4] = {};
        const uint4 *weight = reinterpret_cast<const uint4 *>(shared.token_weight[at.t]);
        const uint4 *squared = reinterpret_cast<const uint4 *>(shared.token_square[at.g % 2][at.t]);

#pragma unroll
        for (uint32_t q = 0; q < P::steps / 2; q++) {
            uint4 w = weight[q], z = squared[q];

#pragma unroll
            for (uint32_t s = 0; s < P::channel_strips; s++) {
                uint32_t x[4];

                channels.load(x, s, 2 * q);
                mma_f16(sum[s], x[0], x[1], x[2], x[3], w.x, w.y);
                mma_f16(squares[s], square(x[0]), square(x[1]), square(x[2]), square(x[3]), z.x,
                        z.y);
                channels.load(x, s, 2 * q + 1);
                mma_f16(sum[s], x[0], x[1], x[2], x[3], w.z, w.w);
                mma_f16(squares[s], square(x[0]), square(x[1]), square(x[2]), square(x[3]), z.z,
                        z.w);
            }
        }
        take(channel, sum, squares, G, or_one(token.top));
    }

    /* Deviations of tokens with the channel weights that are stored. */
    __device__ __forceinline__ void measure_tokens()
    {
        float sum[P::token_strips][4] = {}, squares[P::token_strips][4] = {};

#pragma unroll
        for (uint32_t j = 0; j < P::chunks; j++) {
            uint4 w = *reinterpret_cast<const uint4 *>(&shared.channel_weight[32 * j + 8 * at.t]);
            uint4 z = *reinterpret_cast<const uint4 *>(
                &shared.channel_square[at.g % 2][32 * j + 8 * at.t]);

#pragma unroll
            for (uint32_t s = 0; s < P::token_strips; s++) {
                const uint32_t(&x)[4][2] = strips[s].x[j];

                mma_f16(sum[s], x[0][0], x[0][1], x[1][0], x[1][1], w.x, w.y);
                mma_f16(squares[s], square(x[0][0]), square(x[0][1]), square(x[1][0]),
                        square(x[1][1]), z.x, z.y);
                mma_f16(sum[s], x[2][0], x[2][1], x[3][0], x[3][1], w.z, w.w);
                mma_f16(squares[s], square(x[2][0]), square(x[2][1]), square(x[3][0]),
                        square(x[3][1]), z.z, z.w);
            }
        }
        take(token, sum, squares, D, or_one(channel.top));
    }

    template <uint32_t Strips, uint32_t Rows>
    __device__ __forceinline__ void take(Axis<Rows> &axis, const float (&sum)[Strips][4],
                                         const float (&squares)[Strips][4], uint32_t n, float unit)
    {
        float s[Strips][2], q[Strips][2];

#pragma unroll
        for (uint32_t i = 0; i < Strips; i++) {
            s[i][0] = sum[i][0];
            s[i][1] = sum[i][2];
            q[i][0] = fmaf(squares[i][1], 1.0f / kRestUnit, squares[i][0]);
            q[i][1] = fmaf(squares[i][3], 1.0f / kRestUnit, squares[i][2]);
        }
#pragma unroll
        for (uint32_t i = 0; i < Rows; i++)
            axis.measured[i] = axis.base[i] * unit * deviation(pick(s, at, i), pick(q, at, i), n);
    }

    /* Scale-free: everything in units of the smallest deviation that counts. */
    __device__ __forceinline__ void find_gain()
    {
        float high = fmaxf(token.largest(token.measured), channel.largest(channel.measured)), low,
              floor;

        high = block_max<P::warps>(shared.part[1], high, at);
        if (!(high > 0.0f))
            return;
        low = high;
        floor = high * kGainShare;
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++)
            low = token.measured[i] >= floor ? fminf(low, token.measured[i]) : low;
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++)
            low = channel.measured[i] >= floor ? fminf(low, channel.measured[i]) : low;
        gain = fmaxf(block_min<P::warps>(shared.part[2], low, at), kGainLow);
    }

    __device__ __forceinline__ void divide_by_gain()
    {
        float by = reciprocal(gain);

#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            token.measured[i] *= by;
            token.ratio[i] *= by;
            token.base[i] *= by;
        }
        token.top *= by;
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++) {
            channel.measured[i] *= by;
            channel.ratio[i] *= by;
        }
    }

    /* Iterate 0: all scales 1. */
    __device__ __forceinline__ void begin(const TokenRows<P::token_rows> &rows, float top,
                                          bool scale_free)
    {
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++)
            token.measured[i] = rows.deviation[i];
        token.begin();
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++)
            token.base[i] = rows.scale[i];
        token.top = top;
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++)
            channel.measured[i] = 0.0f;
        channel.begin();
        channel.top = 1.0f;
        store_tokens();
        __syncthreads();
        measure_channels();
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++)
            channel.ratio[i] = channel.measured[i];
        if (scale_free) {
            find_gain();
            divide_by_gain();
        }
    }

    template <uint32_t First, uint32_t Second>
    __device__ __forceinline__ void write_verdict(const Axis<First> &first,
                                                  const Axis<Second> &second)
    {
        float change[First];
        Verdict v;

#pragma unroll
        for (uint32_t i = 0; i < First; i++)
            change[i] = first.measured[i] * first.inverse[i];
        v.first_high = warp_max(first.largest(change));
        v.first_low = warp_min(first.smallest(change));
        v.second_high = warp_max(second.largest(second.ratio));
        v.second_low = warp_min(second.smallest(second.ratio));
        v.first_top = warp_max(first.largest_weight(false));
        v.second_top = warp_max(second.largest_weight(false));
        if (at.lane == 0)
            shared.verdict[at.warp] = v;
    }

    /* Imbalance of the iterate that all warps have written about. In double: beside the 1e8 of a
     * row of zeros the other axis still has a say. */
    __device__ __forceinline__ double read_verdict(float &first_top, float &second_top)
    {
        const Verdict &v = shared.verdict[at.lane % P::warps];
        float first =
            warp_max(v.first_high) * reciprocal(fmaxf(warp_min(v.first_low), kSpreadFloor));
        float second =
            warp_max(v.second_high) * reciprocal(fmaxf(warp_min(v.second_low), kSpreadFloor));

        first_top = warp_max(v.first_top);
        second_top = warp_max(v.second_top);
        return static_cast<double>(first) + second;
    }

    template <uint32_t Rows>
    static __device__ __forceinline__ void keep(Axis<Rows> &axis, const float (&scale)[Rows])
    {
#pragma unroll
        for (uint32_t i = 0; i < Rows; i++)
            axis.best[i] = scale[i];
    }

    /* Channels first for V, tokens first for K: the axis with steps of its own comes last. */
    template <bool TokensFirst> __device__ __forceinline__ auto &first_axis()
    {
        if constexpr (TokensFirst)
            return token;
        else
            return channel;
    }

    template <bool Tokens> __device__ __forceinline__ void store_weights()
    {
        if constexpr (Tokens)
            store_tokens();
        else
            store_channels();
    }

    template <bool Tokens> __device__ __forceinline__ void measure_other()
    {
        if constexpr (Tokens)
            measure_channels();
        else
            measure_tokens();
    }

    template <bool TokensFirst>
    __device__ __forceinline__ void run(uint32_t iterations, float settle)
    {
        auto &first = first_axis<TokensFirst>();
        auto &second = first_axis<!TokensFirst>();
        double best = 1e300, imbalance;
        float first_top, second_top;

        first.top = block_max<P::warps>(shared.part[0], first.largest_weight(true), at);
#pragma unroll 1
        for (uint32_t i = 0; i < iterations; i++) {
            bool moved;

            write_verdict(first, second);
            moved = first.update(settle);
            store_weights<TokensFirst>();
            moved = __syncthreads_or(moved || settle <= 0.0f);
            imbalance = read_verdict(first_top, second_top);
            if (imbalance <= best) {
                best = imbalance;
                keep(first, first.prior);
                keep(second, second.scale);
            }
            if (!moved)
                return;
            measure_other<TokensFirst>();
            second.update(0.0f);
            second.top = second_top;
            store_weights<!TokensFirst>();
            __syncthreads();
            measure_other<!TokensFirst>();
            if (i > 0)
                first.top = first_top;
        }
        write_verdict(first, second);
        __syncthreads();
        if (read_verdict(first_top, second_top) <= best) {
            keep(first, first.scale);
            keep(second, second.scale);
        }
    }
};

#endif
