/* The device with its real worker process: jobs end to end, and over a worker that dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "device_rig.h"
#include "server/core/limits.h"
#include "server/core/loop.h"
#include "server/device/device.h"
#include "support/rng.h"

/* ---- making jobs ---- */

static struct kvd_strides strides(void)
{
    return (struct kvd_strides){
        .layer = (uint64_t)TOKENS * HEADS * ROW, .token = HEADS * ROW, .head = ROW};
}

enum { ROWS_BYTES = LAYERS * TOKENS * HEADS * ROW };

/* fp16 in [-2, 2) */
static uint8_t *rows_new(struct device_rig *f, struct rng *rng)
{
    uint8_t *rows = kvd_staging_take(f->device, ROWS_BYTES);
    assert_non_null(rows);
    for (uint32_t i = 0; i < ROWS_BYTES / 2; i++) {
        uint16_t bits = (uint16_t)((rng_next(rng) & 0x83ff) | (14u + rng_below(rng, 2)) << 10);
        memcpy(rows + 2 * i, &bits, 2);
    }
    return rows;
}

static void put_entry(struct device_rig *f, struct kvd_put *put, const uint8_t *k, const uint8_t *v,
                      uint64_t slot, uint32_t kind)
{
    *put = (struct kvd_put){.k = kvd_device_place(f->device, k),
                            .v = kvd_device_place(f->device, v),
                            .strides = strides(),
                            .slot = {KVD_REGION_POOL, 0, slot},
                            .kind = kind,
                            .status = 77};
}

/* ---- tests ---- */

static void backend_is_named(void **state)
{
    struct device_rig *f = *state;
    assert_memory_equal(kvd_device_backend(f->device), "cpu/", 4);
    assert_true(kvd_device_ready(f->device));
    assert_int_equal(kvd_device_restarts(f->device), 0);
    assert_int_equal(kvd_staging_capacity_bytes(f->device), STAGING_BYTES);
    assert_int_equal(kvd_staging_free_bytes(f->device), STAGING_BYTES);
}

static void exact_block_comes_back_as_it_was(void **state)
{
    struct device_rig *f = *state;
    struct rng rng = rng_make(rng_seed(1));
    uint8_t *k = rows_new(f, &rng), *v = rows_new(f, &rng);
    uint8_t *k2 = kvd_staging_take(f->device, ROWS_BYTES);
    uint8_t *v2 = kvd_staging_take(f->device, ROWS_BYTES);
    struct kvd_job *job = device_job(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    put_entry(f, put, k, v, 4096, KVARN_BLOCK_EXACT);
    device_run(f, job);
    assert_int_equal(put->status, KVARN_OK);
    assert_int_equal(put->digest, kvk_digest(0, kvd_device_pool(f->device) + 4096, 2 * ROWS_BYTES));
    device_job_free(f, job);

    job = device_job(f, KVD_JOB_DECOMPRESS, 1, sizeof(struct kvd_get), 0);
    struct kvd_get *get = (struct kvd_get *)(job + 1);
    *get = (struct kvd_get){.slot = {KVD_REGION_POOL, 0, 4096},
                            .kind = KVARN_BLOCK_EXACT,
                            .k = kvd_device_place(f->device, k2),
                            .v = kvd_device_place(f->device, v2),
                            .strides = strides()};
    device_run(f, job);
    assert_int_equal(get->status, KVARN_OK);
    assert_memory_equal(k, k2, ROWS_BYTES);
    assert_memory_equal(v, v2, ROWS_BYTES);
    assert_int_equal(f->lost + f->refused, 0);
}

static void jobs_of_a_turn_all_come_back(void **state)
{
    struct device_rig *f = *state;
    struct rng rng = rng_make(rng_seed(2));
    uint8_t *k = rows_new(f, &rng), *v = rows_new(f, &rng);
    struct kvd_job *jobs[KVD_RING_ENTRIES];
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++) {
        if (i % 3 == 0) {
            jobs[i] = device_job(f, KVD_JOB_DIGEST, 1, sizeof(struct kvd_copy), 0);
            *(struct kvd_copy *)(jobs[i] + 1) = (struct kvd_copy){
                .src = kvd_device_place(f->device, k), .bytes = 100 + i, .status = 77};
        } else {
            jobs[i] = device_job(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
            put_entry(f, (struct kvd_put *)(jobs[i] + 1), k, v,
                      (uint64_t)(i % 100) * 2 * ROWS_BYTES, KVARN_BLOCK_EXACT);
        }
        device_submit(f, jobs[i]);
    }
    /* as many as the ring holds; the next one is told to come again */
    struct kvd_job *more = device_job(f, KVD_JOB_DIGEST, 0, 0, 0);
    assert_int_equal(kvd_device_submit(f->device, more, device_on_done, f), KVARN_RETRY);
    while (f->done < KVD_RING_ENTRIES)
        kvd_loop_turn(f->loop);
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++) {
        if (i % 3 == 0) {
            struct kvd_copy *copy = (struct kvd_copy *)(jobs[i] + 1);
            assert_int_equal(copy->status, KVARN_OK);
            assert_int_equal(copy->digest, kvk_digest(0, k, 100 + i));
        } else {
            assert_int_equal(((struct kvd_put *)(jobs[i] + 1))->status, KVARN_OK);
        }
    }
    device_run(f, more);
    assert_int_equal(f->lost + f->refused, 0);
}

