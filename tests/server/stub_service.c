/* See stub_service.h. */
#include "stub_service.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/arena.h"
#include "proto/codec.h"
#include "server/core/limits.h"

enum { BULK_BYTES = 1 << 20 };

void stub_open(struct kvd_service *service)
{
    memset(service, 0, sizeof *service);
    service->requests_max = STUB_REQUESTS;
    service->staging_bytes = service->staging_low = 64u << 20;
    service->bulk = malloc(BULK_BYTES);
    assert(service->bulk != NULL);
    for (size_t i = 0; i < BULK_BYTES; i++)
        service->bulk[i] = (uint8_t)(i * 31 + (i >> 8));
}

void stub_close(struct kvd_service *service)
{
    assert(service->used == 0);
    free(service->bulk);
}

struct kvd_request *kvd_request_new(struct kvd_service *service)
{
    if (service->used >= service->requests_max)
        return NULL;
    for (size_t i = 0; i < STUB_REQUESTS; i++) {
        struct stub_request *it = &service->requests[i];

        if (it->used)
            continue;
        memset(it, 0, sizeof *it);
        it->used = true;
        it->request.service = service;
        it->request.reply_meta = it->meta;
        it->request.reply_iov = it->iov;
        service->used++;
        if (service->used > service->used_max)
            service->used_max = service->used;
        return &it->request;
    }
    return NULL;
}

enum kvd_begin kvd_request_begin(struct kvd_request *request, const uint8_t *metadata)
{
    struct stub_request *it = (struct stub_request *)request;
    struct kvd_service *service = request->service;
    uint64_t bytes = request->header.payload_bytes;
    uint8_t arena_memory[4096];
    struct kvw_arena arena;
    struct kvw_ping ping = {0};
    const char *why;

    assert(!it->begun);
    if (request->header.op == KVW_PING) {
        kvw_arena_init(&arena, arena_memory, sizeof arena_memory);
        request->status =
            kvw_ping_decode(&ping, metadata, request->header.metadata_bytes, &arena, &why);
        request->plan = (void *)(uintptr_t)ping.echo;
    }
    if (request->header.op == KVW_COMPRESS && bytes > 0) {
        if (bytes > service->staging_bytes) {
            service->waits++;
            return KVD_BEGIN_WAIT;
        }
        service->staging_bytes -= bytes;
        if (service->staging_bytes < service->staging_low)
            service->staging_low = service->staging_bytes;
        it->staging = malloc(bytes);
        assert(it->staging != NULL);
        request->payload = it->staging;
    }
    it->begun = true;
    return KVD_BEGIN_OK;
}

static void answer(struct stub_request *it)
{
    struct kvd_request *request = &it->request;
    struct kvd_service *service = request->service;
    struct kvw_ping_reply ping = {.echo = (uint64_t)(uintptr_t)request->plan};
    struct kvw_result result = {.status = request->status, .text = ""};
    uint64_t left = request->header.op == KVW_STATS ? service->reply_bytes : 0;

    assert(it->running && !it->replied);
    it->replied = true;
    if (request->header.op == KVW_HELLO)
        request->reply_meta_bytes = (uint32_t)kvw_hello_reply_encode(
            it->meta, sizeof it->meta,
            &(struct kvw_hello_reply){.result = {.text = ""},
                                      .version = KVW_VERSION_MAX,
                                      .server = "stub",
                                      .backend = "stub",
                                      .tenant = "default",
                                      .payload_max_bytes = 8u << 20,
                                      .in_flight_max = KVD_IN_FLIGHT_MAX});
    else if (request->header.op == KVW_PING)
        request->reply_meta_bytes =
            (uint32_t)kvw_ping_reply_encode(it->meta, sizeof it->meta, &ping);
    else
        request->reply_meta_bytes = (uint32_t)kvw_result_encode(it->meta, sizeof it->meta, &result);
    request->reply_payload_bytes = left;
    for (uint32_t i = 0; left > 0; i++) {
        uint64_t part = left < BULK_BYTES ? left : BULK_BYTES;

        assert(i < 4);
        it->iov[i] = (struct iovec){service->bulk, part};
        request->reply_iov_count = i + 1;
        left -= part;
    }
    request->reply(request);
}

void kvd_request_run(struct kvd_request *request)
{
    struct stub_request *it = (struct stub_request *)request;
    struct kvd_service *service = request->service;

    assert(it->begun && !it->running);
    it->running = true;
    service->runs++;
    switch (request->header.op) {
    case KVW_COMPRESS:
        for (uint64_t i = 0; i < request->header.payload_bytes; i++)
            service->payload_sum += it->staging[i];
        return;
    case KVW_HELLO:
    case KVW_PING:
    case KVW_STATS:
        break;
    default:
        request->status = KVARN_UNSUPPORTED;
    }
    answer(it);
}

uint32_t stub_release(struct kvd_service *service)
{
    uint32_t count = 0;

    for (size_t i = 0; i < STUB_REQUESTS; i++) {
        struct stub_request *it = &service->requests[i];

        if (it->used && it->running && !it->replied) {
            answer(it);
            count++;
        }
    }
    return count;
}

void kvd_request_done(struct kvd_request *request)
{
    struct stub_request *it = (struct stub_request *)request;
    struct kvd_service *service = request->service;
    void (*room)(void *context) = service->room;

    assert(it->used && (!it->running || it->replied));
    if (it->staging != NULL) {
        service->staging_bytes += request->header.payload_bytes;
        free(it->staging);
    }
    it->used = false;
    service->used--;
    service->dones++;
    service->unwanted += request->unwanted;
    service->room = NULL;
    if (room != NULL)
        room(service->room_context);
}

void kvd_service_conn_gone(struct kvd_service *service, uint64_t conn_id)
{
    assert(conn_id != 0);
    service->gones++;
    for (size_t i = 0; i < STUB_REQUESTS; i++) {
        const struct stub_request *it = &service->requests[i];

        if (it->used && it->request.conn_id == conn_id)
            assert(it->request.conn == NULL);
    }
}

void kvd_service_on_room(struct kvd_service *service, void (*room)(void *context), void *context)
{
    service->room = room;
    service->room_context = context;
}
