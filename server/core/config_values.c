/* How each value is read, and the table of keys. *why is static text. */
#include "server/core/config.h"

#include <stdlib.h>
#include <string.h>

#include "server/core/size.h"

enum {
    MIN_POOL_BYTES = 4 << 20,
    MIN_STAGING_BYTES = 4 << 20,
    MIN_DISK_BYTES = 4 << 20,
    MIN_DISK_BANDWIDTH = 1 << 20,
    GRACE_MAX_MS = 3600000,
    STALL_MIN_MS = 100,
    GPU_NUMBER_MAX = 255
};

/* As kvarnctl takes them: tcp://HOST:PORT is tcp:HOST:PORT, unix:///PATH is unix:/PATH. */
static bool set_listen(struct kvd_config *config, const char *value, const char **why)
{
    bool tcp = strncmp(value, "tcp:", 4) == 0, local = strncmp(value, "unix:", 5) == 0;
    const char *rest = value + (tcp ? 4 : local ? 5 : 0);

    if (config->listen_count == KVD_LISTENERS_MAX) {
        *why = "more than 8 addresses";
        return false;
    }
    if (!tcp && !local) {
        *why = "an address is unix:/PATH or tcp:HOST:PORT";
        return false;
    }
    if (strncmp(rest, "//", 2) == 0)
        rest += 2;
    if (local && *rest != '/') {
        *why = "the path must be absolute: unix:/PATH, as unix:/run/kvarnd/kvarnd.sock";
        return false;
    }
    snprintf(config->listen[config->listen_count], sizeof config->listen[0], "%s%.*s",
             tcp ? "tcp:" : "unix:", KVD_CONFIG_TEXT_MAX - 6, rest);
    config->listen_count++;
    return true;
}

/* "... this machine or container has 32059MiB" */
static const char *too_large(const char *what, uint64_t memory)
{
    static char said[160];

    snprintf(said, sizeof said,
             "%s is larger than the memory of this machine or container, which is %lluMiB", what,
             (unsigned long long)(memory >> 20));
    return said;
}

static bool host_size(const char *text, struct kvd_config_pool *pool, const char **why)
{
    uint64_t memory = kvd_memory_bytes();

    if (!kvd_size_parse(text, memory, &pool->bytes, why))
        return false;
    if (pool->bytes > memory) {
        *why = too_large("the pool", memory);
        return false;
    }
    return true;
}

/* "0:80%", "1:40GiB": what the GPU has is known to its worker alone. */
static bool gpu_size(const char *text, struct kvd_config_pool *pool, const char **why)
{
    const char *colon = strchr(text, ':');
    uint64_t size = 0;
    char number[4];

    *why = "a GPU's pool is cuda:NUMBER:SIZE or cuda:NUMBER:SHARE%, as cuda:0:40GiB or cuda:0:80%";
    if (colon == NULL || colon - text >= (ptrdiff_t)sizeof number)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)(colon - text), text);
    if (!kvd_config_number(number, 10, 0, GPU_NUMBER_MAX, &pool->number) ||
        !kvd_size_parse(colon + 1, 100, &size, why))
        return false;
    if (strchr(colon, '%') == NULL && size > KVD_POOL_CHUNKS_MAX * KVD_CHUNK_BYTES) {
        *why = "a GPU's pool has at most 256GiB";
        return false;
    }
    pool->gpu = true;
    if (strchr(colon, '%') != NULL)
        pool->percent = (uint32_t)size;
    else
        pool->bytes = size;
    return true;
}

static bool same_device(const struct kvd_config_pool *a, const struct kvd_config_pool *b)
{
    return a->gpu == b->gpu && a->number == b->number;
}

static bool set_pool(struct kvd_config *config, const char *value, const char **why)
{
    struct kvd_config_pool pool = {.gpu = false};
    bool gpu = strncmp(value, "cuda:", 5) == 0, host = strncmp(value, "host:", 5) == 0;

    if (!gpu && !host && (*value < '0' || *value > '9')) {
        *why = "a pool is host:SIZE or cuda:NUMBER:SIZE, as host:16GiB or cuda:0:80%";
        return false;
    }
    if (gpu ? !gpu_size(value + 5, &pool, why) : !host_size(value + (host ? 5 : 0), &pool, why))
        return false;
    if (pool.percent == 0 && pool.bytes < MIN_POOL_BYTES) {
        *why = "a pool has at least 4MiB";
        return false;
    }
    for (uint32_t i = 0; i < config->pool_count; i++) {
        if (same_device(&config->pools[i], &pool)) {
            *why = "there is a pool of this device already; give each device one";
            return false;
        }
    }
    if (config->pool_count == KVD_DEVICES_MAX) {
        *why = "more than 16 pools";
        return false;
    }
    snprintf(pool.text, sizeof pool.text, "%s", value);
    config->pools[config->pool_count++] = pool;
    return true;
}

