/* See fake_device.h. Every byte of an extent is poisoned when it is handed out, so that a reply
 * that shows bytes nobody wrote does not pass by luck. */
#include "support/fake_device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "server/device/staging.h"

enum { QUEUE_MAX = 4096 };

struct queued {
    struct kvd_job *job;
    kvd_job_done done;
    void *context;
};

struct kvd_device {
    uint8_t *pool, *staging;
    uint64_t pool_bytes, staging_bytes, zeroed;
    struct kvd_extents *extents;
    struct queued queue[QUEUE_MAX];
    uint32_t first, last;
    uint32_t ran[16];
    int64_t lose_after; /* < 0: never */
    uint32_t full_skip, full_count, restarts;
};

struct kvd_device *fake_device_new(uint64_t pool_bytes, uint64_t staging_bytes)
{
    struct kvd_device *device = calloc(1, sizeof *device);

    assert(device);
    device->pool = aligned_alloc(4096, pool_bytes);
    device->staging = aligned_alloc(4096, staging_bytes);
    assert(device->pool && device->staging);
    memset(device->pool, 0xA5, pool_bytes);
    device->pool_bytes = pool_bytes;
    device->staging_bytes = staging_bytes;
    device->lose_after = -1;
    assert(kvd_extents_open(&device->extents, staging_bytes, 8192) == KVARN_OK);
    return device;
}

void fake_device_free(struct kvd_device *device)
{
    kvd_extents_close(&device->extents);
    free(device->pool);
    free(device->staging);
    free(device);
}

/* ---- device.h */

const char *kvd_device_backend(const struct kvd_device *device)
{
    (void)device;
    return "fake/ref";
}

bool kvd_device_ready(const struct kvd_device *device)
{
    (void)device;
    return true;
}

uint32_t kvd_device_restarts(const struct kvd_device *device)
{
    return device->restarts;
}

uint8_t *kvd_staging_take(struct kvd_device *device, uint64_t bytes)
{
    uint64_t offset;

    if (!kvd_extents_take(device->extents, bytes, &offset))
        return NULL;
    memset(device->staging + offset, 0xA5, bytes);
    return device->staging + offset;
}

void kvd_staging_give(struct kvd_device *device, uint8_t *extent)
{
    kvd_extents_give(device->extents, (uint64_t)(extent - device->staging));
}

uint64_t kvd_staging_free_bytes(const struct kvd_device *device)
{
    return kvd_extents_largest_bytes(device->extents);
}

uint64_t kvd_staging_capacity_bytes(const struct kvd_device *device)
{
    return device->staging_bytes;
}

struct kvd_place kvd_device_place(const struct kvd_device *device, const void *at)
{
    const uint8_t *byte = at;

    if (byte >= device->staging && byte < device->staging + device->staging_bytes)
        return (struct kvd_place){KVD_REGION_STAGING, 0, (uint64_t)(byte - device->staging)};
    assert(byte >= device->pool && byte < device->pool + device->pool_bytes);
    return (struct kvd_place){KVD_REGION_POOL, 0, (uint64_t)(byte - device->pool)};
}

uint8_t *kvd_device_pool(const struct kvd_device *device)
{
    return device->pool;
}

void kvd_device_pool_zero(struct kvd_device *device, uint64_t offset, uint64_t bytes)
{
    assert(offset + bytes <= device->pool_bytes);
    memset(device->pool + offset, 0, bytes);
    device->zeroed += bytes;
}

kvarn_status kvd_device_submit(struct kvd_device *device, struct kvd_job *job, kvd_job_done done,
                               void *context)
{
    if (device->full_skip) {
        device->full_skip--;
    } else if (device->full_count) {
        device->full_count--;
        return KVARN_RETRY;
    }
    assert(kvd_device_place(device, job).region == KVD_REGION_STAGING);
    assert(device->last - device->first < QUEUE_MAX);
    device->queue[device->last++ % QUEUE_MAX] = (struct queued){job, done, context};
    return KVARN_OK;
}

/* ---- the executor */

static uint8_t *at(struct kvd_device *device, struct kvd_place place, uint64_t bytes)
{
    uint64_t size = place.region == KVD_REGION_POOL ? device->pool_bytes : device->staging_bytes;

    assert(place.offset <= size && bytes <= size - place.offset);
    return (place.region == KVD_REGION_POOL ? device->pool : device->staging) + place.offset;
}

