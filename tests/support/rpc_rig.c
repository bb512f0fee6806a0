/* See rpc_rig.h. */
#include "support/rpc_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/rpc/tier.h"
#include "server/store/pool.h"

static struct rig *current; /* reply carries no context: one rig at a time */

static uint64_t clock_of(void *context)
{
    return ((struct rig *)context)->now_ns;
}

static void drained(void *context, uint32_t grace_ms)
{
    ((struct rig *)context)->drained_ms = grace_ms + 1;
}

static void room(void *context)
{
    ((struct rig *)context)->room_calls++;
}

void rig_open(struct rig *rig, const struct rig_options *options)
{
    struct rig_options o = options ? *options : (struct rig_options){0};
    static const uint32_t tenants[4] = {0, 1, 2, 3};
    struct kvd_service_options s = {0};
    const char *why;

    memset(rig, 0, sizeof *rig);
    if (!o.pool_bytes)
        o.pool_bytes = 16 << 20;
    if (!o.staging_bytes)
        o.staging_bytes = 16 << 20;
    rig->now_ns = 1000000000;
    rig->conn_id = 1;
    rig->same_uid = true;
    rig->deadline_ms = 30000;
    rig->device = fake_device_new(o.pool_bytes, o.staging_bytes);
    if (o.gpu)
        fake_device_be_gpu(rig->device, "cuda:0");
    if (o.second_bytes)
        rig->second = fake_device_new(o.second_bytes, o.staging_bytes);
    s.devices = (struct kvd_device *[]){rig->device, rig->second};
    s.device_count = rig->second ? 2 : 1;
    s.now_ns = clock_of;
    s.drain = drained;
    s.context = rig;
    s.requests_max = o.requests_max;
    s.sequences_max = o.sequences_max;
    s.leases_max = o.leases_max;
    s.parked_max = o.parked_max;
    s.epochs_max = o.epochs_max;
    s.payload_max_bytes = o.payload_max_bytes;
    s.eviction = o.eviction;
    s.quotas = o.quotas;
    s.quota_tenants = tenants;
    s.quota_count = o.quota_count;
    if (o.disk_path) {
        rig->loop = kvd_loop_new();
        assert_int_equal(kvd_files_open(&rig->files, rig->loop, o.disk_io), KVARN_OK);
        s.disk_path = o.disk_path;
        s.disk_key = o.disk_key;
        s.disk_bytes = o.disk_bytes ? o.disk_bytes : 64 << 20;
        s.disk_bandwidth = o.disk_bandwidth ? o.disk_bandwidth : 1 << 30;
        s.disk_files = rig->files;
    }
    assert_int_equal(kvd_service_open(&rig->service, &s, &why), KVARN_OK);
    kvd_service_on_room(rig->service, room, rig);
    current = rig;
}

void rig_assert_quiet(struct rig *rig)
{
    struct kvd_service *service = rig->service;
    uint64_t bytes = 0, references = 0, used = 0;

    assert_int_equal(kvd_service_in_flight(service), 0);
    assert_int_equal(service->parked, 0);
    assert_null(service->waiting);
    assert_int_equal(fake_device_staging_used(rig->device), 0);
    if (rig->second)
        assert_int_equal(fake_device_staging_used(rig->second), 0);
    for (uint32_t i = 0; kvd_block_at(&service->blocks, i); i++) {
        const struct kvd_block *block = kvd_block_at(&service->blocks, i);

        if (block->state == KVD_BLOCK_FREE)
            continue;
        references += block->references;
        bytes += kvd_space_slot_bytes(block->space, block->kind);
        assert_true(block->references || block->indexed);
        if (block->indexed)
            assert_int_equal(block->state, KVD_BLOCK_READY);
    }
    for (uint32_t i = 0; i < service->device_count; i++)
        used += kvd_pool_used_bytes(service->devices[i].pool);
    assert_true(used >= bytes);
    if (!bytes)
        assert_int_equal(used, 0);
    if (!service->sequences.count && !service->leases.count)
        assert_int_equal(references, 0);
    for (uint32_t i = 0; i < KVD_SPACES_MAX; i++)
        assert_int_equal(service->spaces.slots[i].pins, 0);
}

