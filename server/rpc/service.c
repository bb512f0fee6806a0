/* Opening, closing, the clock tick and connections that go. See service.h. */
#include "server/rpc/service.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "server/rpc/tier.h"
#include "server/rpc/work.h"
#include "server/store/pool.h"

static uint64_t monotonic_ns(void *context)
{
    struct timespec now;

    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t kvd_service_now(const struct kvd_service *service)
{
    return service->options.now_ns(service->options.context);
}

static const char *default_tenant(void *context, uint32_t tenant)
{
    (void)context;
    (void)tenant;
    return "default";
}

/* A chunk that is free again must not show its old bytes to the next tenant. */
static void wipe(void *context, uint64_t offset, uint64_t bytes)
{
    struct kvd_service_device *home = context;

    kvd_device_pool_zero(home->device, offset, bytes);
}

/* What ended a GPU's worker may have written anywhere in its pool. A host pool is in no reach of
 * what goes wrong on a GPU, and too slow to read as a whole before it is served again. */
static void restarted(void *context)
{
    struct kvd_service_device *home = context;

    if (kvd_device_is_gpu(home->device))
        kvd_recheck_start(home->recheck);
}

static void settled(void *context)
{
    struct kvd_service *service = context;

    service->settled = true;
}

static void fill_defaults(struct kvd_service_options *options)
{
    if (!options->now_ns)
        options->now_ns = monotonic_ns;
    if (!options->tenant_name)
        options->tenant_name = default_tenant;
    if (!options->server)
        options->server = "kvarnd " KVARN_VERSION;
    if (!options->requests_max)
        options->requests_max = KVD_REQUESTS_MAX;
    if (!options->sequences_max)
        options->sequences_max = KVD_SEQUENCES_MAX;
    if (!options->leases_max)
        options->leases_max = KVD_LEASES_MAX;
    if (!options->parked_max)
        options->parked_max = KVD_PARKED_MAX;
    if (!options->payload_max_bytes)
        options->payload_max_bytes = KVD_PAYLOAD_MAX_BYTES;
}

static kvarn_status open_devices(struct kvd_service *service, struct kvd_space_pool *pools)
{
    const struct kvd_service_options *options = &service->options;
    kvarn_status status = KVARN_OK;

    for (uint32_t i = 0; i < options->device_count && status == KVARN_OK; i++) {
        struct kvd_service_device *home = &service->devices[i];

        home->service = service;
        home->device = options->devices[i];
        status = kvd_pool_open(&home->pool, kvd_device_pool_bytes(home->device),
                               kvd_device_pool_unit_bytes(home->device), wipe, home);
        if (status != KVARN_OK)
            return status;
        service->device_count = i + 1;
        kvd_pool_linger(home->pool);
        status = kvd_recheck_open(&home->recheck, home);
        kvd_device_on_restart(home->device, restarted, home);
        pools[i] = (struct kvd_space_pool){kvd_device_name(home->device), home->pool,
                                           kvd_device_is_gpu(home->device)};
    }
    return status;
}

static kvarn_status set_quotas(struct kvd_service *service)
{
    const struct kvd_service_options *options = &service->options;
    kvarn_status status = KVARN_OK;

    kvd_counts_init(&service->counts);
    for (uint32_t i = 0; i < options->quota_count; i++) {
        const struct kvd_quota *quota = &options->quotas[i];
        uint32_t tenant = options->quota_tenants[i];

        memcpy(service->counts.most[tenant], quota->most, sizeof quota->most);
        for (uint32_t j = 0; j < service->device_count && status == KVARN_OK; j++) {
            enum kvd_tier tier =
                kvd_device_is_gpu(service->devices[j].device) ? KVD_TIER_GPU : KVD_TIER_HOST;

            status = kvd_pool_quota(service->devices[j].pool, tenant, quota->guaranteed[tier],
                                    quota->maximum[tier]);
        }
    }
    return status;
}

static kvarn_status open_parts(struct kvd_service *service, const char **why)
{
    const struct kvd_service_options *options = &service->options;
    struct kvd_space_pool pools[KVD_DEVICES_MAX];
    uint64_t secret[2] = {0, 0};
    ssize_t got;
    kvarn_status status;

    *why = "no random numbers from the system";
    do
        got = getrandom(secret, sizeof secret, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof secret)
        return KVARN_INTERNAL;
    *why = "the pool's bookkeeping could not be set up";
    status = open_devices(service, pools);
    if (status != KVARN_OK)
        return status;
    *why = "the guarantees of all tenants are more than a pool has";
    status = set_quotas(service);
    if (status != KVARN_OK)
        return status;
    service->watermark.high = options->high_percent;
    service->watermark.low = options->low_percent;
    kvd_evict_init(&service->evict, options->eviction, secret);
    kvd_blocks_init(&service->blocks, &service->evict);
    service->blocks.counts = &service->counts;
    kvd_events_init(&service->events, secret[0] ^ secret[1]);
    service->blocks.events = &service->events;
    service->blocks.settled = settled;
    service->blocks.settled_context = service;
    kvd_spaces_init(&service->spaces, &service->blocks, secret, pools, service->device_count);
    service->spaces.own_epochs.limit = options->epochs_max;
    *why = "no memory for the tables of requests, leases and sequences";
    status = kvd_leases_open(&service->leases, &service->blocks, options->leases_max,
                             (uint32_t)secret[0] >> 1);
    if (status == KVARN_OK)
        status = kvd_sequences_open(&service->sequences, &service->blocks, options->sequences_max,
                                    (uint32_t)secret[1] >> 1);
    service->works = calloc(options->requests_max, sizeof *service->works);
    service->metric_names = calloc(KVW_METRICS_MAX, sizeof *service->metric_names);
    if (status == KVARN_OK && (!service->works || !service->metric_names))
        status = KVARN_INTERNAL;
    if (status == KVARN_OK)
        status = kvd_tier_open(&service->tier, service, why);
    return status;
}

kvarn_status kvd_service_open(struct kvd_service **out, const struct kvd_service_options *options,
                              const char **why)
{
    struct kvd_service *service = calloc(1, sizeof *service);
    kvarn_status status;

    *out = NULL;
    *why = "no memory";
    if (!service)
        return KVARN_INTERNAL;
    service->options = *options;
    fill_defaults(&service->options);
    status = open_parts(service, why);
    service->options.devices = NULL; /* the caller's tables were for opening */
    service->options.quotas = NULL;
    service->options.quota_tenants = NULL;
    if (status != KVARN_OK) {
        kvd_service_close(&service);
        return status;
    }
    *why = "";
    *out = service;
    return KVARN_OK;
}

void kvd_service_close(struct kvd_service **out)
{
    struct kvd_service *service = *out;

    if (!service)
        return;
    assert(!service->in_flight);
    kvd_tier_close(&service->tier);
    if (service->sequences.slots)
        kvd_sequences_close(&service->sequences);
    if (service->leases.slots)
        kvd_leases_close(&service->leases);
    kvd_agreements_free(&service->agreements);
    kvd_spaces_free(&service->spaces);
    kvd_blocks_free(&service->blocks);
    kvd_evict_free(&service->evict);
    kvd_events_free(&service->events);
    for (uint32_t i = 0; i < service->device_count; i++) {
        kvd_device_on_restart(service->devices[i].device, NULL, NULL);
        kvd_recheck_close(&service->devices[i].recheck);
        kvd_pool_close(&service->devices[i].pool);
    }
    free(service->metric_names);
    free(service->works);
    free(service);
    *out = NULL;
}

void kvd_service_tick(struct kvd_service *service)
{
    uint64_t now = kvd_service_now(service);

    kvd_leases_expire(&service->leases, now);
    kvd_agreements_expire(&service->agreements, now);
    kvd_tier_tick(service->tier);
    for (uint32_t i = 0; i < service->device_count; i++) {
        kvd_pool_trim(service->devices[i].pool, KVD_POOL_LINGER_TICKS);
        kvd_recheck_pump(service->devices[i].recheck);
        kvd_watermark_step(&service->watermark, &service->blocks, service->devices[i].pool, i);
    }
    kvd_service_sweep(service);
    for (struct kvd_work *work = service->waiting, *next; work; work = next) {
        next = work->waiting_next;
        work->late |= work->request.deadline_ns && work->request.deadline_ns <= now;
        if (work->late || work->wake_ns)
            kvd_work_ready(work);
    }
    kvd_service_pump(service);
}

void kvd_service_conn_gone(struct kvd_service *service, uint64_t conn_id)
{
    kvd_leases_conn_gone(&service->leases, conn_id);
    kvd_agreements_conn_gone(&service->agreements, conn_id);
    kvd_sequences_conn_gone(&service->sequences, conn_id);
    for (struct kvd_work *work = service->waiting, *next; work; work = next) {
        next = work->waiting_next;
        if (work->request.conn_id == conn_id)
            kvd_work_ready(work);
    }
    kvd_service_pump(service);
}

void kvd_service_on_room(struct kvd_service *service, void (*room)(void *context), void *context)
{
    service->room = room;
    service->room_context = context;
}

void kvd_service_drain(struct kvd_service *service)
{
    service->draining = true;
}

bool kvd_service_draining(const struct kvd_service *service)
{
    return service->draining;
}

bool kvd_service_ticking(const struct kvd_service *service)
{
    return service->leases.count > 0 || service->sweep_at < service->sweep_end;
}

uint32_t kvd_service_in_flight(const struct kvd_service *service)
{
    return service->in_flight;
}
