/* kvarn-worker: the process that kvarnd starts for a device. Not meant to be started by hand: it
 * works on descriptors that it inherits. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "server/core/limits.h"
#include "server/device/link.h"
#include "server/device/worker.h"

struct arguments {
    struct kvd_worker_options worker;
    uint64_t parent;
};

enum {
    OPTION_STAGING = 1,
    OPTION_POOL,
    OPTION_THREADS,
    OPTION_CPU,
    OPTION_PARENT,
    OPTION_DEVICE,
    OPTION_PERCENT,
    OPTION_CHUNKS,
    OPTION_CHUNK_BYTES
};

static uint64_t number_of(const char *text, uint64_t most, struct argp_state *state)
{
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value > most)
        argp_error(state, "not a number in range: '%s'", text);
    return value;
}

/* "cuda:N" */
static int32_t device_of(const char *text, struct argp_state *state)
{
    static const char prefix[] = "cuda:";

    if (strncmp(text, prefix, sizeof(prefix) - 1) != 0)
        argp_error(state, "no such device: '%s'", text);
    return (int32_t)number_of(text + sizeof(prefix) - 1, INT32_MAX, state);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;

    switch (key) {
    case OPTION_STAGING:
        arguments->worker.staging_bytes = number_of(text, INT64_MAX, state);
        return 0;
    case OPTION_POOL:
        arguments->worker.pool_bytes = number_of(text, INT64_MAX, state);
        return 0;
    case OPTION_THREADS:
        arguments->worker.threads = (uint32_t)number_of(text, KVD_WORKER_THREADS_MAX, state);
        return 0;
    case OPTION_CPU:
        arguments->worker.cpu_mask = text;
        return 0;
    case OPTION_DEVICE:
        arguments->worker.device = device_of(text, state);
        return 0;
    case OPTION_PERCENT:
        arguments->worker.pool_percent = (uint32_t)number_of(text, 100, state);
        return 0;
    case OPTION_CHUNKS:
        arguments->worker.pool_chunks = (uint32_t)number_of(text, KVD_POOL_CHUNKS_MAX, state);
        return 0;
    case OPTION_CHUNK_BYTES:
        arguments->worker.chunk_bytes = number_of(text, KVD_CHUNK_BYTES, state);
        return 0;
    case OPTION_PARENT:
        arguments->parent = number_of(text, INT32_MAX, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"staging-bytes", OPTION_STAGING, "N", 0, "Size of the staging memory", 0},
    {"pool-bytes", OPTION_POOL, "N", 0, "Size of the pool", 0},
    {"pool-percent", OPTION_PERCENT, "N", 0, "Or so much of the GPU memory free at start", 0},
    {"pool-chunks", OPTION_CHUNKS, "N", 0, "Or a pool that was made before: its chunks", 0},
    {"chunk-bytes", OPTION_CHUNK_BYTES, "N", 0, "And the size of one", 0},
    {"device", OPTION_DEVICE, "cuda:N", 0, "A GPU; without it, the CPU", 0},
    {"threads", OPTION_THREADS, "N", 0, "Threads; 0 = one per CPU", 0},
    {"cpu", OPTION_CPU, "NAME", 0, "Best kernels to use: ref, avx2 or avx512", 0},
    {"parent", OPTION_PARENT, "PID", 0, "The process that started this one", 0},
    {0}};

static const struct argp parser = {
    options, parse, NULL, "Runs kernels for kvarnd, which starts it. Not to be started by hand.",
    NULL,    NULL,  NULL};

/* argp's variable of that name is out of reach: our symbols are hidden. */
static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "kvarn-worker %s (internal: kvarnd starts it)\n", KVARN_VERSION);
}

/* The front dies with us or before us, whatever kills it. The check of the parent covers a front
 * that died before the first call took effect. Signals of a terminal or a service manager go to the
 * front, which lets the jobs end; we end when it closes the control socket. */
static int tie_to_parent(uint64_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    return (uint64_t)getppid() == parent ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {.worker = {.device = KVD_WORKER_CPU, .cpu_mask = ""}};

    argp_program_version_hook = print_version;
    argp_parse(&parser, argc, argv, 0, NULL, &arguments);
    if (tie_to_parent(arguments.parent) != 0 || fcntl(KVD_LINK_CONTROL, F_GETFD) < 0) {
        fprintf(stderr, "kvarn-worker: started by kvarnd only\n");
        return KVD_LINK_EXIT_USAGE;
    }
    kvarn_status status = kvd_worker_serve(&arguments.worker);
    if (status == KVARN_GPU_LOST) /* the driver's own clean-up could wait for the device */
        _exit(KVD_LINK_EXIT_GPU_LOST);
    return status == KVARN_OK ? KVD_LINK_EXIT_OK : KVD_LINK_EXIT_REFUSED;
}
