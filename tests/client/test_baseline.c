/* client/demo/baseline: KIVI and RTN against small cases by hand and against
 * tests/data/kvarn_ref.py (baseline_numbers.h says how its numbers are made). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "baseline_numbers.h"
#include "client/demo/baseline.h"

enum { TOKENS = 128, DIM = 8, FEW = 4 };

/* The formula of make_baseline.py. */
static void fill(float *x, uint32_t heads, uint32_t head, uint32_t salt)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t c = 0; c < DIM; c++) {
            uint32_t coarse = (t * 37 + c * 101 + t * c * 7 + t * t * salt) % 257;
            uint32_t fine = (t * 89 + c * 43 + salt) % 1021;

            x[(t * heads + head) * DIM + c] =
                (float)((double)coarse / 64 - 2 + (double)fine / 32768 + (c == 3 ? 12 : 0));
        }
    }
}

static void check(const float *x, const double want[][DIM], double sum)
{
    double total = 0;

    for (size_t i = 0; i < (size_t)TOKENS * DIM; i++)
        total += (double)x[i];
    for (size_t i = 0; i < FEW; i++) {
        for (size_t c = 0; c < DIM; c++) {
            double got = (double)x[numbers_rows[i] * DIM + c];

            if (!(fabs(got - want[i][c]) <= 2e-6 * fmax(1.0, fabs(want[i][c]))))
                fail_msg("token %zu, channel %zu: %.9g, not %.9g", numbers_rows[i], c, got,
                         want[i][c]);
        }
    }
    assert_true(fabs(total - sum) <= 1e-3);
}