static bool set_staging(struct kvd_config *config, const char *value, const char **why)
{
    uint64_t memory = kvd_memory_bytes();

    if (!kvd_size_parse(value, memory, &config->staging_bytes, why))
        return false;
    if (config->staging_bytes < MIN_STAGING_BYTES) {
        *why = "staging has at least 4MiB";
        return false;
    }
    if (config->staging_bytes > memory) {
        *why = too_large("staging", memory);
        return false;
    }
    return true;
}

/* none, or PATH:SIZE; a path may hold colons, a size does not. */
static bool set_disk(struct kvd_config *config, const char *value, const char **why)
{
    const char *colon = strrchr(value, ':');

    config->disk[0] = '\0';
    if (strcmp(value, "none") == 0)
        return true;
    *why = "a disk is none or /PATH:SIZE, as /var/cache/kvarnd:200GiB";
    if (value[0] != '/' || colon == NULL || colon == value + 1 || strchr(colon, '%') != NULL ||
        !kvd_size_parse(colon + 1, 0, &config->disk_bytes, why))
        return false;
    if (config->disk_bytes < MIN_DISK_BYTES) {
        *why = "a disk has at least 4MiB";
        return false;
    }
    snprintf(config->disk, sizeof config->disk, "%.*s", (int)(colon - value), value);
    return true;
}

static bool set_disk_key(struct kvd_config *config, const char *value, const char **why)
{
    *why = "a key is none or the path of a file";
    snprintf(config->disk_key, sizeof config->disk_key, "%s",
             strcmp(value, "none") == 0 ? "" : value);
    return *value != '\0';
}

static bool set_disk_bandwidth(struct kvd_config *config, const char *value, const char **why)
{
    *why = "a size per second, at least 1MiB, as 256MiB";
    if (strchr(value, '%') != NULL || !kvd_size_parse(value, 0, &config->disk_bandwidth, why))
        return false;
    return config->disk_bandwidth >= MIN_DISK_BANDWIDTH;
}

bool kvd_config_number(const char *value, int base, uint32_t least, uint32_t most, uint32_t *out)
{
    char *end;
    unsigned long number;

    if (*value < '0' || *value > '9' || strlen(value) > 10)
        return false;
    number = strtoul(value, &end, base);
    if (*end != '\0' || number < least || number > most)
        return false;
    *out = (uint32_t)number;
    return true;
}

static bool set_threads(struct kvd_config *config, const char *value, const char **why)
{
    *why = "threads is a number from 1 to 64";
    return kvd_config_number(value, 10, 1, KVD_WORKER_THREADS_MAX, &config->threads);
}

static bool set_grace(struct kvd_config *config, const char *value, const char **why)
{
    *why = "a number of milliseconds, at most an hour";
    return kvd_config_number(value, 10, 0, GRACE_MAX_MS, &config->drain_grace_ms);
}

static bool set_stall(struct kvd_config *config, const char *value, const char **why)
{
    *why = "auto, or a number of milliseconds from 100 to an hour";
    config->worker_stall_ms = 0;
    return strcmp(value, "auto") == 0 ||
           kvd_config_number(value, 10, STALL_MIN_MS, GRACE_MAX_MS, &config->worker_stall_ms);
}

static bool set_socket_mode(struct kvd_config *config, const char *value, const char **why)
{
    uint32_t mode = 0;

    *why = "an octal mode of read and write bits, as 0600, 0660 or 0666";
    if (!kvd_config_number(value, 8, 0600, 0666, &mode) || (mode & ~0666u) != 0)
        return false;
    config->socket_mode = (mode_t)mode;
    return true;
}

static bool one_of(const char *value, const char *const *names)
{
    while (*names != NULL && strcmp(*names, value) != 0)
        names++;
    return *names != NULL;
}

static bool set_cpu(struct kvd_config *config, const char *value, const char **why)
{
    static const char *const names[] = {"auto", "ref", "avx2", "avx512", NULL};

    *why = "one of auto, ref, avx2, avx512";
    if (!one_of(value, names))
        return false;
    snprintf(config->cpu, sizeof config->cpu, "%s", strcmp(value, "auto") == 0 ? "" : value);
    return true;
}

static bool set_quota(struct kvd_config *config, const char *value, const char **why)
{
    struct kvd_quota quota;

    if (strcmp(value, "none") == 0)
        return true;
    *why = "more than 64 quotas";
    if (config->quota_count == KVD_QUOTAS_MAX || !kvd_quota_parse(value, &quota, why))
        return false;
    *why = "this tenant has a quota already";
    for (uint32_t i = 0; i < config->quota_count; i++)
        if (strcmp(config->quotas[i].name, quota.name) == 0)
            return false;
    snprintf(config->quota_text[config->quota_count], KVD_CONFIG_TEXT_MAX, "%s", value);
    config->quotas[config->quota_count++] = quota;
    return true;
}

