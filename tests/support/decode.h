/* A tile's record decoded in double, straight from the offsets of kernels/tile.h.
 *
 * Written for tests only and from the format's description, not from the kernels' code, so that the
 * two can disagree. */
#ifndef KVARN_TEST_DECODE_H
#define KVARN_TEST_DECODE_H

#include "kernels/kernels.h"

/* The value of fp16 or bf16 bits. */
double decode_half(uint16_t bits, int dtype);

/* record -> k, v [group][dim], un-rotated; K stays as it is when shape->k_rotated, V when
 * shape->v_rotated. */
void decode_tile(const struct kvk_shape *shape, const uint8_t *record, double *k, double *v);

/* x * H, H the orthonormal Sylvester-Hadamard matrix (kernels/METHOD.md, section 1). */
void decode_rotate(double *x, uint32_t dim);

#endif
