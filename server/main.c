/* kvarnd, the front process: opens everything in order, runs the loop, takes it down in reverse.
 *
 * SIGTERM and SIGINT drain (net/drain.h). Exit codes: 0 fine, 1 could not start, 2 usage or
 * configuration.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/core/config.h"
#include "server/core/files.h"
#include "server/core/log.h"
#include "server/core/loop.h"
#include "server/core/metrics.h"
#include "server/core/size.h"
#include "server/device/device.h"
#include "server/net/conn.h"
#include "server/net/drain.h"
#include "server/net/listener.h"
#include "server/rpc/service.h"
#include "server/store/tenant.h"

enum { EXIT_FAILED = 1, EXIT_CONFIG = 2, TICK_MS = 10, IDLE_TICK_MS = 100 };
enum { DESCRIPTORS_KEPT = 48, DESCRIPTORS_OF_DEVICE = 16, DESCRIPTORS_OF_DISK = 8 };

struct front {
    struct kvd_config config;
    struct uv_loop_s *loop;
    struct kvd_metrics *metrics;
    struct kvd_tenants *tenants;
    struct kvd_device *devices[KVD_DEVICES_MAX]; /* GPUs first */
    uint32_t device_count;
    struct kvd_files *files; /* NULL: no disk */
    struct kvd_service *service;
    struct kvd_conns *conns;
    struct kvd_listener *listeners[KVD_LISTENERS_MAX];
    struct kvd_drain *drain;
    struct kvd_timer *tick;
    uint32_t tick_ms; /* an idle daemon wakes less often */
};

static void close_listeners(void *context)
{
    struct front *front = context;

    for (size_t i = 0; i < KVD_LISTENERS_MAX; i++)
        kvd_listener_close(&front->listeners[i]);
}

/* A client's DRAIN. */
static void on_drain(void *context, uint32_t grace_ms)
{
    kvd_drain_begin(((struct front *)context)->drain, grace_ms);
}

static void on_gone(void *context)
{
    struct front *front = context;

    if (front->drain != NULL)
        kvd_drain_look(front->drain);
}

static void on_tick(void *context)
{
    struct front *front = context;
    uint32_t wanted_ms;

    kvd_service_tick(front->service);
    wanted_ms = kvd_conns_open_requests(front->conns) > 0 || kvd_service_ticking(front->service)
                    ? TICK_MS
                    : IDLE_TICK_MS;
    if (wanted_ms == front->tick_ms)
        return;
    front->tick_ms = wanted_ms;
    kvd_timer_start(front->tick, wanted_ms, wanted_ms);
}

static const char *tenant_name(void *context, uint32_t tenant)
{
    const char *name = kvd_tenants_name(((struct front *)context)->tenants, tenant);

    return name != NULL ? name : "";
}

/* ---- opening */

static bool failed(const char *what, const char *why)
{
    fprintf(stderr, "kvarnd: %s: %s\n", what, why);
    return false;
}

/* As many descriptors as there may be: a GPU's pool takes one for every 64 MiB. */
static void raise_descriptors(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

/* Connections this process has descriptors for. */
static uint32_t connections_max(const struct front *front)
{
    struct rlimit files;
    rlim_t kept = (rlim_t)DESCRIPTORS_KEPT, room;

    for (uint32_t i = 0; i < front->device_count; i++)
        kept += DESCRIPTORS_OF_DEVICE + kvd_device_pool_descriptors(front->devices[i]);
    if (front->files != NULL)
        kept += DESCRIPTORS_OF_DISK + KVD_DISK_SEGMENTS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur <= kept)
        return 1;
    room = files.rlim_cur - kept;
    return room < KVD_CONNECTIONS_MAX ? (uint32_t)room : KVD_CONNECTIONS_MAX;
}

static uint64_t payload_max(const struct kvd_config *config)
{
    uint64_t half = config->staging_bytes / 2;

    return half < KVD_PAYLOAD_MAX_BYTES ? half : KVD_PAYLOAD_MAX_BYTES;
}

