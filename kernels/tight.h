/* Constants of the tight range (METHOD.md, section 4), the same for every variant. */
#ifndef KVK_TIGHT_H
#define KVK_TIGHT_H

#include <stdint.h>

#include "kernels/tile.h"

/* The share of a row's range that the codes span. */
#define KVK_TIGHT_K2 0.75f
#define KVK_TIGHT_K4 1.0f
#define KVK_TIGHT_V2 0.70f
#define KVK_TIGHT_V4 1.0f

/* The corrected scale of a column stays within these multiples of the balanced one, and is that one
 * when a sum is below KVK_TIGHT_LEAST, the smallest normal number. No sum overflows: elements of T
 * end at 2^54 (KVK_INPUT_LIMIT, rotated over 256 channels), what a reader multiplies with a
 * column's scale at 2^20, and at most 256 are added. */
#define KVK_TIGHT_LOW   0.7f
#define KVK_TIGHT_HIGH  1.5f
#define KVK_TIGHT_LEAST 0x1p-126f

KVK_EVERYWHERE static inline float kvk_tight_share(int is_v, uint32_t bits)
{
    if (is_v)
        return bits == 2 ? KVK_TIGHT_V2 : KVK_TIGHT_V4;
    return bits == 2 ? KVK_TIGHT_K2 : KVK_TIGHT_K4;
}

#endif