static bool set_share(struct kvd_config *config, const char *value, const char **why)
{
    if (strcmp(value, "none") == 0)
        return true;
    *why = "more than 16 sharing groups";
    if (config->share_count == KVD_SHARES_MAX ||
        !kvd_share_parse(value, &config->shares[config->share_count], why))
        return false;
    snprintf(config->share_text[config->share_count++], KVD_CONFIG_TEXT_MAX, "%s", value);
    return true;
}

static bool set_eviction(struct kvd_config *config, const char *value, const char **why)
{
    static const char *const names[] = {"s3fifo", "lru", NULL};

    *why = "one of s3fifo, lru";
    config->lru = strcmp(value, "lru") == 0;
    return one_of(value, names);
}

static bool set_disk_io(struct kvd_config *config, const char *value, const char **why)
{
    static const char *const names[] = {"auto", "uring", "threads", NULL};

    *why = "one of auto, uring, threads";
    snprintf(config->disk_io, sizeof config->disk_io, "%s", value);
    return one_of(value, names);
}

static bool set_watermarks(struct kvd_config *config, const char *value, const char **why)
{
    const char *colon = strchr(value, ':');
    char high[4];

    config->high_percent = config->low_percent = 0;
    if (strcmp(value, "none") == 0)
        return true;
    *why = "two percentages, the higher one first, as 95:90; or none";
    if (colon == NULL || colon - value >= (ptrdiff_t)sizeof high)
        return false;
    snprintf(high, sizeof high, "%.*s", (int)(colon - value), value);
    return kvd_config_number(high, 10, 2, 100, &config->high_percent) &&
           kvd_config_number(colon + 1, 10, 1, config->high_percent - 1, &config->low_percent);
}

static bool set_log_level(struct kvd_config *config, const char *value, const char **why)
{
    static const char *const names[] = {"error", "warn", "info", "debug", NULL};

    *why = "one of error, warn, info, debug";
    if (!one_of(value, names))
        return false;
    snprintf(config->log_level, sizeof config->log_level, "%s", value);
    return true;
}

static bool set_quiet(struct kvd_config *config, const char *value, const char **why)
{
    static const char *const yes[] = {"true", "yes", "on", "1", NULL};
    static const char *const no[] = {"false", "no", "off", "0", NULL};

    *why = "true or false (or yes, no, on, off, 1, 0)";
    config->quiet = one_of(value, yes);
    return config->quiet || one_of(value, no);
}

static bool set_worker(struct kvd_config *config, const char *value, const char **why)
{
    *why = "the path of kvarn-worker is empty";
    snprintf(config->worker, sizeof config->worker, "%s", value);
    return *value != '\0';
}

/* ---- the table */

