/* Counters, gauges and one latency histogram per operation.
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
    X(READS_PAUSED, "kvarn_reads_paused_total")                                                    \
    X(POOL_CAPACITY, "kvarn_pool_capacity_bytes")                                                  \
    X(POOL_USED, "kvarn_pool_used_bytes")                                                          \
    X(POOL_RESERVED, "kvarn_pool_reserved_bytes")                                                  \
    X(BLOCKS_TILE, "kvarn_blocks{kind=\"tile\"}")                                                  \
    X(BLOCKS_EXACT, "kvarn_blocks{kind=\"exact\"}")                                                \
    X(LOGICAL_BYTES, "kvarn_logical_bytes")                                                        \
    X(COMPRESSION_RATIO, "kvarn_compression_ratio")                                                \
    X(SPACES, "kvarn_spaces")                                                                      \
    X(SEQUENCES, "kvarn_sequences")                                                                \
    X(LEASES, "kvarn_leases")                                                                      \
    X(LOOKUP_HIT, "kvarn_lookup_blocks_total{result=\"hit\"}")                                     \
    X(LOOKUP_MISS, "kvarn_lookup_blocks_total{result=\"miss\"}")                                   \
    X(EVICTED_BLOCKS, "kvarn_evicted_blocks_total")                                                \
    X(EVICTED_BYTES, "kvarn_evicted_bytes_total")                                                  \
    X(INTEGRITY_FAILURES, "kvarn_integrity_failures_total")                                        \
    X(KEY_CONFLICTS, "kvarn_key_conflicts_total")                                                  \
    X(STAGING_CAPACITY, "kvarn_staging_capacity_bytes")                                            \
    X(STAGING_FREE, "kvarn_staging_free_bytes")                                                    \
    X(WORKER_RESTARTS, "kvarn_worker_restarts_total")

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
void kvd_metrics_set(struct kvd_metrics *metrics, enum kvd_metric metric, double value);
double kvd_metrics_get(const struct kvd_metrics *metrics, enum kvd_metric metric);

/* One answered request of operation `op` (any number; unknown ones share an entry). */
void kvd_metrics_request(struct kvd_metrics *metrics, uint8_t op, kvarn_status status,
                         uint64_t duration_ns);

/* Requests of `op` answered so far, and the latency below which the share `q` (0..1) of them lies,
 * in seconds, within 1/16 of its value. */
uint64_t kvd_metrics_requests(const struct kvd_metrics *metrics, uint8_t op);
double kvd_metrics_quantile(const struct kvd_metrics *metrics, uint8_t op, double q);

/* Calls `each` for every number: all of KVD_METRIC_LIST, then of every operation that was used
 * kvarn_requests_total{op,result}, kvarn_request_duration_seconds{op,quantile}, _sum and _count.
 * name is borrowed for the call. Returns how many there were. */
size_t kvd_metrics_each(const struct kvd_metrics *metrics,
                        void (*each)(void *context, const char *name, double value), void *context);

#endif
