/* device/cuda_exec_attend: against the CPU executor, over ragged batches of several spaces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "server/cuda_twin.h"
#include "server/device/bounds.h"

enum { SPANS = 6, SEQUENCES = 5, Q_TOKENS_MAX = 20 };

/* A slot of rows in both pools, compressed on the CPU: a GPU may choose other scales. */
static uint8_t *block(struct cuda_twin *t, uint32_t kind)
{
    struct exec_fixture *f = t->f;
    uint8_t *slot = exec_block(f, kind);
    uint64_t bytes = exec_slot_bytes(f, kind);
    uint8_t *canonical = exec_staging(f, bytes);
    struct kvd_job *job = exec_job(f, KVD_JOB_COPY, 1, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copy = (struct kvd_copy *)(job + 1);
    kvarn_status status;

    memcpy(canonical, slot, bytes);
    *copy = (struct kvd_copy){.dst = exec_place(f, slot),
                              .src = exec_place(f, canonical),
                              .bytes = bytes,
                              .digest = kvk_digest(0, slot, bytes),
                              .check = KVD_CHECK_DIGEST,
                              .kind = kind};
    twin_run_cuda(t, &job, 1, &status);
    assert_int_equal(copy->status, KVARN_OK);
    return slot;
}

static uint8_t *queries(struct exec_fixture *f, const struct kvd_attend *attend)
{
    size_t count = (size_t)attend->q_tokens * attend->q_heads * f->shape.dim;
    size_t bytes = kvarn_dtype_bytes((kvarn_dtype)attend->q_dtype);
    uint8_t *q = exec_staging(f, count * bytes);

    for (size_t i = 0; i < count; i++) {
        float x = (float)rng_unit(&f->rng) - 0.5f;
        if (attend->q_dtype == KVARN_F32)
            memcpy(q + 4 * i, &x, 4);
        else
            kvk_u16_store(q + 2 * i, kvk_half_from_f32(x, (kvarn_dtype)attend->q_dtype));
    }
    return q;
}

static void describe(struct cuda_twin *t, struct kvd_attend *attend, uint64_t spans_offset,
                     uint32_t spans, uint32_t group_heads)
{
    static const uint32_t dtypes[] = {KVARN_F16, KVARN_BF16, KVARN_F32};
    struct exec_fixture *f = t->f;

    *attend = (struct kvd_attend){.q_tokens = 1 + rng_below(&f->rng, Q_TOKENS_MAX),
                                  .q_heads = f->heads * group_heads,
                                  .q_dtype = dtypes[rng_below(&f->rng, 3)],
                                  .out_dtype = dtypes[rng_below(&f->rng, 3)],
                                  .scale = 0.1f,
                                  .soft_cap = rng_below(&f->rng, 2) ? 20.0f : 0.0f,
                                  .limit = rng_below(&f->rng, spans * f->shape.group + 2),
                                  .window = rng_below(&f->rng, 2) ? 70 : 0,
                                  .full = rng_below(&f->rng, 2),
                                  .deterministic = rng_below(&f->rng, 2),
                                  .spans_offset = spans_offset,
                                  .span_count = spans,
                                  .status = 99};
    size_t rows = (size_t)attend->q_tokens * attend->q_heads;
    attend->q = exec_place(f, queries(f, attend));
    attend->out = exec_place(f, exec_staging(f, rows * f->shape.dim * 4));
    attend->lse = exec_place(f, exec_staging(f, rows * 4));
}

static struct kvd_job *attend_job(struct cuda_twin *t, uint8_t *const slots[2],
                                  uint32_t group_heads)
{
    struct exec_fixture *f = t->f;
    struct kvd_job *job = exec_job(f, KVD_JOB_ATTEND, SEQUENCES, sizeof(struct kvd_attend),
                                   SEQUENCES * SPANS * sizeof(struct kvd_job_span));
    struct kvd_attend *attend = (struct kvd_attend *)(job + 1);
    struct kvd_job_span *spans = (struct kvd_job_span *)(attend + SEQUENCES);

    job->layer_begin = rng_below(&f->rng, f->layers);
    job->layer_count = 1;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t count = rng_below(&f->rng, SPANS + 1), position = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t kind = i == 0 || i == SPANS - 1 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE;
            uint32_t tokens =
                rng_below(&f->rng, 3) ? f->shape.group : 1 + rng_below(&f->rng, f->shape.group);
            spans[s * SPANS + i] =
                (struct kvd_job_span){.slot = exec_place(f, slots[kind == KVARN_BLOCK_EXACT]),
                                      .kind = kind,
                                      .position = position,
                                      .tokens = tokens};
            position += tokens + rng_below(&f->rng, 2) * 9; /* holes are allowed */
        }
        describe(t, &attend[s], (uint64_t)((uint8_t *)(spans + s * SPANS) - (uint8_t *)job), count,
                 group_heads);
    }
    return job;
}

