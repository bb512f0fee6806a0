/* device/cuda_executor, cuda_wave, cuda_exec_slots, cuda_exec_copy: the answers are those of the
 * CPU executor, whatever runs together; a GPU that fails answers nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/cuda_twin.h"
#include "server/device/bounds.h"
#include "support/fake_cuda/fake_cuda.h"

static struct fake_cuda_control *control;

enum { TILE = KVARN_BLOCK_TILE, EXACT = KVARN_BLOCK_EXACT };

static const struct kvk_shape shapes[] = {
    {64, 64, 2, 2, KVARN_F16, 0, 0, 0, 0, 3},   {64, 128, 4, 2, KVARN_BF16, 1, 0, 0, 0, 2},
    {128, 128, 4, 2, KVARN_F16, 0, 0, 0, 0, 2}, {128, 64, 4, 4, KVARN_BF16, 0, 0, 0, 1, 2},
    {256, 128, 2, 2, KVARN_F16, 0, 0, 0, 0, 1}, {256, 64, 4, 4, KVARN_F16, 1, 0, 0, 1, 1},
};

static void start_over(struct cuda_twin *t, const struct kvk_shape *shape)
{
    t->f->staging_used = t->f->pool_used = 0;
    t->f->shape = *shape;
}

static struct kvd_job *put_job(struct cuda_twin *t, const uint32_t *kinds, uint8_t **slots,
                               uint32_t count)
{
    struct exec_fixture *f = t->f;
    struct kvd_job *job = exec_job(f, KVD_JOB_COMPRESS, count, sizeof(struct kvd_put), 0);
    struct kvd_put *put = (struct kvd_put *)(job + 1);

    for (uint32_t i = 0; i < count; i++) {
        slots[i] = f->pool + (f->pool_used + 127) / 128 * 128;
        f->pool_used = (uint64_t)(slots[i] - f->pool) + exec_slot_bytes(f, kinds[i]);
        put[i] = (struct kvd_put){.k = exec_place(f, exec_rows(f, f->layers, f->shape.group)),
                                  .v = exec_place(f, exec_rows(f, f->layers, f->shape.group)),
                                  .strides = exec_strides(f, f->shape.group),
                                  .slot = exec_place(f, slots[i]),
                                  .kind = kinds[i],
                                  .status = 99,
                                  .digest = 99};
    }
    return job;
}

static struct kvd_copy *copy_job(struct cuda_twin *t, uint32_t op, uint32_t count,
                                 struct kvd_job **job)
{
    *job = exec_job(t->f, op, count, sizeof(struct kvd_copy), 0);
    return (struct kvd_copy *)(*job + 1);
}

/* Out of the pool into fresh staging, and what came must match. */
static uint8_t *fetch(struct cuda_twin *t, const uint8_t *slot, uint32_t kind, uint32_t digest)
{
    struct kvd_job *job;
    uint8_t *to = exec_staging(t->f, exec_slot_bytes(t->f, kind));
    struct kvd_copy *copy = copy_job(t, KVD_JOB_COPY, 1, &job);

    *copy = (struct kvd_copy){.dst = exec_place(t->f, to),
                              .src = exec_place(t->f, slot),
                              .bytes = exec_slot_bytes(t->f, kind),
                              .digest = digest,
                              .check = KVD_CHECK_DIGEST,
                              .kind = kind};
    twin_run_both(t, &job, 1);
    assert_int_equal(copy->status, KVARN_OK);
    assert_int_equal(copy->digest, kvk_digest(0, to, copy->bytes));
    return to;
}