/* What the device says, and what is wrong with the worker's file if that is it. */
static bool device_failed(const struct kvd_config *config, const char *name, const char *why)
{
    if (access(config->worker, X_OK) != 0)
        fprintf(stderr, "kvarnd: the worker %s: %s; say where it is with --worker\n",
                config->worker, strerror(errno));
    else
        fprintf(stderr, "kvarnd: the worker is %s (--worker)\n", config->worker);
    return failed(name, why);
}

static kvarn_status open_device(struct front *front, const struct kvd_config_pool *pool,
                                const char **why)
{
    const struct kvd_config *config = &front->config;
    struct kvd_device_options options = {
        .worker_path = config->worker,
        .gpu = pool->gpu,
        .number = pool->number,
        .pool_bytes = pool->bytes,
        .pool_percent = pool->percent,
        .staging_bytes = config->staging_bytes,
        .threads = config->threads,
        .cpu_mask = config->cpu[0] == '\0' ? NULL : config->cpu,
        .stall_ms = config->worker_stall_ms,
    };
    struct kvd_device **device = &front->devices[front->device_count];
    kvarn_status status = kvd_device_open(device, front->loop, &options, why);

    if (status == KVARN_OK)
        front->device_count++;
    return status;
}

/* GPUs come first: they are where spaces go. One that is not there, or has no driver, is said and
 * left out; so the same command line serves on machines with and without. */
static bool open_gpus(struct front *front)
{
    const struct kvd_config *config = &front->config;

    for (uint32_t i = 0; i < config->pool_count; i++) {
        const struct kvd_config_pool *pool = &config->pools[i];
        const char *why = "";
        char name[32];
        kvarn_status status;

        if (!pool->gpu)
            continue;
        snprintf(name, sizeof name, "cuda:%u", pool->number);
        status = open_device(front, pool, &why);
        if (status == KVARN_UNSUPPORTED)
            kvd_log(KVD_LOG_WARN, "device_missing", kvd_text("device", name), kvd_text("why", why));
        else if (status != KVARN_OK)
            return device_failed(config, name, why);
    }
    return true;
}

static bool open_host(struct front *front)
{
    const struct kvd_config *config = &front->config;
    struct kvd_config_pool fallback = {.bytes = KVD_FALLBACK_POOL_BYTES};
    const struct kvd_config_pool *pool = NULL;
    const char *why = "";

    for (uint32_t i = 0; i < config->pool_count; i++)
        if (!config->pools[i].gpu)
            pool = &config->pools[i];
    if (pool == NULL && front->device_count > 0)
        return true;
    if (pool == NULL) {
        pool = &fallback;
        kvd_log(KVD_LOG_WARN, "serving_from_cpu", kvd_text("pool", KVD_DEFAULT_POOL),
                kvd_text("why", "none of the GPUs that --pool names can be used"));
    }
    return open_device(front, pool, &why) == KVARN_OK || device_failed(config, "host", why);
}

/* Groups before any number is given out; then the tenants that have a quota get theirs. */
static bool open_tenants(struct front *front, uint32_t numbers[KVD_QUOTAS_MAX])
{
    const struct kvd_config *config = &front->config;

    for (uint32_t i = 0; i < config->share_count; i++)
        if (kvd_tenants_share(front->tenants, &config->shares[i]) != KVARN_OK)
            return failed(config->share_text[i],
                          "a tenant is in one sharing group, and a group is in none");
    for (uint32_t i = 0; i < config->quota_count; i++) {
        if (kvd_tenants_of_name(front->tenants, config->quotas[i].name, &numbers[i]) != KVARN_OK)
            return failed(config->quota_text[i], "too many tenants");
        for (uint32_t j = 0; j < i; j++)
            if (numbers[j] == numbers[i])
                return failed(config->quota_text[i],
                              "this tenant is in a sharing group that has a quota already");
    }
    return true;
}

static bool open_files(struct front *front)
{
    const char *io = front->config.disk_io;
    enum kvd_files_kind kind = strcmp(io, "uring") == 0     ? KVD_FILES_URING
                               : strcmp(io, "threads") == 0 ? KVD_FILES_THREADS
                                                            : KVD_FILES_AUTO;
    kvarn_status status;

    if (front->config.disk[0] == '\0')
        return true;
    status = kvd_files_open(&front->files, front->loop, kind);
    if (status == KVARN_UNSUPPORTED)
        return failed("--disk-io", "the system forbids io_uring; take auto or threads");
    return status == KVARN_OK ? true : failed("--disk", "no threads or descriptors");
}

