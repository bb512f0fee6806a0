/* What the connections count: counters, gauges and one latency histogram per operation, from the
 * header's arrival to the answer. What is stored is counted where it is stored (rpc/stats.c).
 *
 * Plain numbers, loop thread only: counting costs an addition. Names follow the Prometheus rules
 * (prefix, base units, _total) and carry their labels, so that STATS and a scrape show the same
 * text. */
#ifndef KVD_METRICS_H
#define KVD_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

/* X(id, name) */
#define KVD_METRIC_LIST(X)                                                                         \
    X(CONNECTIONS, "kvarn_connections")                                                            \
    X(CONNECTIONS_TOTAL, "kvarn_connections_total")                                                \
    X(CONNECTIONS_REFUSED, "kvarn_connections_refused_total")                                      \
    X(CUT_FOREIGN, "kvarn_connections_cut_total{reason=\"foreign\"}")                              \
    X(CUT_BROKEN, "kvarn_connections_cut_total{reason=\"broken_frame\"}")                          \
    X(CUT_DESCRIPTOR, "kvarn_connections_cut_total{reason=\"descriptor\"}")                        \
    X(CUT_READ_TIMEOUT, "kvarn_connections_cut_total{reason=\"read_timeout\"}")                    \
    X(CUT_WRITE_TIMEOUT, "kvarn_connections_cut_total{reason=\"write_timeout\"}")                  \
    X(BYTES_IN, "kvarn_bytes_total{direction=\"in\"}")                                             \
    X(BYTES_OUT, "kvarn_bytes_total{direction=\"out\"}")                                           \
    X(REQUESTS_OPEN, "kvarn_requests_open")                                                        \
    X(READS_PAUSED, "kvarn_reads_paused_total")

enum kvd_metric {
#define KVD_METRIC_ENUM(id, name) KVD_METRIC_##id,
    KVD_METRIC_LIST(KVD_METRIC_ENUM)
#undef KVD_METRIC_ENUM
        KVD_METRIC_COUNT
};

enum { KVD_METRIC_NAME_MAX = 96 };

struct kvd_metrics;

kvarn_status kvd_metrics_open(struct kvd_metrics **metrics);
void kvd_metrics_close(struct kvd_metrics **metrics);

void kvd_metrics_add(struct kvd_metrics *metrics, enum kvd_metric metric, uint64_t amount);
void kvd_metrics_sub(struct kvd_metrics *metrics, enum kvd_metric metric, uint64_t amount);
double kvd_metrics_get(const struct kvd_metrics *metrics, enum kvd_metric metric);

/* One answered request of operation `op` (any number; unknown ones share an entry). */
void kvd_metrics_request(struct kvd_metrics *metrics, uint8_t op, uint64_t duration_ns);

/* The latency below which the share `q` (0..1) of the requests of `op` lies, in seconds, within
 * 1/16 of its value. */
double kvd_metrics_quantile(const struct kvd_metrics *metrics, uint8_t op, double q);

/* Calls `each` for every number: all of KVD_METRIC_LIST, then of every operation that was used
 * kvarn_request_duration_seconds{op,quantile}, _sum and _count. Names live as long as metrics.
 * Returns how many there were. */
size_t kvd_metrics_each(const struct kvd_metrics *metrics,
                        void (*each)(void *context, const char *name, double value), void *context);

#endif
