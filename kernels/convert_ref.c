/* A record between its two orders (tile.h), scalar: the definition, code by code.
 *
 * A pure permutation of bits, so every record, damaged ones too, comes back as it was, and the
 * digest of the canonical bytes identifies both. Exact rows have one order only. */
#include <string.h>

#include "kernels/tile.h"
#include "kernels/variants.h"

/* Where a code stands in the two orders: byte and shift. Device words are little-endian, so bit b
 * of word w is bit b % 8 of byte 4 w + b / 8. */
struct place {
    size_t byte;
    uint32_t shift;
};

struct places {
    struct place record, device;
};

static struct places place_code(const struct kvk_shape *shape, char tensor, uint32_t token,
                                uint32_t channel)
{
    uint32_t bits = tensor == 'k' ? shape->bits_k : shape->bits_v;
    size_t index = tensor == 'k' ? (size_t)channel * shape->group + token
                                 : (size_t)token * shape->dim + channel;
    struct kvk_device_code at = tensor == 'k'
                                    ? kvk_device_k_code(token, channel, shape->dim, bits)
                                    : kvk_device_v_code(token, channel, shape->group, bits);

    return (struct places){
        .record = {index * bits / 8, (uint32_t)(index * bits % 8)},
        .device = {(size_t)at.word * 4 + at.bit / 8, at.bit % 8},
    };
}

static void move_codes(const struct kvk_shape *shape, char tensor, int to_device, uint8_t *dst,
                       const uint8_t *src)
{
    uint32_t bits = tensor == 'k' ? shape->bits_k : shape->bits_v;

    memset(dst, 0, (size_t)shape->dim * shape->group * bits / 8);
    for (uint32_t token = 0; token < shape->group; token++) {
        for (uint32_t channel = 0; channel < shape->dim; channel++) {
            struct places at = place_code(shape, tensor, token, channel);
            struct place to = to_device ? at.device : at.record;
            struct place from = to_device ? at.record : at.device;
            uint32_t code = (uint32_t)src[from.byte] >> from.shift & ((1u << bits) - 1);

            dst[to.byte] |= (uint8_t)(code << to.shift);
        }
    }
}

static void move_vector(uint32_t count, int to_device, uint8_t *dst, const uint8_t *src)
{
    for (uint32_t i = 0; i < count; i++) {
        size_t there = 2 * (size_t)kvk_device_vector(i, count), here = 2 * (size_t)i;

        memcpy(dst + (to_device ? there : here), src + (to_device ? here : there), 2);
    }
}

static void move_record(const struct kvk_shape *shape, int to_device, uint8_t *dst,
                        const uint8_t *src)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    const size_t vectors[] = {at.k_token, at.v_channel, at.v_step, at.v_zero};
    const uint32_t counts[] = {shape->group, shape->dim, shape->group, shape->group};

    move_codes(shape, 'k', to_device, dst + at.k_codes, src + at.k_codes);
    move_codes(shape, 'v', to_device, dst + at.v_codes, src + at.v_codes);
    memcpy(dst + at.k_step, src + at.k_step, at.k_token - at.k_step); /* k_step, k_zero */
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        move_vector(counts[i], to_device, dst + vectors[i], src + vectors[i]);
}

void kvk_device_from_record(const struct kvk_shape *shape, uint8_t *device, const uint8_t *record)
{
    move_record(shape, 1, device, record);
}

void kvk_record_from_device(const struct kvk_shape *shape, uint8_t *record, const uint8_t *device)
{
    move_record(shape, 0, record, device);
}
