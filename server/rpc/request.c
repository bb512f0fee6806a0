/* Life of a request: slot, begin, run, done. See request.h. */
#include "server/rpc/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/rpc/work.h"

static const struct kvd_operation *const operations[KVD_OPS] = {
    [KVW_HELLO] = &kvd_operation_hello,
    [KVW_PING] = &kvd_operation_ping,
    [KVW_OPEN_SPACE] = &kvd_operation_open_space,
    [KVW_LOOKUP] = &kvd_operation_lookup,
    [KVW_RELEASE] = &kvd_operation_release,
    [KVW_COMPRESS] = &kvd_operation_compress,
    [KVW_DECOMPRESS] = &kvd_operation_decompress,
    [KVW_ATTEND] = &kvd_operation_attend,
    [KVW_EXPORT] = &kvd_operation_export,
    [KVW_IMPORT] = &kvd_operation_import,
    [KVW_DROP] = &kvd_operation_drop,
    [KVW_VERIFY] = &kvd_operation_verify,
    [KVW_PIN] = &kvd_operation_pin,
    [KVW_RESET] = &kvd_operation_reset,
    [KVW_SEQ_OPEN] = &kvd_operation_seq_open,
    [KVW_SEQ_APPEND] = &kvd_operation_seq_append,
    [KVW_SEQ_ATTEND] = &kvd_operation_seq_attend,
    [KVW_SEQ_COMMIT] = &kvd_operation_seq_commit,
    [KVW_SEQ_FORK] = &kvd_operation_seq_fork,
    [KVW_SEQ_RELEASE] = &kvd_operation_seq_release,
    [KVW_STATS] = &kvd_operation_stats,
    [KVW_LIST] = &kvd_operation_list,
    [KVW_DRAIN] = &kvd_operation_drain,
    [KVW_EVENTS] = &kvd_operation_events,
    [KVW_PERSIST] = &kvd_operation_persist,
    [KVW_ERASE] = &kvd_operation_erase,
};

struct kvd_request *kvd_request_new(struct kvd_service *service)
{
    struct kvd_work *work = service->free;

    if (work) {
        service->free = work->ready_next;
    } else if (service->high < service->options.requests_max) {
        work = &service->works[service->high++];
    } else {
        service->shortage = true;
        return NULL;
    }
    /* Not the arena, metadata and iovecs at the end: they are written before they are read. */
    memset(work, 0, offsetof(struct kvd_work, memory));
    work->request.service = service;
    work->request.reply_meta = work->meta;
    work->request.reply_iov = work->iov;
    service->in_flight++;
    if (service->in_flight > service->in_flight_peak)
        service->in_flight_peak = service->in_flight;
    return &work->request;
}

/* Everything that begin took. */
static void give_back(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvd_device *device = kvd_work_device(work);

    /* The last first: a chain without its head is of no use, so its end is the first to be evicted.
     */
    while (work->item_count)
        if (work->items[--work->item_count].block)
            kvd_block_release(&service->blocks, work->items[work->item_count].block);
    kvd_work_release_held(work);
    for (uint32_t i = 0; i < work->extent_count; i++)
        kvd_staging_give(device, work->extents[i]);
    work->extent_count = 0;
    for (uint32_t i = 0; i < work->heap_count; i++)
        free(work->heaps[i]);
    work->heap_count = 0;
    if (work->space)
        work->space->pins--;
    work->space = NULL;
    if (work->counted)
        kvd_counts_give(&service->counts, work->request.tenant, KVD_COUNTED_REQUESTS, 1);
    work->counted = false;
    work->need = work->room_left = 0;
    work->request.payload = NULL;
    work->request.payload_parts = NULL;
}

/* The payload's own place: the head in staging, then the slots of the held blocks. */
static kvarn_status place_held(struct kvd_work *work, uint8_t *head, uint64_t head_bytes)
{
    uint8_t *pool = kvd_device_pool(kvd_work_device(work));
    uint64_t bytes = work->space->tile_bytes;
    struct iovec *parts = kvd_work_memory(work, work->held_count + 1u, sizeof *parts);
    uint32_t count = 1;

    if (!parts)
        return kvd_work_fail(work, KVARN_RETRY, "no memory for a table of %u blocks now",
                             work->held_count);
    parts[0] = (struct iovec){head, head_bytes};
    for (uint32_t i = 0; i < work->held_count; i++) {
        uint8_t *slot = pool + work->held[i]->offset;
        struct iovec *last = &parts[count - 1];

        /* Neighbours become one part, so that one recvmsg takes many blocks. */
        if (i > 0 && (uint8_t *)last->iov_base + last->iov_len == slot)
            last->iov_len += bytes;
        else
            parts[count++] = (struct iovec){slot, bytes};
    }
    work->request.payload_parts = parts;
    work->request.payload_part_count = count;
    return KVARN_OK;
}