static void blocks_go_in_and_out(void **state)
{
    static const uint32_t kinds[] = {TILE, EXACT, TILE, TILE, EXACT};
    enum { BLOCKS = 5 };
    struct cuda_twin *t = twin_open(rng_seed(71));

    (void)state;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        uint8_t *slots[BLOCKS];
        start_over(t, &shapes[s]);
        struct exec_fixture *f = t->f;
        struct kvd_job *put = put_job(t, kinds, slots, BLOCKS);
        twin_run_both(t, &put, 1);
        struct kvd_job *get = exec_job(f, KVD_JOB_DECOMPRESS, BLOCKS, sizeof(struct kvd_get), 0);
        struct kvd_get *gets = (struct kvd_get *)(get + 1);
        get->layer_begin = 1;
        get->layer_count = f->layers - 1;
        for (uint32_t i = 0; i < BLOCKS; i++) {
            struct kvd_put *done = (struct kvd_put *)(put + 1) + i;
            size_t rows = kvd_row_bytes(&f->shape) * f->layers * f->shape.group * f->heads;
            assert_int_equal(done->status, KVARN_OK);
            fetch(t, slots[i], kinds[i], done->digest);
            gets[i] = (struct kvd_get){.slot = done->slot,
                                       .kind = kinds[i],
                                       .k = exec_place(f, exec_staging(f, rows)),
                                       .v = exec_place(f, exec_staging(f, rows)),
                                       .strides = exec_strides(f, f->shape.group),
                                       .status = 99};
        }
        twin_run_both(t, &get, 1);
        for (uint32_t i = 0; i < BLOCKS; i++)
            assert_int_equal(gets[i].status, KVARN_OK);
    }
    assert_true(t->progress > 0);
    twin_close(t);
}

static void set_half(struct exec_fixture *f, struct kvd_place rows, uint64_t at, uint16_t bits)
{
    memcpy(f->staging + rows.offset + at, &bits, sizeof(bits));
}

/* The first one by layer, head, tensor, token and channel is named; the others are stored. */
static void what_is_not_finite_is_named(void **state)
{
    static const uint32_t kinds[] = {TILE, EXACT, TILE, EXACT};
    struct cuda_twin *t = twin_open(rng_seed(72));
    uint8_t *slots[4];

    (void)state;
    start_over(t, &shapes[0]);
    struct exec_fixture *f = t->f;
    struct kvd_job *job = put_job(t, kinds, slots, 4);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    const struct kvd_strides strides = exec_strides(f, f->shape.group);
    for (int i = 0; i < 2; i++) {
        set_half(f, put[i].v, strides.layer + 7 * strides.token + strides.head + 2 * 9, 0x7e00);
        set_half(f, put[i].k, 2 * strides.layer + 3 * strides.token + 2 * 5, 0xfc00);
    }
    twin_run_both(t, &job, 1);
    for (int i = 0; i < 2; i++) {
        const struct kvd_fault expect = {'v', 1, 1, 7, 9};
        assert_int_equal(put[i].status, KVARN_NON_FINITE);
        assert_memory_equal(&put[i].fault, &expect, sizeof(expect));
        assert_int_equal(put[i].digest, 0);
    }
    assert_int_equal(put[2].status, KVARN_OK);
    fetch(t, slots[2], TILE, put[2].digest);
    fetch(t, slots[3], EXACT, put[3].digest);
    twin_close(t);
}

