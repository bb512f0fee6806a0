/* The orthonormal Sylvester-Hadamard rotation of one row, scalar: x <- x H (METHOD.md, section 1).
 *
 * Butterflies with distances 1, 2, 4, ..., dim/2 in this order, then one factor 1/sqrt(dim). The
 * order is part of the numbers: every variant adds and subtracts the same pairs. H is symmetric and
 * its own inverse, so the same function rotates and un-rotates. */
#ifndef KVK_FWHT_H
#define KVK_FWHT_H

#include <stddef.h>
#include <stdint.h>

/* 1/sqrt(dim) in fp32 for the head dimensions kvk_shape_check() accepts. */
static inline float kvk_fwht_norm(uint32_t dim)
{
    return dim == 64 ? 0.125f : dim == 128 ? 0.08838834764831845f : 0.0625f;
}

/* Butterflies only, no factor. */
static inline void kvk_fwht_butterfly(float *x, uint32_t dim)
{
    for (uint32_t distance = 1; distance < dim; distance *= 2) {
        for (uint32_t base = 0; base < dim; base += 2 * distance) {
            for (uint32_t i = base; i < base + distance; i++) {
                float a = x[i], b = x[i + distance];

                x[i] = a + b;
                x[i + distance] = a - b;
            }
        }
    }
}

static inline void kvk_fwht_rotate(float *x, uint32_t dim)
{
    float norm = kvk_fwht_norm(dim);

    kvk_fwht_butterfly(x, dim);
    for (uint32_t i = 0; i < dim; i++)
        x[i] *= norm;
}

#endif
