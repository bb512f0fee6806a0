/* LOOKUP, DROP, VERIFY, PERSIST, PIN, RESET, RELEASE, and what all operations on blocks share. */
#include "client/blocks.h"

#include <stdlib.h>
#include <string.h>

kvarn_status kvc_blocks_check(struct kvarn_client *client, const char *name, const kvarn_key *keys,
                              size_t count)
{
    if (count == 0 || !keys)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: %s", name,
                               count == 0 ? "count is 0: name at least one block" : "keys is NULL");
    if (count > KVW_BLOCKS_MAX)
        return kvc_client_fail(client, KVARN_TOO_LARGE,
                               "%s: %zu blocks, at most %d in one call: split it", name, count,
                               KVW_BLOCKS_MAX);
    return KVARN_OK;
}

kvarn_status kvc_blocks_new(struct kvarn_client *client, uint8_t op,
                            const struct kvw_blocks *blocks, size_t request_table, size_t rows,
                            size_t row_bytes, struct kvarn_call **call)
{
    struct kvarn_call *made = kvc_call_new(op, KVC_METADATA_ROOM + request_table, rows * row_bytes);
    if (!made)
        return kvc_client_no_memory(client);
    size_t bytes = kvw_blocks_encode(kvc_call_metadata(made), KVC_METADATA_ROOM, blocks);
    kvc_call_set_metadata(made, bytes);
    made->rows = rows;
    made->on_reply = kvc_blocks_reply;
    kvc_call_add_place(made, made->table, made->table_bytes);
    *call = made;
    return KVARN_OK;
}

kvarn_status kvc_blocks_reply(struct kvarn_call *call, const struct kvc_reply *reply,
                              const char **why)
{
    struct kvw_blocks_reply in;
    kvarn_status status =
        kvw_blocks_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    call->matched = in.matched;
    call->lease = in.lease;
    call->cursor = in.cursor;
    call->total = in.total;
    call->device_ns = in.device_ns;
    if (reply->payload_bytes > 0 && call->table_bytes > 0 && in.block_count != call->rows) {
        *why = "a reply with another number of blocks than its request";
        return KVARN_BAD_FRAME;
    }
    if (in.matched > call->rows && call->rows > 0) {
        *why = "a reply that matched more blocks than were named";
        return KVARN_BAD_FRAME;
    }
    return KVARN_OK;
}

void kvc_blocks_results(const struct kvarn_call *call, kvarn_block_result *results)
{
    if (!results)
        return;
    for (size_t i = 0; i < call->rows; i++) {
        struct kvw_block_status row = {.status = (uint32_t)call->status};
        if (kvc_call_has_table(call))
            kvw_block_status_load(&row, call->table + i * KVW_BLOCK_STATUS_BYTES);
        results[i] = (kvarn_block_result){.status = (kvarn_status)row.status,
                                          .kind = (kvarn_block_kind)row.kind,
                                          .digest = row.digest};
    }
}

/* ---- LOOKUP, DROP, VERIFY, PERSIST */

static kvarn_status finish_keys(struct kvarn_call *call, const char **why)
{
    kvarn_blocks_args *args = call->args;

    (void)why;
    kvc_blocks_results(call, call->rows == 0 ? NULL : args->results);
    args->matched = (size_t)call->matched;
    args->cursor = call->cursor;
    args->total = call->total;
    if (call->op == KVW_LOOKUP)
        args->lease = call->lease;
    return KVARN_OK;
}

static kvarn_status plan_keys(struct kvarn_client *client, const char *name, uint8_t op,
                              kvarn_blocks_args *args, struct kvarn_call **call)
{
    bool all = (op == KVW_VERIFY || op == KVW_DROP) && args->all;
    bool named = !all && op != KVW_RESET;
    size_t rows = named ? args->count : 0;

    if (named) {
        kvarn_status status = kvc_blocks_check(client, name, args->keys, args->count);
        if (status != KVARN_OK)
            return status;
    }
    struct kvw_blocks blocks = {
        .space = args->space,
        .block_count = (uint32_t)rows,
        .lease_ms = op == KVW_LOOKUP ? args->lease_ms : 0,
        .all = all,
        .unpin = op == KVW_PIN && args->unpin,
        .limit = all ? args->limit : 0,
        .cursor = all ? args->cursor : 0,
        .group = op == KVW_LOOKUP ? args->group : 0,
        .ranks = op == KVW_LOOKUP ? args->ranks : 0,
    };
    kvarn_status status =
        kvc_blocks_new(client, op, &blocks, 0, rows, KVW_BLOCK_STATUS_BYTES, call);
    if (status != KVARN_OK)
        return status;
    if (rows > 0)
        kvc_call_add_part(*call, args->keys, rows * sizeof *args->keys);
    (*call)->on_finish = finish_keys;
    return KVARN_OK;
}

static kvarn_status plan_lookup(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    return plan_keys(client, "lookup", KVW_LOOKUP, args, call);
}

static kvarn_status plan_drop(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    return plan_keys(client, "drop", KVW_DROP, args, call);
}

static kvarn_status plan_verify(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    return plan_keys(client, "verify", KVW_VERIFY, args, call);
}

static kvarn_status plan_persist(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    return plan_keys(client, "persist", KVW_PERSIST, args, call);
}

static kvarn_status plan_pin(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    return plan_keys(client, "pin", KVW_PIN, args, call);
}

static kvarn_status plan_reset(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    return plan_keys(client, "reset", KVW_RESET, args, call);
}

KVC_DEFINE_OPERATION(lookup, kvarn_blocks_args, KVW_LOOKUP, plan_lookup)
KVC_DEFINE_OPERATION(drop, kvarn_blocks_args, KVW_DROP, plan_drop)
KVC_DEFINE_OPERATION(verify, kvarn_blocks_args, KVW_VERIFY, plan_verify)
KVC_DEFINE_OPERATION(persist, kvarn_blocks_args, KVW_PERSIST, plan_persist)
KVC_DEFINE_OPERATION(pin, kvarn_blocks_args, KVW_PIN, plan_pin)
KVC_DEFINE_OPERATION(reset, kvarn_blocks_args, KVW_RESET, plan_reset)

/* ---- RELEASE */

static kvarn_status plan_release(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    const kvarn_blocks_args *args = args_;
    struct kvw_release release = {.lease = args->lease};

    if (args->lease == 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "release: lease is 0: pass the lease that lookup gave");
    *call = kvc_call_new(KVW_RELEASE, KVC_METADATA_ROOM, 0);
    if (!*call)
        return kvc_client_no_memory(client);
    kvc_call_set_metadata(
        *call, kvw_release_encode(kvc_call_metadata(*call), KVC_METADATA_ROOM, &release));
    (*call)->on_reply = kvc_blocks_reply;
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(release, kvarn_blocks_args, KVW_RELEASE, plan_release)