static void rows_are_written_into_an_exact_slot(void **state)
{
    static const uint32_t kinds[] = {EXACT, EXACT};
    struct cuda_twin *t = twin_open(rng_seed(73));
    uint8_t *slots[2];

    (void)state;
    start_over(t, &shapes[1]);
    struct exec_fixture *f = t->f;
    struct kvd_job *put = put_job(t, kinds, slots, 2);
    twin_run_both(t, &put, 1);
    struct kvd_job *jobs[2];
    for (int i = 0; i < 2; i++) {
        jobs[i] = exec_job(f, KVD_JOB_WRITE_ROWS, 2, sizeof(struct kvd_write), 0);
        struct kvd_write *write = (struct kvd_write *)(jobs[i] + 1);
        jobs[i]->layer_begin = (uint32_t)i;
        jobs[i]->layer_count = 2;
        for (uint32_t n = 0; n < 2; n++)
            write[n] = (struct kvd_write){.k = exec_place(f, exec_rows(f, 2, 9)),
                                          .v = exec_place(f, exec_rows(f, 2, 9)),
                                          .strides = exec_strides(f, 9),
                                          .slot = exec_place(f, slots[i]),
                                          .first_token = 40 * n + 3,
                                          .tokens = 9,
                                          .status = 99};
        /* counted from the first that is written */
        set_half(f, write[1].k, 4 * write[1].strides.token + 2, 0x7f80);
    }
    twin_run_both(t, jobs, 2);
    for (int i = 0; i < 2; i++) {
        struct kvd_write *write = (struct kvd_write *)(jobs[i] + 1);
        assert_int_equal(write[0].status, KVARN_OK);
        assert_int_equal(write[1].status, KVARN_NON_FINITE);
        assert_int_equal(write[1].fault.layer, i);
        assert_int_equal(write[1].fault.token, 4);
    }
    twin_close(t);
}

/* Into the pool with checks, inside it, and digests of what is there. */
static void copies_check_and_convert(void **state)
{
    static const uint32_t kinds[] = {TILE, EXACT};
    struct cuda_twin *t = twin_open(rng_seed(74));
    uint8_t *slots[2];

    (void)state;
    start_over(t, &shapes[2]);
    struct exec_fixture *f = t->f;
    struct kvd_job *put = put_job(t, kinds, slots, 2), *job;
    struct kvd_put *puts = (struct kvd_put *)(put + 1);
    twin_run_both(t, &put, 1);
    for (int i = 0; i < 2; i++) {
        enum { SOUND, WRONG, NAN_INSIDE, MOVED, ENTRIES };
        uint8_t *bytes = fetch(t, slots[i], kinds[i], puts[i].digest);
        uint64_t count = exec_slot_bytes(f, kinds[i]);
        uint8_t *bad = exec_staging(f, count);
        memcpy(bad, bytes, count);
        memset(bad + count - 2, 0xff, 2); /* a NaN as v_zero of the last token, or as its value */
        struct kvd_copy *copy = copy_job(t, KVD_JOB_COPY, ENTRIES, &job);
        for (int n = 0; n < ENTRIES; n++) {
            uint64_t at = (f->pool_used + 127) / 128 * 128;
            copy[n] = (struct kvd_copy){.dst = {.region = KVD_REGION_POOL, .offset = at},
                                        .src = exec_place(f, n == NAN_INSIDE ? bad : bytes),
                                        .bytes = count,
                                        .digest = puts[i].digest,
                                        .check = KVD_CHECK_DIGEST | KVD_CHECK_FINITE,
                                        .kind = kinds[i],
                                        .status = 99};
            f->pool_used = at + count;
        }
        copy[WRONG].digest ^= 1;
        copy[NAN_INSIDE].digest = kvk_digest(0, bad, count);
        copy[MOVED].src = exec_place(f, slots[i]);
        copy[MOVED].check = KVD_CHECK_DIGEST;
        twin_run_both(t, &job, 1);
        assert_int_equal(copy[SOUND].status, KVARN_OK);
        assert_int_equal(copy[WRONG].status, KVARN_CORRUPT);
        assert_int_equal(copy[NAN_INSIDE].status, KVARN_NON_FINITE);
        assert_int_equal(copy[MOVED].status, KVARN_OK);
        fetch(t, f->pool + copy[SOUND].dst.offset, kinds[i], puts[i].digest);
        fetch(t, f->pool + copy[MOVED].dst.offset, kinds[i], puts[i].digest);
        struct kvd_copy *digest = copy_job(t, KVD_JOB_DIGEST, 2, &job);
        for (int n = 0; n < 2; n++)
            digest[n] = (struct kvd_copy){.src = copy[MOVED].dst,
                                          .bytes = count,
                                          .digest = puts[i].digest ^ (uint32_t)n,
                                          .check = KVD_CHECK_DIGEST,
                                          .kind = kinds[i]};
        twin_run_both(t, &job, 1);
        assert_int_equal(digest[0].status, KVARN_OK);
        assert_int_equal(digest[1].status, KVARN_CORRUPT);
    }
    twin_close(t);
}