void rig_close(struct rig *rig)
{
    rig_assert_quiet(rig);
    kvd_files_close(&rig->files);
    kvd_service_close(&rig->service);
    if (rig->loop)
        kvd_loop_free(&rig->loop);
    fake_device_free(rig->device);
    if (rig->second)
        fake_device_free(rig->second);
    while (rig->calls)
        rig_free(rig->calls);
    current = NULL;
}

static void forget(struct rig_call *call)
{
    kvd_request_done(call->request);
    call->request = NULL;
}

static void on_reply(struct kvd_request *request)
{
    struct rig_call *call = current->calls;
    struct kvw_result result;
    const char *why;
    uint8_t *at;

    while (call && call->request != request)
        call = call->next;
    assert_non_null(call);
    assert_false(call->replied);
    call->replied = true;
    call->number = ++current->replies;
    call->meta_bytes = request->reply_meta_bytes;
    memcpy(call->meta, request->reply_meta, call->meta_bytes);
    kvw_arena_init(&current->arena, current->arena_memory, sizeof current->arena_memory);
    assert_int_equal(
        kvw_result_decode(&result, call->meta, call->meta_bytes, &current->arena, &why), KVARN_OK);
    call->status = result.status;
    call->retry_after_us = result.retry_after_us;
    snprintf(call->text, sizeof call->text, "%s", result.text);
    call->payload = malloc(request->reply_payload_bytes + 1);
    at = call->payload;
    for (uint32_t i = 0; i < request->reply_iov_count; i++) {
        memcpy(at, request->reply_iov[i].iov_base, request->reply_iov[i].iov_len);
        at += request->reply_iov[i].iov_len;
    }
    call->payload_bytes = (uint64_t)(at - call->payload);
    assert_int_equal(call->payload_bytes, request->reply_payload_bytes);
    request->unwanted = current->late;
    if (!current->hold)
        forget(call);
}

/* Puts the payload where the request says, piece by piece, as net does. */
static void place(const struct kvd_request *request, const uint8_t *payload, uint64_t bytes)
{
    struct iovec part;

    for (uint64_t at = 0; at < bytes; at += part.iov_len) {
        if (kvd_request_payload_at(request, at, bytes - at, &part, 1) == 0) {
            assert_int_not_equal(request->status, KVARN_OK);
            return;
        }
        assert_true(part.iov_len > 0);
        memcpy(part.iov_base, payload + at, part.iov_len);
    }
}

struct rig_call *rig_start(struct rig *rig, uint8_t op, const uint8_t *metadata, size_t meta_bytes,
                           const void *payload, uint64_t payload_bytes)
{
    struct rig_call *call = calloc(1, sizeof *call);
    struct kvd_request *request = kvd_request_new(rig->service);
    uint8_t *copy = malloc(meta_bytes + 1); /* exact, so that an overread shows */

    assert_non_null(call);
    call->rig = rig;
    call->next = rig->calls;
    rig->calls = call;
    if (meta_bytes)
        memcpy(copy, metadata, meta_bytes);
    if (!request) {
        call->waited = true;
        free(copy);
        return call;
    }
    call->request = request;
    request->conn = (struct kvd_conn *)(void *)call;
    request->conn_id = rig->conn_id;
    request->tenant = rig->tenant;
    request->same_uid = rig->same_uid;
    request->arrived_ns = rig->now_ns;
    request->deadline_ns = rig->now_ns + rig->deadline_ms * 1000000ull;
    request->header = (struct kvw_header){.version = 1,
                                          .op = op,
                                          .request_id = 7,
                                          .metadata_bytes = (uint32_t)meta_bytes,
                                          .payload_bytes = payload_bytes};
    request->reply = on_reply;
    if (kvd_request_begin(request, copy) == KVD_BEGIN_WAIT) {
        call->waited = true;
        forget(call);
    } else {
        place(request, payload, payload_bytes);
        kvd_request_run(request);
    }
    free(copy);
    return call;
}

void rig_run(struct rig *rig)
{
    while (fake_device_run(rig->device, 1000) ||
           (rig->second && fake_device_run(rig->second, 1000)))
        ;
}

