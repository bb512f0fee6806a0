/* What the operator said: flags over environment over file over defaults.
 *
 * One table of keys serves all four: `--pool X`, KVARND_POOL, `pool: X` in YAML. Every value knows
 * where it came from. A value that is not understood is an error, never a guess. */
#ifndef KVD_CONFIG_H
#define KVD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <kvarn/status.h>

#include "server/core/limits.h"
#include "server/core/quota.h"

enum kvd_key {
    KVD_KEY_LISTEN,
    KVD_KEY_POOL,
    KVD_KEY_STAGING,
    KVD_KEY_DISK,
    KVD_KEY_DISK_KEY,
    KVD_KEY_DISK_BANDWIDTH,
    KVD_KEY_DISK_IO,
    KVD_KEY_EVICTION,
    KVD_KEY_WATERMARKS,
    KVD_KEY_QUOTA,
    KVD_KEY_SHARE,
    KVD_KEY_THREADS,
    KVD_KEY_CPU,
    KVD_KEY_WORKER,
    KVD_KEY_WORKER_STALL,
    KVD_KEY_SOCKET_MODE,
    KVD_KEY_DRAIN_GRACE,
    KVD_KEY_LOG_LEVEL,
    KVD_KEY_QUIET,
    KVD_KEY_COUNT
};

enum { KVD_CONFIG_TEXT_MAX = 256, KVD_CONFIG_WHY_MAX = 640 };

/* One value of `pool`. */
struct kvd_config_pool {
    bool gpu;
    uint32_t number;  /* of the GPU */
    uint64_t bytes;   /* 0: percent counts */
    uint32_t percent; /* of the GPU's memory that is free at the start */
    char text[KVD_CONFIG_TEXT_MAX];
};

struct kvd_config {
    char listen[KVD_LISTENERS_MAX][KVD_CONFIG_TEXT_MAX];
    uint32_t listen_count;
    struct kvd_config_pool pools[KVD_DEVICES_MAX];
    uint32_t pool_count;
    uint64_t staging_bytes; /* of each device */
    struct kvd_quota quotas[KVD_QUOTAS_MAX];
    char quota_text[KVD_QUOTAS_MAX][KVD_CONFIG_TEXT_MAX];
    uint32_t quota_count;
    struct kvd_share shares[KVD_SHARES_MAX];
    char share_text[KVD_SHARES_MAX][KVD_CONFIG_TEXT_MAX];
    uint32_t share_count;
    uint32_t high_percent, low_percent; /* 0: no watermarks */
    bool lru;                           /* eviction; else S3-FIFO */
    char disk[KVD_CONFIG_TEXT_MAX];     /* folder; "" = none */
    char disk_key[KVD_CONFIG_TEXT_MAX]; /* file; "" = not encrypted */
    uint64_t disk_bytes, disk_bandwidth;
    char disk_io[16]; /* auto, uring, threads */
    uint32_t threads;
    char cpu[16]; /* "" = the best there is */
    char worker[KVD_CONFIG_TEXT_MAX];
    mode_t socket_mode;
    uint32_t drain_grace_ms;
    uint32_t worker_stall_ms; /* 0: by the kind of the device */
    char log_level[8];
    bool quiet;

    /* flags only */
    int socket_fd; /* -1 = listen */
    int ready_fd;  /* -1 = none */
    bool check, print;

    char text[KVD_KEY_COUNT][KVD_CONFIG_TEXT_MAX]; /* as given, of the last one */
    char from[KVD_KEY_COUNT][KVD_CONFIG_TEXT_MAX]; /* "default", "flag --pool", "file.yaml:3:7" */
    int rank[KVD_KEY_COUNT];                       /* config.c's: which kind of source */
};

/* Everything, in order of precedence. --help and --version print and exit 0; an unknown flag exits
 * 2. INVALID_SHAPE with a sentence in `why` that begins with the place of the mistake. */
kvarn_status kvd_config_load(struct kvd_config *config, int argc, char **argv,
                             char why[KVD_CONFIG_WHY_MAX]);

/* YAML that --config takes back, each value with its source. */
void kvd_config_print(const struct kvd_config *config, FILE *out);

/* The next name in environment (as environ) from *at on that begins with KVARND_ and is none of
 * ours. False after the last. */
bool kvd_config_stray(char *const *environment, size_t *at, char name[64]);

/* ---- between config.c, config_file.c and config_values.c */

#define KVD_DEFAULT_STAGING        "256MiB"
#define KVD_DEFAULT_POOL           "host:1GiB"
#define KVD_DEFAULT_DISK_BANDWIDTH "256MiB"
#define KVD_FALLBACK_POOL_BYTES    (1ull << 30) /* that of the default pool */

struct kvd_config_key {
    const char *name, *env, *argument, *help;
    bool (*set)(struct kvd_config *config, const char *value, const char **why);
};
extern const struct kvd_config_key kvd_config_keys[KVD_KEY_COUNT];

/* A whole number of at most ten digits, from least to most. */
bool kvd_config_number(const char *value, int base, uint32_t least, uint32_t most, uint32_t *out);

/* May be given several times: listen, pool. */
bool kvd_config_collects(enum kvd_key key);

/* Values of a higher rank replace; within one rank those that collect do, others may come once.
 * place says where it stands: "flag --pool", "kvarnd.yaml:3:7". */
enum kvd_rank { KVD_RANK_NONE, KVD_RANK_DEFAULT, KVD_RANK_FILE, KVD_RANK_ENV, KVD_RANK_FLAG };
kvarn_status kvd_config_set(struct kvd_config *config, enum kvd_key key, const char *value,
                            enum kvd_rank rank, const char *place, char why[KVD_CONFIG_WHY_MAX]);
/* KVD_KEY_COUNT when there is no such key. */
enum kvd_key kvd_config_key(const char *name);
/* All values of a YAML file. */
kvarn_status kvd_config_read(struct kvd_config *config, const char *path,
                             char why[KVD_CONFIG_WHY_MAX]);

#endif