static float value_of(const uint8_t *at, uint32_t dtype, size_t i)
{
    float x;

    if (dtype != KVARN_F32)
        return kvk_half_to_f32(kvk_u16_load(at + 2 * i), (kvarn_dtype)dtype);
    memcpy(&x, at + 4 * i, 4);
    return x;
}

static void compare_rows(const struct cuda_twin *t, size_t dim, const struct kvd_attend *attend)
{
    const uint8_t *out[2] = {t->f->staging + attend->out.offset,
                             t->regions.staging + attend->out.offset};
    const uint8_t *lse[2] = {t->f->staging + attend->lse.offset,
                             t->regions.staging + attend->lse.offset};
    float allowed = attend->out_dtype == KVARN_BF16 ? 6e-3f : 1e-3f;

    for (size_t r = 0; r < (size_t)attend->q_tokens * attend->q_heads; r++) {
        float a = value_of(lse[0], KVARN_F32, r), b = value_of(lse[1], KVARN_F32, r);
        float error = 0, norm = 0;
        assert_true(a == b || fabsf(a - b) < 1e-3f); /* both may be -inf */
        for (size_t i = r * dim; i < (r + 1) * dim; i++) {
            float x = value_of(out[0], attend->out_dtype, i);
            float y = value_of(out[1], attend->out_dtype, i);
            error += (x - y) * (x - y);
            norm += x * x;
        }
        assert_true(sqrtf(error) <= allowed * sqrtf(norm));
    }
}

static void run_and_compare(struct cuda_twin *t, struct kvd_job *const *jobs, uint32_t count,
                            uint32_t sequences)
{
    kvarn_status status[8];
    uint64_t offsets[8];

    memcpy(t->regions.staging, t->f->staging, t->f->staging_used);
    for (uint32_t i = 0; i < count; i++)
        offsets[i] = exec_place(t->f, jobs[i]).offset;
    assert_int_equal(kvd_executor_run(t->f->executor, offsets, count, status), count);
    if (kvd_cuda_executor_run(t->executor, offsets, count, status) != count)
        fail_msg("%s", t->gpu.why);
    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_attend *cpu = (const struct kvd_attend *)(jobs[i] + 1);
        const void *at = t->regions.staging + offsets[i] + sizeof(struct kvd_job);
        const struct kvd_attend *cuda = at;
        for (uint32_t s = 0; s < sequences; s++) {
            assert_int_equal(cuda[s].status, cpu[s].status);
            assert_memory_equal(&cuda[s].fault, &cpu[s].fault, sizeof(cpu[s].fault));
            if (cpu[s].status == KVARN_OK)
                compare_rows(t, jobs[i]->shape.dim, &cpu[s]);
        }
    }
}

