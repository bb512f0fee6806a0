/* The table of keys, how each value is read, and the order of the four sources. */
#include "server/core/config.h"

#include <argp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/core/size.h"

enum { MIN_POOL_BYTES = 4 << 20, MIN_STAGING_BYTES = 4 << 20, GRACE_MAX_MS = 3600000 };

#define DEFAULT_STAGING "256MiB"
#define DEFAULT_POOL    "host:1GiB"

typedef bool (*set_value)(struct kvd_config *config, const char *value, const char **why);

/* ---- reading one value; *why is static text */

static bool set_listen(struct kvd_config *config, const char *value, const char **why)
{
    if (config->listen_count == KVD_LISTENERS_MAX) {
        *why = "more than 8 addresses";
        return false;
    }
    if (strncmp(value, "unix:/", 6) != 0 && strncmp(value, "tcp:", 4) != 0) {
        *why = "an address is unix:/PATH or tcp:HOST:PORT";
        return false;
    }
    strcpy(config->listen[config->listen_count++], value);
    return true;
}

static bool set_pool(struct kvd_config *config, const char *value, const char **why)
{
    uint64_t memory = kvd_memory_bytes();

    if (strncmp(value, "host:", 5) != 0) {
        *why = "a pool is host:SIZE, as host:16GiB (no GPU backend in this build)";
        return false;
    }
    if (!kvd_size_parse(value + 5, memory, &config->pool_bytes, why))
        return false;
    if (config->pool_bytes < MIN_POOL_BYTES) {
        *why = "a pool has at least 4MiB";
        return false;
    }
    if (config->pool_bytes > memory) {
        *why = "the pool is larger than the memory of this machine or container";
        return false;
    }
    return true;
}

static bool set_staging(struct kvd_config *config, const char *value, const char **why)
{
    uint64_t memory = kvd_memory_bytes();

    if (!kvd_size_parse(value, memory, &config->staging_bytes, why))
        return false;
    if (config->staging_bytes < MIN_STAGING_BYTES || config->staging_bytes > memory) {
        *why = "staging has at least 4MiB and fits in memory";
        return false;
    }
    return true;
}

static bool parse_number(const char *value, int base, uint32_t least, uint32_t most, uint32_t *out)
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
    return parse_number(value, 10, 1, KVD_WORKER_THREADS_MAX, &config->threads);
}

static bool set_grace(struct kvd_config *config, const char *value, const char **why)
{
    *why = "a number of milliseconds, at most an hour";
    return parse_number(value, 10, 0, GRACE_MAX_MS, &config->drain_grace_ms);
}

static bool set_socket_mode(struct kvd_config *config, const char *value, const char **why)
{
    uint32_t mode = 0;

    *why = "an octal mode of read and write bits, as 0600, 0660 or 0666";
    if (!parse_number(value, 8, 0600, 0666, &mode) || (mode & ~0666u) != 0)
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
    strcpy(config->cpu, strcmp(value, "auto") == 0 ? "" : value);
    return true;
}

static bool set_log_level(struct kvd_config *config, const char *value, const char **why)
{
    static const char *const names[] = {"error", "warn", "info", "debug", NULL};

    *why = "one of error, warn, info, debug";
    if (!one_of(value, names))
        return false;
    strcpy(config->log_level, value);
    return true;
}

static bool set_quiet(struct kvd_config *config, const char *value, const char **why)
{
    *why = "true or false";
    config->quiet = strcmp(value, "true") == 0;
    return config->quiet || strcmp(value, "false") == 0;
}

static bool set_worker(struct kvd_config *config, const char *value, const char **why)
{
    *why = "the path of kvarn-worker is empty";
    strcpy(config->worker, value);
    return *value != '\0';
}

/* ---- the table */

