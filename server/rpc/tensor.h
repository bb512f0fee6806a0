/* Where K and V rows stand in a payload: layouts checked once, with arithmetic that cannot wrap.
 *
 * Strides come from clients. Everything here is proven to lie inside the payload before any job is
 * built from it. */
#ifndef KVD_TENSOR_H
#define KVD_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "proto/codec.h"
#include "server/device/job.h"

struct kvd_tensor {
    uint64_t layers, blocks, tokens, heads; /* tokens: of one block; none is 0 */
    uint64_t row_bytes;
    /* out */
    uint64_t k, v; /* of the first row, from the first byte after the tables */
    uint64_t block_stride;
    struct kvd_strides strides;
};

/* Resolves a layout against `available` bytes after the tables. Absent strides (0) are the dense
 * ones of [layer][token][head][dim]; without a layout the payload must fit exactly. INVALID_SHAPE
 * with text. */
kvarn_status kvd_tensor_resolve(struct kvd_tensor *tensor, const struct kvw_layout *layout,
                                uint64_t available, char *text, size_t room);

#endif
