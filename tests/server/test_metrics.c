/* core/metrics: counters count, quantiles are right within a sixteenth, names fit a STATS reply. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/wire.h"
#include "server/core/metrics.h"

struct seen {
    size_t count;
    const char *wanted;
    double value;
    int found;
};

static void see(void *context, const char *name, double value)
{
    struct seen *seen = context;

    seen->count++;
    assert_true(strncmp(name, "kvarn_", 6) == 0);
    assert_true(strlen(name) < KVD_METRIC_NAME_MAX);
    if (seen->wanted != NULL && strcmp(name, seen->wanted) == 0) {
        seen->found++;
        seen->value = value;
    }
}

static void counters_and_gauges(void **state)
{
    struct kvd_metrics *metrics = *state;

    kvd_metrics_add(metrics, KVD_METRIC_CONNECTIONS, 3);
    kvd_metrics_sub(metrics, KVD_METRIC_CONNECTIONS, 1);
    kvd_metrics_add(metrics, KVD_METRIC_BYTES_OUT, 6);
    assert_true(kvd_metrics_get(metrics, KVD_METRIC_CONNECTIONS) == 2);
    assert_true(kvd_metrics_get(metrics, KVD_METRIC_BYTES_OUT) == 6);
}

static void quantiles_are_close(void **state)
{
    struct kvd_metrics *metrics = *state;
    static const double qs[] = {0.01, 0.5, 0.9, 0.99, 1};

    for (uint64_t i = 1; i <= 10000; i++)
        kvd_metrics_request(metrics, KVW_PING, i * 1000);
    for (size_t i = 0; i < sizeof qs / sizeof qs[0]; i++) {
        double got = kvd_metrics_quantile(metrics, KVW_PING, qs[i]), want = qs[i] * 1e-2;

        assert_true(got >= want * 0.999 && got <= want * (1 + 1.0 / 16));
    }
    assert_true(kvd_metrics_quantile(metrics, KVW_STATS, 0.5) == 0);
}

static void extreme_durations_are_kept(void **state)
{
    struct kvd_metrics *metrics = *state;

    kvd_metrics_request(metrics, KVW_DRAIN, 0);
    kvd_metrics_request(metrics, KVW_DRAIN, 15);
    kvd_metrics_request(metrics, KVW_DRAIN, UINT64_MAX);
    assert_true(kvd_metrics_quantile(metrics, KVW_DRAIN, 0.1) == 0);
    assert_true(kvd_metrics_quantile(metrics, KVW_DRAIN, 0.6) == 15e-9);
    assert_true(kvd_metrics_quantile(metrics, KVW_DRAIN, 1) > 10000);
}

static void every_number_fits_one_reply(void **state)
{
    struct kvd_metrics *metrics = *state;
    struct seen seen = {.wanted = "kvarn_request_duration_seconds_count{op=\"SEQ_ATTEND\"}"};
    size_t count;

    for (unsigned op = 0; op < 256; op++)
        kvd_metrics_request(metrics, (uint8_t)op, 1000);
    count = kvd_metrics_each(metrics, see, &seen);
    assert_int_equal(count, seen.count);
    assert_true(seen.count <= KVW_METRICS_MAX / 2); /* the service's own stand beside them */
    assert_int_equal(seen.found, 1);
    assert_true(seen.value == 1);
}

static int setup(void **state)
{
    struct kvd_metrics *metrics;

    if (kvd_metrics_open(&metrics) != KVARN_OK)
        return -1;
    *state = metrics;
    return 0;
}

static int teardown(void **state)
{
    struct kvd_metrics *metrics = *state;

    kvd_metrics_close(&metrics);
    return metrics == NULL ? 0 : -1;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(counters_and_gauges),
        TEST(quantiles_are_close),
        TEST(extreme_durations_are_kept),
        TEST(every_number_fits_one_reply),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