static void agrees_with_the_reference(void **state)
{
    static float k[TOKENS * DIM], v[TOKENS * DIM];

    (void)state;
#define CHECK(method, name, bits)                                                                  \
    fill(k, 1, 0, 3);                                                                              \
    fill(v, 1, 0, 5);                                                                              \
    demo_baseline_apply(method, k, v, 0, TOKENS, 1, DIM, bits, bits);                              \
    check(k, name##_k##bits, name##_k##bits##_sum);                                                \
    check(v, name##_v##bits, name##_v##bits##_sum)
    CHECK(DEMO_KIVI, kivi, 2);
    CHECK(DEMO_KIVI, kivi, 4);
    CHECK(DEMO_RTN, rtn, 2);
    CHECK(DEMO_RTN, rtn, 4);
#undef CHECK
}

/* Heads stand side by side; each is what it would be alone. K and V have their own bits. */
static void heads_do_not_mix(void **state)
{
    static float k[TOKENS * 2 * DIM], v[TOKENS * 2 * DIM], alone_k[TOKENS * DIM],
        alone_v[TOKENS * DIM];

    (void)state;
    for (int method = DEMO_KIVI; method <= DEMO_RTN; method++) {
        fill(k, 2, 0, 3);
        fill(k, 2, 1, 7);
        fill(v, 2, 0, 11);
        fill(v, 2, 1, 5);
        fill(alone_k, 1, 0, 7);
        fill(alone_v, 1, 0, 5);
        demo_baseline_apply((enum demo_method)method, k, v, 0, TOKENS, 2, DIM, 4, 2);
        demo_baseline_apply((enum demo_method)method, alone_k, alone_v, 0, TOKENS, 1, DIM, 4, 2);
        for (size_t t = 0; t < TOKENS; t++) {
            assert_memory_equal(k + (2 * t + 1) * DIM, alone_k + t * DIM, DIM * sizeof *k);
            assert_memory_equal(v + (2 * t + 1) * DIM, alone_v + t * DIM, DIM * sizeof *v);
        }
    }
}

/* Tokens before `first` and after the last stay; groups of 128 are quantised each by itself. */
static void only_the_given_tokens_change(void **state)
{
    static float k[(2 * TOKENS + 3) * DIM], v[(2 * TOKENS + 3) * DIM], before[sizeof k / sizeof *k];
    static float one_k[TOKENS * DIM], one_v[TOKENS * DIM];

    (void)state;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        k[i] = v[i] = before[i] = (float)(i * i % 1009) / 64;
    memcpy(one_k, k + (TOKENS + 2) * DIM, sizeof one_k);
    memcpy(one_v, one_k, sizeof one_v);
    demo_baseline_apply(DEMO_KIVI, k, v, 2, 2 * TOKENS, 1, DIM, 2, 2);
    demo_baseline_apply(DEMO_KIVI, one_k, one_v, 0, TOKENS, 1, DIM, 2, 2);
    assert_memory_equal(k, before, 2 * DIM * sizeof *k);
    assert_memory_equal(v, before, 2 * DIM * sizeof *v);
    assert_memory_equal(k + (2 * TOKENS + 2) * DIM, before + (2 * TOKENS + 2) * DIM,
                        DIM * sizeof *k);
    assert_memory_equal(k + (TOKENS + 2) * DIM, one_k, sizeof one_k);
    assert_memory_equal(v + (TOKENS + 2) * DIM, one_v, sizeof one_v);
    assert_memory_not_equal(k + 2 * DIM, before + 2 * DIM, TOKENS * DIM * sizeof *k);
}

/* A last group of keys that is not full is quantised by itself; no token is left out. */
static void the_rest_is_a_group_of_its_own(void **state)
{
    static float k[(TOKENS + TOKENS / 2) * DIM], v[sizeof k / sizeof *k];
    static float rest_k[TOKENS / 2 * DIM], rest_v[TOKENS / 2 * DIM];

    (void)state;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        k[i] = v[i] = (float)(i * i % 1009) / 64;
    memcpy(rest_k, k + TOKENS * DIM, sizeof rest_k);
    memcpy(rest_v, rest_k, sizeof rest_v);
    demo_baseline_apply(DEMO_KIVI, k, v, 0, TOKENS + TOKENS / 2, 1, DIM, 2, 2);
    assert_memory_not_equal(k + TOKENS * DIM, rest_k, sizeof rest_k);
    demo_baseline_apply(DEMO_KIVI, rest_k, rest_v, 0, TOKENS / 2, 1, DIM, 2, 2);
    assert_memory_equal(k + TOKENS * DIM, rest_k, sizeof rest_k);
    assert_memory_equal(v + TOKENS * DIM, rest_v, sizeof rest_v);
}

/* Worked out by hand: 2 bits of [0, 3] are exact, halves of a step round to even, a flat row stays.
 */
static void by_hand(void **state)
{
    static float k[TOKENS * FEW], v[TOKENS * FEW];
    const float ends[FEW] = {0, 3, 1.5f, 2.5f}, flat[FEW] = {0.5f, 0.5f, 0.5f, 0.5f};
    const float want[FEW] = {0, 3, 2, 2};

    (void)state;
    for (size_t t = 0; t < TOKENS; t++) {
        memcpy(k + t * FEW, flat, sizeof flat);
        memcpy(v + t * FEW, ends, sizeof ends);
    }
    demo_baseline_apply(DEMO_RTN, k, v, 0, TOKENS, 1, FEW, 2, 2);
    assert_memory_equal(k, flat, sizeof flat);
    assert_memory_equal(v, want, sizeof want);
}

static void stored_bytes(void **state)
{
    (void)state;
    /* codes 2 * 128 / 4; K: one step and minimum per channel and 128 tokens; V: one per token */
    assert_true(demo_baseline_bytes(DEMO_KIVI, 128, 2, 2) == 64.0 + 4.0 + 4.0);
    assert_true(demo_baseline_bytes(DEMO_KIVI, 64, 4, 2) == 48.0 + 2.0 + 4.0);
    assert_true(demo_baseline_bytes(DEMO_KIVI, 256, 2, 2) == 128.0 + 8.0 + 8.0);
    assert_true(demo_baseline_bytes(DEMO_RTN, 256, 2, 4) == 192.0 + 8.0);
    assert_string_equal(demo_method_name(DEMO_KIVI), "KIVI g128");
    assert_string_equal(demo_method_name(DEMO_RTN), "RTN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference),
        cmocka_unit_test(heads_do_not_mix),
        cmocka_unit_test(only_the_given_tokens_change),
        cmocka_unit_test(the_rest_is_a_group_of_its_own),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(stored_bytes),
    };
    return cmocka_run_group_tests_name("baseline", tests, NULL, NULL);
}
