/* EVENTS. */
#include "client/client_internal.h"

#include <string.h>

static kvarn_status reply_events(struct kvarn_call *call, const struct kvc_reply *reply,
                                 const char **why)
{
    kvarn_events_args *args = call->args;
    struct kvw_events_reply in;
    kvarn_status status =
        kvw_events_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    if (!kvc_call_succeeded(call))
        return KVARN_OK;
    if (reply->payload_bytes != (uint64_t)in.count * KVW_EVENT_ROW_BYTES ||
        reply->payload_bytes > call->table_bytes) {
        *why = "EVENTS: another number of events than the reply says, or was asked for";
        return KVARN_BAD_FRAME;
    }
    kvc_call_add_place(call, call->table, reply->payload_bytes);
    call->rows = in.count;
    args->lost = in.lost;
    args->cursor = in.cursor;
    if (!args->snapshot) {
        args->epoch = in.epoch;
        args->from = in.next;
    }
    return KVARN_OK;
}

static kvarn_status finish_events(struct kvarn_call *call, const char **why)
{
    kvarn_events_args *args = call->args;

    (void)why;
    args->count = kvc_call_succeeded(call) ? call->rows : 0;
    for (size_t i = 0; i < args->count; i++) {
        struct kvw_event_row row;

        kvw_event_row_load(&row, call->table + i * KVW_EVENT_ROW_BYTES);
        args->events[i] = (kvarn_event){.sequence = row.sequence,
                                        .space = row.space,
                                        .key = row.key,
                                        .type = (kvarn_event_type)row.type,
                                        .kind = (kvarn_block_kind)row.kind};
    }
    return KVARN_OK;
}

static kvarn_status plan_events(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_events_args *args = args_;
    size_t limit = args->capacity < KVW_EVENTS_MAX ? args->capacity : KVW_EVENTS_MAX;
    const struct kvw_events events = {.epoch = args->epoch,
                                      .from = args->from,
                                      .limit = (uint32_t)limit,
                                      .wait_ms = args->wait_ms,
                                      .snapshot = args->snapshot,
                                      .cursor = args->cursor};

    if (!args->events || limit == 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "events: there is no room for events: set events and capacity");
    args->count = 0;
    *call = kvc_call_new(KVW_EVENTS, KVC_METADATA_ROOM, limit * KVW_EVENT_ROW_BYTES);
    if (!*call)
        return kvc_client_no_memory(client);
    kvc_call_set_metadata(*call,
                          kvw_events_encode(kvc_call_metadata(*call), KVC_METADATA_ROOM, &events));
    (*call)->on_reply = reply_events;
    (*call)->on_finish = finish_events;
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(events, kvarn_events_args, KVW_EVENTS, plan_events)
