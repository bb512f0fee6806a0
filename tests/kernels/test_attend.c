/* attend: every variant against float64 attention over the decoded record, case by case.
 *
 * The expected numbers come from tests/support (own decoder, dense rotation, two-pass softmax).
 * KVARN_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attend.h"
#include "kernels/tile.h"
#include "support/attend_case.h"

enum { VARIANTS = 4 };

static struct variant {
    const char *name, *table;
    kvarn_status (*attend)(struct kvk_attend *); /* NULL: not in this build or on this CPU */
} variants[VARIANTS] = {
    {"ref", "ref", NULL},
    {"avx2", "avx2", NULL},
    {"avx512", "avx512", NULL},
    {"avx512 without VNNI", "avx512", NULL},
};
static uint64_t seed;
static struct attend_error worst[VARIANTS];

/* Logits are sums in fp32, so their error grows with the sizes summed (kernels.h). */
static void check_case(const struct attend_case *c, const char *what)
{
    double grown = fmax(1.0, c->spread / 8), allowed = (double)KVK_ATTEND_TOLERANCE * grown;

    for (size_t i = 0; i < VARIANTS; i++) {
        struct attend_error error;
        if (variants[i].attend == NULL)
            continue;
        const char *broken = attend_case_check(c, variants[i].attend, &error);
        if (broken != NULL || error.out > allowed || error.lse > allowed)
            fail_msg("%s, %s, seed %llu: %s; output %.3g, lse %.3g, allowed %.3g", variants[i].name,
                     what, (unsigned long long)seed, broken ? broken : "error too large", error.out,
                     error.lse, allowed);
        worst[i].out = fmax(worst[i].out, error.out / grown);
        worst[i].lse = fmax(worst[i].lse, error.lse / grown);
    }
}

static void check_plan(const struct attend_plan *plan, const char *what)
{
    struct attend_case *c = attend_case_make(plan, seed++);

    check_case(c, what);
    attend_case_free(c);
}

static void every_shape_and_format(void **state)
{
    static const uint32_t dims[] = {64, 128, 256}, groups[] = {64, 128};
    static const uint32_t bits[][2] = {{2, 2}, {4, 2}, {4, 4}, {2, 4}};
    static const uint32_t heads[] = {1, 2, 3, 5, 8};

    (void)state;
    for (size_t i = 0; i < 3 * 2 * 4 * 5; i++) {
        struct attend_plan plan = {.dim = dims[i % 3],
                                   .group = groups[i / 3 % 2],
                                   .bits_k = bits[i / 6 % 4][0],
                                   .bits_v = bits[i / 6 % 4][1],
                                   .q_heads = heads[i / 24],
                                   .sink = 5,
                                   .tiles = 2,
                                   .partial = 9,
                                   .tail = 3};
        char what[80];
        snprintf(what, sizeof(what), "dim %u group %u k%uv%u heads %u", plan.dim, plan.group,
                 plan.bits_k, plan.bits_v, plan.q_heads);
        check_plan(&plan, what);
    }
}

static void every_query_type_and_stride(void **state)
{
    static const uint8_t q_types[] = {KVARN_F16, KVARN_BF16, KVARN_F32};
    static const uint8_t types[] = {KVARN_F16, KVARN_BF16};

    (void)state;
    for (int i = 0; i < 3 * 2 * 2 * 2 * 2 * 2; i++) {
        struct attend_plan plan = {.q_dtype = q_types[i % 3],
                                   .dtype = types[i / 3 % 2],
                                   .odd_strides = i / 6 % 2,
                                   .unaligned = i / 12 % 2,
                                   .v_rotated = i / 24 % 2,
                                   .k_rotated = i / 48 % 2,
                                   .q_tokens = 2,
                                   .q_heads = 2,
                                   .sink = 17,
                                   .tiles = 1,
                                   .tail = 31};
        check_plan(&plan, "types and strides");
    }
}

static void every_group_size(void **state)
{
    (void)state;
    for (uint32_t heads = 1; heads <= 17; heads++) {
        struct attend_plan plan = {
            .q_heads = heads == 17 ? 64 : heads, .sink = 3, .tiles = 2, .tail = 4};
        check_plan(&plan, "GQA");
        plan.bits_k = plan.bits_v = 4;
        check_plan(&plan, "GQA, 4 bits");
    }
}