void rig_disk_settle(struct rig *rig)
{
    enum { QUIET = 3, TICK_NS = 100000000 };

    for (int quiet = 0; quiet < QUIET;) {
        rig->now_ns += TICK_NS;
        kvd_service_tick(rig->service);
        rig_run(rig);
        if (kvd_tier_figures(rig->service).moves == 0) {
            quiet++;
            continue;
        }
        quiet = 0;
        kvd_loop_turn(rig->loop); /* no job is left, so a file operation is under way */
        rig_run(rig);
    }
}

struct rig_call *rig_call(struct rig *rig, uint8_t op, const uint8_t *metadata, size_t meta_bytes,
                          const void *payload, uint64_t payload_bytes)
{
    struct rig_call *call = rig_start(rig, op, metadata, meta_bytes, payload, payload_bytes);

    rig_run(rig);
    assert_true(call->replied);
    return call;
}

void rig_done(struct rig_call *call)
{
    forget(call);
}

void rig_free(struct rig_call *call)
{
    struct rig_call **at = &call->rig->calls;

    assert_null(call->request);
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    free(call->payload);
    free(call);
}

void rig_hang_up(struct rig *rig, uint64_t conn_id)
{
    for (struct rig_call *call = rig->calls; call; call = call->next)
        if (call->request && call->request->conn_id == conn_id)
            call->request->conn = NULL;
    kvd_service_conn_gone(rig->service, conn_id);
}

/* ---- spaces */

struct kvw_open_space rig_space_options(void)
{
    return (struct kvw_open_space){.model = "test/model",
                                   .revision = "r1",
                                   .adapter = "",
                                   .rope = "theta=10000",
                                   .preset = "kvarn_k2v2_g64",
                                   .key_algorithm = "sha256_cbor",
                                   .layers = 2,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .dtype = KVARN_F16,
                                   .has_sink_tokens = true,
                                   .sink_tokens = 64};
}

struct rig_call *rig_open_space_call(struct rig *rig, const struct kvw_open_space *options)
{
    uint8_t meta[8192];
    size_t bytes = kvw_open_space_encode(meta, sizeof meta, options);

    assert_true(bytes > 0);
    return rig_call(rig, KVW_OPEN_SPACE, meta, bytes, NULL, 0);
}

struct rig_space rig_open_space(struct rig *rig, const struct kvw_open_space *options)
{
    struct kvw_open_space defaults = rig_space_options();
    const struct kvw_open_space *in = options ? options : &defaults;
    struct rig_call *call = rig_open_space_call(rig, in);
    struct kvw_open_space_reply reply;
    struct rig_space space;
    const char *why;

    if (call->status != KVARN_OK)
        fail_msg("open_space: %s", call->text);
    assert_int_equal(
        kvw_open_space_reply_decode(&reply, call->meta, call->meta_bytes, &rig->arena, &why),
        KVARN_OK);
    space = (struct rig_space){reply.space,
                               in->layer_count ? in->layer_count : in->layers,
                               in->head_count ? in->head_count : in->kv_heads,
                               in->head_dim,
                               reply.group,
                               reply.sink_tokens,
                               reply.tile_block_bytes,
                               reply.exact_block_bytes,
                               in->head_dim * 2};
    rig_free(call);
    return space;
}

/* ---- data */

struct kvw_origin rig_origin(struct rig *rig, uint64_t handle)
{
    const struct kvd_space *space = kvd_space_find(&rig->service->spaces, rig->tenant, handle);
    struct kvw_origin origin = {.present = true};

    assert_non_null(space);
    memcpy(origin.fingerprint, space->fingerprint, sizeof origin.fingerprint);
    origin.layer_begin = space->layer_begin;
    origin.layer_count = space->layers;
    origin.head_begin = space->head_begin;
    origin.head_count = space->heads;
    return origin;
}

kvarn_key rig_key(uint32_t number)
{
    struct rng rng = rng_make(number + 1000);
    kvarn_key key;

    for (size_t i = 0; i < sizeof key.bytes; i++)
        key.bytes[i] = (uint8_t)rng_below(&rng, 256);
    return key;
}

uint64_t rig_rows_bytes(const struct rig_space *space, uint32_t layers, uint32_t tokens)
{
    return 2ull * layers * tokens * space->heads * space->row_bytes;
}