static void bad_job_is_internal_and_the_worker_lives(void **state)
{
    struct device_rig *f = *state;
    struct kvd_job *job = device_job(f, 99, 1, sizeof(struct kvd_put), 0);
    pid_t pid = device_worker_pid();
    device_run(f, job);
    assert_int_equal(job->status, KVARN_INTERNAL);
    job->op = KVD_JOB_COMPRESS;
    job->count = UINT32_MAX;
    device_run(f, job);
    job->count = 1;
    job->job_bytes = UINT64_MAX;
    device_run(f, job);
    job->job_bytes = sizeof(*job) + sizeof(struct kvd_put);
    job->heads = 0;
    device_run(f, job);
    assert_int_equal(f->refused, 4);

    job->heads = HEADS;
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    put_entry(f, put, (uint8_t *)job, (uint8_t *)job, POOL_BYTES - 100, KVARN_BLOCK_EXACT);
    device_run(f, job);
    assert_int_equal(job->status, KVARN_OK);
    assert_int_equal(put->status, KVARN_INTERNAL);
    assert_int_equal(f->lost, 0);
    assert_int_equal(device_worker_pid(), pid);
    assert_int_equal(kvd_device_restarts(f->device), 0);
}

/* Submits `count` jobs of some work each and kills the worker once it has begun. */
static void killed_worker_is_replaced(void **state)
{
    struct device_rig *f = *state;
    enum { JOBS = 64 };
    struct rng rng = rng_make(rng_seed(3));
    uint8_t *k = rows_new(f, &rng), *v = rows_new(f, &rng);

    for (unsigned round = 1; round <= 3; round++) {
        struct kvd_job *jobs[JOBS];
        f->done = f->lost = 0;
        for (uint32_t i = 0; i < JOBS; i++) {
            jobs[i] = device_job(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
            put_entry(f, (struct kvd_put *)(jobs[i] + 1), k, v, 0, KVARN_BLOCK_TILE);
            device_submit(f, jobs[i]);
        }
        kill(device_worker_pid(), round == 1 ? SIGKILL : SIGSEGV);
        while (f->done < JOBS)
            kvd_loop_turn(f->loop);
        assert_true(f->lost > 0);
        assert_false(kvd_device_ready(f->device));
        assert_int_equal(kvd_device_submit(f->device, jobs[0], device_on_done, f), KVARN_RETRY);
        while (!kvd_device_ready(f->device))
            kvd_loop_turn(f->loop);
        assert_int_equal(kvd_device_restarts(f->device), round);
        /* the pool is still there, and the new worker writes it */
        memset(kvd_device_pool(f->device), 0, 4096);
        device_run(f, jobs[0]);
        assert_int_equal(((struct kvd_put *)(jobs[0] + 1))->status, KVARN_OK);
        assert_int_not_equal(kvk_digest(0, kvd_device_pool(f->device), 4096),
                             kvk_digest(0, kvd_device_pool(f->device) + POOL_BYTES - 4096, 4096));
        for (uint32_t i = 0; i < JOBS; i++)
            device_job_free(f, jobs[i]);
    }
}

static void pool_zero_is_seen_by_the_worker(void **state)
{
    struct device_rig *f = *state;
    memset(kvd_device_pool(f->device), 5, 8192);
    kvd_device_pool_zero(f->device, 4096, 4096);
    struct kvd_job *job = device_job(f, KVD_JOB_DIGEST, 1, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copy = (struct kvd_copy *)(job + 1);
    uint8_t expected[8192] = {0};
    memset(expected, 5, 4096);
    *copy = (struct kvd_copy){.src = {KVD_REGION_POOL, 0, 0}, .bytes = 8192};
    device_run(f, job);
    assert_int_equal(copy->digest, kvk_digest(0, expected, 8192));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(backend_is_named, device_setup, device_teardown),
        cmocka_unit_test_setup_teardown(exact_block_comes_back_as_it_was, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(jobs_of_a_turn_all_come_back, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(bad_job_is_internal_and_the_worker_lives, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(killed_worker_is_replaced, device_setup, device_teardown),
        cmocka_unit_test_setup_teardown(pool_zero_is_seen_by_the_worker, device_setup,
                                        device_teardown),
    };
    return cmocka_run_group_tests(tests, device_open_what_stays, NULL);
}