static kvarn_status decode(struct kvd_work *work, const uint8_t *metadata)
{
    struct kvd_service *service = kvd_work_service(work);
    uint8_t op = work->request.header.op;

    work->operation = op < KVD_OPS ? operations[op] : NULL;
    if (!work->operation)
        return kvd_work_fail(work, KVARN_UNSUPPORTED,
                             "operation %u is not known to this daemon; is the client newer?", op);
    if (service->draining && !work->operation->while_draining)
        return kvd_work_fail(work, KVARN_DRAINING, "the daemon is shutting down; use another one");
    /* What gives something back, and what only looks, is always heard. */
    if (!work->operation->while_draining) {
        work->counted =
            kvd_counts_take(&service->counts, work->request.tenant, KVD_COUNTED_REQUESTS, 1);
        if (!work->counted)
            return kvd_work_fail(work, KVARN_QUOTA,
                                 "%u requests of this tenant are under way, the most that it may "
                                 "have; wait for an answer first",
                                 service->counts.used[work->request.tenant][KVD_COUNTED_REQUESTS]);
    }
    return work->operation->begin(work, metadata);
}

/* Payload, then the room that the operation asked for, in one extent. */
static kvarn_status place(struct kvd_work *work, bool *wait)
{
    struct kvd_device *device = kvd_work_device(work);
    uint64_t head = work->request.header.payload_bytes -
                    (work->held_count ? work->held_count * work->space->tile_bytes : 0);
    uint64_t payload = (head + 63) & ~(uint64_t)63;
    uint64_t capacity = kvd_staging_capacity_bytes(device);
    unsigned long long whole = payload + work->need;
    uint8_t *extent;

    if (!payload && !work->need)
        return KVARN_OK;
    if (payload > capacity || work->need > capacity - payload)
        return kvd_work_fail(work, KVARN_TOO_LARGE,
                             "the call needs %llu bytes of staging, the daemon has %llu; split it",
                             whole, (unsigned long long)capacity);
    extent = kvd_staging_take(device, payload + work->need);
    if (!extent) {
        *wait = true;
        return KVARN_RETRY;
    }
    work->extents[work->extent_count++] = extent;
    work->request.payload = payload ? extent : NULL;
    work->room = extent + payload;
    work->room_left = work->need;
    return work->held_count ? place_held(work, extent, head) : KVARN_OK;
}

enum kvd_begin kvd_request_begin(struct kvd_request *request, const uint8_t *metadata)
{
    struct kvd_work *work = kvd_work_of(request);
    bool wait = false;
    kvarn_status status;

    kvw_arena_init(&work->arena, work->memory, sizeof work->memory);
    request->status = KVARN_OK;
    request->text[0] = 0;
    status = decode(work, metadata);
    if (status == KVARN_OK)
        status = place(work, &wait);
    if (status == KVARN_OK)
        return KVD_BEGIN_OK;
    give_back(work);
    if (wait) {
        kvd_work_service(work)->shortage = true;
        return KVD_BEGIN_WAIT;
    }
    if (request->status == KVARN_OK)
        request->status = status;
    return KVD_BEGIN_OK;
}

void kvd_request_run(struct kvd_request *request)
{
    struct kvd_work *work = kvd_work_of(request);
    struct kvd_service *service = request->service;

    if (request->status != KVARN_OK)
        kvd_work_refuse_kept(work);
    else if (!request->conn)
        kvd_work_refuse(work, KVARN_PEER_LOST, "the client is gone");
    else if (request->deadline_ns && kvd_service_now(service) >= request->deadline_ns)
        kvd_work_refuse(work, KVARN_DEADLINE, "the deadline passed before the call could begin");
    else
        work->operation->run(work);
    kvd_service_pump(service);
}

void kvd_request_done(struct kvd_request *request)
{
    struct kvd_work *work = kvd_work_of(request);
    struct kvd_service *service = request->service;

    assert(!work->jobs && !work->waiting && !work->ready);
    kvd_work_leave(work);
    if (request->unwanted && work->replied && request->status == KVARN_OK && work->operation->undo)
        work->operation->undo(work);
    give_back(work);
    work->ready_next = service->free;
    service->free = work;
    service->in_flight--;
    if (service->shortage && service->room) {
        service->shortage = false;
        service->room(service->room_context);
    }
    kvd_service_pump(service);
}
