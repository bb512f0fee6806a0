/* What the operations on blocks share: checking keys, building the call, reading the status table.
 */
#ifndef KVC_BLOCKS_H
#define KVC_BLOCKS_H

#include "client/client_internal.h"

/* 1..KVW_BLOCKS_MAX keys that are there. INVALID_SHAPE or TOO_LARGE, said. */
kvarn_status kvc_blocks_check(struct kvarn_client *client, const char *name, const kvarn_key *keys,
                              size_t count);

/* A call with encoded metadata, room for request_table bytes behind it, and a reply table of
 * rows * row_bytes as place 0. */
kvarn_status kvc_blocks_new(struct kvarn_client *client, uint8_t op,
                            const struct kvw_blocks *blocks, size_t request_table, size_t rows,
                            size_t row_bytes, struct kvarn_call **call);

/* Takes the result, matched, lease, device time; checks the row count. */
kvc_reply_fn kvc_blocks_reply;

/* Copies the table of block_status to results; without a table every block has the call's status.
 * results may be NULL. */
void kvc_blocks_results(const struct kvarn_call *call, kvarn_block_result *results);

/* Fills the wire's query and checks it against the space. */
kvarn_status kvc_query_check(struct kvarn_client *client, const char *name,
                             const struct kvc_space *space, const kvarn_query *query,
                             struct kvw_query *out);
/* Bytes of q rows, of output rows and of LSE values for `tokens` query tokens. */
kvarn_status kvc_query_bytes(struct kvarn_client *client, const char *name,
                             const struct kvc_space *space, const struct kvw_query *query,
                             uint64_t tokens, uint64_t *q, uint64_t *out, uint64_t *lse);

#endif