uint16_t *rig_rows(const struct rig_space *space, uint32_t layers, uint32_t tokens, uint64_t seed)
{
    size_t count = rig_rows_bytes(space, layers, tokens) / 2;
    uint16_t *rows = malloc(count * 2 + 2);
    struct rng rng = rng_make(seed);

    for (size_t i = 0; i < count; i++) /* sign, exponent 2^-4 .. 2^1, mantissa */
        rows[i] = (uint16_t)(rng_below(&rng, 2) << 15 | (11 + rng_below(&rng, 6)) << 10 |
                             rng_below(&rng, 1024));
    return rows;
}

/* ---- calls */

static struct rig_call *with_table(struct rig *rig, uint8_t op, const uint8_t *meta,
                                   size_t meta_bytes, const void *table, uint64_t table_bytes,
                                   const void *more, uint64_t more_bytes)
{
    uint8_t *payload = malloc(table_bytes + more_bytes + 1);
    struct rig_call *call;

    if (table_bytes)
        memcpy(payload, table, table_bytes);
    if (more_bytes)
        memcpy(payload + table_bytes, more, more_bytes);
    call = rig_start(rig, op, meta, meta_bytes, payload, table_bytes + more_bytes);
    free(payload);
    return call;
}

struct rig_call *rig_blocks_start(struct rig *rig, uint8_t op, const struct kvw_blocks *args,
                                  const kvarn_key *keys, uint32_t count, const void *more,
                                  uint64_t more_bytes)
{
    struct kvw_blocks in = *args;
    uint8_t meta[1024];

    in.block_count = count;
    return with_table(rig, op, meta, kvw_blocks_encode(meta, sizeof meta, &in), keys,
                      (uint64_t)count * KVARN_KEY_BYTES, more, more_bytes);
}

static struct rig_call *settle(struct rig *rig, struct rig_call *call)
{
    rig_run(rig);
    assert_true(call->replied);
    return call;
}

struct rig_call *rig_blocks(struct rig *rig, uint8_t op, const struct kvw_blocks *args,
                            const kvarn_key *keys, uint32_t count, const void *more,
                            uint64_t more_bytes)
{
    return settle(rig, rig_blocks_start(rig, op, args, keys, count, more, more_bytes));
}

struct rig_call *rig_compress_start(struct rig *rig, const struct rig_space *space,
                                    const kvarn_key *keys, uint32_t count, uint32_t kind,
                                    const uint16_t *rows)
{
    struct kvw_blocks args = {.space = space->handle, .block_count = count};
    uint8_t *table = malloc((size_t)count * KVW_PUT_ROW_BYTES + 1), meta[1024];
    struct rig_call *call;

    for (uint32_t i = 0; i < count; i++) {
        struct kvw_put_row row = {.key = keys[i], .kind = kind, .tokens = space->group};

        kvw_put_row_store(table + (size_t)i * KVW_PUT_ROW_BYTES, &row);
    }
    call = with_table(rig, KVW_COMPRESS, meta, kvw_blocks_encode(meta, sizeof meta, &args), table,
                      (uint64_t)count * KVW_PUT_ROW_BYTES, rows,
                      rig_rows_bytes(space, space->layers, count * space->group));
    free(table);
    return call;
}

struct rig_call *rig_compress(struct rig *rig, const struct rig_space *space, const kvarn_key *keys,
                              uint32_t count, uint32_t kind, const uint16_t *rows)
{
    return settle(rig, rig_compress_start(rig, space, keys, count, kind, rows));
}

struct kvw_block_status rig_block(const struct rig_call *call, uint32_t i)
{
    struct kvw_block_status row;

    assert_true(call->payload_bytes >= (i + 1ull) * KVW_BLOCK_STATUS_BYTES);
    kvw_block_status_load(&row, call->payload + (size_t)i * KVW_BLOCK_STATUS_BYTES);
    return row;
}

struct kvw_blocks_reply rig_blocks_reply(struct rig_call *call)
{
    struct kvw_blocks_reply reply;
    const char *why;

    kvw_arena_reset(&call->rig->arena);
    assert_int_equal(
        kvw_blocks_reply_decode(&reply, call->meta, call->meta_bytes, &call->rig->arena, &why),
        KVARN_OK);
    return reply;
}

