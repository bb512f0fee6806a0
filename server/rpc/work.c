/* Steps that all operations share. See work.h. */
#include "server/rpc/work.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

/* ---- memory */

void *kvd_work_memory(struct kvd_work *work, size_t count, size_t size)
{
    size_t bytes = count * size; /* counts are bounded by the wire tables */
    void *memory = kvw_arena_take(&work->arena, bytes ? bytes : 1);

    if (memory)
        return memory;
    if (work->heap_count == KVD_WORK_HEAPS)
        return NULL;
    memory = calloc(count, size);
    if (memory)
        work->heaps[work->heap_count++] = memory;
    return memory;
}

void kvd_work_release_held(struct kvd_work *work)
{
    for (uint32_t i = 0; i < work->held_count; i++)
        if (work->held[i])
            kvd_block_release(&kvd_work_service(work)->blocks, work->held[i]);
    work->held = NULL;
    work->held_count = 0;
}

void kvd_work_need(struct kvd_work *work, uint64_t bytes)
{
    work->need += round_up(bytes);
}

uint8_t *kvd_work_staging(struct kvd_work *work, uint64_t bytes)
{
    uint8_t *at;

    bytes = round_up(bytes);
    if (bytes && bytes <= work->room_left) {
        at = work->room;
        work->room += bytes;
        work->room_left -= bytes;
        return at;
    }
    if (work->extent_count == KVD_WORK_EXTENTS)
        return NULL;
    at = kvd_staging_take(kvd_work_device(work), bytes ? bytes : 64);
    if (at)
        work->extents[work->extent_count++] = at;
    return at;
}

/* ---- answers */

static uint32_t retry_after_us(const struct kvd_service_device *home, kvarn_status status)
{
    switch (status) {
    case KVARN_RETRY:
        if (!kvd_device_ready(home->device))
            return kvd_device_wait_ms(home->device) * 1000;
        return kvd_recheck_active(home->recheck) ? KVD_RECHECK_RETRY_US : KVD_RETRY_US;
    case KVARN_NO_SPACE:
    case KVARN_QUOTA:
        return KVD_NO_SPACE_RETRY_US;
    case KVARN_DRAINING:
        return KVD_DRAINING_RETRY_US;
    default:
        return 0;
    }
}

static kvarn_status keep(struct kvd_work *work, kvarn_status status, const char *format,
                         va_list values)
{
    struct kvd_request *request = &work->request;

    if (request->status != KVARN_OK)
        return status;
    request->status = status;
    request->retry_after_us = retry_after_us(kvd_work_home(work), status);
    vsnprintf(request->text, sizeof request->text, format, values);
    return status;
}

kvarn_status kvd_work_fail(struct kvd_work *work, kvarn_status status, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    keep(work, status, format, values);
    va_end(values);
    return status;
}

kvarn_status kvd_work_no_space(struct kvd_work *work, uint64_t handle)
{
    if (kvd_space_was_reset(&kvd_work_service(work)->spaces, work->request.tenant, handle))
        return kvd_work_fail(work, KVARN_STALE, "the space was reset; open it again");
    return kvd_work_fail(work, KVARN_NOT_FOUND, "no such space; open it on this connection first");
}

struct kvw_result kvd_work_result(const struct kvd_work *work)
{
    const struct kvd_request *request = &work->request;

    return (struct kvw_result){request->status, request->text, request->retry_after_us};
}

bool kvd_work_iov(struct kvd_work *work, void *base, uint64_t bytes)
{
    struct kvd_request *request = &work->request;
    struct iovec *last = request->reply_iov + request->reply_iov_count;

    if (!bytes)
        return true;
    request->reply_payload_bytes += bytes;
    if (request->reply_iov_count && (uint8_t *)last[-1].iov_base + last[-1].iov_len == base) {
        last[-1].iov_len += bytes;
        return true;
    }
    if (request->reply_iov_count == KVD_REPLY_IOVECS_MAX)
        return false;
    *last = (struct iovec){base, bytes};
    request->reply_iov_count++;
    return true;
}

bool kvd_work_long_meta(struct kvd_work *work)
{
    uint8_t *meta = kvd_work_memory(work, 1, KVW_METADATA_MAX_BYTES);

    if (meta)
        work->request.reply_meta = meta;
    return meta != NULL;
}

void kvd_work_send(struct kvd_work *work, size_t meta_bytes)
{
    struct kvd_request *request = &work->request;
    struct kvd_service *service = request->service;
    uint32_t status = (uint32_t)request->status;

    assert(!work->replied && !work->jobs);
    if (!meta_bytes) {
        struct kvw_result result = {KVARN_INTERNAL, "the reply's metadata did not fit", 0};

        request->reply_meta = work->meta;
        meta_bytes = kvw_result_encode(work->meta, sizeof work->meta, &result);
        request->reply_iov_count = 0;
        request->reply_payload_bytes = 0;
        status = KVARN_INTERNAL;
    }
    request->reply_meta_bytes = (uint32_t)meta_bytes;
    work->replied = true;
    service
        ->requests[request->header.op < KVD_OPS ? request->header.op : 0][status % KVD_STATUSES]++;
    kvd_work_leave(work);
    request->reply(request);
}

void kvd_work_refuse_kept(struct kvd_work *work)
{
    struct kvw_result result = kvd_work_result(work);

    work->request.reply_meta = work->meta;
    work->request.reply_iov_count = 0;
    work->request.reply_payload_bytes = 0;
    kvd_work_send(work, kvw_result_encode(work->meta, sizeof work->meta, &result));
}