/* More kinds than a wave has batches. */
static void batches_overflow(void **state)
{
    enum { LAYERS = 13, ENTRIES = 3, JOBS = LAYERS * (LAYERS + 1) / 2 };
    static const uint32_t kinds[] = {TILE};
    struct cuda_twin *t = twin_open(rng_seed(75));
    struct kvd_job *jobs[JOBS];
    uint8_t *slot;
    uint32_t count = 0;

    (void)state;
    start_over(t, &shapes[0]);
    struct exec_fixture *f = t->f;
    f->layers = LAYERS;
    f->heads = 1;
    struct kvd_job *put = put_job(t, kinds, &slot, 1);
    twin_run_both(t, &put, 1);
    struct kvd_place rows =
        exec_place(f, exec_staging(f, (size_t)LAYERS * f->shape.group * kvd_row_bytes(&f->shape)));
    for (uint32_t begin = 0; begin < LAYERS; begin++) {
        for (uint32_t end = begin + 1; end <= LAYERS; end++) {
            struct kvd_job *job =
                exec_job(f, KVD_JOB_DECOMPRESS, ENTRIES, sizeof(struct kvd_get), 0);
            struct kvd_get *get = (struct kvd_get *)(job + 1);
            job->layer_begin = begin;
            job->layer_count = end - begin;
            for (uint32_t i = 0; i < ENTRIES; i++)
                get[i] = (struct kvd_get){.slot = exec_place(f, slot),
                                          .kind = i == 1 ? 7 : TILE,
                                          .k = rows,
                                          .v = rows,
                                          .strides = exec_strides(f, f->shape.group),
                                          .status = 99};
            jobs[count++] = job;
        }
    }
    kvarn_status statuses[JOBS];
    twin_run_cuda(t, jobs, count, statuses);
    for (uint32_t j = 0; j < count; j++) {
        const struct kvd_get *get = (const struct kvd_get *)(jobs[j] + 1);
        assert_int_equal(statuses[j], KVARN_OK);
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_int_equal(get[i].status, i == 1 ? KVARN_INTERNAL : KVARN_OK);
    }
    twin_close(t);
}

/* More blocks than a wave has places. */
static void entries_overflow(void **state)
{
    enum { ENTRIES = 8192 + 800 };
    static const uint32_t kinds[] = {EXACT};
    struct cuda_twin *t = twin_open(rng_seed(78));
    struct kvd_job *job;
    uint8_t *slot;

    (void)state;
    start_over(t, &shapes[0]);
    struct exec_fixture *f = t->f;
    f->layers = f->heads = 1;
    struct kvd_job *put = put_job(t, kinds, &slot, 1);
    twin_run_both(t, &put, 1);
    struct kvd_copy *copy = copy_job(t, KVD_JOB_DIGEST, ENTRIES, &job);
    for (uint32_t i = 0; i < ENTRIES; i++)
        copy[i] = (struct kvd_copy){.src = exec_place(f, slot),
                                    .bytes = exec_slot_bytes(f, EXACT),
                                    .digest = i,
                                    .check = i % 2 == 0 ? 0 : KVD_CHECK_DIGEST,
                                    .kind = EXACT,
                                    .status = 99};
    twin_run_both(t, &job, 1);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(copy[i].status, i % 2 == 0 ? KVARN_OK : KVARN_CORRUPT);
    twin_close(t);
}

