/* EXPORT and IMPORT: the bytes of blocks in canonical order, as they are. */
#include "client/blocks.h"

#include <stdio.h>
#include <string.h>

/* ---- EXPORT */

static kvarn_status reply_export(struct kvarn_call *call, const struct kvc_reply *reply,
                                 const char **why)
{
    const kvarn_export_args *args = call->args;
    kvarn_status status = kvc_blocks_reply(call, reply, why);

    if (status != KVARN_OK || reply->payload_bytes < call->table_bytes)
        return status;
    uint64_t bytes = reply->payload_bytes - call->table_bytes;
    uint64_t kept = bytes < args->bytes_capacity ? bytes : args->bytes_capacity;
    kvc_call_add_place(call, args->bytes, kept);
    kvc_call_add_place(call, NULL, bytes - kept);
    return KVARN_OK;
}

static kvarn_status finish_export(struct kvarn_call *call, const char **why)
{
    kvarn_export_args *args = call->args;
    uint64_t bytes = 0;

    for (size_t i = 0; i < call->rows; i++) {
        struct kvw_put_row row = {0};
        if (kvc_call_has_table(call))
            kvw_put_row_load(&row, call->table + i * KVW_PUT_ROW_BYTES);
        if (!kvc_add(bytes, row.bytes, &bytes)) {
            *why = "EXPORT: block sizes that overflow";
            return KVARN_BAD_FRAME;
        }
        kvarn_status missing = kvc_call_succeeded(call) ? KVARN_NOT_FOUND : call->status;
        args->results[i] = (kvarn_block_result){.status = row.bytes ? KVARN_OK : missing,
                                                .kind = (kvarn_block_kind)row.kind,
                                                .digest = row.digest};
    }
    uint64_t came = kvc_call_has_table(call) ? call->payload_bytes - call->table_bytes : 0;
    if (bytes != came) {
        *why = "EXPORT: the blocks' sizes do not add up to the payload";
        return KVARN_BAD_FRAME;
    }
    const struct kvc_space *space = kvc_client_space(call->client, args->space);
    if (space)
        args->origin = space->origin;
    args->matched = (size_t)call->matched;
    args->bytes_used = (size_t)bytes;
    if (bytes > args->bytes_capacity) {
        call->status = KVARN_TOO_LARGE;
        snprintf(call->text, sizeof call->text,
                 "the blocks have %llu bytes and bytes_capacity is %zu: give more room",
                 (unsigned long long)bytes, args->bytes_capacity);
    }
    return KVARN_OK;
}

static kvarn_status plan_export(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_export_args *args = args_;
    kvarn_status status = kvc_blocks_check(client, "export", args->keys, args->count);

    if (status != KVARN_OK)
        return status;
    if (!args->results || (!args->bytes && args->bytes_capacity > 0))
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "export: %s is NULL",
                               args->results ? "bytes" : "results");
    struct kvw_blocks blocks = {.space = args->space, .block_count = (uint32_t)args->count};
    status = kvc_blocks_new(client, KVW_EXPORT, &blocks, 0, args->count, KVW_PUT_ROW_BYTES, call);
    if (status != KVARN_OK)
        return status;
    kvc_call_add_part(*call, args->keys, args->count * sizeof *args->keys);
    (*call)->on_reply = reply_export;
    (*call)->on_finish = finish_export;
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(export, kvarn_export_args, KVW_EXPORT, plan_export)

/* ---- IMPORT */

static kvarn_status finish_import(struct kvarn_call *call, const char **why)
{
    kvarn_import_args *args = call->args;

    (void)why;
    kvc_blocks_results(call, args->results);
    args->stored = (size_t)call->matched;
    return KVARN_OK;
}

/* Sizes of the blocks, one by one. */
static kvarn_status check_import(struct kvarn_client *client, const kvarn_import_args *args,
                                 const struct kvc_space *space)
{
    uint64_t bytes = 0;

    if (!args->blocks || !args->bytes || !args->origin)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "import_blocks: %s is NULL",
                               !args->blocks  ? "blocks"
                               : !args->bytes ? "bytes"
                                              : "origin (what export gave)");
    for (size_t i = 0; i < args->count; i++) {
        kvarn_block_kind kind = args->blocks[i].kind;
        if (kind != KVARN_BLOCK_TILE && kind != KVARN_BLOCK_EXACT)
            return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                                   "import_blocks: blocks[%zu].kind is %d: leave out blocks that "
                                   "export did not find",
                                   i, (int)kind);
        uint64_t size =
            kind == KVARN_BLOCK_TILE ? space->tile_block_bytes : space->exact_block_bytes;
        if (!kvc_add(bytes, size, &bytes))
            bytes = UINT64_MAX;
    }
    if (bytes != args->bytes_count)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "import_blocks: bytes_count is %zu, %zu blocks of these kinds have "
                               "%llu",
                               args->bytes_count, args->count, (unsigned long long)bytes);
    return KVARN_OK;
}

static struct kvw_origin wire_origin(const kvarn_origin *origin)
{
    struct kvw_origin out = {.present = true,
                             .layer_begin = origin->layer_begin,
                             .layer_count = origin->layer_count,
                             .head_begin = origin->head_begin,
                             .head_count = origin->head_count};

    memcpy(out.fingerprint, origin->fingerprint, sizeof out.fingerprint);
    return out;
}

static kvarn_status plan_import(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_import_args *args = args_;
    kvarn_status status = kvc_blocks_check(client, "import_blocks", args->keys, args->count);

    if (status != KVARN_OK)
        return status;
    const struct kvc_space *space = kvc_client_space(client, args->space);
    if (!space)
        return KVARN_NOT_FOUND;
    status = check_import(client, args, space);
    if (status != KVARN_OK)
        return status;
    struct kvw_blocks blocks = {.space = args->space,
                                .block_count = (uint32_t)args->count,
                                .origin = wire_origin(args->origin)};
    status = kvc_blocks_new(client, KVW_IMPORT, &blocks, args->count * KVW_PUT_ROW_BYTES,
                            args->count, KVW_BLOCK_STATUS_BYTES, call);
    if (status != KVARN_OK)
        return status;
    uint8_t *table = kvc_call_append(*call, args->count * KVW_PUT_ROW_BYTES);
    for (size_t i = 0; i < args->count; i++) {
        bool tile = args->blocks[i].kind == KVARN_BLOCK_TILE;
        struct kvw_put_row row = {
            .key = args->keys[i],
            .kind = (uint32_t)args->blocks[i].kind,
            .tokens = space->group,
            .bytes = tile ? space->tile_block_bytes : space->exact_block_bytes,
            .digest = args->blocks[i].digest,
        };
        kvw_put_row_store(table + i * KVW_PUT_ROW_BYTES, &row);
    }
    kvc_call_add_part(*call, args->bytes, args->bytes_count);
    (*call)->on_finish = finish_import;
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(import_blocks, kvarn_import_args, KVW_IMPORT, plan_import)
