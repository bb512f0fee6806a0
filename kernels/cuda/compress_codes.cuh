/* Folding and packing into device order (METHOD.md, sections 4 and 5; tile.h).
 *
 * K has steps per channel and its codes leave from token strips; V has steps per token and its
 * codes leave from channel strips. Either way the other orientation is the one in which minimum and
 * maximum are along the registers, and the codes' own the one in which sums for the other scale
 * are: of K's tokens, of V's channels. */
#ifndef KVK_CUDA_COMPRESS_CODES_CUH
#define KVK_CUDA_COMPRESS_CODES_CUH

#include "kernels/cuda/compress_round.cuh"

/* Tight: the sums that correct the second scales cost no pass of their own. They are taken where
 * codes are made, from values that are in registers then: of a token of K the squares of what is
 * read (its own squares sum to D, as it was divided by their root mean square); of a channel of V
 * the products of what is written with itself and with what is read, tokens weighted by their root
 * mean squares, since rows here are without them. Both factors are fp16, products and sums fp32, in
 * units of the largest token: nothing overflows. */
template <uint32_t D, uint32_t G, bool Tight> struct Codes {
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
            Rounding to = rounding_of<Bits>(half2_of(__float_as_uint(pick(both, at, i))),
                                            Tight ? kvk_tight_share(0, Bits) : 1.0f);
            uint32_t c = row_of<P::channel_strips>(at, i);

            if (!owns<P::channel_strips>(at))
                continue;
            shared.channel_weight[c] = to.inverse;
            shared.channel_square[0][c] = to.minus_low;
            if constexpr (Tight)
                shared.channel_square[1][c] = __float2half(to.step);
            section<__half>(layout.k_step)[c] = f16_of(to.step * unit);
            section<__half>(layout.k_zero)[c] = f16_of(to.low * unit);
        }
    }

    /* Words of one strip of 16 tokens, its rows in slots `slot` and `slot + 1`. square: of values
     * read. */
    template <uint32_t Bits>
    __device__ __forceinline__ void k_strip(uint32_t (&word)[P::chunks * 2], uint32_t s,
                                            uint32_t slot, const uint32_t (&weight)[2],
                                            float (&square)[2]) const
    {
        Products products;

#pragma unroll
        for (uint32_t j = 0; j < P::chunks; j++) {
            uint4 inverse4 =
                *reinterpret_cast<const uint4 *>(&shared.channel_weight[32 * j + 8 * at.t]);
            uint4 low4 =
                *reinterpret_cast<const uint4 *>(&shared.channel_square[0][32 * j + 8 * at.t]);
            const uint32_t inverse[4] = {inverse4.x, inverse4.y, inverse4.z, inverse4.w};
            const uint32_t low[4] = {low4.x, low4.y, low4.z, low4.w};
            uint4 step4 = {};

            if constexpr (Tight)
                step4 =
                    *reinterpret_cast<const uint4 *>(&shared.channel_square[1][32 * j + 8 * at.t]);
            const uint32_t step[4] = {step4.x, step4.y, step4.z, step4.w};
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t value[4];

#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    uint32_t a = round2<Bits, Tight>(times(strips[s].x[j][2 * h][r], weight[r]),
                                                     low[2 * h], inverse[2 * h]);
                    uint32_t b = round2<Bits, Tight>(times(strips[s].x[j][2 * h + 1][r], weight[r]),
                                                     low[2 * h + 1], inverse[2 * h + 1]);
                    uint32_t four = __byte_perm(a, b, 0x6420) << Bits * (slot + r);

                    word[2 * j + h] = slot + r == 0 ? four : word[2 * j + h] | four;
                    value[r] = value2(a, low[2 * h], step[2 * h]);
                    value[2 + r] = value2(b, low[2 * h + 1], step[2 * h + 1]);
                }
                if constexpr (Tight)
                    products.add(value, value);
            }
        }
        if constexpr (Tight)
            diagonal(products.low, products.high, at, square);
    }

    template <uint32_t Bits>
    __device__ __forceinline__ void k_codes(float (&square)[P::token_strips][2]) const
    {
        constexpr uint32_t together = Bits == 2 ? 2 : 1; /* strips of a block of rows */
        uint32_t word[P::chunks * 2];

#pragma unroll
        for (uint32_t s = 0; s < P::token_strips; s++) {
            uint32_t strip = at.warp * P::token_strips + s, weight[2];

#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                weight[r] = twice(token_weight(shared, 16 * strip + 8 * r + at.g));
            k_strip<Bits>(word, s, 2 * (s % together), weight, square[s]);
            if (P::token_strips % together != 0)
                join_words(layout.k_codes, word);
            else if (s % together == together - 1)
                store_words(layout.k_codes, strip / together, word);
        }
    }

    template <uint32_t Bits>
    __device__ __forceinline__ void k_record(const Axis<P::token_rows> &token) const
    {
        float high = 0.0f, weight[P::token_rows], square[P::token_strips][2] = {}, top, unit, shift;

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
        }
        __syncthreads();
        k_steps<Bits>(top * gain / shift);
        __syncthreads();
        k_codes<Bits>(square);