static bool open_service(struct front *front)
{
    uint32_t numbers[KVD_QUOTAS_MAX];
    struct kvd_service_options options = {
        .devices = front->devices,
        .device_count = front->device_count,
        .metrics = front->metrics,
        .drain = on_drain,
        .tenant_name = tenant_name,
        .context = front,
        .server = "kvarnd " KVARN_VERSION,
        .eviction = front->config.lru ? KVD_EVICT_LRU : KVD_EVICT_S3FIFO,
        .high_percent = front->config.high_percent,
        .low_percent = front->config.low_percent,
        .quotas = front->config.quotas,
        .quota_tenants = numbers,
        .quota_count = front->config.quota_count,
        .payload_max_bytes = payload_max(&front->config),
        .disk_path = front->files != NULL ? front->config.disk : NULL,
        .disk_key = front->config.disk_key[0] != '\0' ? front->config.disk_key : NULL,
        .disk_bytes = front->config.disk_bytes,
        .disk_bandwidth = front->config.disk_bandwidth,
        .disk_files = front->files,
    };
    const char *why = "";

    if (!open_tenants(front, numbers))
        return false;
    return kvd_service_open(&front->service, &options, &why) == KVARN_OK || failed("service", why);
}

static bool open_front(struct front *front)
{
    struct kvd_conns_options options = {
        .payload_max_bytes = payload_max(&front->config),
        .gone = on_gone,
        .context = front,
    };

    front->loop = kvd_loop_new();
    if (front->loop == NULL || kvd_metrics_open(&front->metrics) != KVARN_OK ||
        kvd_tenants_open(&front->tenants, geteuid()) != KVARN_OK ||
        kvd_timer_open(&front->tick, front->loop, on_tick, front) != KVARN_OK)
        return failed("start", "out of memory or descriptors");
    raise_descriptors();
    if (!open_gpus(front) || !open_host(front) || !open_files(front) || !open_service(front))
        return false;
    options.connections_max = connections_max(front);
    options.loop = front->loop;
    options.service = front->service;
    options.metrics = front->metrics;
    if (kvd_conns_open(&front->conns, &options) != KVARN_OK)
        return failed("start", "out of memory");
    kvd_timer_start(front->tick, TICK_MS, TICK_MS);
    if (kvd_drain_open(&front->drain, &(struct kvd_drain_options){
                                          .loop = front->loop,
                                          .conns = front->conns,
                                          .service = front->service,
                                          .grace_ms = front->config.drain_grace_ms,
                                          .with_last = front->config.socket_fd >= 0,
                                          .close_doors = close_listeners,
                                          .context = front,
                                      }) != KVARN_OK)
        return failed("signals", strerror(errno));
    return true;
}

static bool open_listeners(struct front *front, int *code)
{
    char why[KVD_LISTENER_WHY_MAX] = "";
    struct kvd_listener_options options = {
        .loop = front->loop,
        .conns = front->conns,
        .tenants = front->tenants,
        .socket_mode = front->config.socket_mode,
        .own_uid = geteuid(),
    };

    if (front->config.socket_fd >= 0) {
        kvarn_status status = kvd_listener_inherit(front->config.socket_fd, &options, why);

        if (status == KVARN_INVALID_SHAPE)
            *code = EXIT_CONFIG;
        return status == KVARN_OK ? true : failed("--socket-fd", why);
    }
    for (uint32_t i = 0; i < front->config.listen_count; i++) {
        const char *address = front->config.listen[i];
        kvarn_status status = kvd_listener_open(&front->listeners[i], address, &options, why);

        if (status == KVARN_OK)
            continue;
        if (status == KVARN_DENIED || status == KVARN_INVALID_SHAPE)
            *code = EXIT_CONFIG;
        return failed("listen", why);
    }
    return true;
}

static void warn_of_strays(void)
{
    char name[64];
    size_t at = 0;

    while (kvd_config_stray(environ, &at, name))
        kvd_log(KVD_LOG_WARN, "unknown_variable", kvd_text("name", name),
                kvd_text("note", "not a variable of kvarnd; see --help"));
}