static void several_query_tokens_are_causal(void **state)
{
    (void)state;
    for (uint32_t tokens = 1; tokens <= 8; tokens++) {
        struct attend_plan plan = {
            .q_tokens = tokens, .q_heads = 3, .sink = 10, .tiles = 2, .tail = 20};
        check_plan(&plan, "verification of drafts");
        plan.limit = 10 + 128 + 40 - tokens / 2; /* inside a tile */
        check_plan(&plan, "limit inside a tile");
        plan.limit = 10 + 128 - tokens / 2; /* across a tile's border */
        check_plan(&plan, "limit across tiles");
        plan.limit = 1; /* the first rows see one token of the sink */
        check_plan(&plan, "limit at the start");
        plan.limit = 10000;
        check_plan(&plan, "limit beyond the end");
    }
}

static void windows_hide_old_tokens(void **state)
{
    static const uint32_t windows[] = {1, 2, 7, 63, 64, 100, 128, 129, 200, 5000};

    (void)state;
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        struct attend_plan plan = {
            .window = windows[i], .q_tokens = 4, .q_heads = 2, .sink = 10, .tiles = 3, .tail = 5};
        check_plan(&plan, "window");
        plan.limit = 300;
        check_plan(&plan, "window inside tiles");
        plan.tiles = 0;
        check_plan(&plan, "window past the end");
    }
}

static void soft_caps(void **state)
{
    static const float caps[] = {0.5f, 5.0f, 30.0f, 50.0f, 1000.0f};

    (void)state;
    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
        struct attend_plan plan = {
            .soft_cap = caps[i], .q_heads = 4, .sink = 4, .tiles = 2, .tail = 5};
        check_plan(&plan, "soft cap");
        plan.q_gain = 64;
        check_plan(&plan, "soft cap, saturated");
    }
}

static void every_tail_length(void **state)
{
    (void)state;
    for (uint32_t length = 0; length < 128; length += length < 20 ? 1 : 7) {
        struct attend_plan plan = {
            .q_heads = 2, .sink = length, .tiles = 1, .partial = length, .tail = 127 - length};
        check_plan(&plan, "odd lengths");
        plan.group = 64;
        plan.partial %= 64;
        check_plan(&plan, "odd lengths, group 64");
    }
}

static void long_exact_spans(void **state)
{
    static const uint32_t dims[] = {64, 128, 256};

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        struct attend_plan plan = {.dim = dims[i % 3],
                                   .dtype = i < 3 ? KVARN_F16 : KVARN_BF16,
                                   .q_heads = 3,
                                   .q_tokens = 3,
                                   .sink = 700,
                                   .tail = 131};
        check_plan(&plan, "exact spans only");
    }
}

static void huge_logits(void **state)
{
    (void)state;
    for (double gain = 8; gain <= 65536; gain *= 8) {
        struct attend_plan plan = {.q_gain = gain, .q_heads = 5, .sink = 4, .tiles = 3, .tail = 5};
        check_plan(&plan, "huge logits");
    }
}

static void equal_logits_and_zero_records(void **state)
{
    (void)state;
    struct attend_plan plan = {.q_gain = -1, .q_heads = 5, .sink = 4, .tiles = 3, .tail = 5};
    check_plan(&plan, "q = 0");
    plan.q_gain = 1;
    plan.zero_records = 1;
    check_plan(&plan, "zero records");
    plan.sink = plan.tail = 0;
    check_plan(&plan, "zero records alone");
}

static void empty_sets(void **state)
{
    (void)state;
    struct attend_plan plan = {.q_heads = 3, .q_tokens = 2};
    check_plan(&plan, "no spans");
    plan.tiles = 1;
    struct attend_case *c = attend_case_make(&plan, seed++);
    c->op.limit = 0; /* row 0 sees nothing, row 1 one token */
    attend_case_expect(c);
    check_case(c, "limit 0");
    c->spans[0].position = 5000;
    attend_case_expect(c);
    check_case(c, "all in the future");
    c->spans[0].position = 0;
    c->spans[0].tokens = 0;
    c->op.limit = 100;
    attend_case_expect(c);
    check_case(c, "a span of no tokens");
    attend_case_free(c);
}

