#include "server/exec_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

struct exec_fixture *exec_open(uint32_t threads, uint64_t seed)
{
    struct exec_fixture *f = calloc(1, sizeof(*f));
    f->table = kvk_cpu_best(getenv("KVARN_CPU"), NULL);
    f->staging = aligned_alloc(64, EXEC_STAGING_BYTES);
    f->pool = aligned_alloc(64, EXEC_POOL_BYTES);
    f->shape = (struct kvk_shape){
        .dim = 64, .group = 64, .bits_k = 4, .bits_v = 2, .dtype = KVARN_F16, .iterations = 4};
    f->layers = 3;
    f->heads = 2;
    f->rng = rng_make(seed);
    const struct kvd_executor_options options = {
        .table = f->table,
        .threads = threads,
        .regions = {{f->staging, EXEC_STAGING_BYTES}, {f->pool, EXEC_POOL_BYTES}}};
    assert_non_null(f->table);
    assert_int_equal(kvd_executor_open(&f->executor, &options), KVARN_OK);
    assert_int_equal(kvd_executor_threads(f->executor), threads);
    return f;
}

void exec_close(struct exec_fixture *f)
{
    kvd_executor_close(&f->executor);
    free(f->staging);
    free(f->pool);
    free(f);
}

static uint8_t *bump(uint8_t *base, uint64_t *used, uint64_t capacity, size_t bytes)
{
    uint8_t *at = base + *used;
    *used += (bytes + 63) / 64 * 64;
    assert_true(*used <= capacity);
    memset(at, 0, bytes);
    return at;
}

uint8_t *exec_staging(struct exec_fixture *f, size_t bytes)
{
    return bump(f->staging, &f->staging_used, EXEC_STAGING_BYTES, bytes);
}

uint8_t *exec_pool(struct exec_fixture *f, size_t bytes)
{
    return bump(f->pool, &f->pool_used, EXEC_POOL_BYTES, bytes);
}

struct kvd_place exec_place(const struct exec_fixture *f, const void *at)
{
    const uint8_t *byte = at;
    if (byte >= f->staging && byte < f->staging + EXEC_STAGING_BYTES)
        return (struct kvd_place){KVD_REGION_STAGING, 0, (uint64_t)(byte - f->staging)};
    assert_true(byte >= f->pool && byte < f->pool + EXEC_POOL_BYTES);
    return (struct kvd_place){KVD_REGION_POOL, 0, (uint64_t)(byte - f->pool)};
}

uint8_t *exec_rows(struct exec_fixture *f, uint32_t layers, uint32_t tokens)
{
    size_t count = (size_t)layers * tokens * f->heads * f->shape.dim;
    uint8_t *rows = exec_staging(f, count * 2);
    for (size_t i = 0; i < count; i++) {
        uint64_t r = rng_next(&f->rng);
        /* sign and fraction random, exponents for 1/4 to 4 */
        uint16_t bits = (uint16_t)((r & 0x83ff) | (13u + (r >> 16) % 4) << 10);
        memcpy(rows + 2 * i, &bits, 2);
    }
    return rows;
}

struct kvd_strides exec_strides(const struct exec_fixture *f, uint32_t tokens)
{
    uint64_t row = f->shape.dim * 2u;
    return (struct kvd_strides){
        .layer = row * f->heads * tokens, .token = row * f->heads, .head = row};
}

size_t exec_cell_bytes(const struct exec_fixture *f, uint32_t kind)
{
    const struct kvk_shape *s = &f->shape;
    return kind == KVARN_BLOCK_TILE ? kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v).bytes
                                    : (size_t)2 * s->group * s->dim * 2;
}

size_t exec_slot_bytes(const struct exec_fixture *f, uint32_t kind)
{
    return exec_cell_bytes(f, kind) * f->layers * f->heads;
}

struct kvd_job *exec_job(struct exec_fixture *f, uint32_t op, uint32_t count, size_t entry_bytes,
                         size_t tail_bytes)
{
    size_t bytes = sizeof(struct kvd_job) + count * entry_bytes + tail_bytes;
    struct kvd_job *job = (struct kvd_job *)(void *)exec_staging(f, bytes);
    job->op = op;
    job->count = count;
    job->shape = f->shape;
    job->layers = f->layers;
    job->heads = f->heads;
    job->layer_count = f->layers;
    job->job_bytes = bytes;
    return job;
}

void exec_run(struct exec_fixture *f, struct kvd_job *job)
{
    uint64_t offset = exec_place(f, job).offset;
    kvarn_status status = KVARN_INTERNAL;
    kvd_executor_run(f->executor, &offset, 1, &status);
    assert_int_equal(status, KVARN_OK);
    assert_int_equal(job->status, KVARN_OK);
}

uint8_t *exec_block(struct exec_fixture *f, uint32_t kind)
{
    uint8_t *slot = exec_pool(f, exec_slot_bytes(f, kind));
    struct kvd_job *job = exec_job(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    *put = (struct kvd_put){.k = exec_place(f, exec_rows(f, f->layers, f->shape.group)),
                            .v = exec_place(f, exec_rows(f, f->layers, f->shape.group)),
                            .strides = exec_strides(f, f->shape.group),
                            .slot = exec_place(f, slot),
                            .kind = kind};
    exec_run(f, job);
    assert_int_equal(put->status, KVARN_OK);
    return slot;
}