static void say_hello(const struct front *front)
{
    char pool[KVD_SIZE_TEXT_MAX], staging[KVD_SIZE_TEXT_MAX];

    kvd_size_format(front->config.staging_bytes, staging);
    kvd_log(KVD_LOG_INFO, "started", kvd_text("version", KVARN_VERSION),
            kvd_text("staging", staging), kvd_number("threads", front->config.threads),
            kvd_number("pid", getpid()));
    for (uint32_t i = 0; i < front->device_count; i++) {
        const struct kvd_device *device = front->devices[i];

        kvd_size_format(kvd_device_pool_bytes(device), pool);
        kvd_log(KVD_LOG_INFO, "serving", kvd_text("device", kvd_device_name(device)),
                kvd_text("backend", kvd_device_backend(device)), kvd_text("pool", pool));
    }
    if (front->files != NULL) {
        kvd_size_format(front->config.disk_bytes, pool);
        kvd_log(KVD_LOG_INFO, "disk", kvd_text("path", front->config.disk), kvd_text("size", pool),
                kvd_text("io", kvd_files_backend(front->files)));
    }
    for (size_t i = 0; i < KVD_LISTENERS_MAX; i++)
        if (front->listeners[i] != NULL)
            kvd_log(KVD_LOG_INFO, "listening",
                    kvd_text("address", kvd_listener_address(front->listeners[i])));
}

/* Whoever started us waits for one byte, or for the end of the file when we could not start. */
static void say_ready(const struct front *front)
{
    int fd = front->config.ready_fd;

    if (fd < 0)
        return;
    if (write(fd, "\n", 1) != 1)
        kvd_log(KVD_LOG_WARN, "ready-fd", kvd_text("error", strerror(errno)));
    close(fd);
}

/* ---- the whole */

static void close_front(struct front *front)
{
    close_listeners(front);
    if (front->conns != NULL)
        kvd_conns_end(front->conns);
    kvd_conns_close(&front->conns);
    kvd_files_close(&front->files);
    if (front->service != NULL)
        kvd_service_close(&front->service);
    while (front->device_count > 0)
        kvd_device_close(&front->devices[--front->device_count]);
    kvd_drain_close(&front->drain);
    kvd_timer_close(&front->tick);
    kvd_tenants_close(&front->tenants);
    kvd_metrics_close(&front->metrics);
    kvd_loop_free(&front->loop);
}

static bool check_addresses(const struct kvd_config *config)
{
    char why[KVD_LISTENER_WHY_MAX];

    for (uint32_t i = 0; i < config->listen_count; i++) {
        if (kvd_listener_check(config->listen[i], why) == KVARN_OK)
            continue;
        fprintf(stderr, "kvarnd: %s: %s\n", config->from[KVD_KEY_LISTEN], why);
        return false;
    }
    return true;
}

/* Prompts must not end up in core files. A sanitizer's leak check has to look at its own process.
 */
static void keep_out_of_core_files(void)
{
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define CHECKED_BUILD 1
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(CHECKED_BUILD)
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
}

int main(int argc, char **argv)
{
    static struct front front;
    char why[KVD_CONFIG_WHY_MAX];
    int code = EXIT_FAILED;

    if (kvd_config_load(&front.config, argc, argv, why) != KVARN_OK) {
        fprintf(stderr, "kvarnd: %s\n", why);
        return EXIT_CONFIG;
    }
    if (!check_addresses(&front.config))
        return EXIT_CONFIG;
    if (front.config.print)
        kvd_config_print(&front.config, stdout);
    if (front.config.check && !front.config.print)
        printf("the configuration is right\n");
    if (front.config.check || front.config.print)
        return EXIT_SUCCESS;

    keep_out_of_core_files();
    kvd_log_set_level(front.config.quiet
                          ? KVD_LOG_WARN
                          : (enum kvd_log_level)kvd_log_level_find(front.config.log_level));
    warn_of_strays();
    if (open_front(&front) && open_listeners(&front, &code)) {
        code = EXIT_SUCCESS;
        say_hello(&front);
        say_ready(&front);
        kvd_loop_run(front.loop);
        kvd_log(KVD_LOG_INFO, "stopped", kvd_number("pid", getpid()));
    }
    close_front(&front);
    return code;
}
