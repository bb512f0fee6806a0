/* client/demo/measure: attention, errors and percentiles against numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "client/demo/measure.h"

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fmax(1.0, fabs(want))))
        fail_msg("%.9g, not %.9g", got, want);
}

/* Three tokens of two heads, two channels wide. The scale is 1 / sqrt(2). */
static const float k[] = {/* token 0 */ 1, 0, 9, 9, /* 1 */ 0, 1, 8, 8,
                          /* 2 */ 5,       5, 7, 7};
static const float v[] = {10, 20, 1, 2, 30, 40, 3, 4, 50, 60, 5, 6};
static const struct demo_rows rows = {k, v, 3, 2, 2};

static void attention_weighs_by_softmax(void **state)
{
    const float q[] = {(float)(sqrt(2.0) * log(3.0)), 0}; /* logits ln 3 and 0: weights 3/4, 1/4 */
    double scratch[3];
    float out[2];

    (void)state;
    demo_attention(out, q, &rows, 0, 2, scratch);
    near((double)out[0], 0.75 * 10 + 0.25 * 30);
    near((double)out[1], 0.75 * 20 + 0.25 * 40);
}

static void attention_reads_its_own_head_and_tokens(void **state)
{
    const float zero[] = {0, 0}, large[] = {1e4f, 1e4f};
    double scratch[3];
    float out[2];

    (void)state;
    demo_attention(out, zero, &rows, 1, 3, scratch);
    near((double)out[0], 3);
    near((double)out[1], 4);
    demo_attention(out, zero, &rows, 1, 2, scratch); /* the last token is not seen */
    near((double)out[0], 2);
    demo_attention(out, large, &rows, 1, 3, scratch); /* logits of 1e5: only the largest is left */
    near((double)out[0], 1);
    near((double)out[1], 2);
    demo_attention(out, large, &rows, 0, 0, scratch);
    near((double)out[0], 0);
    near((double)out[1], 0);
}

static void errors_add_up_over_calls(void **state)
{
    const float a[] = {1, 2}, b[] = {1, 4}, c[] = {3, 0};
    struct demo_error error = {0, 0};

    (void)state;
    near(demo_error_relative(&error), 0);
    demo_error_add(&error, a, b, 2); /* 4 over 17 */
    near(demo_error_relative(&error), sqrt(4.0 / 17.0));
    demo_error_add(&error, a, c, 2); /* and 4 + 4 over 9 */
    near(demo_error_relative(&error), sqrt(12.0 / 26.0));
}

static void norms_are_compared_relatively(void **state)
{
    const float three_four[] = {3, 4}, turned[] = {0, -5}, longer[] = {6, 8}, zero[] = {0, 0};

    (void)state;
    near(demo_norm_error(turned, three_four, 2), 0); /* direction is no part of it */
    near(demo_norm_error(longer, three_four, 2), 1);
    near(demo_norm_error(three_four, longer, 2), 0.5);
    near(demo_norm_error(zero, three_four, 2), 1);
    near(demo_norm_error(zero, zero, 2), 0);
    assert_true(isinf(demo_norm_error(longer, zero, 2)));
}

static void percentiles_take_the_nearest_rank(void **state)
{
    double values[101], few[] = {3, -1, 2, 0}, one[] = {7};

    (void)state;
    for (int i = 0; i <= 100; i++)
        values[i] = (i * 37) % 101; /* 0..100 in disorder */
    near(demo_percentile(values, 101, 0.99), 99);
    near(demo_percentile(values, 101, 0.5), 50);
    near(demo_percentile(values, 101, 0), 0);
    near(demo_percentile(values, 101, 1), 100);
    near(demo_percentile(few, 4, 0.5), 2); /* 1.5 rounds up */
    near(few[0], -1);
    near(few[3], 3);
    near(demo_percentile(one, 1, 0.99), 7);
    near(demo_percentile(NULL, 0, 0.5), 0);
}

static void means(void **state)
{
    const double values[] = {1, 2, 6};

    (void)state;
    near(demo_mean(values, 3), 3);
    near(demo_mean(values, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_weighs_by_softmax),
        cmocka_unit_test(attention_reads_its_own_head_and_tokens),
        cmocka_unit_test(errors_add_up_over_calls),
        cmocka_unit_test(norms_are_compared_relatively),
        cmocka_unit_test(percentiles_take_the_nearest_rank),
        cmocka_unit_test(means),
    };
    return cmocka_run_group_tests_name("measure", tests, NULL, NULL);
}