static const struct key {
    const char *name, *env, *argument, *help;
    set_value set;
} keys[KVD_KEY_COUNT] = {
    [KVD_KEY_LISTEN] = {"listen", "KVARND_LISTEN", "ADDRESS",
                        "unix:/PATH or tcp:HOST:PORT (loopback only); may be given again",
                        set_listen},
    [KVD_KEY_POOL] = {"pool", "KVARND_POOL", "host:SIZE",
                      "memory for caches, as host:16GiB or host:50% (" DEFAULT_POOL ")", set_pool},
    [KVD_KEY_STAGING] = {"staging", "KVARND_STAGING", "SIZE",
                         "memory for requests and replies on their way (" DEFAULT_STAGING ")",
                         set_staging},
    [KVD_KEY_THREADS] = {"threads", "KVARND_THREADS", "N",
                         "threads of the CPU worker (one per CPU)", set_threads},
    [KVD_KEY_CPU] = {"cpu", "KVARND_CPU", "KIND",
                     "auto, ref, avx2 or avx512; KVARN_CPU does the same", set_cpu},
    [KVD_KEY_WORKER] = {"worker", "KVARND_WORKER", "PATH",
                        "the kvarn-worker to run (the one next to kvarnd)", set_worker},
    [KVD_KEY_SOCKET_MODE] = {"socket-mode", "KVARND_SOCKET_MODE", "MODE",
                             "mode of Unix sockets (0600: this user alone)", set_socket_mode},
    [KVD_KEY_DRAIN_GRACE] = {"drain-grace", "KVARND_DRAIN_GRACE", "MS",
                             "how long SIGTERM lets requests finish (10000)", set_grace},
    [KVD_KEY_LOG_LEVEL] = {"log-level", "KVARND_LOG_LEVEL", "LEVEL",
                           "error, warn, info or debug (info)", set_log_level},
    [KVD_KEY_QUIET] = {"quiet", "KVARND_QUIET", NULL, "no start-up banner, warnings only",
                       set_quiet},
};

enum kvd_key kvd_config_key(const char *name)
{
    unsigned key = 0;

    while (key < KVD_KEY_COUNT && strcmp(keys[key].name, name) != 0)
        key++;
    return (enum kvd_key)key;
}

kvarn_status kvd_config_set(struct kvd_config *config, enum kvd_key key, const char *value,
                            enum kvd_rank rank, const char *place, char why[KVD_CONFIG_WHY_MAX])
{
    const char *wrong = "longer than 255 bytes";

    if (key == KVD_KEY_LISTEN && config->rank[key] != (int)rank)
        config->listen_count = 0;
    if (strlen(value) >= KVD_CONFIG_TEXT_MAX || !keys[key].set(config, value, &wrong)) {
        snprintf(why, KVD_CONFIG_WHY_MAX, "%s: %s \"%.100s\": %s", place, keys[key].name, value,
                 wrong);
        return KVARN_INVALID_SHAPE;
    }
    config->rank[key] = (int)rank;
    strcpy(config->text[key], value);
    snprintf(config->from[key], sizeof config->from[key], "%s", place);
    return KVARN_OK;
}

/* ---- the four sources */

/* Beside kvarnd in a build, under libexec when installed. */
static void default_worker(char out[KVD_CONFIG_TEXT_MAX])
{
    static const char *const places[] = {"kvarn-worker", "../libexec/kvarn/kvarn-worker"};
    char self[KVD_CONFIG_TEXT_MAX];
    ssize_t got = readlink("/proc/self/exe", self, sizeof self - 32);
    char *slash;

    self[got > 0 ? got : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL)
        slash[1] = '\0';
    for (size_t i = 2; i-- > 0;) {
        snprintf(out, KVD_CONFIG_TEXT_MAX, "%.200s%s", self, places[i]);
        if (access(out, X_OK) == 0)
            return;
    }
}

