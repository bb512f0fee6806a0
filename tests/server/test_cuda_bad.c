/* Jobs that a faulty front might write, on a GPU: no kernel is given an address outside of the
 * regions. The stand-in driver breaks the context for good when one is, as a GPU does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "server/cuda_twin.h"
#include "server/device/bounds.h"
#include "server/exec_bad.h"

enum { ROUNDS = 700, JOB_BYTES_MAX = 1024 };

/* A sound COPY and DIGEST here are of a slot, by its kind. */
static struct kvd_job *sound_job(struct cuda_twin *t, uint32_t op)
{
    struct exec_fixture *f = t->f;
    struct kvd_job *job;

    if (op != KVD_JOB_ZERO) {
        job = exec_some_job(f, op);
        struct kvd_copy *copy = (struct kvd_copy *)(job + 1);
        if (op == KVD_JOB_COPY)
            copy->kind = KVARN_BLOCK_TILE;
        if (op == KVD_JOB_DIGEST)
            *copy =
                (struct kvd_copy){.src = copy->dst, .bytes = copy->bytes, .kind = KVARN_BLOCK_TILE};
        return job;
    }
    job = exec_job(f, op, 1, sizeof(struct kvd_zero), 0);
    *(struct kvd_zero *)(job + 1) =
        (struct kvd_zero){.at = {KVD_REGION_POOL, 0, 4096}, .bytes = 100000};
    return job;
}

static size_t status_offset(uint32_t op)
{
    return op == KVD_JOB_ZERO ? offsetof(struct kvd_zero, status) : exec_status_offset(op);
}

static void odd_numbers_do_no_harm(void **state)
{
    uint64_t seed = rng_seed(91);
    struct cuda_twin *t = twin_open(seed);
    struct exec_fixture *f = t->f;
    unsigned refused = 0, entries_refused = 0, done = 0;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t op = KVD_JOB_COMPRESS; op <= KVD_JOB_ZERO; op++) {
        uint8_t sound[JOB_BYTES_MAX];
        f->staging_used = f->pool_used = 0;
        struct kvd_job *job = sound_job(t, op);
        size_t bytes = job->job_bytes;
        uint64_t offset = exec_place(f, job).offset;
        uint8_t *at = t->regions.staging + offset;
        assert_true(bytes <= sizeof(sound));
        memcpy(sound, job, bytes);
        memcpy(t->regions.staging, f->staging, f->staging_used);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            kvarn_status status = KVARN_OK;
            uint32_t entry;
            memcpy(at, sound, bytes);
            if (round > 0)
                exec_mutate(&f->rng, at, bytes);
            if (kvd_cuda_executor_run(t->executor, &offset, 1, &status) != 1)
                fail_msg("op %u, round %u: %s", op, round, t->gpu.why);
            memcpy(&entry, at + sizeof(*job) + status_offset(op), sizeof(entry));
            if (round == 0)
                assert_true(status == KVARN_OK && entry == KVARN_OK);
            refused += status == KVARN_INTERNAL;
            entries_refused += status == KVARN_OK && entry == KVARN_INTERNAL;
            done += status == KVARN_OK && entry == KVARN_OK;
        }
    }
    print_message("%u jobs refused, %u entries refused, %u done\n", refused, entries_refused, done);
    assert_true(refused > 100 && entries_refused > 100 && done > 100);
    twin_close(t);
}

/* Rows lie anywhere; slots at their alignment, and in the pool only. */
static void places_that_kernels_cannot_take(void **state)
{
    struct cuda_twin *t = twin_open(92);
    struct exec_fixture *f = t->f;

    (void)state;
    struct kvd_job *job = sound_job(t, KVD_JOB_COMPRESS);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    const struct kvd_put sound = *put;
    kvarn_status status;
    uint64_t rows = kvd_row_bytes(&f->shape) * f->layers * f->shape.group * f->heads;
    for (uint64_t i = 0; i < rows; i++) /* finite, whichever two bytes are a number */
        f->staging[put->k.offset + i] = f->staging[put->v.offset + i] = (uint8_t)(0x30 + i % 11);
    put->k.offset++;
    put->strides.token--;
    twin_run_cuda(t, &job, 1, &status);
    assert_int_equal(put->status, KVARN_OK);
    *put = sound;
    put->slot.offset += 64;
    twin_run_cuda(t, &job, 1, &status);
    assert_int_equal(put->status, KVARN_INTERNAL);
    *put = sound;
    put->slot = exec_place(f, job); /* staging holds no slots */
    twin_run_cuda(t, &job, 1, &status);
    assert_int_equal(put->status, KVARN_INTERNAL);
    *put = sound;
    twin_run_cuda(t, &job, 1, &status);
    assert_int_equal(put->status, KVARN_OK);
    twin_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_numbers_do_no_harm),
        cmocka_unit_test(places_that_kernels_cannot_take),
    };
    return cmocka_run_group_tests_name("cuda bad jobs", tests, NULL, NULL);
}
