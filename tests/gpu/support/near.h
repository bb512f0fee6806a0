/* What the reference makes of a tile when it makes the rounding errors of the GPU's compress.
 *
 * The method chooses: the iterate of least imbalance, the code nearest to an element. Where two are
 * equally good to the last digits, either is right, and the error of the one may be far from the
 * other's. What a kernel may choose is what double precision chooses with errors of the kernel's
 * size, so that is looked at before a tile is called wrong. */
#ifndef GPU_SUPPORT_NEAR_H
#define GPU_SUPPORT_NEAR_H

#include "gpu/support/record.h"

/* Largest error and drift over a fixed number of draws of such errors. k, v as in record_error().
 */
void near_reference(const struct kvk_shape *shape, const void *k, const void *v,
                    size_t token_stride_bytes, uint64_t seed, struct record_error *error,
                    struct record_error *drift);

#endif