static void ragged_batches_agree(void **state)
{
    static const struct kvk_shape shapes[] = {{64, 64, 4, 2, KVARN_F16, 0, 0, 0, 0, 1},
                                              {128, 128, 2, 2, KVARN_F16, 0, 0, 0, 0, 1},
                                              {256, 64, 4, 4, KVARN_F16, 0, 0, 0, 1, 1}};
    enum { ROUNDS = 4, SPACES = 3 };
    uint64_t seed = rng_seed(81);
    struct cuda_twin *t = twin_open(seed);
    struct exec_fixture *f = t->f;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < ROUNDS; round++) {
        struct kvd_job *jobs[SPACES];
        f->staging_used = f->pool_used = 0;
        for (int s = 0; s < SPACES; s++) {
            f->shape = shapes[s];
            uint8_t *const slots[2] = {block(t, KVARN_BLOCK_TILE), block(t, KVARN_BLOCK_EXACT)};
            jobs[s] = attend_job(t, slots, 1 + rng_below(&f->rng, 5));
        }
        run_and_compare(t, jobs, SPACES, SEQUENCES);
    }
    twin_close(t);
}

/* 256 query tokens of 64 heads: more rows than a sequence of the kernels takes. */
static void many_rows_are_cut(void **state)
{
    struct cuda_twin *t = twin_open(rng_seed(82));
    struct exec_fixture *f = t->f;

    (void)state;
    f->shape = (struct kvk_shape){64, 64, 2, 2, KVARN_F16, 0, 0, 0, 0, 1};
    f->heads = 1;
    uint8_t *const slots[2] = {block(t, KVARN_BLOCK_TILE), block(t, KVARN_BLOCK_EXACT)};
    for (int full = 0; full < 2; full++) {
        struct kvd_job *job = attend_job(t, slots, 64);
        struct kvd_attend *attend = (struct kvd_attend *)(job + 1);
        job->count = 1;
        attend->q_tokens = KVD_Q_TOKENS_MAX;
        attend->full = (uint32_t)full;
        attend->window = 50;
        attend->limit = 60;
        attend->q = exec_place(f, queries(f, attend));
        size_t rows = (size_t)attend->q_tokens * attend->q_heads;
        attend->out = exec_place(f, exec_staging(f, rows * f->shape.dim * 4));
        attend->lse = exec_place(f, exec_staging(f, rows * 4));
        run_and_compare(t, &job, 1, 1);
    }
    twin_close(t);
}

/* So many partial results that there is no memory for them at once: every exact span, with the tile
 * after it, makes one for all rows that see them. */
static void what_does_not_fit_is_halved(void **state)
{
    enum { MANY = 34, HIDDEN = 60 };
    struct cuda_twin *t = twin_open(rng_seed(84));
    struct exec_fixture *f = t->f;

    (void)state;
    f->shape = (struct kvk_shape){128, 64, 2, 2, KVARN_F16, 0, 0, 0, 0, 1};
    f->heads = 1;
    uint8_t *const slots[2] = {block(t, KVARN_BLOCK_EXACT), block(t, KVARN_BLOCK_TILE)};
    struct kvd_job *job = exec_job(f, KVD_JOB_ATTEND, 1, sizeof(struct kvd_attend),
                                   HIDDEN * sizeof(struct kvd_job_span));
    struct kvd_attend *attend = (struct kvd_attend *)(job + 1);
    struct kvd_job_span *spans = (struct kvd_job_span *)(attend + 1);
    describe(t, attend, sizeof(*job) + sizeof(*attend), MANY, 64);
    attend->q_tokens = KVD_Q_TOKENS_MAX;
    attend->full = 0;
    attend->window = 0;
    attend->limit = 10 * MANY;
    attend->q = exec_place(f, queries(f, attend));
    size_t rows = (size_t)attend->q_tokens * attend->q_heads;
    attend->out = exec_place(f, exec_staging(f, rows * f->shape.dim * 4));
    attend->lse = exec_place(f, exec_staging(f, rows * 4));
    for (uint32_t i = 0; i < HIDDEN; i++)
        spans[i] = (struct kvd_job_span){.slot = exec_place(f, slots[i % 2]),
                                         .kind = i % 2 ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT,
                                         .position = 9 * i,
                                         .tokens = 1 + i % 3 % 2};
    uint32_t before = t->progress;
    run_and_compare(t, &job, 1, 1);
    assert_true(t->progress - before > 1);
    /* more spans than pieces could surely be written for, but hardly any is seen */
    attend->span_count = HIDDEN;
    attend->limit = 4;
    attend->full = 1;
    before = t->progress;
    run_and_compare(t, &job, 1, 1);
    assert_int_equal(t->progress - before, 1);
    twin_close(t);
}