static void default_listen(char out[KVD_CONFIG_TEXT_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (runtime == NULL || runtime[0] != '/' || strlen(runtime) > 64)
        runtime = "/run";
    snprintf(out, KVD_CONFIG_TEXT_MAX, "unix:%s/kvarnd/kvarnd.sock", runtime);
}

static kvarn_status take_defaults(struct kvd_config *config, char *why)
{
    char text[KVD_KEY_COUNT][KVD_CONFIG_TEXT_MAX] = {
        [KVD_KEY_POOL] = DEFAULT_POOL,   [KVD_KEY_STAGING] = DEFAULT_STAGING,
        [KVD_KEY_CPU] = "auto",          [KVD_KEY_SOCKET_MODE] = "0600",
        [KVD_KEY_DRAIN_GRACE] = "10000", [KVD_KEY_LOG_LEVEL] = "info",
        [KVD_KEY_QUIET] = "false",
    };
    cpu_set_t cpus;
    int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    kvarn_status status = KVARN_OK;

    default_listen(text[KVD_KEY_LISTEN]);
    default_worker(text[KVD_KEY_WORKER]);
    snprintf(text[KVD_KEY_THREADS], KVD_CONFIG_TEXT_MAX, "%d",
             count < KVD_WORKER_THREADS_MAX ? count : KVD_WORKER_THREADS_MAX);
    for (unsigned key = 0; key < KVD_KEY_COUNT && status == KVARN_OK; key++)
        status =
            kvd_config_set(config, (enum kvd_key)key, text[key], KVD_RANK_DEFAULT, "default", why);
    return status;
}

/* LISTEN holds several addresses with commas between them. */
static kvarn_status take_env_list(struct kvd_config *config, const char *value, char *why)
{
    kvarn_status status = KVARN_OK;

    while (status == KVARN_OK && value != NULL) {
        char one[KVD_CONFIG_TEXT_MAX];
        const char *comma = strchr(value, ',');
        size_t bytes = comma == NULL ? strlen(value) : (size_t)(comma - value);

        snprintf(one, sizeof one, "%.*s", (int)(bytes < sizeof one ? bytes : sizeof one), value);
        status = kvd_config_set(config, KVD_KEY_LISTEN, one, KVD_RANK_ENV, "KVARND_LISTEN", why);
        value = comma == NULL ? NULL : comma + 1;
    }
    return status;
}

static kvarn_status take_env(struct kvd_config *config, char *why)
{
    const char *cpu = getenv("KVARN_CPU");
    kvarn_status status = KVARN_OK;

    if (cpu != NULL)
        status = kvd_config_set(config, KVD_KEY_CPU, cpu, KVD_RANK_ENV, "KVARN_CPU", why);
    for (unsigned key = 0; key < KVD_KEY_COUNT && status == KVARN_OK; key++) {
        const char *value = getenv(keys[key].env);

        if (value == NULL)
            continue;
        status = key == KVD_KEY_LISTEN ? take_env_list(config, value, why)
                                       : kvd_config_set(config, (enum kvd_key)key, value,
                                                        KVD_RANK_ENV, keys[key].env, why);
    }
    return status;
}

/* ---- flags */

enum { FLAG_CONFIG = 1000, FLAG_CHECK, FLAG_PRINT, FLAG_SOCKET_FD, FLAG_READY_FD, FLAG_KEY };
enum { FLAGS_MAX = 64 };

struct flags {
    struct kvd_config *config;
    const char *file;
    struct {
        enum kvd_key key;
        const char *value;
    } given[FLAGS_MAX];
    size_t count;
};

static error_t take_flag(int flag, char *argument, struct argp_state *state)
{
    struct flags *flags = state->input;
    uint32_t number = 0;

    switch (flag) {
    case FLAG_CONFIG:
        flags->file = argument;
        return 0;
    case FLAG_CHECK:
        flags->config->check = true;
        return 0;
    case FLAG_PRINT:
        flags->config->print = true;
        return 0;
    case FLAG_SOCKET_FD:
        if (!parse_number(argument, 10, 0, 1 << 20, &number))
            argp_error(state, "--socket-fd %s is not a descriptor", argument);
        flags->config->socket_fd = (int)number;
        return 0;
    case FLAG_READY_FD:
        if (!parse_number(argument, 10, 0, 1 << 20, &number))
            argp_error(state, "--ready-fd %s is not a descriptor", argument);
        flags->config->ready_fd = (int)number;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is \"%s\"? kvarnd takes flags only", argument);
        return EINVAL;
    default:
        break;
    }
    if (flag < FLAG_KEY || flag >= FLAG_KEY + (int)KVD_KEY_COUNT)
        return ARGP_ERR_UNKNOWN;
    if (flags->count == FLAGS_MAX)
        argp_error(state, "too many flags");
    flags->given[flags->count].key = (enum kvd_key)(flag - FLAG_KEY);
    flags->given[flags->count++].value = argument != NULL ? argument : "true";
    return 0;
}

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "kvarnd %s\n", KVARN_VERSION);
}