static size_t row_bytes(const struct kvd_job *job)
{
    return job->shape.dim * kvarn_dtype_bytes((kvarn_dtype)job->shape.dtype);
}

static size_t record_bytes(const struct kvd_job *job)
{
    return kvk_layout_of(job->shape.dim, job->shape.group, job->shape.bits_k, job->shape.bits_v)
        .bytes;
}

/* Bytes of one (layer, head) in a slot. */
static uint64_t unit_bytes(const struct kvd_job *job, uint32_t kind)
{
    return kind == KVARN_BLOCK_TILE ? record_bytes(job)
                                    : 2 * (uint64_t)job->shape.group * row_bytes(job);
}

static void fault_at(struct kvd_fault *out, const struct kvk_fault *fault, uint32_t layer,
                     uint32_t head)
{
    *out = (struct kvd_fault){(uint32_t)fault->tensor, layer, head, fault->token, fault->channel};
}

static kvarn_status copy_rows(struct kvd_device *device, const struct kvd_job *job,
                              struct kvd_place k, struct kvd_place v, uint64_t stride,
                              uint8_t *slot, uint32_t first, uint32_t tokens,
                              struct kvk_fault *fault)
{
    size_t row = row_bytes(job);
    uint64_t span = (tokens - 1) * stride + row;
    uint8_t *dst = slot + first * row;
    kvarn_status status =
        kvk_table_ref.copy_rows(dst, row, at(device, k, span), stride, tokens, job->shape.dim,
                                (kvarn_dtype)job->shape.dtype, 'k', fault);

    if (status != KVARN_OK)
        return status;
    return kvk_table_ref.copy_rows(dst + job->shape.group * row, row, at(device, v, span), stride,
                                   tokens, job->shape.dim, (kvarn_dtype)job->shape.dtype, 'v',
                                   fault);
}

static struct kvd_place shift(struct kvd_place place, const struct kvd_strides *strides,
                              uint32_t layer, uint32_t head)
{
    place.offset += layer * strides->layer + head * strides->head;
    return place;
}

static void *scratch_new(size_t bytes)
{
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);

    assert(scratch);
    return scratch;
}

static void run_put(struct kvd_device *device, const struct kvd_job *job, struct kvd_put *put)
{
    uint64_t unit = unit_bytes(job, put->kind);
    uint8_t *slot = at(device, put->slot, unit * job->layers * job->heads);
    uint64_t span = (job->shape.group - 1u) * put->strides.token + row_bytes(job);
    void *scratch = scratch_new(kvk_scratch_bytes(&job->shape));

    put->status = KVARN_OK;
    for (uint32_t i = 0; i < job->layers * job->heads && put->status == KVARN_OK; i++) {
        uint32_t layer = i / job->heads, head = i % job->heads;
        struct kvd_place k = shift(put->k, &put->strides, layer, head);
        struct kvd_place v = shift(put->v, &put->strides, layer, head);
        struct kvk_fault fault = {0};

        if (put->kind == KVARN_BLOCK_TILE) {
            struct kvk_compress op = {.shape = job->shape,
                                      .k = at(device, k, span),
                                      .v = at(device, v, span),
                                      .k_token_stride_bytes = put->strides.token,
                                      .v_token_stride_bytes = put->strides.token,
                                      .record = slot + i * unit,
                                      .scratch = scratch};

            put->status = kvk_table_ref.compress(&op);
            fault = op.fault;
        } else {
            put->status = copy_rows(device, job, k, v, put->strides.token, slot + i * unit, 0,
                                    job->shape.group, &fault);
        }
        if (put->status != KVARN_OK)
            fault_at(&put->fault, &fault, layer, head);
    }
    put->digest = kvk_digest(0, slot, unit * job->layers * job->heads);
    free(scratch);
}