/* Layer after layer, token after token: the plan of the call before may serve, or may not. */
static void calls_that_are_nearly_alike(void **state)
{
    struct cuda_twin *t = twin_open(rng_seed(85));
    struct exec_fixture *f = t->f;

    (void)state;
    f->shape = (struct kvk_shape){64, 64, 4, 2, KVARN_F16, 0, 0, 0, 0, 1};
    uint8_t *const slots[2] = {block(t, KVARN_BLOCK_TILE), block(t, KVARN_BLOCK_EXACT)};
    uint8_t *const others[2] = {block(t, KVARN_BLOCK_TILE), block(t, KVARN_BLOCK_EXACT)};
    struct kvd_job *job = attend_job(t, slots, 3);
    struct kvd_attend *attend = (struct kvd_attend *)(job + 1);
    struct kvd_job_span *spans = (struct kvd_job_span *)(attend + SEQUENCES);
    for (int i = 1; i < SEQUENCES; i++) { /* of one kind */
        attend[i].out_dtype = attend[0].out_dtype;
        attend[i].deterministic = attend[0].deterministic;
        attend[i].q_dtype = attend[0].q_dtype;
        attend[i].q = exec_place(f, queries(f, &attend[i]));
    }
    for (uint32_t call = 0; call < 8; call++) {
        job->layer_begin = call % f->layers;
        attend[0].q = exec_place(f, queries(f, &attend[0]));
        if (call == 3)
            attend[1].limit += 5;
        if (call == 4)
            for (int i = 0; i < SEQUENCES * SPANS; i++)
                spans[i].slot = exec_place(f, others[spans[i].kind == KVARN_BLOCK_EXACT]);
        if (call == 5)
            spans[4 * SPANS].tokens = 1 + spans[4 * SPANS].tokens / 2;
        if (call == 6)
            attend[2].window = attend[2].window ? 0 : 33;
        if (call == 7)
            job->count = SEQUENCES - 1;
        run_and_compare(t, &job, 1, job->count);
    }
    twin_close(t);
}

static void a_query_that_is_not_finite_is_named(void **state)
{
    struct cuda_twin *t = twin_open(rng_seed(83));
    struct exec_fixture *f = t->f;
    const uint16_t nan = 0x7e00;

    (void)state;
    f->shape = (struct kvk_shape){64, 64, 2, 2, KVARN_F16, 0, 0, 0, 0, 1};
    uint8_t *const slots[2] = {block(t, KVARN_BLOCK_TILE), block(t, KVARN_BLOCK_EXACT)};
    struct kvd_job *job = attend_job(t, slots, 3);
    struct kvd_attend *attend = (struct kvd_attend *)(job + 1);
    attend[2].q_tokens = 5;
    attend[2].q_dtype = KVARN_F16;
    uint8_t *q = queries(f, &attend[2]);
    attend[2].q = exec_place(f, q);
    size_t rows = (size_t)5 * attend[2].q_heads;
    attend[2].out = exec_place(f, exec_staging(f, rows * f->shape.dim * 4));
    attend[2].lse = exec_place(f, exec_staging(f, rows * 4));
    memcpy(q + 2 * ((3 * attend[2].q_heads + 4) * (size_t)f->shape.dim + 17), &nan, 2);
    run_and_compare(t, &job, 1, SEQUENCES);
    const struct kvd_fault expect = {'q', job->layer_begin, 4, 3, 17};
    assert_int_equal(attend[2].status, KVARN_NON_FINITE);
    assert_memory_equal(&attend[2].fault, &expect, sizeof(expect));
    assert_int_equal(attend[1].status, KVARN_OK);
    twin_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_batches_agree),
        cmocka_unit_test(many_rows_are_cut),
        cmocka_unit_test(what_does_not_fit_is_halved),
        cmocka_unit_test(calls_that_are_nearly_alike),
        cmocka_unit_test(a_query_that_is_not_finite_is_named),
    };
    return cmocka_run_group_tests_name("cuda attend", tests, NULL, NULL);
}