#pragma unroll
        for (uint32_t i = 0; i < P::token_rows; i++) {
            uint32_t g = row_of<P::token_strips>(at, i);
            float scale = token.best[i] * shift;

            /* the token's norm is kept */
            if constexpr (Tight)
                scale *= corrected(weight[i] * unit * root(D * reciprocal(pick(square, at, i))));
            if (owns<P::token_strips>(at))
                section<__half>(layout.k_token)[kvk_device_vector(g, G)] = f16_of(scale);
        }
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
    __device__ __forceinline__ void v_steps(const Axis<P::token_rows> &token, float top,
                                            float loudest) const
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
            Rounding to = rounding_of<Bits>(half2_of(__float_as_uint(pick(both, at, i))),
                                            Tight ? kvk_tight_share(1, Bits) : 1.0f);
            uint32_t g = row_of<P::token_strips>(at, i);
            float unit = token.base[i] * top;

            if (!owns<P::token_strips>(at))
                continue;
            token_weight(shared, g) = to.inverse;
            token_square(shared, 0, g) = to.minus_low;
            if constexpr (Tight) {
                float share = token.base[i] * gain * reciprocal(or_one(loudest));

                token_square(shared, 1, g) = __float2half(to.step);
                token_square(shared, 2, g) = __float2half(share * share);
            }
            section<__half>(layout.v_step)[kvk_device_vector(g, G)] = f16_of(to.step * unit);
            section<__half>(layout.v_zero)[kvk_device_vector(g, G)] = f16_of(to.low * unit);
        }
    }

    /* Words of one strip of 16 channels. ratio: of the sums that correct its scales. */
    template <uint32_t Bits>
    __device__ __forceinline__ void v_strip(uint32_t (&word)[P::steps], uint32_t s, uint32_t slot,
                                            const uint32_t (&weight)[2], float (&ratio)[2]) const
    {
        const uint4 *inverse = reinterpret_cast<const uint4 *>(shared.token_weight[at.t]);
        const uint4 *low = reinterpret_cast<const uint4 *>(shared.token_square[0][at.t]);
        Products itself, read;

#pragma unroll
        for (uint32_t q = 0; q < P::steps / 2; q++) {
            uint4 i4 = inverse[q], l4 = low[q];
            const uint32_t scale[4] = {i4.x, i4.y, i4.z, i4.w}, shift[4] = {l4.x, l4.y, l4.z, l4.w};

#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t y[4], code[4];

                channels.load(y, s, 2 * q + h);
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    y[i] = times(y[i], weight[i % 2]);
                    code[i] = round2<Bits, Tight>(y[i], shift[2 * h + i / 2], scale[2 * h + i / 2]);
                }
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    uint32_t four = __byte_perm(code[r], code[2 + r], 0x6240) << Bits * (slot + r);

                    word[2 * q + h] = slot + r == 0 ? four : word[2 * q + h] | four;
                }
                if constexpr (Tight)
                    add_products(itself, read, y, code, q, h);
            }
        }
        if constexpr (Tight) {
            float sum[2], sum_read[2];

            diagonal(itself.low, itself.high, at, sum);
            diagonal(read.low, read.high, at, sum_read);
            ratio[0] = sum[0] * reciprocal(sum_read[0]);
            ratio[1] = sum[1] * reciprocal(sum_read[1]);
        }
    }

    /* Of 16 channels and the tokens of step 2 q + h. */
    __device__ __forceinline__ void add_products(Products &itself, Products &read,
                                                 const uint32_t (&y)[4], const uint32_t (&code)[4],
                                                 uint32_t q, uint32_t h) const
    {
        uint2 low = reinterpret_cast<const uint2 *>(shared.token_square[0][at.t])[2 * q + h];
        uint2 step = reinterpret_cast<const uint2 *>(shared.token_square[1][at.t])[2 * q + h];
        uint2 by = reinterpret_cast<const uint2 *>(shared.token_square[2][at.t])[2 * q + h];
        uint32_t weighted[4], value[4];

#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            weighted[i] = times(y[i], i / 2 ? by.y : by.x);
            value[i] = value2(code[i], i / 2 ? low.y : low.x, i / 2 ? step.y : step.x);
        }
        itself.add(weighted, y);
        read.add(weighted, value);
    }

    template <uint32_t Bits>
    __device__ __forceinline__ void v_codes(float (&ratio)[P::channel_strips][2]) const
    {
        constexpr uint32_t together = Bits == 2 ? 2 : 1;
        uint32_t word[P::steps];

#pragma unroll
        for (uint32_t s = 0; s < P::channel_strips; s++) {
            uint32_t strip = at.warp * P::channel_strips + s, weight[2];

#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                weight[r] = twice(shared.channel_weight[16 * strip + 8 * r + at.g]);
            v_strip<Bits>(word, s, 2 * (s % together), weight, ratio[s]);
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
        float high = 0.0f, weight[P::channel_rows], ratio[P::channel_strips][2] = {}, top, unit,
              shift;

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
        }
        __syncthreads();
        v_steps<Bits>(token, top * gain / shift, loudest);
        __syncthreads();
        v_codes<Bits>(ratio);
#pragma unroll
        for (uint32_t i = 0; i < P::channel_rows; i++) {
            uint32_t c = row_of<P::channel_strips>(at, i);
            float scale = channel.best[i] * shift;

            /* the product of what is read with what was written is kept */
            if constexpr (Tight)
                scale *= corrected(pick(ratio, at, i));
            if (owns<P::channel_strips>(at))
                section<__half>(layout.v_channel)[kvk_device_vector(c, D)] = f16_of(scale);
        }
    }
};

#endif
