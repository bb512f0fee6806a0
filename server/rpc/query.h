/* Query options of ATTEND and SEQ_ATTEND: defaults and checks. */
#ifndef KVD_QUERY_H
#define KVD_QUERY_H

#include <stdint.h>

#include <kvarn/status.h>

#include "proto/codec.h"
#include "server/device/job.h"

struct kvd_work;

struct kvd_query {
    uint32_t q_heads, q_dtype, out_dtype, window, full, deterministic;
    float scale, soft_cap;
    uint64_t q_token_bytes, out_token_bytes, lse_token_bytes; /* of one query token, all heads */
};

/* Fills the work's text on failure. work->space must be set. */
kvarn_status kvd_query_resolve(struct kvd_work *work, const struct kvw_query *in,
                               struct kvd_query *query);

/* Writes the fields of one entry that come from the query. `context` = tokens that the last query
 * token sees. */
void kvd_query_fill(const struct kvd_query *query, struct kvd_attend *entry, uint32_t q_tokens,
                    uint32_t context);

/* Query rows times the tokens that they may see: what the answer costs. TOO_LARGE above
 * KVD_ATTEND_PAIRS_MAX in all, with the work's text. */
uint64_t kvd_query_pairs(const struct kvd_query *query, uint32_t q_tokens, uint32_t context);
kvarn_status kvd_query_check_pairs(struct kvd_work *work, uint64_t pairs);

/* First span that can matter to these query rows (all before are outside the window). */
uint32_t kvd_query_first_block(const struct kvd_query *query, uint32_t q_tokens, uint32_t context,
                               uint32_t group);

#endif
