/* The order of the four sources: defaults, file, environment, flags. */
#include "server/core/config.h"

#include <argp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        [KVD_KEY_POOL] = KVD_DEFAULT_POOL,
        [KVD_KEY_STAGING] = KVD_DEFAULT_STAGING,
        [KVD_KEY_EVICTION] = "s3fifo",
        [KVD_KEY_WATERMARKS] = "none",
        [KVD_KEY_QUOTA] = "none",
        [KVD_KEY_SHARE] = "none",
        [KVD_KEY_CPU] = "auto",
        [KVD_KEY_WORKER_STALL] = "auto",
        [KVD_KEY_SOCKET_MODE] = "0600",
        [KVD_KEY_DRAIN_GRACE] = "10000",
        [KVD_KEY_LOG_LEVEL] = "info",
        [KVD_KEY_QUIET] = "false",
        [KVD_KEY_DISK] = "none",
        [KVD_KEY_DISK_KEY] = "none",
        [KVD_KEY_DISK_BANDWIDTH] = KVD_DEFAULT_DISK_BANDWIDTH,
        [KVD_KEY_DISK_IO] = "auto", /* a line each */
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

/* Several addresses or pools, with commas between them. */
static kvarn_status take_env_list(struct kvd_config *config, enum kvd_key key, const char *value,
                                  char *why)
{
    kvarn_status status = KVARN_OK;

    while (status == KVARN_OK && value != NULL) {
        char one[KVD_CONFIG_TEXT_MAX];
        const char *comma = strchr(value, ',');
        size_t bytes = comma == NULL ? strlen(value) : (size_t)(comma - value);

        snprintf(one, sizeof one, "%.*s", (int)(bytes < sizeof one ? bytes : sizeof one), value);
        status = kvd_config_set(config, key, one, KVD_RANK_ENV, kvd_config_keys[key].env, why);
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
        const char *value = getenv(kvd_config_keys[key].env);

        if (value == NULL)
            continue;
        status = kvd_config_collects((enum kvd_key)key)
                     ? take_env_list(config, (enum kvd_key)key, value, why)
                     : kvd_config_set(config, (enum kvd_key)key, value, KVD_RANK_ENV,
                                      kvd_config_keys[key].env, why);
    }
    return status;
}

bool kvd_config_stray(char *const *environment, size_t *at, char name[64])
{
    for (; environment[*at] != NULL; ++*at) {
        unsigned key = 0;

        snprintf(name, 64, "%.*s", (int)strcspn(environment[*at], "="), environment[*at]);
        if (strncmp(name, "KVARND_", 7) != 0 || strcmp(name, "KVARND_CONFIG") == 0)
            continue;
        while (key < KVD_KEY_COUNT && strcmp(kvd_config_keys[key].env, name) != 0)
            key++;
        if (key == KVD_KEY_COUNT) {
            ++*at;
            return true;
        }
    }
    return false;
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
        if (!kvd_config_number(argument, 10, 0, 1 << 20, &number))
            argp_error(state, "--socket-fd %s is not a descriptor", argument);
        flags->config->socket_fd = (int)number;
        return 0;
    case FLAG_READY_FD:
        if (!kvd_config_number(argument, 10, 0, 1 << 20, &number))
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
    "  kvarnd --pool cuda:0:80% --pool cuda:1:80% --pool host:64GiB\n"
    "  kvarnd --pool host:16GiB --disk /var/cache/kvarnd:200GiB\n"
    "  kvarnd --listen unix:/run/kvarnd/kvarnd.sock --listen tcp:127.0.0.1:7070\n"
    "  kvarnd --config /etc/kvarnd.yaml --print-config\n"
    "\n"
    "SIGTERM, SIGINT and SIGHUP end it after the requests under way (--drain-grace); a second one "
    "ends it at once.\n"
    "\n"
    "Exit codes: 0 ended in order; 1 could not start (address in use, worker failed, no memory) or "
    "ended by a second signal; 2 usage or configuration (also a socket folder that is not "
    "permitted).";

static void read_flags(struct flags *flags, int argc, char **argv)
{
    struct argp_option options[KVD_KEY_COUNT + 6] = {0};
    struct argp argp = {.options = options, .parser = take_flag, .doc = about};
    struct argp_option *next = options;

    for (unsigned key = 0; key < KVD_KEY_COUNT; key++)
        *next++ = (struct argp_option){.name = kvd_config_keys[key].name,
                                       .key = FLAG_KEY + (int)key,
                                       .arg = kvd_config_keys[key].argument,
                                       .doc = kvd_config_keys[key].help};
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

        snprintf(place, sizeof place, "flag --%s", kvd_config_keys[key].name);
        if (seen[key] && !kvd_config_collects(key)) {
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
        if (!kvd_config_collects((enum kvd_key)key) || strcmp(config->text[key], "none") == 0) {
            fprintf(out, "%s: \"%s\"  # %s%s\n", kvd_config_keys[key].name, config->text[key],
                    key == KVD_KEY_DRAIN_GRACE || key == KVD_KEY_WORKER_STALL ? "milliseconds; "
                                                                              : "",
                    config->from[key]);
            continue;
        }
        fprintf(out, "%s:  # %s\n", kvd_config_keys[key].name, config->from[key]);
        for (uint32_t i = 0; key == KVD_KEY_LISTEN && i < config->listen_count; i++)
            fprintf(out, "  - \"%s\"\n", config->listen[i]);
        for (uint32_t i = 0; key == KVD_KEY_POOL && i < config->pool_count; i++)
            fprintf(out, "  - \"%s\"\n", config->pools[i].text);
        for (uint32_t i = 0; key == KVD_KEY_QUOTA && i < config->quota_count; i++)
            fprintf(out, "  - \"%s\"\n", config->quota_text[i]);
        for (uint32_t i = 0; key == KVD_KEY_SHARE && i < config->share_count; i++)
            fprintf(out, "  - \"%s\"\n", config->share_text[i]);
    }
}