const struct kvd_config_key kvd_config_keys[KVD_KEY_COUNT] = {
    [KVD_KEY_LISTEN] = {"listen", "KVARND_LISTEN", "ADDRESS",
                        "unix:/PATH or tcp:HOST:PORT (loopback only); may be given again "
                        "(unix:$XDG_RUNTIME_DIR/kvarnd/kvarnd.sock, or under /run without it)",
                        set_listen},
    [KVD_KEY_POOL] = {"pool", "KVARND_POOL", "DEVICE:SIZE",
                      "memory for caches, as host:16GiB, host:50%, cuda:0:80% (of what is free at "
                      "the start) or cuda:1:40GiB; may be given again, once per device "
                      "(" KVD_DEFAULT_POOL ")",
                      set_pool},
    [KVD_KEY_STAGING] = {"staging", "KVARND_STAGING", "SIZE",
                         "memory for requests and replies on their way, of each device "
                         "(" KVD_DEFAULT_STAGING ")",
                         set_staging},
    [KVD_KEY_EVICTION] =
        {"eviction", "KVARND_EVICTION", "POLICY",
         "what goes when a pool is full: s3fifo keeps what is used again, lru what "
         "was used last (s3fifo)",
         set_eviction},
    [KVD_KEY_WATERMARKS] = {"watermarks", "KVARND_WATERMARKS", "HIGH:LOW",
                            "above HIGH percent of what a tenant may have in a pool, blocks of it "
                            "are evicted ahead of need until it is at LOW, as 95:90 (none)",
                            set_watermarks},
    [KVD_KEY_QUOTA] =
        {"quota", "KVARND_QUOTA", "TENANT ...",
         "what a tenant may have, as \"uid-1001 host=1GiB..4GiB gpu=..8GiB requests=16 "
         "spaces=4 sequences=100 leases=50 leased-blocks=1000 pinned-blocks=100\" (bytes: "
         "GUARANTEED..MAXIMUM); may be given again (none)",
         set_quota},
    [KVD_KEY_SHARE] = {"share", "KVARND_SHARE", "NAME MEMBER ...",
                       "tenants that are to be one and see each other's blocks, as \"team uid-1001 "
                       "uid-1002\"; may be given again (none)",
                       set_share},
    [KVD_KEY_DISK] = {"disk", "KVARND_DISK", "PATH:SIZE",
                      "a folder for blocks beside the pools, as /var/cache/kvarnd:200GiB; they are "
                      "there again after a restart (none)",
                      set_disk},
    [KVD_KEY_DISK_KEY] = {"disk-key", "KVARND_DISK_KEY", "FILE",
                          "64 hexadecimal digits that seal the tenants' keys; the disk is then "
                          "encrypted with AES-256-GCM (none)",
                          set_disk_key},
    [KVD_KEY_DISK_BANDWIDTH] = {"disk-bandwidth", "KVARND_DISK_BANDWIDTH", "SIZE",
                                "what the moves between pools and disk may take per second, each "
                                "way (" KVD_DEFAULT_DISK_BANDWIDTH ")",
                                set_disk_bandwidth},
    [KVD_KEY_DISK_IO] = {"disk-io", "KVARND_DISK_IO", "KIND",
                         "auto (io_uring, or threads where the system forbids it), uring or "
                         "threads",
                         set_disk_io},
    [KVD_KEY_THREADS] = {"threads", "KVARND_THREADS", "N",
                         "threads of the CPU worker (one per CPU)", set_threads},
    [KVD_KEY_CPU] = {"cpu", "KVARND_CPU", "KIND",
                     "auto, ref, avx2 or avx512; KVARN_CPU does the same", set_cpu},
    [KVD_KEY_WORKER] = {"worker", "KVARND_WORKER", "PATH",
                        "the kvarn-worker to run (the one in ../libexec/kvarn seen from kvarnd, "
                        "else the one next to kvarnd)",
                        set_worker},
    [KVD_KEY_WORKER_STALL] = {"worker-stall", "KVARND_WORKER_STALL", "MS",
                              "milliseconds without progress after which a worker is killed and "
                              "started again (auto: 60000 for the CPU, 2000 for a GPU)",
                              set_stall},
    [KVD_KEY_SOCKET_MODE] = {"socket-mode", "KVARND_SOCKET_MODE", "MODE",
                             "mode of Unix sockets (0600: this user alone)", set_socket_mode},
    [KVD_KEY_DRAIN_GRACE] = {"drain-grace", "KVARND_DRAIN_GRACE", "MS",
                             "milliseconds that SIGTERM lets requests finish (10000)", set_grace},
    [KVD_KEY_LOG_LEVEL] = {"log-level", "KVARND_LOG_LEVEL", "LEVEL",
                           "error, warn, info or debug (info)", set_log_level},
    [KVD_KEY_QUIET] = {"quiet", "KVARND_QUIET", NULL, "no start-up banner, warnings only",
                       set_quiet},
};

enum kvd_key kvd_config_key(const char *name)
{
    unsigned key = 0;

    while (key < KVD_KEY_COUNT && strcmp(kvd_config_keys[key].name, name) != 0)
        key++;
    return (enum kvd_key)key;
}

bool kvd_config_collects(enum kvd_key key)
{
    return key == KVD_KEY_LISTEN || key == KVD_KEY_POOL || key == KVD_KEY_QUOTA ||
           key == KVD_KEY_SHARE;
}

kvarn_status kvd_config_set(struct kvd_config *config, enum kvd_key key, const char *value,
                            enum kvd_rank rank, const char *place, char why[KVD_CONFIG_WHY_MAX])
{
    const char *wrong = "longer than 255 bytes";

    if (key == KVD_KEY_LISTEN && config->rank[key] != (int)rank)
        config->listen_count = 0;
    if (key == KVD_KEY_POOL && config->rank[key] != (int)rank)
        config->pool_count = 0;
    if (key == KVD_KEY_QUOTA && config->rank[key] != (int)rank)
        config->quota_count = 0;
    if (key == KVD_KEY_SHARE && config->rank[key] != (int)rank)
        config->share_count = 0;
    if (strlen(value) >= KVD_CONFIG_TEXT_MAX || !kvd_config_keys[key].set(config, value, &wrong)) {
        snprintf(why, KVD_CONFIG_WHY_MAX, "%s: %s \"%.100s\": %s", place, kvd_config_keys[key].name,
                 value, wrong);
        return KVARN_INVALID_SHAPE;
    }
    config->rank[key] = (int)rank;
    snprintf(config->text[key], sizeof config->text[key], "%s", value);
    snprintf(config->from[key], sizeof config->from[key], "%s", place);
    return KVARN_OK;
}
