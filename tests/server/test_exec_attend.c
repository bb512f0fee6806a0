/* Attend jobs: against one call of the kernel over the whole context, and the same bits alone, in a
 * batch and with any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/exec_fixture.h"

enum { BLOCKS = 220, LAYER = 1 };

/* One sequence: two EXACT sink blocks, tiles, an EXACT tail. */
struct plan {
    uint32_t tiles, tail;    /* blocks; tokens */
    uint32_t q_tokens, gqa;  /* query heads per kv head */
    uint32_t before, window; /* limit = context - q_tokens + 1 - before */
    uint32_t full;
    uint8_t q_dtype, out_dtype;
};

struct call {
    struct kvd_job_span spans[BLOCKS + 3];
    uint32_t span_count, context;
    uint8_t *q, *out, *lse;
    size_t out_bytes, lse_bytes;
};

static float half_to_float(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    float fraction = (float)(bits & 1023);
    float value = exponent == 0 ? ldexpf(fraction, -24) : ldexpf(1024.0f + fraction, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static void add_span(struct exec_fixture *f, struct call *call, const uint8_t *slot, uint32_t kind,
                     uint32_t tokens)
{
    call->spans[call->span_count++] = (struct kvd_job_span){
        .slot = exec_place(f, slot), .kind = kind, .position = call->context, .tokens = tokens};
    call->context += tokens;
}

static void make_call(struct exec_fixture *f, const struct plan *plan, uint8_t **tiles,
                      uint8_t **exact, struct call *call)
{
    size_t rows = (size_t)plan->q_tokens * plan->gqa * f->heads, count = rows * f->shape.dim;

    *call = (struct call){.span_count = 0};
    for (uint32_t i = 0; i < 2 && plan->tiles > 0; i++)
        add_span(f, call, exact[i], KVARN_BLOCK_EXACT, f->shape.group);
    for (uint32_t i = 0; i < plan->tiles; i++)
        add_span(f, call, tiles[i % 8], KVARN_BLOCK_TILE, f->shape.group);
    if (plan->tail > 0)
        add_span(f, call, exact[2], KVARN_BLOCK_EXACT, plan->tail);
    uint8_t *halves = exec_rows(f, 1, (uint32_t)((rows + f->heads - 1) / f->heads));
    call->q = halves;
    if (plan->q_dtype == KVARN_F32) {
        call->q = exec_staging(f, count * 4);
        for (size_t i = 0; i < count; i++) {
            uint16_t bits;
            memcpy(&bits, halves + 2 * i, 2);
            float value = half_to_float(bits);
            memcpy(call->q + 4 * i, &value, 4);
        }
    }
    call->out_bytes = count * kvarn_dtype_bytes(plan->out_dtype);
    call->lse_bytes = rows * 4;
    call->out = exec_staging(f, call->out_bytes);
    call->lse = exec_staging(f, call->lse_bytes);
}

static uint32_t limit_of(const struct plan *plan, const struct call *call)
{
    uint32_t last = plan->full ? 0 : plan->q_tokens - 1;
    return call->context - last - plan->before;
}

static struct kvd_job *make_job(struct exec_fixture *f, const struct plan *plans,
                                const struct call *calls, uint32_t count)
{
    size_t tail = count * sizeof(calls->spans);
    struct kvd_job *job = exec_job(f, KVD_JOB_ATTEND, count, sizeof(struct kvd_attend), tail);
    struct kvd_attend *attend = (struct kvd_attend *)(job + 1);

    job->layer_begin = LAYER;
    job->layer_count = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = sizeof(*job) + count * sizeof(*attend) + i * sizeof(calls->spans);
        memcpy((uint8_t *)job + at, calls[i].spans, sizeof(calls->spans));
        attend[i] = (struct kvd_attend){.q = exec_place(f, calls[i].q),
                                        .out = exec_place(f, calls[i].out),
                                        .lse = exec_place(f, calls[i].lse),
                                        .q_tokens = plans[i].q_tokens,
                                        .q_heads = plans[i].gqa * f->heads,
                                        .q_dtype = plans[i].q_dtype,
                                        .out_dtype = plans[i].out_dtype,
                                        .scale = 0.125f,
                                        .soft_cap = i % 2 == 1 ? 30.0f : 0.0f,
                                        .limit = limit_of(&plans[i], &calls[i]),
                                        .window = plans[i].window,
                                        .full = plans[i].full,
                                        .spans_offset = at,
                                        .span_count = calls[i].span_count,
                                        .status = 99};
    }
    return job;
}

/* The kernel once per query token and kv head, over every span: the plain meaning of the entry. */
static void check_call(struct exec_fixture *f, const struct plan *plan, const struct call *call,
                       float soft_cap)
{
    uint32_t dim = f->shape.dim, q_heads = plan->gqa * f->heads;
    size_t q_row = dim * kvarn_dtype_bytes(plan->q_dtype), row = dim * 2u;
    float *out = (float *)(void *)exec_staging(f, plan->gqa * dim * 4);
    float *lse = (float *)(void *)exec_staging(f, plan->gqa * 4);
    void *scratch = exec_staging(f, kvk_attend_scratch_bytes(1, plan->gqa, dim));

    for (uint32_t t = 0; t < plan->q_tokens; t++)
        for (uint32_t h = 0; h < f->heads; h++) {
            struct kvk_span spans[BLOCKS + 3];
            for (uint32_t i = 0; i < call->span_count; i++) {
                const struct kvd_job_span *s = &call->spans[i];
                const uint8_t *cell =
                    f->pool + s->slot.offset + (LAYER * f->heads + h) * exec_cell_bytes(f, s->kind);
                spans[i] = (struct kvk_span){
                    s->kind, s->position, s->tokens, cell, cell + row * f->shape.group, row};
            }
            size_t at = (size_t)t * q_heads + h * plan->gqa;
            struct kvk_attend op = {.shape = f->shape,
                                    .q = call->q + at * q_row,
                                    .q_dtype = plan->q_dtype,
                                    .q_tokens = 1,
                                    .q_heads = plan->gqa,
                                    .q_token_stride_bytes = q_row,
                                    .q_head_stride_bytes = q_row,
                                    .scale = 0.125f,
                                    .soft_cap = soft_cap,
                                    .limit = limit_of(plan, call) + (plan->full ? 0 : t),
                                    .window = plan->window,
                                    .spans = spans,
                                    .span_count = call->span_count,
                                    .out = out,
                                    .lse = lse,
                                    .scratch = scratch};
            assert_int_equal(f->table->attend(&op), KVARN_OK);
            for (uint32_t g = 0; g < plan->gqa; g++) {
                float got_lse;
                double error = 0, norm = 0;
                /* two answers, each within the tolerance, and fp16's rounding on top */
                double most = 2 * KVK_ATTEND_TOLERANCE + (plan->out_dtype == KVARN_F16 ? 5e-4 : 0);
                memcpy(&got_lse, call->lse + (at + g) * 4, 4);
                if (isinf(lse[g]))
                    assert_true(got_lse == lse[g]);
                else
                    assert_true(fabsf(got_lse - lse[g]) < 2 * KVK_ATTEND_TOLERANCE);
                for (uint32_t d = 0; d < dim; d++) {
                    float got;
                    size_t element = (at + g) * dim + d;
                    if (plan->out_dtype == KVARN_F32) {
                        memcpy(&got, call->out + element * 4, 4);
                    } else {
                        uint16_t bits;
                        memcpy(&bits, call->out + element * 2, 2);
                        got = half_to_float(bits);
                    }
                    error += pow((double)(got - out[g * dim + d]), 2);
                    norm += pow((double)out[g * dim + d], 2);
                }
                if (error > most * most * norm)
                    fail_msg("token %u head %u: error %g of %g", t, h * plan->gqa + g, sqrt(error),
                             sqrt(norm));
            }
        }
}

static const struct plan plans[] = {
    {.tiles = 200,
     .tail = 17,
     .q_tokens = 1,
     .gqa = 4,
     .q_dtype = KVARN_F16,
     .out_dtype = KVARN_F16},
    {.tiles = 20, .tail = 3, .q_tokens = 3, .gqa = 1, .q_dtype = KVARN_F32, .out_dtype = KVARN_F32},
    {.tiles = 0, .tail = 5, .q_tokens = 2, .gqa = 3, .q_dtype = KVARN_F16, .out_dtype = KVARN_F32},
    {.tiles = 130,
     .tail = 1,
     .q_tokens = 9,
     .gqa = 8,
     .q_dtype = KVARN_F16,
     .out_dtype = KVARN_F32},
    {.tiles = 180,
     .tail = 0,
     .q_tokens = 2,
     .gqa = 2,
     .window = 9000,
     .q_dtype = KVARN_F32,
     .out_dtype = KVARN_F32},
    {.tiles = 12,
     .tail = 60,
     .q_tokens = 70,
     .gqa = 2,
     .full = 1,
     .before = 7,
     .q_dtype = KVARN_F16,
     .out_dtype = KVARN_F32},
    {.tiles = 17,
     .tail = 9,
     .q_tokens = 4,
     .gqa = 2,
     .full = 1,
     .before = 100,
     .window = 300,
     .q_dtype = KVARN_F16,
     .out_dtype = KVARN_F16},
    {.tiles = 3,
     .tail = 9,
     .q_tokens = 4,
     .gqa = 1,
     .full = 1,
     .before = 2 * 64 + 3 * 64 + 9,
     .q_dtype = KVARN_F16,
     .out_dtype = KVARN_F32}, /* limit 0: an empty set */
    {.tiles = 0, .tail = 0, .q_tokens = 1, .gqa = 1, .q_dtype = KVARN_F16, .out_dtype = KVARN_F32},
};
enum { PLANS = sizeof(plans) / sizeof(plans[0]) };

static void make_calls(struct exec_fixture *f, struct call *calls)
{
    uint8_t *tiles[8], *exact[3];

    for (int i = 0; i < 8; i++)
        tiles[i] = exec_block(f, KVARN_BLOCK_TILE);
    for (int i = 0; i < 3; i++)
        exact[i] = exec_block(f, KVARN_BLOCK_EXACT);
    for (uint32_t i = 0; i < PLANS; i++)
        make_call(f, &plans[i], tiles, exact, &calls[i]);
}

static void agrees_with_one_call_of_the_kernel(void **state)
{
    (void)state;
    struct exec_fixture *f = exec_open(2, 21);
    struct call *calls = calloc(PLANS, sizeof(*calls));
    make_calls(f, calls);
    struct kvd_job *job = make_job(f, plans, calls, PLANS);
    const struct kvd_attend *attend = (const struct kvd_attend *)(job + 1);
    exec_run(f, job);
    for (uint32_t i = 0; i < PLANS; i++) {
        assert_int_equal(attend[i].status, KVARN_OK);
        check_call(f, &plans[i], &calls[i], attend[i].soft_cap);
    }
    free(calls);
    exec_close(f);
}

/* All outputs of a batch, copied. */
static uint8_t *outputs_of(const struct call *calls, size_t *bytes)
{
    size_t used = 0;
    for (uint32_t i = 0; i < PLANS; i++)
        used += calls[i].out_bytes + calls[i].lse_bytes;
    uint8_t *copy = malloc(used);
    *bytes = used;
    used = 0;
    for (uint32_t i = 0; i < PLANS; i++) {
        memcpy(copy + used, calls[i].out, calls[i].out_bytes);
        used += calls[i].out_bytes;
        memcpy(copy + used, calls[i].lse, calls[i].lse_bytes);
        used += calls[i].lse_bytes;
    }
    return copy;
}

static void same_bits_alone_in_a_batch_and_with_any_threads(void **state)
{
    (void)state;
    uint8_t *expected = NULL;
    size_t bytes = 0, again = 0;
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        struct exec_fixture *f = exec_open(threads, 22);
        struct call *calls = calloc(PLANS, sizeof(*calls));
        make_calls(f, calls);
        exec_run(f, make_job(f, plans, calls, PLANS));
        uint8_t *batch = outputs_of(calls, &bytes);
        if (expected == NULL)
            expected = batch;
        assert_memory_equal(batch, expected, bytes);
        if (batch != expected)
            free(batch);
        for (uint32_t i = 0; i < PLANS; i++) {
            struct kvd_job *job = make_job(f, &plans[i], &calls[i], 1);
            ((struct kvd_attend *)(job + 1))->soft_cap = i % 2 == 1 ? 30.0f : 0.0f;
            memset(calls[i].out, 0xee, calls[i].out_bytes);
            memset(calls[i].lse, 0xee, calls[i].lse_bytes);
            exec_run(f, job);
        }
        uint8_t *alone = outputs_of(calls, &again);
        assert_memory_equal(alone, expected, bytes);
        free(alone);
        free(calls);
        exec_close(f);
    }
    free(expected);
}

