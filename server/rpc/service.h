/* Everything the operations work on: spaces, blocks, leases, sequences, requests, devices.
 *
 * Loop thread only. The service owns the bookkeeping of the devices' pools (it opens a kvd_pool
 * over each and wipes freed chunks through the device); the devices and the callbacks belong to the
 * caller and outlive it. A space lives on one device with all its blocks and sequences, so nothing
 * that happens to one device concerns the spaces of another. Net and main see this file and
 * request.h of rpc, nothing else. */
#ifndef KVD_SERVICE_H
#define KVD_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "proto/codec.h"
#include "server/core/quota.h"
#include "server/store/evict.h"

struct kvd_device;
struct kvd_files;
struct kvd_metrics;
struct kvd_service;

struct kvd_service_options {
    struct kvd_device *const *devices; /* [device_count], GPUs first; names are unique */
    uint32_t device_count;             /* 1..KVD_DEVICES_MAX */
    const struct kvd_metrics *metrics; /* of the connections, told by STATS too; NULL = none */
    uint64_t (*now_ns)(void *context); /* NULL = CLOCK_MONOTONIC */
    void (*drain)(void *context, uint32_t grace_ms); /* DRAIN was asked; NULL = UNSUPPORTED */
    const char *(*tenant_name)(void *context, uint32_t tenant); /* NULL = "default" */
    void *context;                                              /* of the three above */
    const char *server;                                         /* "kvarnd 0.1.0"; NULL = that */
    enum kvd_evict_policy eviction;
    uint32_t high_percent, low_percent; /* watermarks; 0 = none */
    const struct kvd_quota *quotas;     /* [quota_count], of these tenants; for opening only */
    const uint32_t *quota_tenants;      /* [quota_count] */
    uint32_t quota_count;
    uint32_t requests_max;      /* 0 = KVD_REQUESTS_MAX; smaller in tests */
    uint32_t sequences_max;     /* 0 = KVD_SEQUENCES_MAX */
    uint32_t leases_max;        /* 0 = KVD_LEASES_MAX */
    uint32_t parked_max;        /* 0 = KVD_PARKED_MAX */
    uint32_t epochs_max;        /* 0 = KVD_EPOCHS_MAX */
    uint64_t payload_max_bytes; /* 0 = KVD_PAYLOAD_MAX_BYTES; told in HELLO and kept for replies */
    /* the disk tier: its folder (NULL = none), quota, what its background moves may take per
     * second, and what moves the bytes; files are closed before the service */
    const char *disk_path;
    const char *disk_key; /* file with the operator's key; NULL: the disk is not encrypted */
    uint64_t disk_bytes, disk_bandwidth;
    struct kvd_files *disk_files;
};

/* Keeps a copy of options. INTERNAL without memory, TOO_LARGE when the pool cannot hold a chunk.
 * Of the disk's folder: DENIED, RETRY (another daemon has it). */
kvarn_status kvd_service_open(struct kvd_service **service,
                              const struct kvd_service_options *options, const char **why);
/* No request is alive. Sets *service to NULL. */
void kvd_service_close(struct kvd_service **service);

/* To be called about every 10 ms while requests are open or `ticking`: leases that ran out,
 * deadlines of requests that wait, blocks of spaces that were reset. */
void kvd_service_tick(struct kvd_service *service);
bool kvd_service_ticking(const struct kvd_service *service);

/* From now on new work is answered DRAINING; HELLO, PING, STATS, LIST, RELEASE, SEQ_RELEASE and
 * DRAIN still work. */
void kvd_service_drain(struct kvd_service *service);
bool kvd_service_draining(const struct kvd_service *service);

/* Requests between kvd_request_new and kvd_request_done. */
uint32_t kvd_service_in_flight(const struct kvd_service *service);

/* Figures of the whole daemon, at most `room` of them; names live until the next call and may carry
 * Prometheus labels: kvarn_requests_total{op="COMPRESS",status="OK"}. Gives the number written. */
size_t kvd_service_metrics(struct kvd_service *service, struct kvw_metric *out, size_t room);

#endif
