/* A record between device order and canonical order (tile.h), by a group of
 * KVK_CUDA_CONVERT_THREADS threads. The canonical side is an image in shared memory.
 *
 * A unit is what eight lanes 4 g + t, g = 0..7, hold in one word each: 4 columns of 16 (4 bits) or
 * 32 (2 bits) rows. In canonical order these are two adjacent words of each of 4 rows of the
 * matrix. So a thread turns 8 words into 8 words between registers: exchanges of a bit of the
 * register's number with a bit of the place in it, three of them at 4 bits, four at 2. */
#ifndef KVK_CUDA_ORDER_CUH
#define KVK_CUDA_ORDER_CUH

#include <stdint.h>

#include "kernels/cuda/launch.h"
#include "kernels/tile.h"

namespace order
{

constexpr uint32_t THREADS = KVK_CUDA_CONVERT_THREADS;

/* Where word i of the image lies: so that neither the pairs of a warp's units nor consecutive words
 * meet in a bank, at any shape. Pairs stay pairs. */
static __device__ __forceinline__ uint32_t spread(uint32_t i)
{
    return i ^ ((i >> 4 ^ i >> 6) & 0x1e);
}

/* Exchanges bit REGISTER of the register's number with the place's bit of weight SHIFT. */
template <uint32_t REGISTER, uint32_t SHIFT>
static __device__ __forceinline__ void exchange(uint32_t (&word)[8])
{
    constexpr uint32_t mask = SHIFT == 16  ? 0x0000ffff
                              : SHIFT == 8 ? 0x00ff00ff
                              : SHIFT == 4 ? 0x0f0f0f0f
                                           : 0x33333333;

#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        if (i >> REGISTER & 1)
            continue;
        const uint32_t other = i | 1u << REGISTER;
        const uint32_t moved = (word[i] >> SHIFT ^ word[other]) & mask;

        word[other] ^= moved;
        word[i] ^= moved << SHIFT;
    }
}

/* word[g] of the lanes <-> words as `word_of` names them. The exchanges undo themselves, so the way
 * back is their reverse. */
template <uint32_t BITS> static __device__ __forceinline__ void to_canonical(uint32_t (&word)[8])
{
    exchange<0, BITS>(word);
    exchange<1, 2 * BITS>(word);
    exchange<2, 4 * BITS>(word);
    if (BITS == 2)
        exchange<0, 16>(word);
}

template <uint32_t BITS> static __device__ __forceinline__ void to_device(uint32_t (&word)[8])
{
    if (BITS == 2)
        exchange<0, 16>(word);
    exchange<2, 4 * BITS>(word);
    exchange<1, 2 * BITS>(word);
    exchange<0, BITS>(word);
}

/* The register that holds word `which` (0, 1) of column `byte` after to_canonical(). */
template <uint32_t BITS>
static __device__ __forceinline__ constexpr uint32_t word_of(uint32_t byte, uint32_t which)
{
    return BITS == 4 ? 2 * byte + which : (byte & 1) << 2 | which << 1 | byte >> 1;
}

/* A code matrix: a section of the record. */
struct matrix {
    uint32_t columns, pitch; /* along k of the mma; canonical words from one column to the next */
    uint32_t units;
    bool v;
};

static __device__ __forceinline__ struct matrix matrix_of(const struct kvk_shape &shape, bool v)
{
    const uint32_t dim = shape.dim, group = shape.group, bits = v ? shape.bits_v : shape.bits_k;

    return {v ? group : dim, (v ? dim : group) * bits / 32, dim * group * bits / 256, v};
}

/* Where unit i's words are: lane g = 0 in device order (g at steps of 16 words), and the canonical
 * pair of column `byte`. */
static __device__ __forceinline__ uint32_t unit_in_device(uint32_t i)
{
    return i / 16 * 128 + i % 16;
}

static __device__ __forceinline__ uint32_t unit_in_record(const struct matrix &m, uint32_t i,
                                                          uint32_t byte)
{
    const uint32_t quads = m.columns / 64, quad = i / 16 % quads, block = i / 16 / quads;
    const uint32_t step = i % 4 / 2, half = i % 2, t = i / 4 % 4;
    const uint32_t column =
        m.v ? 16 * half + 2 * t + byte / 2 + byte % 2 * 8 : 8 * t + 4 * half + byte;

    return (64 * quad + 32 * step + column) * m.pitch + 2 * block;
}