static void run_get(struct kvd_device *device, const struct kvd_job *job, struct kvd_get *get)
{
    uint64_t unit = unit_bytes(job, get->kind), row = row_bytes(job);
    uint64_t span = (job->shape.group - 1u) * get->strides.token + row;
    const uint8_t *slot = at(device, get->slot, unit * job->layers * job->heads);
    void *scratch = scratch_new(kvk_scratch_bytes(&job->shape));

    for (uint32_t i = 0; i < job->layer_count * job->heads; i++) {
        uint32_t layer = i / job->heads, head = i % job->heads;
        const uint8_t *from = slot + ((layer + job->layer_begin) * job->heads + head) * unit;
        uint8_t *k = at(device, shift(get->k, &get->strides, layer, head), span);
        uint8_t *v = at(device, shift(get->v, &get->strides, layer, head), span);

        if (get->kind == KVARN_BLOCK_TILE) {
            struct kvk_decompress op = {.shape = job->shape,
                                        .record = from,
                                        .k = k,
                                        .v = v,
                                        .k_token_stride_bytes = get->strides.token,
                                        .v_token_stride_bytes = get->strides.token,
                                        .scratch = scratch};

            get->status = kvk_table_ref.decompress(&op);
            continue;
        }
        for (uint32_t t = 0; t < job->shape.group; t++) {
            memcpy(k + t * get->strides.token, from + t * row, row);
            memcpy(v + t * get->strides.token, from + (job->shape.group + t) * row, row);
        }
    }
    free(scratch);
}

static void run_write(struct kvd_device *device, const struct kvd_job *job, struct kvd_write *write)
{
    uint64_t unit = unit_bytes(job, KVARN_BLOCK_EXACT);
    uint8_t *slot = at(device, write->slot, unit * job->layers * job->heads);

    assert(write->tokens && write->first_token + write->tokens <= job->shape.group);
    write->status = KVARN_OK;
    for (uint32_t i = 0; i < job->layer_count * job->heads && write->status == KVARN_OK; i++) {
        uint32_t layer = i / job->heads, head = i % job->heads;
        struct kvk_fault fault = {0};

        write->status =
            copy_rows(device, job, shift(write->k, &write->strides, layer, head),
                      shift(write->v, &write->strides, layer, head), write->strides.token,
                      slot + ((job->layer_begin + layer) * job->heads + head) * unit,
                      write->first_token, write->tokens, &fault);
        if (write->status != KVARN_OK)
            fault_at(&write->fault, &fault, job->layer_begin + layer, head);
    }
}

static void run_attend(struct kvd_device *device, struct kvd_job *job, struct kvd_attend *entry)
{
    uint32_t per = entry->q_heads / job->heads, dim = job->shape.dim;
    size_t q_row = dim * kvarn_dtype_bytes((kvarn_dtype)entry->q_dtype);
    size_t out_row = dim * kvarn_dtype_bytes((kvarn_dtype)entry->out_dtype), row = row_bytes(job);
    const struct kvd_job_span *in =
        (const struct kvd_job_span *)(const void *)((uint8_t *)job + entry->spans_offset);
    struct kvk_span *spans = calloc(entry->span_count + 1u, sizeof *spans);
    float *out = calloc((size_t)entry->q_tokens * per * dim, sizeof *out);
    float *lse = calloc((size_t)entry->q_tokens * per, sizeof *lse);
    void *scratch = scratch_new(kvk_attend_scratch_bytes(entry->q_tokens, per, dim));

    assert(entry->spans_offset + entry->span_count * sizeof *in <= job->job_bytes);
    entry->status = KVARN_OK;
    for (uint32_t head = 0; head < job->heads && entry->status == KVARN_OK; head++) {
        struct kvk_attend op = {.shape = job->shape,
                                .q = at(device, entry->q, 0) + head * per * q_row,
                                .q_dtype = (uint8_t)entry->q_dtype,
                                .q_tokens = entry->q_tokens,
                                .q_heads = per,
                                .q_token_stride_bytes = entry->q_heads * q_row,
                                .q_head_stride_bytes = q_row,
                                .scale = entry->scale,
                                .soft_cap = entry->soft_cap,
                                .limit = entry->limit,
                                .window = entry->window,
                                .spans = spans,
                                .span_count = entry->span_count,
                                .out = out,
                                .lse = lse,
                                .scratch = scratch};

        assert(!entry->full || entry->q_tokens == 1 || entry->limit == 0);
        for (uint32_t s = 0; s < entry->span_count; s++) {
            uint64_t unit = unit_bytes(job, in[s].kind);
            const uint8_t *slot = at(device, in[s].slot, unit * job->layers * job->heads) +
                                  (job->layer_begin * job->heads + head) * unit;

            spans[s] = (struct kvk_span){
                in[s].kind, in[s].position, in[s].tokens, slot, slot + job->shape.group * row, row};
        }
        entry->status = kvk_table_ref.attend(&op);
        if (entry->status != KVARN_OK)
            fault_at(&entry->fault, &op.fault, job->layer_begin, head);
        for (uint32_t t = 0; t < entry->q_tokens; t++)
            for (uint32_t h = 0; h < per; h++) {
                size_t i = t * entry->q_heads + head * per + h;

                kvk_store_rows(at(device, entry->out, 0) + i * out_row,
                               (kvarn_dtype)entry->out_dtype, out + (t * per + h) * dim, dim);
                memcpy(at(device, entry->lse, 0) + i * sizeof *lse, &lse[t * per + h], sizeof *lse);
            }
    }
    free(spans);
    free(out);
    free(lse);
    free(scratch);
}

