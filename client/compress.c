/* COMPRESS and DECOMPRESS: rows of whole blocks, to the daemon and back. */
#include "client/blocks.h"
#include "client/rows.h"

static struct kvc_rows rows_of(const struct kvc_space *space, uint64_t layers, uint64_t blocks)
{
    return (struct kvc_rows){
        .layers = layers,
        .blocks = blocks,
        .tokens = space->group,
        .heads = space->kv_heads,
        .row_bytes = (uint64_t)space->head_dim * kvarn_dtype_bytes(space->dtype),
    };
}

static kvarn_status finish_compress(struct kvarn_call *call, const char **why)
{
    kvarn_compress_args *args = call->args;

    (void)why;
    kvc_blocks_results(call, args->results);
    args->stored = (size_t)call->matched;
    return KVARN_OK;
}

static kvarn_status check_kinds(struct kvarn_client *client, const kvarn_compress_args *args)
{
    for (size_t i = 0; args->kinds && i < args->count; i++) {
        if (args->kinds[i] != KVARN_BLOCK_TILE && args->kinds[i] != KVARN_BLOCK_EXACT)
            return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                                   "compress: kinds[%zu] is %d: use KVARN_BLOCK_TILE or "
                                   "KVARN_BLOCK_EXACT",
                                   i, (int)args->kinds[i]);
    }
    return KVARN_OK;
}

static kvarn_status plan_compress(struct kvarn_client *client, void *args_,
                                  struct kvarn_call **call)
{
    kvarn_compress_args *args = args_;
    struct kvc_rows_plan plan;

    kvarn_status status = kvc_blocks_check(client, "compress", args->keys, args->count);
    if (status == KVARN_OK)
        status = check_kinds(client, args);
    if (status != KVARN_OK)
        return status;
    const struct kvc_space *space = kvc_client_space(client, args->space);
    if (!space)
        return KVARN_NOT_FOUND;
    struct kvc_rows rows = rows_of(space, space->layers, args->count);
    status = kvc_rows_plan(client, "compress", &rows, args->k, args->v, args->strides, &plan);
    if (status != KVARN_OK)
        return status;
    struct kvw_blocks blocks = {
        .space = args->space, .block_count = (uint32_t)args->count, .layout = plan.layout};
    status = kvc_blocks_new(client, KVW_COMPRESS, &blocks, args->count * KVW_PUT_ROW_BYTES,
                            args->count, KVW_BLOCK_STATUS_BYTES, call);
    if (status != KVARN_OK)
        return status;
    uint8_t *table = kvc_call_append(*call, args->count * KVW_PUT_ROW_BYTES);
    for (size_t i = 0; i < args->count; i++) {
        struct kvw_put_row row = {
            .key = args->keys[i],
            .kind = args->kinds ? (uint32_t)args->kinds[i] : KVARN_BLOCK_TILE,
            .tokens = space->group,
        };
        kvw_put_row_store(table + i * KVW_PUT_ROW_BYTES, &row);
    }
    for (uint32_t i = 0; i < plan.part_count; i++)
        kvc_call_add_part(*call, plan.parts[i].iov_base, plan.parts[i].iov_len);
    (*call)->on_finish = finish_compress;
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(compress, kvarn_compress_args, KVW_COMPRESS, plan_compress)

/* ---- DECOMPRESS */

static kvarn_status finish_decompress(struct kvarn_call *call, const char **why)
{
    kvarn_decompress_args *args = call->args;

    (void)why;
    kvc_blocks_results(call, args->results);
    args->matched = (size_t)call->matched;
    return KVARN_OK;
}

/* The reply must fit the bound too, and saying so here saves the daemon the work. */
static kvarn_status check_reply(struct kvarn_client *client, size_t table, uint64_t tensor)
{
    uint64_t most = client->session->peer.payload_max_bytes;

    if (tensor <= most / 2 && table <= most - 2 * tensor)
        return KVARN_OK;
    return kvc_client_fail(client, KVARN_TOO_LARGE,
                           "decompress: K and V have %llu bytes each and the daemon sends at "
                           "most %llu in one reply: ask for fewer blocks or layers",
                           (unsigned long long)tensor, (unsigned long long)most);
}

static kvarn_status plan_decompress(struct kvarn_client *client, void *args_,
                                    struct kvarn_call **call)
{
    kvarn_decompress_args *args = args_;
    uint64_t bytes;

    kvarn_status status = kvc_blocks_check(client, "decompress", args->keys, args->count);
    if (status != KVARN_OK)
        return status;
    const struct kvc_space *space = kvc_client_space(client, args->space);
    if (!space)
        return KVARN_NOT_FOUND;
    if (args->layer_begin >= space->layers || args->layer_count > space->layers - args->layer_begin)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "decompress: layers %u+%u, the space's shard has %u",
                               args->layer_begin, args->layer_count, space->layers);
    if (!args->k || !args->v)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "decompress: %s is NULL",
                               args->k ? "v" : "k");
    uint32_t layers = args->layer_count ? args->layer_count : space->layers - args->layer_begin;
    struct kvc_rows rows = rows_of(space, layers, args->count);
    size_t table = args->count * KVW_BLOCK_STATUS_BYTES;
    if (!kvc_rows_bytes(&rows, &bytes))
        bytes = UINT64_MAX;
    status = check_reply(client, table, bytes);
    if (status != KVARN_OK)
        return status;
    struct kvw_blocks blocks = {
        .space = args->space,
        .block_count = (uint32_t)args->count,
        .layer_begin = args->layer_begin,
        .layer_count = layers,
    };
    status = kvc_blocks_new(client, KVW_DECOMPRESS, &blocks, 0, args->count, KVW_BLOCK_STATUS_BYTES,
                            call);
    if (status != KVARN_OK)
        return status;
    kvc_call_add_part(*call, args->keys, args->count * sizeof *args->keys);
    kvc_call_add_place(*call, args->k, bytes);
    kvc_call_add_place(*call, args->v, bytes);
    (*call)->on_finish = finish_decompress;
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(decompress, kvarn_decompress_args, KVW_DECOMPRESS, plan_decompress)
