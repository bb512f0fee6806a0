/* Query options. See query.h. */
#include "server/rpc/query.h"

#include <math.h>

#include "server/rpc/work.h"

static kvarn_status check_numbers(struct kvd_work *work, const struct kvw_query *in)
{
    if (!isfinite(in->scale) || in->scale < 0)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "query.scale = %g; must be finite and positive, or 0 for "
                             "1/sqrt(head_dim)",
                             (double)in->scale);
    if (!isfinite(in->soft_cap) || in->soft_cap < 0)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "query.soft_cap = %g; must be finite and positive, or 0 for none",
                             (double)in->soft_cap);
    return KVARN_OK;
}

kvarn_status kvd_query_resolve(struct kvd_work *work, const struct kvw_query *in,
                               struct kvd_query *query)
{
    const struct kvd_space *space = work->space;
    uint64_t values;

    *query = (struct kvd_query){
        .q_heads = in->q_heads,
        .q_dtype = in->q_dtype ? in->q_dtype : space->shape.dtype,
        .out_dtype = in->out_dtype ? in->out_dtype : KVARN_F32,
        .window = in->window,
        .full = in->full,
        .deterministic = in->deterministic,
        .scale = in->scale > 0 ? in->scale : 1.0f / sqrtf((float)space->shape.dim),
        .soft_cap = in->soft_cap,
    };
    if (!in->q_heads || in->q_heads % space->heads || in->q_heads / space->heads > KVARN_MAX_GQA)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "q_heads = %u; must be a multiple of the shard's %u kv heads, at most "
                             "%d times as many",
                             in->q_heads, space->heads, KVARN_MAX_GQA);
    if (!kvarn_dtype_bytes((kvarn_dtype)query->q_dtype) ||
        !kvarn_dtype_bytes((kvarn_dtype)query->out_dtype))
        return kvd_work_fail(work, KVARN_UNSUPPORTED,
                             "q_dtype = %u, out_dtype = %u; use 1 (f16), 2 (bf16) or 3 (f32)",
                             query->q_dtype, query->out_dtype);
    values = (uint64_t)in->q_heads * space->shape.dim;
    query->q_token_bytes = values * kvarn_dtype_bytes((kvarn_dtype)query->q_dtype);
    query->out_token_bytes = values * kvarn_dtype_bytes((kvarn_dtype)query->out_dtype);
    query->lse_token_bytes = (uint64_t)in->q_heads * sizeof(float);
    return check_numbers(work, in);
}

void kvd_query_fill(const struct kvd_query *query, struct kvd_attend *entry, uint32_t q_tokens,
                    uint32_t context)
{
    entry->q_tokens = q_tokens;
    entry->q_heads = query->q_heads;
    entry->q_dtype = query->q_dtype;
    entry->out_dtype = query->out_dtype;
    entry->scale = query->scale;
    entry->soft_cap = query->soft_cap;
    entry->window = query->window;
    entry->deterministic = query->deterministic;
    /* Nothing to see at all: an empty set, whichever way the limit is counted. */
    entry->full = query->full || !context;
    entry->limit = entry->full ? context : context - q_tokens + 1;
}

uint64_t kvd_query_pairs(const struct kvd_query *query, uint32_t q_tokens, uint32_t context)
{
    uint64_t seen = context;

    if (query->window && (uint64_t)query->window + q_tokens < seen)
        seen = (uint64_t)query->window + q_tokens;
    return (uint64_t)q_tokens * query->q_heads * seen;
}

kvarn_status kvd_query_check_pairs(struct kvd_work *work, uint64_t pairs)
{
    if (pairs <= KVD_ATTEND_PAIRS_MAX)
        return KVARN_OK;
    return kvd_work_fail(work, KVARN_TOO_LARGE,
                         "the query rows see %llu tokens in all (query tokens x heads x context), "
                         "one call may ask for %llu; send fewer query tokens or sequences at once",
                         (unsigned long long)pairs, KVD_ATTEND_PAIRS_MAX);
}

uint32_t kvd_query_first_block(const struct kvd_query *query, uint32_t q_tokens, uint32_t context,
                               uint32_t group)
{
    uint32_t limit = context - q_tokens + 1;

    if (!query->window || query->full || !context || limit <= query->window)
        return 0;
    return (limit - query->window) / group;
}