static void what_is_masked_is_not_read_as_a_number(void **state)
{
    (void)state;
    struct attend_plan plan = {.q_heads = 2, .tiles = 1, .partial = 77};
    struct attend_case *c = attend_case_make(&plan, seed++);
    struct kvk_layout at = kvk_layout_of(128, 128, 2, 2);
    size_t vectors[] = {at.k_token, at.v_step, at.v_zero};
    uint8_t *record = (uint8_t *)(uintptr_t)c->spans[1].data;
    for (size_t i = 0; i < 3; i++) {
        for (size_t g = 77; g < 128; g++)
            memcpy(record + vectors[i] + 2 * g, "\xff\x7e", 2);
    }
    check_case(c, "NaN behind the end of a partial tile");
    attend_case_free(c);
}

static void non_finite_queries_are_named(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < VARIANTS * 3; i++) {
        if (variants[i / 3].attend == NULL)
            continue;
        struct attend_plan plan = {.q_heads = 3, .q_tokens = 2, .tiles = 1};
        struct attend_case *c = attend_case_make(&plan, seed++);
        struct kvk_attend op = c->op;
        static float out[6 * 128], lse[6];
        static _Alignas(64) uint8_t scratch[1 << 18];
        assert_true(kvk_attend_scratch_bytes(2, 3, 128) <= sizeof(scratch));
        uint8_t *q = (uint8_t *)(uintptr_t)op.q;
        memcpy(q + op.q_token_stride_bytes + 2 * op.q_head_stride_bytes + 4 * 77, &bad[i % 3], 4);
        op.out = out;
        op.lse = lse;
        op.scratch = scratch;
        assert_int_equal(variants[i / 3].attend(&op), KVARN_NON_FINITE);
        assert_int_equal(op.fault.tensor, 'q');
        assert_int_equal(op.fault.token, 5);
        assert_int_equal(op.fault.channel, 77);
        attend_case_free(c);
    }
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < VARIANTS; i++) {
        struct kvk_span span = {.kind = KVARN_BLOCK_TILE, .tokens = 129, .data = ""};
        struct kvk_attend op = {.shape = {.dim = 128, .group = 128, .bits_k = 2, .bits_v = 2},
                                .q_dtype = KVARN_F32,
                                .q_heads = 1,
                                .spans = &span,
                                .span_count = 1};
        if (variants[i].attend == NULL)
            continue;
        assert_int_equal(variants[i].attend(&op), KVARN_INVALID_SHAPE);
        span.tokens = 128;
        assert_int_equal(variants[i].attend(&op), KVARN_OK); /* no query tokens: nothing to do */
        op.q_dtype = 9;
        assert_int_equal(variants[i].attend(&op), KVARN_INVALID_SHAPE);
        op.q_dtype = KVARN_F32;
        op.q_heads = 65;
        assert_int_equal(variants[i].attend(&op), KVARN_INVALID_SHAPE);
        op.q_heads = 1;
        span.kind = 7;
        assert_int_equal(variants[i].attend(&op), KVARN_INVALID_SHAPE);
    }
}

static int print_worst(void **state)
{
    (void)state;
    for (size_t i = 0; i < VARIANTS; i++) {
        if (variants[i].attend == NULL)
            print_message("%s: not in this build or on this CPU\n", variants[i].name);
        else
            print_message("%s: worst relative output error %.2e, worst lse error %.2e\n",
                          variants[i].name, worst[i].out, worst[i].lse);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_and_format),
        cmocka_unit_test(every_query_type_and_stride),
        cmocka_unit_test(every_group_size),
        cmocka_unit_test(several_query_tokens_are_causal),
        cmocka_unit_test(windows_hide_old_tokens),
        cmocka_unit_test(soft_caps),
        cmocka_unit_test(every_tail_length),
        cmocka_unit_test(long_exact_spans),
        cmocka_unit_test(huge_logits),
        cmocka_unit_test(equal_logits_and_zero_records),
        cmocka_unit_test(empty_sets),
        cmocka_unit_test(what_is_masked_is_not_read_as_a_number),
        cmocka_unit_test(non_finite_queries_are_named),
        cmocka_unit_test(bad_calls_are_refused),
    };
    seed = rng_seed(20260603);
    for (size_t i = 0; i < VARIANTS; i++) {
        const struct kvk_table *table = kvk_cpu_table(variants[i].table);
        variants[i].attend = table != NULL ? table->attend : NULL;
    }
#ifdef KVK_HAVE_AVX512
    if (variants[3].attend != NULL)
        variants[3].attend = kvk_attend_avx512_tables;
#endif
    print_message("KVARN_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("attend", tests, NULL, print_worst);
}
