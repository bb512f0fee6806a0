/* Rounding, folding and packing into device order (METHOD.md, sections 4 and 5; tile.h).
 *
 * With y an element times its second scale, in units of the tile's largest, a code is
 * (y - low) / step. All of it is fp16 arithmetic with one rounding that matters: y is the same
 * number when the minimum is looked for and when the code is made, y - low of near numbers is
 * exact, and a fused multiply-add that adds 1024 rounds to whole codes, half to even, in its lowest
 * bits.
 *
 * K has steps per channel and its codes leave from token strips; V has steps per token and its
 * codes leave from channel strips. Either way the other orientation is the one in which minimum and
 * maximum are along the registers. */
#ifndef KVK_CUDA_COMPRESS_CODES_CUH
#define KVK_CUDA_COMPRESS_CODES_CUH

#include "kernels/cuda/compress_balance.cuh"

constexpr float kF16Max = 65504.0f;
/* Smallest step in units of the tile's largest element: its reciprocal is still an fp16 number. */
constexpr float kStepLow = 1.0f / 60000.0f;

/* Saturates instead of becoming infinite; -0 becomes +0. */
__device__ __forceinline__ __half f16_of(float x)
{
    return __hadd(__float2half(fminf(fmaxf(x, -kF16Max), kF16Max)), __ushort_as_half(0));
}

/* Numbers of a record are fp16, and only products of the second scale with step and zero count.
 * Where elements may be as large as `bound`, beyond what step and zero can hold well, this power of
 * two moves from them into the second scale, whose largest is `most`. */
constexpr float kEasyLow = 0x1p-8f, kEasyHigh = 0x1p15f, kShiftLow = 0x1p-12f;

__device__ __forceinline__ float floor_power(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
}

__device__ __forceinline__ float exponent_shift(float bound, float most)
{
    if (bound > kEasyHigh)
        return fmaxf(fminf(2.0f * floor_power(bound / kEasyHigh), floor_power(kEasyHigh / most)),
                     1.0f);
    return fmaxf(floor_power(bound), kShiftLow);
}

/* Minimum and maximum of the two rows of a strip, as they are gathered: two elements side by side.
 */
struct Range {
    __half2 low[2], high[2];

    __device__ __forceinline__ Range()
    {
        low[0] = low[1] = half2_of(0x7c007c00u);
        high[0] = high[1] = half2_of(0xfc00fc00u);
    }

    __device__ __forceinline__ void take(uint32_t r, uint32_t y)
    {
        low[r] = __hmin2(low[r], half2_of(y));
        high[r] = __hmax2(high[r], half2_of(y));
    }

    /* Joins the quad: (low, -high) of row r in all four lanes. */
    __device__ __forceinline__ __half2 join(uint32_t r) const
    {
        __half2 both = __halves2half2(__hmin(__low2half(low[r]), __high2half(low[r])),
                                      __hneg(__hmax(__low2half(high[r]), __high2half(high[r]))));

        both = __hmin2(both, half2_of(__shfl_xor_sync(kAll, word_of(both), 1)));
        return __hmin2(both, half2_of(__shfl_xor_sync(kAll, word_of(both), 2)));
    }
};

/* What rounds one row: y - low, times inverse. */
struct Rounding {
    __half minus_low, inverse;
    float step, low; /* in units of the tile's largest element */
};

template <uint32_t Bits> __device__ __forceinline__ Rounding rounding_of(__half2 low_high)
{
    constexpr float levels = (1 << Bits) - 1;
    float low = __low2float(low_high), high = -__high2float(low_high);
    float step = fmaxf((high - low) * (1.0f / levels), kStepLow);
    Rounding to;

    to.minus_low = __hneg(__low2half(low_high));
    to.inverse = __float2half(reciprocal(step));
    to.step = high > low ? step : 0.0f;
    to.low = low;
    return to;
}

/* Two codes, each in the low byte of its half. */
__device__ __forceinline__ uint32_t round2(uint32_t x, uint32_t weight, uint32_t minus_low,
                                           uint32_t inverse)
{
    __half2 y = __hadd2(half2_of(times(x, weight)), half2_of(minus_low));

    return word_of(__hfma2(y, half2_of(inverse), __float2half2_rn(1024.0f)));
}