struct rig_call *rig_sequences_start(struct rig *rig, uint8_t op, const struct kvw_sequences *args,
                                     const struct kvw_seq_row *rows, uint32_t count,
                                     const void *more, uint64_t more_bytes)
{
    struct kvw_sequences in = *args;
    uint8_t *table = malloc((size_t)count * KVW_SEQ_ROW_BYTES + 1), meta[1024];
    struct rig_call *call;

    in.sequence_count = count;
    for (uint32_t i = 0; i < count; i++)
        kvw_seq_row_store(table + (size_t)i * KVW_SEQ_ROW_BYTES, &rows[i]);
    call = with_table(rig, op, meta, kvw_sequences_encode(meta, sizeof meta, &in), table,
                      (uint64_t)count * KVW_SEQ_ROW_BYTES, more, more_bytes);
    free(table);
    return call;
}

struct rig_call *rig_sequences(struct rig *rig, uint8_t op, const struct kvw_sequences *args,
                               const struct kvw_seq_row *rows, uint32_t count, const void *more,
                               uint64_t more_bytes)
{
    return settle(rig, rig_sequences_start(rig, op, args, rows, count, more, more_bytes));
}

struct kvw_seq_status rig_seq(const struct rig_call *call, uint32_t i)
{
    struct kvw_seq_status row;

    assert_true(call->payload_bytes >= (i + 1ull) * KVW_SEQ_STATUS_BYTES);
    kvw_seq_status_load(&row, call->payload + (size_t)i * KVW_SEQ_STATUS_BYTES);
    return row;
}

uint64_t rig_seq_open(struct rig *rig, const struct rig_space *space, const kvarn_key *keys,
                      uint32_t count, uint32_t *found)
{
    struct kvw_sequences args = {.space = space->handle, .key_count = count};
    struct rig_call *call =
        rig_sequences(rig, KVW_SEQ_OPEN, &args, NULL, 0, keys, (uint64_t)count * KVARN_KEY_BYTES);
    struct kvw_seq_status row;

    if (call->status != KVARN_OK)
        fail_msg("seq_open: %s", call->text);
    row = rig_seq(call, 0);
    if (found)
        *found = row.blocks;
    assert_int_equal(row.committed, row.blocks * space->group);
    rig_free(call);
    return row.sequence;
}

kvarn_status rig_seq_append(struct rig *rig, const struct rig_space *space, uint64_t sequence,
                            uint64_t position, uint32_t tokens, const uint16_t *rows)
{
    struct kvw_sequences args = {.space = space->handle};
    struct kvw_seq_row row = {.sequence = sequence, .position = position, .tokens = tokens};
    struct rig_call *call = rig_sequences(rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                                          rig_rows_bytes(space, space->layers, tokens));
    kvarn_status status = call->status;

    if (call->payload_bytes)
        assert_int_equal(rig_seq(call, 0).status, status);
    rig_free(call);
    return status;
}

struct kvw_seq_status rig_seq_commit(struct rig *rig, const struct rig_space *space,
                                     uint64_t sequence, uint32_t tokens, const kvarn_key *keys,
                                     uint32_t key_count)
{
    struct kvw_sequences args = {.space = space->handle, .key_count = key_count};
    struct kvw_seq_row row = {.sequence = sequence, .tokens = tokens, .keys = key_count};
    struct rig_call *call = rig_sequences(rig, KVW_SEQ_COMMIT, &args, &row, 1, keys,
                                          (uint64_t)key_count * KVARN_KEY_BYTES);
    struct kvw_seq_status out = {.status = (uint32_t)call->status};

    if (call->payload_bytes)
        out = rig_seq(call, 0);
    assert_int_equal(out.status, call->status);
    rig_free(call);
    return out;
}

kvarn_status rig_seq_release(struct rig *rig, const struct rig_space *space, uint64_t sequence)
{
    struct kvw_sequences args = {.space = space->handle};
    struct kvw_seq_row row = {.sequence = sequence};
    struct rig_call *call = rig_sequences(rig, KVW_SEQ_RELEASE, &args, &row, 1, NULL, 0);
    kvarn_status status = call->status;

    rig_free(call);
    return status;
}

double rig_metric(struct rig *rig, const char *name)
{
    struct kvw_metric metrics[KVW_METRICS_MAX];
    size_t count = kvd_service_metrics(rig->service, metrics, KVW_METRICS_MAX);

    for (size_t i = 0; i < count; i++)
        if (!strcmp(metrics[i].name, name))
            return metrics[i].value;
    return 0;
}
