/* K and V rows in the caller's memory: which byte ranges are sent, and the layout that says how to
 * read them. Arithmetic only; every product and sum is checked. */
#ifndef KVC_ROWS_H
#define KVC_ROWS_H

#include <stdint.h>
#include <sys/uio.h>

#include <kvarn/client.h>

#include "client/client_internal.h"

struct kvc_rows {
    uint64_t layers, blocks, tokens, heads; /* tokens: of one block */
    uint64_t row_bytes;                     /* one head of one token */
};

/* What stands in the payload after the tables. */
struct kvc_rows_plan {
    struct iovec parts[2];
    uint32_t part_count; /* 1 when K and V interleave and go as one range */
    struct kvw_layout layout;
};

/* Bytes of one dense tensor of these rows; false on overflow. */
bool kvc_rows_bytes(const struct kvc_rows *rows, uint64_t *bytes);

/* Strides with each 0 replaced by the dense one over the next axis inside, which is how the daemon
 * reads them too. False on overflow. */
bool kvc_rows_strides(const struct kvc_rows *rows, const kvarn_strides *given, kvarn_strides *out);

/* strides NULL: dense, without a layout. INVALID_SHAPE with the client's error set. */
kvarn_status kvc_rows_plan(struct kvarn_client *client, const char *name,
                           const struct kvc_rows *rows, const void *k, const void *v,
                           const kvarn_strides *strides, struct kvc_rows_plan *out);

/* Copies strided rows of one layer to dense [token][head]. out has kvc_rows_bytes(); no stride is
 * left to be filled in. */
void kvc_rows_pack(const struct kvc_rows *rows, const void *from, const kvarn_strides *strides,
                   uint8_t *out);

#endif