template <uint32_t BITS>
static __device__ __forceinline__ void load_unit(uint32_t *image, uint32_t section,
                                                 const struct matrix &m, uint32_t i,
                                                 const uint32_t *device)
{
    uint32_t word[8];

    device += unit_in_device(i);
#pragma unroll
    for (uint32_t g = 0; g < 8; g++)
        word[g] = device[16 * g];
    to_canonical<BITS>(word);
#pragma unroll
    for (uint32_t byte = 0; byte < 4; byte++)
        *(uint2 *)(image + spread(section + unit_in_record(m, i, byte))) = {
            word[word_of<BITS>(byte, 0)], word[word_of<BITS>(byte, 1)]};
}

template <uint32_t BITS>
static __device__ __forceinline__ void store_unit(const uint32_t *image, uint32_t section,
                                                  const struct matrix &m, uint32_t i,
                                                  uint32_t *device)
{
    uint32_t word[8];

#pragma unroll
    for (uint32_t byte = 0; byte < 4; byte++) {
        const uint2 pair = *(const uint2 *)(image + spread(section + unit_in_record(m, i, byte)));

        word[word_of<BITS>(byte, 0)] = pair.x;
        word[word_of<BITS>(byte, 1)] = pair.y;
    }
    to_device<BITS>(word);
    device += unit_in_device(i);
#pragma unroll
    for (uint32_t g = 0; g < 8; g++)
        device[16 * g] = word[g];
}

/* The transposed vectors of a record lie in two runs; calls each(section's first halfword, index of
 * the canonical word in it, count) for this thread's words. */
template <typename F>
static __device__ __forceinline__ void
each_vector_word(const struct kvk_shape &shape, const struct kvk_layout &at, uint32_t u, F each)
{
    const uint32_t dim = shape.dim, group = shape.group;

    for (uint32_t i = u; i < group / 2; i += THREADS) {
        each((uint32_t)at.k_token / 2, i, group);
        each((uint32_t)at.v_step / 2, i, group);
        each((uint32_t)at.v_zero / 2, i, group);
    }
    for (uint32_t i = u; i < dim / 2; i += THREADS)
        each((uint32_t)at.v_channel / 2, i, dim);
}

/* u: number of the thread in the group. The group must meet before the image is read. */
static __device__ __forceinline__ void load_record(uint32_t *image, const struct kvk_shape &shape,
                                                   const struct kvk_layout &at,
                                                   const uint8_t *record, uint32_t u)
{
    const uint32_t *words = (const uint32_t *)record;

    for (uint32_t v = 0; v < 2; v++) {
        const struct matrix m = matrix_of(shape, v);
        const uint32_t section = (uint32_t)(v ? at.v_codes : at.k_codes) / 4;

        for (uint32_t i = u; i < m.units; i += THREADS) {
            if ((v ? shape.bits_v : shape.bits_k) == 4)
                load_unit<4>(image, section, m, i, words + section);
            else
                load_unit<2>(image, section, m, i, words + section);
        }
    }
    for (uint32_t i = (uint32_t)at.k_step / 4 + u; i < (uint32_t)at.k_token / 4; i += THREADS)
        image[spread(i)] = words[i];
    each_vector_word(shape, at, u, [&](uint32_t first, uint32_t i, uint32_t count) {
        const uint16_t *halves = (const uint16_t *)record + first;
        const uint32_t low = kvk_device_vector(2 * i, count);

        image[spread(first / 2 + i)] = halves[low] | (uint32_t)halves[low + count / 8] << 16;
    });
}

static __device__ __forceinline__ void store_record(const uint32_t *image,
                                                    const struct kvk_shape &shape,
                                                    const struct kvk_layout &at, uint8_t *record,
                                                    uint32_t u)
{
    uint32_t *words = (uint32_t *)record;

    for (uint32_t v = 0; v < 2; v++) {
        const struct matrix m = matrix_of(shape, v);
        const uint32_t section = (uint32_t)(v ? at.v_codes : at.k_codes) / 4;

        for (uint32_t i = u; i < m.units; i += THREADS) {
            if ((v ? shape.bits_v : shape.bits_k) == 4)
                store_unit<4>(image, section, m, i, words + section);
            else
                store_unit<2>(image, section, m, i, words + section);
        }
    }
    for (uint32_t i = (uint32_t)at.k_step / 4 + u; i < (uint32_t)at.k_token / 4; i += THREADS)
        words[i] = image[spread(i)];
    each_vector_word(shape, at, u, [&](uint32_t first, uint32_t i, uint32_t count) {
        uint16_t *halves = (uint16_t *)record + first;
        const uint32_t low = kvk_device_vector(2 * i, count), pair = image[spread(first / 2 + i)];

        halves[low] = (uint16_t)pair;
        halves[low + count / 8] = (uint16_t)(pair >> 16);
    });
}

} // namespace order

#endif