void kvd_work_refuse(struct kvd_work *work, kvarn_status status, const char *format, ...)
{
    va_list values;

    work->request.status = KVARN_OK; /* what failed before in single rows does not matter now */
    va_start(values, format);
    keep(work, status, format, values);
    va_end(values);
    kvd_work_refuse_kept(work);
}

void kvd_work_refuse_unqueued(struct kvd_work *work)
{
    const struct kvd_service_device *home = kvd_work_home(work);

    kvd_work_refuse(work, work->job_status, "%s",
                    !kvd_device_ready(home->device)
                        ? "the device worker ended; a new one is being started"
                    : kvd_recheck_active(home->recheck)
                        ? "the device worker was started again; what it holds is being verified"
                        : "the device's queue is full");
}

/* ---- jobs */

uint64_t kvd_job_size(uint64_t count, uint64_t entry_bytes, uint64_t tail_bytes)
{
    return sizeof(struct kvd_job) + count * entry_bytes + tail_bytes;
}

struct kvd_job *kvd_work_job(struct kvd_work *work, uint32_t op, uint32_t count,
                             uint64_t entry_bytes, uint64_t tail_bytes)
{
    uint64_t bytes = kvd_job_size(count, entry_bytes, tail_bytes);
    struct kvd_job *job = (struct kvd_job *)(void *)kvd_work_staging(work, bytes);
    const struct kvd_space *space = work->space;

    if (!job)
        return NULL;
    memset(job, 0, bytes);
    job->op = op;
    job->count = count;
    job->shape = space->shape;
    job->layers = space->layers;
    job->heads = space->heads;
    job->layer_count = space->layers;
    job->job_bytes = bytes;
    return job;
}

kvarn_status kvd_status_of(uint32_t raw)
{
    kvarn_status status = (kvarn_status)(raw > KVARN_STATUS_MAX ? KVARN_STATUS_MAX : raw);

    return kvarn_status_known(status) ? status : KVARN_INTERNAL;
}

static void job_done(void *context, struct kvd_job *job, kvarn_status status)
{
    struct kvd_work *work = context;
    struct kvd_service *service = kvd_work_service(work);

    if (status == KVARN_OK) {
        status = kvd_status_of(job->status);
        work->device_ns += job->device_ns;
        kvd_work_home(work)->device_ns += job->device_ns;
    }
    if (status != KVARN_OK && work->job_status == KVARN_OK)
        work->job_status = status;
    if (--work->jobs)
        return;
    work->then(work);
    kvd_service_pump(service);
}

bool kvd_work_submit(struct kvd_work *work, struct kvd_job *job, void (*then)(struct kvd_work *))
{
    struct kvd_service_device *home = kvd_work_home(work);
    kvarn_status status = KVARN_RETRY;

    if (!work->jobs)
        work->job_status = KVARN_OK;
    work->then = then;
    work->jobs++;
    if (!kvd_recheck_active(home->recheck))
        status = kvd_device_submit(home->device, job, job_done, work);
    if (status == KVARN_OK) {
        home->jobs_submitted++;
        return true;
    }
    work->jobs--;
    work->job_status = status;
    return work->jobs > 0;
}

struct kvd_place kvd_work_place(const struct kvd_work *work, const void *at)
{
    return kvd_device_place(kvd_work_device(work), at);
}

/* ---- waiting */

kvarn_status kvd_work_wait(struct kvd_work *work, void (*resume)(struct kvd_work *), bool filling)
{
    struct kvd_service *service = kvd_work_service(work);

    assert(!work->waiting);
    if (service->parked >= service->options.parked_max)
        return KVARN_RETRY;
    service->parked++;
    work->resume = resume;
    work->waiting = true;
    work->filling = filling;
    work->waiting_prev = NULL;
    work->waiting_next = service->waiting;
    if (service->waiting)
        service->waiting->waiting_prev = work;
    service->waiting = work;
    return KVARN_OK;
}

void kvd_work_ready(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);

    if (!work->waiting)
        return;
    if (work->waiting_prev)
        work->waiting_prev->waiting_next = work->waiting_next;
    else
        service->waiting = work->waiting_next;
    if (work->waiting_next)
        work->waiting_next->waiting_prev = work->waiting_prev;
    work->waiting = work->filling = false;
    service->parked--;
    work->ready = true;
    work->ready_next = NULL;
    if (service->ready_last)
        service->ready_last->ready_next = work;
    else
        service->ready_first = work;
    service->ready_last = work;
}

/* At the head of all its queues? */
static bool may_go(const struct kvd_work *work)
{
    for (uint32_t i = 0; i < work->turn_count; i++)
        if (work->turns[i].wait.sequence && !kvd_seq_wait_first(&work->turns[i].wait))
            return false;
    return true;
}

void kvd_work_leave(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);

    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_work *next = kvd_sequence_leave(&service->sequences, &work->turns[i].wait);

        if (next && may_go(next))
            kvd_work_ready(next);
    }
}

void kvd_service_pump(struct kvd_service *service)
{
    if (service->pumping)
        return;
    service->pumping = true;
    for (;;) {
        struct kvd_work *work;

        if (service->settled) {
            service->settled = false;
            for (struct kvd_work *at = service->waiting, *next; at; at = next) {
                next = at->waiting_next;
                if (at->filling)
                    kvd_work_ready(at);
            }
        }
        work = service->ready_first;
        if (!work)
            break;
        service->ready_first = work->ready_next;
        if (!service->ready_first)
            service->ready_last = NULL;
        work->ready = false;
        work->resume(work);
    }
    service->pumping = false;
}
