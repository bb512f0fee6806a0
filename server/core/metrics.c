/* Latencies fall into buckets that grow with the value: 16 per power of two, so that a quantile is
 * right within 1/16 whether an operation takes a microsecond or a minute, in 5 KiB per operation.
 */
#include "server/core/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

enum {
    SUB_BITS = 4, /* 16 buckets per power of two */
    SUBS = 1 << SUB_BITS,
    BUCKETS = 41 * SUBS, /* up to 2^44 ns, five hours */
    OPS = KVW_PERSIST + 1,
    SERIES = 4, /* p50, p99, sum, count */
};

static const char *const metric_names[KVD_METRIC_COUNT] = {
#define NAME(id, name) name,
    KVD_METRIC_LIST(NAME)
#undef NAME
};

struct op_metrics {
    uint64_t count, sum_ns;
    uint64_t buckets[BUCKETS];
};

struct kvd_metrics {
    double values[KVD_METRIC_COUNT];
    struct op_metrics ops[OPS]; /* 0: operations that do not exist */
    char names[OPS][SERIES][KVD_METRIC_NAME_MAX];
};

static void name_series(struct kvd_metrics *metrics, unsigned op)
{
    static const char *const forms[SERIES] = {
        "kvarn_request_duration_seconds{op=\"%s\",quantile=\"0.5\"}",
        "kvarn_request_duration_seconds{op=\"%s\",quantile=\"0.99\"}",
        "kvarn_request_duration_seconds_sum{op=\"%s\"}",
        "kvarn_request_duration_seconds_count{op=\"%s\"}",
    };
    const char *op_name = kvw_op_name((uint8_t)op);

    for (size_t i = 0; i < SERIES; i++) {
        const char *at = strstr(forms[i], "%s");

        snprintf(metrics->names[op][i], KVD_METRIC_NAME_MAX, "%.*s%s%s", (int)(at - forms[i]),
                 forms[i], op_name != NULL ? op_name : "unknown", at + 2);
    }
}

kvarn_status kvd_metrics_open(struct kvd_metrics **metrics)
{
    *metrics = calloc(1, sizeof **metrics);
    if (*metrics == NULL)
        return KVARN_NO_SPACE;
    for (unsigned op = 0; op < OPS; op++)
        name_series(*metrics, op);
    return KVARN_OK;
}

void kvd_metrics_close(struct kvd_metrics **metrics)
{
    free(*metrics);
    *metrics = NULL;
}

void kvd_metrics_add(struct kvd_metrics *metrics, enum kvd_metric metric, uint64_t amount)
{
    metrics->values[metric] += (double)amount;
}

void kvd_metrics_sub(struct kvd_metrics *metrics, enum kvd_metric metric, uint64_t amount)
{
    metrics->values[metric] -= (double)amount;
}

double kvd_metrics_get(const struct kvd_metrics *metrics, enum kvd_metric metric)
{
    return metrics->values[metric];
}

static uint8_t op_index(uint8_t op)
{
    return op < OPS && kvw_op_name(op) != NULL ? op : 0;
}

static size_t bucket_of(uint64_t ns)
{
    unsigned octave;
    size_t bucket;

    if (ns < SUBS)
        return (size_t)ns;
    octave = 63u - (unsigned)__builtin_clzll(ns);
    bucket = (size_t)(octave - SUB_BITS + 1) * SUBS + ((ns >> (octave - SUB_BITS)) & (SUBS - 1));
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* Upper edge of a bucket. */
static uint64_t bucket_ns(size_t bucket)
{
    unsigned shift;

    if (bucket < SUBS)
        return bucket;
    shift = (unsigned)(bucket / SUBS) - 1;
    return ((SUBS + bucket % SUBS + 1) << shift) - 1;
}

void kvd_metrics_request(struct kvd_metrics *metrics, uint8_t op, uint64_t duration_ns)
{
    struct op_metrics *of = &metrics->ops[op_index(op)];

    of->count++;
    of->sum_ns += duration_ns;
    of->buckets[bucket_of(duration_ns)]++;
}

double kvd_metrics_quantile(const struct kvd_metrics *metrics, uint8_t op, double q)
{
    const struct op_metrics *of = &metrics->ops[op_index(op)];
    uint64_t seen = 0, wanted = (uint64_t)ceil(q * (double)of->count);

    if (of->count == 0)
        return 0;
    if (wanted == 0)
        wanted = 1;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += of->buckets[i];
        if (seen >= wanted)
            return (double)bucket_ns(i) / 1e9;
    }
    return (double)bucket_ns(BUCKETS - 1) / 1e9;
}

struct walk {
    void (*each)(void *context, const char *name, double value);
    void *context;
    size_t count;
};

static void tell(struct walk *walk, const char *name, double value)
{
    walk->each(walk->context, name, value);
    walk->count++;
}

static void tell_op(struct walk *walk, const struct kvd_metrics *metrics, uint8_t op)
{
    const double values[SERIES] = {
        kvd_metrics_quantile(metrics, op, 0.5),
        kvd_metrics_quantile(metrics, op, 0.99),
        (double)metrics->ops[op].sum_ns / 1e9,
        (double)metrics->ops[op].count,
    };

    for (size_t i = 0; i < SERIES; i++)
        tell(walk, metrics->names[op][i], values[i]);
}

size_t kvd_metrics_each(const struct kvd_metrics *metrics,
                        void (*each)(void *context, const char *name, double value), void *context)
{
    struct walk walk = {.each = each, .context = context, .count = 0};

    for (size_t i = 0; i < KVD_METRIC_COUNT; i++)
        tell(&walk, metric_names[i], metrics->values[i]);
    for (unsigned op = 0; op < OPS; op++) {
        if (metrics->ops[op].count > 0)
            tell_op(&walk, metrics, (uint8_t)op);
    }
    return walk.count;
}
