/* STATS and LIST: figures of the daemon and of the spaces. A client of the daemon's own user sees
 * everything; anyone else only what belongs to its tenant. */
#include "server/rpc/tier.h"
#include "server/rpc/work.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/core/metrics.h"
#include "server/store/pool.h"

struct sums {
    uint64_t spaces, tile_blocks, exact_blocks, bytes, logical, tile_logical, tile_bytes;
    uint64_t sequences, hits, misses, stored, existed;
};

static void add_space(struct sums *sums, const struct kvd_space *space)
{
    sums->spaces++;
    sums->tile_blocks += space->tile_blocks;
    sums->exact_blocks += space->exact_blocks;
    sums->tile_bytes += space->tile_blocks * space->tile_bytes;
    sums->bytes +=
        space->tile_blocks * space->tile_bytes + space->exact_blocks * space->exact_bytes;
    /* An EXACT block is the 16-bit size of a block. */
    sums->tile_logical += space->tile_blocks * space->exact_bytes;
    sums->logical += (space->tile_blocks + space->exact_blocks) * space->exact_bytes;
    sums->sequences += space->sequences;
    sums->hits += space->hits;
    sums->misses += space->misses;
    sums->stored += space->stored;
    sums->existed += space->existed;
}

struct list {
    struct kvd_service *service;
    size_t names; /* of service->metric_names, used */
    struct kvw_metric *out;
    size_t room, count;
};

static void add(struct list *list, const char *name, double value)
{
    if (list->count < list->room)
        list->out[list->count++] = (struct kvw_metric){name, value};
}

static void add_tenant(struct list *list, const struct sums *sums)
{
    add(list, "kvarn_spaces", (double)sums->spaces);
    add(list, "kvarn_blocks{kind=\"tile\"}", (double)sums->tile_blocks);
    add(list, "kvarn_blocks{kind=\"exact\"}", (double)sums->exact_blocks);
    add(list, "kvarn_block_bytes", (double)sums->bytes);
    add(list, "kvarn_logical_bytes", (double)sums->logical);
    add(list, "kvarn_compression_ratio",
        sums->bytes ? (double)sums->logical / (double)sums->bytes : 0);
    add(list, "kvarn_tile_compression_ratio",
        sums->tile_bytes ? (double)sums->tile_logical / (double)sums->tile_bytes : 0);
    add(list, "kvarn_sequences", (double)sums->sequences);
    add(list, "kvarn_block_hits_total", (double)sums->hits);
    add(list, "kvarn_block_misses_total", (double)sums->misses);
    add(list, "kvarn_blocks_stored_total", (double)sums->stored);
    add(list, "kvarn_blocks_existed_total", (double)sums->existed);
}

static void add_disk(struct list *list, const struct kvd_service *service)
{
    struct kvd_tier_figures disk = kvd_tier_figures(service);

    if (!service->tier)
        return;
    add(list, "kvarn_disk_capacity_bytes", (double)disk.capacity_bytes);
    add(list, "kvarn_disk_used_bytes", (double)disk.used_bytes);
    add(list, "kvarn_disk_blocks", (double)disk.blocks);
    add(list, "kvarn_disk_stored_total", (double)disk.stored);
    add(list, "kvarn_disk_loaded_total", (double)disk.loaded);
    add(list, "kvarn_disk_failed_total", (double)disk.failed);
    add(list, "kvarn_disk_evictions_total", (double)disk.evictions);
    add(list, "kvarn_disk_files_quarantined", (double)disk.quarantined);
    add(list, "kvarn_disk_entries_damaged", (double)disk.damaged);
    add(list, "kvarn_disk_moves", (double)disk.moves);
}

static void add_daemon(struct list *list)
{
    const struct kvd_service *service = list->service;

    add(list, "kvarn_evictable_blocks", (double)service->evict.listed);
    add(list, "kvarn_evictions_total", (double)service->blocks.evictions);
    add(list, "kvarn_blocks_dropped_total", (double)service->blocks_dropped);
    add(list, "kvarn_integrity_failures_total", (double)service->integrity_failures);
    add(list, "kvarn_digest_differences_total", (double)service->digest_differences);
    add(list, "kvarn_pinned_blocks", (double)service->blocks.pinned);
    add(list, "kvarn_quota_refusals_total", (double)service->counts.refusals);
    add(list, "kvarn_leases", (double)service->leases.count);
    add(list, "kvarn_leased_blocks", (double)service->leases.blocks_held);
    add(list, "kvarn_leases_expired_total", (double)service->leases.expired_total);
    add(list, "kvarn_requests_in_flight", (double)service->in_flight);
    add(list, "kvarn_requests_in_flight_peak", (double)service->in_flight_peak);
    add(list, "kvarn_requests_parked", (double)service->parked);
    add(list, "kvarn_draining", service->draining);
    add_disk(list, service);
}