static void run_copy(struct kvd_device *device, const struct kvd_job *job, struct kvd_copy *copy)
{
    const uint8_t *src = at(device, copy->src, copy->bytes);
    uint32_t digest = kvk_digest(0, src, copy->bytes);

    if (job->op == KVD_JOB_COPY)
        memcpy(at(device, copy->dst, copy->bytes), src, copy->bytes);
    copy->status = copy->check && digest != copy->digest ? KVARN_CORRUPT : KVARN_OK;
    copy->digest = digest;
}

static void run_job(struct kvd_device *device, struct kvd_job *job)
{
    void *entries = job + 1;

    for (uint32_t i = 0; i < job->count; i++) {
        switch (job->op) {
        case KVD_JOB_COMPRESS:
            run_put(device, job, (struct kvd_put *)entries + i);
            break;
        case KVD_JOB_DECOMPRESS:
            run_get(device, job, (struct kvd_get *)entries + i);
            break;
        case KVD_JOB_WRITE_ROWS:
            run_write(device, job, (struct kvd_write *)entries + i);
            break;
        case KVD_JOB_ATTEND:
            run_attend(device, job, (struct kvd_attend *)entries + i);
            break;
        case KVD_JOB_COPY:
        case KVD_JOB_DIGEST:
            run_copy(device, job, (struct kvd_copy *)entries + i);
            break;
        default:
            abort();
        }
    }
    job->status = KVARN_OK;
    job->device_ns = 1000;
}

static void lose_all(struct kvd_device *device)
{
    uint32_t last = device->last;

    device->lose_after = -1;
    device->restarts++;
    while (device->first != last) {
        struct queued next = device->queue[device->first++ % QUEUE_MAX];

        next.done(next.context, next.job, KVARN_GPU_LOST);
    }
}

uint32_t fake_device_run(struct kvd_device *device, uint32_t most)
{
    uint32_t count = 0;

    for (; count < most && device->first != device->last; count++) {
        struct queued next;

        if (device->lose_after == 0) {
            lose_all(device);
            continue;
        }
        if (device->lose_after > 0)
            device->lose_after--;
        next = device->queue[device->first++ % QUEUE_MAX];
        run_job(device, next.job);
        device->ran[0]++;
        device->ran[next.job->op]++;
        next.done(next.context, next.job, KVARN_OK);
    }
    return count;
}

uint32_t fake_device_queued(const struct kvd_device *device)
{
    return device->last - device->first;
}

uint32_t fake_device_ran(const struct kvd_device *device, uint32_t op)
{
    return device->ran[op];
}

void fake_device_lose(struct kvd_device *device, uint32_t skip)
{
    device->lose_after = skip;
}

void fake_device_full(struct kvd_device *device, uint32_t skip, uint32_t count)
{
    device->full_skip = skip;
    device->full_count = count;
}

uint64_t fake_device_staging_used(const struct kvd_device *device)
{
    return kvd_extents_used_bytes(device->extents);
}

uint64_t fake_device_zeroed(const struct kvd_device *device)
{
    return device->zeroed;
}
