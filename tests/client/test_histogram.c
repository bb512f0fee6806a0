/* client/ctl/histogram: percentiles within 1.6 % of the sorted samples, at every scale. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/histogram.h"
#include "support/rng.h"

static struct ctl_histogram histogram;

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void percentiles_match_sorted_samples(void **state)
{
    enum { SAMPLES = 20000 };
    static uint64_t samples[SAMPLES];
    static const double shares[] = {0.001, 0.5, 0.9, 0.99, 0.999, 1.0};

    (void)state;
    for (unsigned bits = 4; bits <= 44; bits += 8) {
        struct rng rng = rng_make(rng_seed(bits));
        memset(&histogram, 0, sizeof histogram);
        for (size_t i = 0; i < SAMPLES; i++) {
            samples[i] = rng_next(&rng) >> (64 - bits);
            ctl_histogram_add(&histogram, samples[i]);
        }
        qsort(samples, SAMPLES, sizeof samples[0], compare);
        for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
            size_t rank = (size_t)(shares[i] * SAMPLES);
            uint64_t exact = samples[rank > 0 ? rank - 1 : 0];
            uint64_t got = ctl_histogram_at(&histogram, shares[i]);
            assert_true(got >= exact);
            assert_true(got <= exact + exact / 60 + 1);
        }
        assert_int_equal(histogram.most, samples[SAMPLES - 1]);
        assert_int_equal(histogram.least, samples[0]);
    }
}

static void extremes(void **state)
{
    (void)state;
    memset(&histogram, 0, sizeof histogram);
    assert_int_equal(ctl_histogram_at(&histogram, 0.5), 0);
    ctl_histogram_add(&histogram, 0);
    assert_int_equal(ctl_histogram_at(&histogram, 1), 0);
    ctl_histogram_add(&histogram, UINT64_MAX);
    assert_true(ctl_histogram_at(&histogram, 1) > (uint64_t)1 << 45);
    assert_int_equal(histogram.count, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_match_sorted_samples),
        cmocka_unit_test(extremes),
    };

    return cmocka_run_group_tests_name("histogram", tests, NULL, NULL);
}
