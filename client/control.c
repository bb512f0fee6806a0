/* PING, ERASE, STATS, LIST and DRAIN: answers that are metadata alone. */
#include "client/client_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvarn_status make(struct kvarn_client *client, uint8_t op, size_t room,
                         kvc_reply_fn *on_reply, struct kvarn_call **call)
{
    *call = kvc_call_new(op, room, 0);
    if (!*call)
        return kvc_client_no_memory(client);
    (*call)->on_reply = on_reply;
    return KVARN_OK;
}

/* ---- PING, ERASE */

static kvarn_status reply_ping(struct kvarn_call *call, const struct kvc_reply *reply,
                               const char **why)
{
    struct kvw_ping_reply in;
    kvarn_status status =
        kvw_ping_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    if (kvc_call_succeeded(call) && in.echo != call->echo) {
        *why = "PING: the echo is not what was sent";
        return KVARN_BAD_FRAME;
    }
    return KVARN_OK;
}

static kvarn_status plan_echo(struct kvarn_client *client, uint8_t op, struct kvarn_call **call)
{
    kvarn_status status = make(client, op, KVC_METADATA_ROOM, reply_ping, call);

    if (!*call)
        return status;
    struct kvw_ping ping = {.echo = kvc_now_ns()};
    (*call)->echo = ping.echo;
    kvc_call_set_metadata(*call,
                          kvw_ping_encode(kvc_call_metadata(*call), KVC_METADATA_ROOM, &ping));
    return KVARN_OK;
}

static kvarn_status plan_ping(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    (void)args;
    return plan_echo(client, KVW_PING, call);
}

static kvarn_status plan_erase(struct kvarn_client *client, void *args, struct kvarn_call **call)
{
    (void)args;
    return plan_echo(client, KVW_ERASE, call);
}

KVC_DEFINE_OPERATION(ping, kvarn_ping_args, KVW_PING, plan_ping)
KVC_DEFINE_OPERATION(erase, kvarn_ping_args, KVW_ERASE, plan_erase)

/* ---- STATS */

static kvarn_status reply_stats(struct kvarn_call *call, const struct kvc_reply *reply,
                                const char **why)
{
    kvarn_stats_args *args = call->args;
    struct kvw_stats_reply in;
    kvarn_status status =
        kvw_stats_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    args->count = in.count;
    for (size_t i = 0; i < in.count && i < args->capacity; i++) {
        snprintf(args->metrics[i].name, sizeof args->metrics[i].name, "%s", in.metrics[i].name);
        args->metrics[i].value = in.metrics[i].value;
    }
    return KVARN_OK;
}

static kvarn_status plan_stats(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    const kvarn_stats_args *args = args_;
    const struct kvw_stats stats = {0};

    if (!args->metrics && args->capacity > 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "stats: metrics is NULL");
    kvarn_status status = make(client, KVW_STATS, KVC_METADATA_ROOM, reply_stats, call);
    if (status == KVARN_OK)
        kvc_call_set_metadata(
            *call, kvw_stats_encode(kvc_call_metadata(*call), KVC_METADATA_ROOM, &stats));
    return status;
}

KVC_DEFINE_OPERATION(stats, kvarn_stats_args, KVW_STATS, plan_stats)

/* ---- LIST */

static void copy_space(kvarn_space_info *out, const struct kvw_space_info *in)
{
    memset(out, 0, sizeof *out);
    out->space = in->space;
    snprintf(out->model, sizeof out->model, "%s", in->model);
    snprintf(out->preset, sizeof out->preset, "%s", in->preset);
    memcpy(out->fingerprint, in->fingerprint, sizeof out->fingerprint);
    out->layers = in->layers;
    out->kv_heads = in->kv_heads;
    out->head_dim = in->head_dim;
    out->dtype = in->dtype;
    out->tile_blocks = in->tile_blocks;
    out->exact_blocks = in->exact_blocks;
    out->bytes = in->bytes;
    out->sequences = in->sequences;
}

static kvarn_status reply_list(struct kvarn_call *call, const struct kvc_reply *reply,
                               const char **why)
{
    kvarn_list_args *args = call->args;
    struct kvw_list_reply in;
    kvarn_status status =
        kvw_list_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    args->count = in.count;
    for (size_t i = 0; i < in.count && i < args->capacity; i++)
        copy_space(&args->spaces[i], &in.spaces[i]);
    return KVARN_OK;
}

static kvarn_status plan_list(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    const kvarn_list_args *args = args_;

    if (!args->spaces && args->capacity > 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "list: spaces is NULL");
    return make(client, KVW_LIST, KVC_METADATA_ROOM, reply_list, call);
}

KVC_DEFINE_OPERATION(list, kvarn_list_args, KVW_LIST, plan_list)

/* ---- DRAIN */

static kvarn_status reply_result(struct kvarn_call *call, const struct kvc_reply *reply,
                                 const char **why)
{
    struct kvw_result in;
    kvarn_status status =
        kvw_result_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status == KVARN_OK)
        kvc_call_take_result(call, &in);
    return status;
}

static kvarn_status plan_drain(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    const kvarn_drain_args *args = args_;
    const struct kvw_drain drain = {.grace_ms = args->grace_ms};
    kvarn_status status = make(client, KVW_DRAIN, KVC_METADATA_ROOM, reply_result, call);

    if (status == KVARN_OK)
        kvc_call_set_metadata(
            *call, kvw_drain_encode(kvc_call_metadata(*call), KVC_METADATA_ROOM, &drain));
    return status;
}

KVC_DEFINE_OPERATION(drain, kvarn_drain_args, KVW_DRAIN, plan_drain)