template <uint32_t D, uint32_t G> struct Codes {
    using P = Plan<D, G>;
    Shared<D, G> &shared;
    const Strip<D> (&strips)[P::token_strips];
    const ChannelStrips<D, G> &channels;
    const Lane &at;
    const kvk_layout layout;
    uint8_t *record;
    float gain;

    template <typename T> __device__ __forceinline__ T *section(size_t offset) const
    {
        return reinterpret_cast<T *>(record + offset);
    }

    /* Words of a block of rows: four at a time, 16 bytes a lane. */
    template <uint32_t Words>
    __device__ __forceinline__ void store_words(size_t offset, uint32_t block,
                                                const uint32_t (&word)[Words]) const
    {
        uint4 *to = section<uint4>(offset) + block * (Words / 4) * 32 + at.lane;

#pragma unroll
        for (uint32_t q = 0; q < Words / 4; q++)
            to[32 * q] = make_uint4(word[4 * q], word[4 * q + 1], word[4 * q + 2], word[4 * q + 3]);
    }

    /* A warp whose one strip is half a block of 2-bit rows: even warps store what the odd ones
     * made. */
    template <uint32_t Words>
    __device__ __forceinline__ void join_words(size_t offset, uint32_t (&word)[Words]) const
    {
        uint4 *room = shared.tile + (at.warp / 2 * (Words / 4)) * 32 + at.lane;

        __syncthreads(); /* nobody reads the tile any more */
        if (at.warp % 2) {
#pragma unroll
            for (uint32_t q = 0; q < Words / 4; q++)
                room[32 * q] =
                    make_uint4(word[4 * q], word[4 * q + 1], word[4 * q + 2], word[4 * q + 3]);
        }
        __syncthreads();
        if (at.warp % 2)
            return;
#pragma unroll
        for (uint32_t q = 0; q < Words / 4; q++) {
            uint4 other = room[32 * q];

            word[4 * q] |= other.x << 4;
            word[4 * q + 1] |= other.y << 4;
            word[4 * q + 2] |= other.z << 4;
            word[4 * q + 3] |= other.w << 4;
        }
        store_words(offset, at.warp / 2, word);
    }

    /* Usually 1, which costs nothing to find out. */
    template <uint32_t Rows>
    __device__ __forceinline__ float shift_of(float bound, const Axis<Rows> &axis) const
    {
        if (bound == 0.0f || (bound >= kEasyLow && bound <= kEasyHigh))
            return 1.0f;
        return exponent_shift(bound,
                              block_max<P::warps>(shared.part[2], axis.largest(axis.best), at));
    }

    /* ---- K ---- */

    __device__ __forceinline__ void k_ranges(Range (&range)[P::channel_strips]) const
    {
        const uint4 *weight = reinterpret_cast<const uint4 *>(shared.token_weight[at.t]);

#pragma unroll
        for (uint32_t q = 0; q < P::steps / 2; q++) {
            uint4 w = weight[q];

#pragma unroll
            for (uint32_t s = 0; s < P::channel_strips; s++) {
                uint32_t x[4];

                channels.load(x, s, 2 * q);
                range[s].take(0, times(x[0], w.x));
                range[s].take(1, times(x[1], w.x));
                range[s].take(0, times(x[2], w.y));
                range[s].take(1, times(x[3], w.y));
                channels.load(x, s, 2 * q + 1);
                range[s].take(0, times(x[0], w.z));
                range[s].take(1, times(x[1], w.z));
                range[s].take(0, times(x[2], w.w));
                range[s].take(1, times(x[3], w.w));
            }
        }
    }

    template <uint32_t Bits> __device__ __forceinline__ void k_steps(float unit) const
    {
        Range range[P::channel_strips];
        float both[P::channel_strips][2];

        k_ranges(range);
#pragma unroll
        for (uint32_t s = 0; s < P::channel_strips; s++) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                both[s][r] = __uint_as_float(word_of(range[s].join(r)));
        }
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++) {
            Rounding to = rounding_of<Bits>(half2_of(__float_as_uint(pick(both, at, i))));
            uint32_t c = row_of<P::channel_strips>(at, i);

            if (!owns<P::channel_strips>(at))
                continue;
            shared.channel_weight[c] = to.inverse;
            shared.channel_square[0][c] = to.minus_low;
            section<__half>(layout.k_step)[c] = f16_of(to.step * unit);
            section<__half>(layout.k_zero)[c] = f16_of(to.low * unit);
        }
    }

    /* Words of one strip of 16 tokens, its rows in slots `slot` and `slot + 1`. */
    template <uint32_t Bits>
    __device__ __forceinline__ void k_strip(uint32_t (&word)[P::chunks * 2], uint32_t s,
                                            uint32_t slot, const uint32_t (&weight)[2]) const
    {
#pragma unroll
        for (uint32_t j = 0; j < P::chunks; j++) {
            uint4 inverse4 =
                *reinterpret_cast<const uint4 *>(&shared.channel_weight[32 * j + 8 * at.t]);
            uint4 low4 =
                *reinterpret_cast<const uint4 *>(&shared.channel_square[0][32 * j + 8 * at.t]);
            const uint32_t inverse[4] = {inverse4.x, inverse4.y, inverse4.z, inverse4.w};
            const uint32_t low[4] = {low4.x, low4.y, low4.z, low4.w};

#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    uint32_t a =
                        round2(strips[s].x[j][2 * h][r], weight[r], low[2 * h], inverse[2 * h]);
                    uint32_t b = round2(strips[s].x[j][2 * h + 1][r], weight[r], low[2 * h + 1],
                                        inverse[2 * h + 1]);
                    uint32_t four = __byte_perm(a, b, 0x6420) << Bits * (slot + r);

                    word[2 * j + h] = slot + r == 0 ? four : word[2 * j + h] | four;
                }
            }
        }
    }

    template <uint32_t Bits> __device__ __forceinline__ void k_codes() const
    {
        constexpr uint32_t together = Bits == 2 ? 2 : 1; /* strips of a block of rows */
        uint32_t word[P::chunks * 2];

#pragma unroll
        for (uint32_t s = 0; s < P::token_strips; s++) {
            uint32_t strip = at.warp * P::token_strips + s, weight[2];

#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                weight[r] = twice(token_weight(shared, 16 * strip + 8 * r + at.g));
            k_strip<Bits>(word, s, 2 * (s % together), weight);
            if (P::token_strips % together != 0)
                join_words(layout.k_codes, word);
            else if (s % together == together - 1)
                store_words(layout.k_codes, strip / together, word);
        }
    }

    template <uint32_t Bits>
    __device__ __forceinline__ void k_record(const Axis<P::token_rows> &token) const
    {
        float high = 0.0f, weight[P::token_rows], top, unit, shift;

#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            weight[i] = token.base[i] * reciprocal(token.best[i]);
            high = fmaxf(high, weight[i]);
        }
        high = block_max<P::warps>(shared.part[1], high, at);
        top = or_one(high);
        unit = reciprocal(top);
        shift = shift_of(high > 0.0f ? top * gain * P::peak : 0.0f, token);
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            uint32_t g = row_of<P::token_strips>(at, i);

            if (!owns<P::token_strips>(at))
                continue;
            token_weight(shared, g) = __float2half(weight[i] * unit);
            section<__half>(layout.k_token)[kvk_device_vector(g, G)] =
                f16_of(token.best[i] * shift);
        }
        __syncthreads();
        k_steps<Bits>(top * gain / shift);
        __syncthreads();
        k_codes<Bits>();
    }

    /* ---- V ---- */

    __device__ __forceinline__ void v_ranges(Range (&range)[P::token_strips]) const
    {
#pragma unroll
        for (uint32_t j = 0; j < P::chunks; j++) {
            uint4 w4 = *reinterpret_cast<const uint4 *>(&shared.channel_weight[32 * j + 8 * at.t]);
            const uint32_t w[4] = {w4.x, w4.y, w4.z, w4.w};

#pragma unroll
            for (uint32_t s = 0; s < P::token_strips; s++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    range[s].take(0, times(strips[s].x[j][i][0], w[i]));
                    range[s].take(1, times(strips[s].x[j][i][1], w[i]));
                }
            }
        }
    }

    template <uint32_t Bits>
    __device__ __forceinline__ void v_steps(const Axis<P::token_rows> &token, float top) const
    {
        Range range[P::token_strips];
        float both[P::token_strips][2];

        v_ranges(range);
#pragma unroll
        for (uint32_t s = 0; s < P::token_strips; s++) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                both[s][r] = __uint_as_float(word_of(range[s].join(r)));
        }
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            Rounding to = rounding_of<Bits>(half2_of(__float_as_uint(pick(both, at, i))));
            uint32_t g = row_of<P::token_strips>(at, i);
            float unit = token.base[i] * top;

            if (!owns<P::token_strips>(at))
                continue;
            token_weight(shared, g) = to.inverse;
            token_square(shared, 0, g) = to.minus_low;
            section<__half>(layout.v_step)[kvk_device_vector(g, G)] = f16_of(to.step * unit);
            section<__half>(layout.v_zero)[kvk_device_vector(g, G)] = f16_of(to.low * unit);
        }
    }

    template <uint32_t Bits>
    __device__ __forceinline__ void v_strip(uint32_t (&word)[P::steps], uint32_t s, uint32_t slot,
                                            const uint32_t (&weight)[2]) const
    {
        const uint4 *inverse = reinterpret_cast<const uint4 *>(shared.token_weight[at.t]);
        const uint4 *low = reinterpret_cast<const uint4 *>(shared.token_square[0][at.t]);

#pragma unroll
        for (uint32_t q = 0; q < P::steps / 2; q++) {
            uint4 i4 = inverse[q], l4 = low[q];
            const uint32_t scale[4] = {i4.x, i4.y, i4.z, i4.w}, shift[4] = {l4.x, l4.y, l4.z, l4.w};

#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t x[4];

                channels.load(x, s, 2 * q + h);
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    uint32_t a = round2(x[r], weight[r], shift[2 * h], scale[2 * h]);
                    uint32_t b = round2(x[2 + r], weight[r], shift[2 * h + 1], scale[2 * h + 1]);
                    uint32_t four = __byte_perm(a, b, 0x6240) << Bits * (slot + r);

                    word[2 * q + h] = slot + r == 0 ? four : word[2 * q + h] | four;
                }
            }
        }
    }

    template <uint32_t Bits> __device__ __forceinline__ void v_codes() const
    {
        constexpr uint32_t together = Bits == 2 ? 2 : 1;
        uint32_t word[P::steps];

#pragma unroll
        for (uint32_t s = 0; s < P::channel_strips; s++) {
            uint32_t strip = at.warp * P::channel_strips + s, weight[2];

#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                weight[r] = twice(shared.channel_weight[16 * strip + 8 * r + at.g]);
            v_strip<Bits>(word, s, 2 * (s % together), weight);
            if (s % together == together - 1)
                store_words(layout.v_codes, strip / together, word);
        }
    }

    /* loudest: the largest root mean square of a token. */
    template <uint32_t Bits>
    __device__ __forceinline__ void v_record(const Axis<P::token_rows> &token,
                                             const Axis<P::channel_rows> &channel,
                                             float loudest) const
    {
        float high = 0.0f, weight[P::channel_rows], top, unit, shift;

#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++) {
            weight[i] = reciprocal(channel.best[i]);
            high = fmaxf(high, weight[i]);
        }
        top = block_max<P::warps>(shared.part[1], high, at);
        unit = reciprocal(top);
        shift = shift_of(top * loudest * P::peak, channel);
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++) {
            uint32_t c = row_of<P::channel_strips>(at, i);

            if (!owns<P::channel_strips>(at))
                continue;
            shared.channel_weight[c] = __float2half(weight[i] * unit);
            section<__half>(layout.v_channel)[kvk_device_vector(c, D)] =
                f16_of(channel.best[i] * shift);
        }
        __syncthreads();
        v_steps<Bits>(token, top * gain / shift);
        __syncthreads();
        v_codes<Bits>();
    }
};

#endif
