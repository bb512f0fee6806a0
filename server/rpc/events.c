/* EVENTS: what was stored and removed of this tenant's blocks since a number, or all that is stored
 * now. See events.h for what is kept.
 *
 * A reader that begins, or that lost events, asks for the events first (that is from when they are
 * kept), then for a snapshot page by page, then for the events from the first answer's `next` on:
 * what it then applies twice does no harm. */
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    struct kvw_events *args = &work->args.events;
    const char *why = "";
    kvarn_status status =
        kvw_events_decode(args, metadata, work->request.header.metadata_bytes, &work->arena, &why);

    if (status != KVARN_OK)
        return kvd_work_fail(work, status, "metadata: %s", why);
    if (args->limit > KVW_EVENTS_MAX)
        return kvd_work_fail(work, KVARN_TOO_LARGE, "limit = %u; at most %d events in one answer",
                             args->limit, KVW_EVENTS_MAX);
    if (!args->limit)
        args->limit = KVW_EVENTS_MAX;
    kvd_work_need(work, (uint64_t)args->limit * KVW_EVENT_ROW_BYTES);
    return KVARN_OK;
}

static void add(struct kvd_work *work, struct kvw_events_reply *reply,
                const struct kvw_event_row *row)
{
    kvw_event_row_store(work->reply_table + (size_t)reply->count++ * KVW_EVENT_ROW_BYTES, row);
}

/* A page of what is stored: as many descriptors as one step may look at, or rows as there is room.
 */
static void snapshot(struct kvd_work *work, struct kvw_events_reply *reply)
{
    struct kvd_service *service = kvd_work_service(work);
    uint64_t at = work->args.events.cursor, end = at + KVD_WALK_STEP;

    for (; at < end && at < service->blocks.made && reply->count < work->args.events.limit; at++) {
        const struct kvd_block *block = kvd_block_at(&service->blocks, (uint32_t)at);

        if (block->state != KVD_BLOCK_READY || !block->indexed || block->space->reset ||
            block->space->tenant != work->request.tenant)
            continue;
        add(work, reply,
            &(struct kvw_event_row){.space = block->space->handle,
                                    .key = block->key,
                                    .type = KVW_EVENT_STORED,
                                    .kind = block->kind});
    }
    reply->cursor = at < service->blocks.made ? at : 0;
}

static void send(struct kvd_work *work, struct kvw_events_reply *reply)
{
    struct kvd_service *service = kvd_work_service(work);

    reply->epoch = service->events.epoch;
    reply->result = kvd_work_result(work);
    kvd_work_iov(work, work->reply_table, (uint64_t)reply->count * KVW_EVENT_ROW_BYTES);
    kvd_work_send(work, kvw_events_reply_encode(work->meta, sizeof work->meta, reply));
}

/* Is there anything to tell, or no reason to wait any longer? */
static bool over(const struct kvd_work *work)
{
    const struct kvd_service *service = kvd_work_service(work);
    const struct kvw_events *args = &work->args.events;

    return args->epoch != service->events.epoch ||
           kvd_events_next(&service->events, work->request.tenant) != args->from ||
           kvd_service_now(service) >= work->wake_ns || service->draining || work->late ||
           !work->request.conn;
}

static void step(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvw_events *args = &work->args.events;
    struct kvw_events_reply reply = {.count = 0};
    struct kvw_event_row row;

    if (!over(work) && kvd_work_wait(work, step, false) == KVARN_OK)
        return;
    reply.next = kvd_events_next(&service->events, work->request.tenant);
    reply.lost = args->epoch != service->events.epoch;
    while (!reply.lost && reply.count < args->limit &&
           kvd_events_read(&service->events, work->request.tenant, args->from + reply.count, &row,
                           1, &reply.lost))
        add(work, &reply, &row);
    if (!reply.lost)
        reply.next = args->from + reply.count;
    send(work, &reply);
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvw_events *args = &work->args.events;
    struct kvw_events_reply reply = {.count = 0};
    uint32_t wait_ms =
        args->wait_ms < KVD_EVENT_WAIT_MAX_MS ? args->wait_ms : (uint32_t)KVD_EVENT_WAIT_MAX_MS;

    work->reply_table = kvd_work_staging(work, (uint64_t)args->limit * KVW_EVENT_ROW_BYTES);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (kvd_events_watch(&service->events, work->request.tenant) != KVARN_OK) {
        kvd_work_refuse(work, KVARN_RETRY, "the events of %u tenants are kept, no more are now",
                        service->events.count);
        return;
    }
    if (args->snapshot) {
        reply.next = kvd_events_next(&service->events, work->request.tenant);
        snapshot(work, &reply);
        send(work, &reply);
        return;
    }
    work->wake_ns = kvd_service_now(service) + (uint64_t)wait_ms * 1000000u;
    step(work);
}

const struct kvd_operation kvd_operation_events = {begin, run, true, NULL};
