/* Jobs that a faulty front might write: every field of a sound job replaced by odd numbers. Nothing
 * may crash, hang or touch a byte outside of the regions; the guard bytes and the sanitizers watch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "server/exec_bad.h"

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
        struct kvd_job *job = exec_some_job(f, op);
        size_t bytes = job->job_bytes, entry_status;
        uint64_t offset = exec_place(f, job).offset;
        assert_true(bytes <= sizeof(sound));
        memcpy(sound, job, bytes);
        entry_status = exec_status_offset(op);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            kvarn_status status = KVARN_OK;
            uint32_t entry = KVARN_OK;
            memcpy(job, sound, bytes);
            if (round > 0)
                exec_mutate(&f->rng, (uint8_t *)job, bytes);
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
    struct kvd_job *job = exec_some_job(f, KVD_JOB_COPY);
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
