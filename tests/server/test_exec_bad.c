/* Jobs that a faulty front might write: every field of a sound job replaced by odd numbers. Nothing
 * may crash, hang or touch a byte outside of the regions; the guard bytes and the sanitizers watch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "server/exec_fixture.h"

enum { ROUNDS = 3000, JOB_BYTES_MAX = 1024 };

/* Strides that make rows overlap are a fault of the job, and its units then write the same bytes:
 * nothing that the thread sanitizer need tell. */
#if defined(__SANITIZE_THREAD__)
enum { THREADS = 1 };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
enum { THREADS = 1 };
#else
enum { THREADS = 2 };
#endif
#else
enum { THREADS = 2 };
#endif

static struct kvd_job *some_job(struct exec_fixture *f, uint32_t op)
{
    static const size_t entry_bytes[] = {0,
                                         sizeof(struct kvd_put),
                                         sizeof(struct kvd_get),
                                         sizeof(struct kvd_write),
                                         sizeof(struct kvd_attend),
                                         sizeof(struct kvd_copy),
                                         sizeof(struct kvd_copy)};
    struct kvd_job *job = exec_job(f, op, 1, entry_bytes[op], 2 * sizeof(struct kvd_job_span));
    struct kvd_place k = exec_place(f, exec_rows(f, f->layers, f->shape.group));
    struct kvd_place v = exec_place(f, exec_rows(f, f->layers, f->shape.group));
    struct kvd_place tile = exec_place(f, exec_block(f, KVARN_BLOCK_TILE));
    struct kvd_place exact = exec_place(f, exec_block(f, KVARN_BLOCK_EXACT));
    struct kvd_strides strides = exec_strides(f, f->shape.group);
    void *entry = job + 1;

    switch (op) {
    case KVD_JOB_COMPRESS:
        *(struct kvd_put *)entry =
            (struct kvd_put){.k = k, .v = v, .strides = strides, .slot = tile, .kind = 1};
        break;
    case KVD_JOB_DECOMPRESS:
        *(struct kvd_get *)entry =
            (struct kvd_get){.k = k, .v = v, .strides = strides, .slot = tile, .kind = 1};
        break;
    case KVD_JOB_WRITE_ROWS:
        *(struct kvd_write *)entry =
            (struct kvd_write){.k = k, .v = v, .strides = strides, .slot = exact, .tokens = 3};
        break;
    case KVD_JOB_ATTEND: {
        struct kvd_attend *attend = entry;
        struct kvd_job_span *spans = (struct kvd_job_span *)(attend + 1);
        *attend = (struct kvd_attend){.q = k,
                                      .out = v,
                                      .lse = exec_place(f, exec_staging(f, 64)),
                                      .q_tokens = 2,
                                      .q_heads = 4,
                                      .q_dtype = KVARN_F16,
                                      .out_dtype = KVARN_F16,
                                      .scale = 0.1f,
                                      .limit = 128,
                                      .spans_offset = sizeof(*job) + sizeof(*attend),
                                      .span_count = 2};
        spans[0] = (struct kvd_job_span){.slot = exact, .kind = 2, .tokens = f->shape.group};
        spans[1] = (struct kvd_job_span){
            .slot = tile, .kind = 1, .position = f->shape.group, .tokens = f->shape.group};
        break;
    }
    default:
        *(struct kvd_copy *)entry =
            (struct kvd_copy){.dst = tile, .src = k, .bytes = exec_slot_bytes(f, 1)};
    }
    return job;
}

static uint64_t odd_number(struct rng *rng)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       63,
                                       255,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       0x100000000,
                                       EXEC_POOL_BYTES - 1,
                                       EXEC_POOL_BYTES,
                                       0x7fffffffffffffff,
                                       0x8000000000000000,
                                       0xffffffffffffffff,
                                       0xfffffffffffffff0};
    return rng_below(rng, 8) == 0 ? rng_next(rng) : numbers[rng_below(rng, 16)];
}

static void mutate(struct rng *rng, uint8_t *job, size_t bytes)
{
    for (uint32_t n = 1 + rng_below(rng, 2); n > 0; n--) {
        uint64_t number = odd_number(rng);
        size_t width = 1u << rng_below(rng, 4);
        memcpy(job + rng_below(rng, (uint32_t)(bytes / width)) * width, &number, width);
    }
}

static void odd_numbers_do_no_harm(void **state)
{
    (void)state;
    uint64_t seed = rng_seed(41);
    print_message("seed %llu\n", (unsigned long long)seed);
    struct exec_fixture *f = exec_open(THREADS, seed);
    unsigned refused = 0, entries_refused = 0, done = 0;

    for (uint32_t op = KVD_JOB_COMPRESS; op <= KVD_JOB_DIGEST; op++) {
        uint8_t sound[JOB_BYTES_MAX];
        f->staging_used = f->pool_used = 0;
        struct kvd_job *job = some_job(f, op);
        size_t bytes = job->job_bytes, entry_status;
        uint64_t offset = exec_place(f, job).offset;
        assert_true(bytes <= sizeof(sound));
        memcpy(sound, job, bytes);
        entry_status = op == KVD_JOB_COMPRESS     ? offsetof(struct kvd_put, status)
                       : op == KVD_JOB_DECOMPRESS ? offsetof(struct kvd_get, status)
                       : op == KVD_JOB_WRITE_ROWS ? offsetof(struct kvd_write, status)
                       : op == KVD_JOB_ATTEND     ? offsetof(struct kvd_attend, status)
                                                  : offsetof(struct kvd_copy, status);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            kvarn_status status = KVARN_OK;
            uint32_t entry = KVARN_OK;
            memcpy(job, sound, bytes);
            if (round > 0)
                mutate(&f->rng, (uint8_t *)job, bytes);
            kvd_executor_run(f->executor, &offset, 1, &status);
            memcpy(&entry, (uint8_t *)(job + 1) + entry_status, sizeof(entry));
            if (round == 0)
                assert_true(status == KVARN_OK && entry == KVARN_OK);
            refused += status == KVARN_INTERNAL;
            entries_refused += status == KVARN_OK && entry == KVARN_INTERNAL;
            done += status == KVARN_OK && entry == KVARN_OK;
        }
    }
    print_message("%u jobs refused, %u entries refused, %u done\n", refused, entries_refused, done);
    assert_true(refused > 500 && entries_refused > 500 && done > 500);
    exec_close(f);
}

static void job_offsets_are_checked(void **state)
{
    (void)state;
    struct exec_fixture *f = exec_open(1, 42);
    struct kvd_job *job = some_job(f, KVD_JOB_COPY);
    uint64_t good = exec_place(f, job).offset;
    const uint64_t offsets[] = {EXEC_STAGING_BYTES,     UINT64_MAX, UINT64_MAX - 8, good + 4,
                                EXEC_STAGING_BYTES - 8, good};
    kvarn_status statuses[6];
    kvd_executor_run(f->executor, offsets, 6, statuses);
    for (int i = 0; i < 5; i++)
        assert_int_equal(statuses[i], KVARN_INTERNAL);
    assert_int_equal(statuses[5], KVARN_OK);
    exec_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_numbers_do_no_harm),
        cmocka_unit_test(job_offsets_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