static const char about[] =
    "kvarnd - keeps KV caches of LLM serving in 2 to 4 bits and serves them to local workers"
    "\v"
    "Every flag may stand in the file of --config (pool: host:16GiB) or in the environment "
    "(KVARND_POOL=host:16GiB). A flag wins over the environment, the environment over the file.\n"
    "\n"
    "Examples:\n"
    "  kvarnd --pool host:16GiB\n"
    "  kvarnd --listen unix:/run/kvarnd/kvarnd.sock --listen tcp:127.0.0.1:7070\n"
    "  kvarnd --config /etc/kvarnd.yaml --print-config";

static void read_flags(struct flags *flags, int argc, char **argv)
{
    struct argp_option options[KVD_KEY_COUNT + 6] = {0};
    struct argp argp = {.options = options, .parser = take_flag, .doc = about};
    struct argp_option *next = options;

    for (unsigned key = 0; key < KVD_KEY_COUNT; key++)
        *next++ = (struct argp_option){.name = keys[key].name,
                                       .key = FLAG_KEY + (int)key,
                                       .arg = keys[key].argument,
                                       .doc = keys[key].help};
    *next++ = (struct argp_option){"config", FLAG_CONFIG, "FILE", 0, "read this YAML file", 0};
    *next++ = (struct argp_option){
        "check-config", FLAG_CHECK, NULL, 0, "say whether the configuration is right, and end", 0};
    *next++ = (struct argp_option){"print-config",
                                   FLAG_PRINT,
                                   NULL,
                                   0,
                                   "print every value and where it came from, and end",
                                   0};
    *next++ = (struct argp_option){"socket-fd",
                                   FLAG_SOCKET_FD,
                                   "N",
                                   0,
                                   "serve this connected socket alone, until it closes",
                                   0};
    *next++ = (struct argp_option){"ready-fd",
                                   FLAG_READY_FD,
                                   "N",
                                   0,
                                   "write one byte to this descriptor when clients may connect",
                                   0};
    argp_err_exit_status = 2;
    argp_program_version_hook = print_version;
    argp_parse(&argp, argc, argv, 0, NULL, flags);
}

static kvarn_status take_flags(struct kvd_config *config, const struct flags *flags, char *why)
{
    bool seen[KVD_KEY_COUNT] = {false};

    for (size_t i = 0; i < flags->count; i++) {
        enum kvd_key key = flags->given[i].key;
        char place[64];
        kvarn_status status;

        snprintf(place, sizeof place, "flag --%s", keys[key].name);
        if (seen[key] && key != KVD_KEY_LISTEN) {
            snprintf(why, KVD_CONFIG_WHY_MAX, "%s: given twice", place);
            return KVARN_INVALID_SHAPE;
        }
        seen[key] = true;
        status = kvd_config_set(config, key, flags->given[i].value, KVD_RANK_FLAG, place, why);
        if (status != KVARN_OK)
            return status;
    }
    return KVARN_OK;
}

kvarn_status kvd_config_load(struct kvd_config *config, int argc, char **argv,
                             char why[KVD_CONFIG_WHY_MAX])
{
    struct flags flags = {.config = config};
    kvarn_status status;

    memset(config, 0, sizeof *config);
    config->socket_fd = -1;
    config->ready_fd = -1;
    read_flags(&flags, argc, argv);
    if (flags.file == NULL)
        flags.file = getenv("KVARND_CONFIG");
    status = take_defaults(config, why);
    if (status == KVARN_OK && flags.file != NULL)
        status = kvd_config_read(config, flags.file, why);
    if (status == KVARN_OK)
        status = take_env(config, why);
    if (status == KVARN_OK)
        status = take_flags(config, &flags, why);
    return status;
}

/* ---- printing */

void kvd_config_print(const struct kvd_config *config, FILE *out)
{
    for (unsigned key = 0; key < KVD_KEY_COUNT; key++) {
        if (key != KVD_KEY_LISTEN) {
            fprintf(out, "%s: \"%s\"  # %s\n", keys[key].name, config->text[key],
                    config->from[key]);
            continue;
        }
        fprintf(out, "listen:  # %s\n", config->from[key]);
        for (uint32_t i = 0; i < config->listen_count; i++)
            fprintf(out, "  - \"%s\"\n", config->listen[i]);
    }
}