static void non_finite_query_is_named(void **state)
{
    (void)state;
    struct exec_fixture *f = exec_open(3, 23);
    struct call *calls = calloc(PLANS, sizeof(*calls));
    make_calls(f, calls);
    struct kvd_job *job = make_job(f, plans, calls, PLANS);
    const struct kvd_attend *attend = (const struct kvd_attend *)(job + 1);
    /* plan 3: 9 tokens of 16 heads; token 8, head 11, channel 5 */
    uint16_t bits = 0x7c00;
    memcpy(calls[3].q + ((8 * 16 + 11) * f->shape.dim + 5) * 2, &bits, 2);
    exec_run(f, job);
    for (uint32_t i = 0; i < PLANS; i++)
        assert_int_equal(attend[i].status, i == 3 ? KVARN_NON_FINITE : KVARN_OK);
    assert_int_equal(attend[3].fault.tensor, 'q');
    assert_int_equal(attend[3].fault.layer, LAYER);
    assert_int_equal(attend[3].fault.head, 11);
    assert_int_equal(attend[3].fault.token, 8);
    assert_int_equal(attend[3].fault.channel, 5);
    free(calls);
    exec_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_one_call_of_the_kernel),
        cmocka_unit_test(same_bits_alone_in_a_batch_and_with_any_threads),
        cmocka_unit_test(non_finite_query_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
