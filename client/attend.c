/* ATTEND over named blocks, and the query checks that SEQ_ATTEND shares. */
#include "client/blocks.h"

kvarn_status kvc_query_check(struct kvarn_client *client, const char *name,
                             const struct kvc_space *space, const kvarn_query *query,
                             struct kvw_query *out)
{
    if (query->q_heads == 0 || query->q_heads % space->kv_heads != 0 ||
        query->q_heads / space->kv_heads > KVARN_MAX_GQA)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "%s: query.q_heads is %u: it must be 1 to %d times the shard's %u "
                               "kv heads",
                               name, query->q_heads, KVARN_MAX_GQA, space->kv_heads);
    if (query->q_dtype != 0 && kvarn_dtype_bytes(query->q_dtype) == 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: query.q_dtype is %d", name,
                               (int)query->q_dtype);
    if (query->out_dtype != 0 && kvarn_dtype_bytes(query->out_dtype) == 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: query.out_dtype is %d", name,
                               (int)query->out_dtype);
    *out = (struct kvw_query){
        .present = true,
        .q_heads = query->q_heads,
        .q_dtype = (uint32_t)(query->q_dtype ? query->q_dtype : space->dtype),
        .out_dtype = (uint32_t)(query->out_dtype ? query->out_dtype : KVARN_F32),
        .window = query->window,
        .scale = query->scale,
        .soft_cap = query->soft_cap,
        .full = query->full != 0,
        .deterministic = query->deterministic != 0,
    };
    return KVARN_OK;
}

kvarn_status kvc_query_bytes(struct kvarn_client *client, const char *name,
                             const struct kvc_space *space, const struct kvw_query *query,
                             uint64_t tokens, uint64_t *q, uint64_t *out, uint64_t *lse)
{
    uint64_t most = client->session->peer.payload_max_bytes;
    uint64_t heads = 0, values = 0;
    bool fits = kvc_mul(tokens, query->q_heads, &heads) &&
                kvc_mul(heads, space->head_dim, &values) &&
                kvc_mul(values, kvarn_dtype_bytes((kvarn_dtype)query->q_dtype), q) &&
                kvc_mul(values, kvarn_dtype_bytes((kvarn_dtype)query->out_dtype), out) &&
                kvc_mul(heads, sizeof(float), lse);

    if (fits && *q <= most && *out <= most && *lse <= most)
        return KVARN_OK;
    return kvc_client_fail(client, KVARN_TOO_LARGE,
                           "%s: %llu query tokens of %u heads do not fit the daemon's %llu bytes "
                           "per message: ask for fewer tokens",
                           name, (unsigned long long)tokens, query->q_heads,
                           (unsigned long long)most);
}

static kvarn_status check_attend(struct kvarn_client *client, const kvarn_attend_args *args,
                                 const struct kvc_space *space)
{
    if (args->layer >= space->layers)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "attend: layer is %u, the space's shard has %u", args->layer,
                               space->layers);
    if (args->q_tokens == 0 || !args->q || !args->out)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "attend: %s",
                               args->q_tokens == 0 ? "q_tokens is 0"
                               : args->q           ? "out is NULL"
                                                   : "q is NULL");
    return KVARN_OK;
}

static kvarn_status plan_attend(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_attend_args *args = args_;
    uint64_t q_bytes = 0, out_bytes = 0, lse_bytes = 0;
    struct kvw_blocks blocks = {.space = args->space,
                                .block_count = (uint32_t)args->count,
                                .layer_begin = args->layer,
                                .layer_count = 1};

    kvarn_status status = kvc_blocks_check(client, "attend", args->keys, args->count);
    if (status != KVARN_OK)
        return status;
    const struct kvc_space *space = kvc_client_space(client, args->space);
    if (!space)
        return KVARN_NOT_FOUND;
    status = check_attend(client, args, space);
    if (status == KVARN_OK)
        status = kvc_query_check(client, "attend", space, &args->query, &blocks.query);
    if (status != KVARN_OK)
        return status;
    blocks.query.q_tokens = args->q_tokens;
    status = kvc_query_bytes(client, "attend", space, &blocks.query, args->q_tokens, &q_bytes,
                             &out_bytes, &lse_bytes);
    if (status == KVARN_OK)
        status = kvc_blocks_new(client, KVW_ATTEND, &blocks, 0, args->count, 0, call);
    if (status != KVARN_OK)
        return status;
    kvc_call_add_part(*call, args->keys, args->count * sizeof *args->keys);
    kvc_call_add_part(*call, args->q, (size_t)q_bytes);
    kvc_call_add_place(*call, args->out, out_bytes);
    kvc_call_add_place(*call, args->lse, lse_bytes);
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(attend, kvarn_attend_args, KVW_ATTEND, plan_attend)