enum { FIGURES = 10 };

/* Of one device, in the order of their names. */
static void measure(const struct kvd_service_device *home, double out[FIGURES])
{
    const double figures[FIGURES] = {
        (double)kvd_pool_capacity_bytes(home->pool),
        (double)kvd_pool_used_bytes(home->pool),
        (double)kvd_pool_reserved_bytes(home->pool),
        (double)kvd_staging_capacity_bytes(home->device),
        (double)kvd_staging_free_bytes(home->device),
        (double)home->jobs_submitted,
        (double)home->device_ns * 1e-9,
        kvd_device_ready(home->device) && !kvd_recheck_active(home->recheck),
        (double)kvd_device_restarts(home->device),
        (double)home->blocks_lost,
    };

    memcpy(out, figures, sizeof figures);
}

static void add_text(struct list *list, double value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_text(struct list *list, double value, const char *format, ...)
{
    char *text = list->service->metric_names[list->names];
    va_list values;

    if (list->names == KVW_METRICS_MAX - 1)
        return;
    list->names++;
    va_start(values, format);
    vsnprintf(text, sizeof list->service->metric_names[0], format, values);
    va_end(values);
    add(list, text, value);
}

/* Names of the figure over all devices and of one device's, which are not to be added up together.
 */
static const struct {
    const char *whole, *each;
    bool least; /* over all devices it is the least one's, else the sum */
} names[FIGURES] = {
    {"kvarn_pool_capacity_bytes", "kvarn_device_pool_capacity_bytes", false},
    {"kvarn_pool_used_bytes", "kvarn_device_pool_used_bytes", false},
    {"kvarn_pool_reserved_bytes", "kvarn_device_pool_reserved_bytes", false},
    {"kvarn_staging_capacity_bytes", "kvarn_device_staging_capacity_bytes", false},
    {"kvarn_staging_largest_free_bytes", "kvarn_device_staging_largest_free_bytes", true},
    {"kvarn_jobs_total", "kvarn_device_jobs_total", false},
    {"kvarn_device_seconds_total", "kvarn_device_busy_seconds_total", false},
    {"kvarn_device_ready", "kvarn_device_serving", true},
    {"kvarn_worker_restarts_total", "kvarn_device_restarts_total", false},
    {"kvarn_blocks_lost_total", "kvarn_device_blocks_lost_total", false},
};

static void add_devices(struct list *list)
{
    const struct kvd_service *service = list->service;
    double values[KVD_DEVICES_MAX][FIGURES] = {{0}};

    for (uint32_t i = 0; i < service->device_count; i++)
        measure(&service->devices[i], values[i]);
    for (int figure = 0; figure < FIGURES; figure++) {
        double whole = values[0][figure];

        for (uint32_t i = 1; i < service->device_count; i++) {
            if (!names[figure].least)
                whole += values[i][figure];
            else if (values[i][figure] < whole)
                whole = values[i][figure];
        }
        add(list, names[figure].whole, whole);
    }
    for (uint32_t i = 0; i < service->device_count; i++)
        for (int figure = 0; figure < FIGURES; figure++)
            add_text(list, values[i][figure], "%s{device=\"%s\"}", names[figure].each,
                     kvd_device_name(service->devices[i].device));
}

static void add_one(void *context, const char *name, double value)
{
    add(context, name, value);
}

/* Only pairs that happened, so that the list stays short. */
static void add_requests(struct list *list)
{
    struct kvd_service *service = list->service;

    for (uint32_t op = 0; op < KVD_OPS; op++) {
        for (uint32_t status = 0; status < KVD_STATUSES; status++) {
            const char *name = kvw_op_name((uint8_t)op);

            if (service->requests[op][status])
                add_text(list, (double)service->requests[op][status],
                         "kvarn_requests_total{op=\"%s\",status=\"%s\"}", name ? name : "unknown",
                         kvarn_status_name((kvarn_status)status));
        }
    }
}

static size_t collect(struct kvd_service *service, uint32_t tenant, bool all,
                      struct kvw_metric *out, size_t room)
{
    struct list list = {.service = service, .out = out, .room = room};
    struct sums sums = {0};

    for (size_t i = 0; i < KVD_SPACES_MAX; i++) {
        const struct kvd_space *space = &service->spaces.slots[i];

        if (space->used && (all || space->tenant == tenant))
            add_space(&sums, space);
    }
    add_tenant(&list, &sums);
    if (all) {
        add_devices(&list);
        add_daemon(&list);
        if (service->options.metrics != NULL)
            kvd_metrics_each(service->options.metrics, add_one, &list);
        add_requests(&list);
    }
    return list.count;
}

size_t kvd_service_metrics(struct kvd_service *service, struct kvw_metric *out, size_t room)
{
    return collect(service, 0, true, out, room);
}

static kvarn_status stats_begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_stats_decode(&work->args.stats, metadata,
                                           work->request.header.metadata_bytes, &work->arena, &why);

    return status == KVARN_OK ? status : kvd_work_fail(work, status, "metadata: %s", why);
}