static void ranges_become_zero(void **state)
{
    static const uint32_t kinds[] = {EXACT, EXACT, EXACT};
    struct cuda_twin *t = twin_open(rng_seed(76));
    uint8_t *slots[3];
    kvarn_status status;

    (void)state;
    start_over(t, &shapes[0]);
    struct exec_fixture *f = t->f;
    struct kvd_job *put = put_job(t, kinds, slots, 3);
    uint64_t bytes = exec_slot_bytes(f, EXACT);
    twin_run_both(t, &put, 1);
    struct kvd_job *job = exec_job(f, KVD_JOB_ZERO, 3, sizeof(struct kvd_zero), 0);
    struct kvd_zero *zero = (struct kvd_zero *)(job + 1);
    zero[0] = (struct kvd_zero){.at = exec_place(f, slots[1]), .bytes = bytes, .status = 99};
    zero[1] = (struct kvd_zero){.at = exec_place(f, slots[1]), .bytes = EXEC_POOL_BYTES};
    zero[2] =
        (struct kvd_zero){.at = exec_place(f, put), .bytes = 8}; /* staging: not its business */
    twin_run_cuda(t, &job, 1, &status);
    assert_int_equal(status, KVARN_OK);
    assert_int_equal(zero[0].status, KVARN_OK);
    assert_int_equal(zero[1].status, KVARN_INTERNAL);
    assert_int_equal(zero[2].status, KVARN_INTERNAL);
    memset(slots[1], 0, bytes);
    uint8_t *nothing = exec_staging(f, bytes);
    uint32_t digest = kvk_digest(0, nothing, bytes);
    const struct kvd_put *puts = (const struct kvd_put *)(put + 1);
    fetch(t, slots[1], EXACT, digest);
    fetch(t, slots[0], EXACT, puts[0].digest);
    fetch(t, slots[2], EXACT, puts[2].digest);
    twin_close(t);
}

static void a_lost_gpu_answers_nothing(void **state)
{
    static const uint32_t kinds[] = {TILE};
    uint8_t *slot;
    kvarn_status status = KVARN_OK;

    (void)state;
    static struct cuda_twin *t; /* stays: what the lost driver gave cannot be given back */
    t = twin_open(rng_seed(77));
    start_over(t, &shapes[0]);
    struct kvd_job *put = put_job(t, kinds, &slot, 1);
    uint64_t offset = exec_place(t->f, put).offset;
    memcpy(t->regions.staging, t->f->staging, t->f->staging_used);
    fake_cuda_arm(control, 0, "kvk_cuda_compress", KVD_CU_ILLEGAL_ADDRESS, 0, 1);
    assert_int_equal(kvd_cuda_executor_run(t->executor, &offset, 1, &status), 0);
    assert_int_equal(t->gpu.failure, KVD_LINK_BAD_GPU);
    assert_non_null(strstr(t->gpu.why, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    uint32_t progress = t->progress;
    assert_int_equal(kvd_cuda_executor_run(t->executor, &offset, 1, &status), 0);
    assert_int_equal(t->progress, progress);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_in_and_out),
        cmocka_unit_test(what_is_not_finite_is_named),
        cmocka_unit_test(rows_are_written_into_an_exact_slot),
        cmocka_unit_test(copies_check_and_convert),
        cmocka_unit_test(batches_overflow),
        cmocka_unit_test(entries_overflow),
        cmocka_unit_test(ranges_become_zero),
        cmocka_unit_test(a_lost_gpu_answers_nothing), /* the last: the context stays broken */
    };
    /* the driver reads it once */
    char path[] = "/tmp/kvarn-fake-cuda-XXXXXX";
    int fd = mkstemp(path);

    control = fd >= 0 ? fake_cuda_open(path, UINT64_C(1) << 30) : NULL;
    if (control == NULL || setenv("KVARN_FAKE_CUDA", path, 1) != 0)
        return 1;
    int failed = cmocka_run_group_tests_name("cuda executor", tests, NULL, NULL);
    fake_cuda_close(&control);
    unlink(path);
    close(fd);
    return failed;
}