static void stats_run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvw_stats_reply reply = {
        .metrics = kvd_work_memory(work, KVW_METRICS_MAX, sizeof *reply.metrics)};
    size_t bytes;

    if (!reply.metrics) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
        return;
    }
    reply.result = kvd_work_result(work);
    reply.count = collect(service, work->request.tenant, work->request.same_uid, reply.metrics,
                          KVW_METRICS_MAX);
    if (work->args.stats.reset_peaks && work->request.same_uid)
        service->in_flight_peak = service->in_flight;
    bytes = kvw_stats_reply_encode(work->meta, sizeof work->meta, &reply);
    if (!bytes && kvd_work_long_meta(work)) /* 256 figures of at most 108 bytes: they fit */
        bytes = kvw_stats_reply_encode(work->request.reply_meta, KVW_METADATA_MAX_BYTES, &reply);
    kvd_work_send(work, bytes);
}

const struct kvd_operation kvd_operation_stats = {stats_begin, stats_run, true, NULL};

static kvarn_status list_begin(struct kvd_work *work, const uint8_t *metadata)
{
    (void)work;
    (void)metadata; /* List has no fields; unknown ones are ignored */
    return KVARN_OK;
}

static struct kvw_space_info describe(const struct kvd_space *space)
{
    struct kvw_space_info info = {.space = space->handle,
                                  .model = space->model,
                                  .preset = space->preset->name,
                                  .layers = space->layers,
                                  .kv_heads = space->heads,
                                  .head_dim = space->shape.dim,
                                  .dtype = space->shape.dtype,
                                  .tile_blocks = space->tile_blocks,
                                  .exact_blocks = space->exact_blocks,
                                  .bytes = space->tile_blocks * space->tile_bytes +
                                           space->exact_blocks * space->exact_bytes,
                                  .sequences = space->sequences};

    memcpy(info.fingerprint, space->fingerprint, sizeof info.fingerprint);
    return info;
}

static void list_run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvw_list_reply reply = {.spaces =
                                       kvd_work_memory(work, KVW_SPACES_MAX, sizeof *reply.spaces)};
    size_t bytes;

    if (!reply.spaces) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
        return;
    }
    for (size_t i = 0; i < KVD_SPACES_MAX; i++) {
        const struct kvd_space *space = &service->spaces.slots[i];

        if (space->used && !space->reset &&
            (work->request.same_uid || space->tenant == work->request.tenant))
            reply.spaces[reply.count++] = describe(space);
    }
    reply.result = kvd_work_result(work);
    bytes = kvw_list_reply_encode(work->meta, sizeof work->meta, &reply);
    if (!bytes && kvd_work_long_meta(work)) /* 256 spaces of at most 254 bytes: they fit */
        bytes = kvw_list_reply_encode(work->request.reply_meta, KVW_METADATA_MAX_BYTES, &reply);
    kvd_work_send(work, bytes);
}

const struct kvd_operation kvd_operation_list = {list_begin, list_run, true, NULL};
