/* The fault drill: kvarnd with a GPU pool under load, a fault, and what came of it; over and over.
 *
 *   drill --bin FOLDER --pool cuda:0:1GiB [--daemons N] [--rounds N] [--faults illegal,kill,hang]
 *   drill --bin FOLDER --pool cuda:0:1GiB --faults none --seconds S     load alone
 *
 * Every daemon gets every fault `rounds` times, in turn. Prints for each kind how long it took
 * until the first call was lost (seen) and from there until the first call was answered right
 * (back), how many blocks were gone and how many answers wrong. Exit code 1 if there was any, or if
 * a daemon did not come back.
 *
 * The faults come from bad_cuda.so (KVARN_CUDA_DRIVER, KVARN_BAD_CUDA: see bad_cuda.c), or from the
 * stand-in driver of the tests if KVARN_FAKE_CUDA names its file. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/row.h"
#include "gpu/faults/clients.h"
#include "server/device/cuda_abi.h"
#include "support/fake_cuda/fake_cuda.h"

enum { TIMES_MOST = 200, DEADLINE_MS = 20000, STALL_MS = 500 };

enum kind { ILLEGAL, KILL, HANG, KINDS };
static const char *const kind_names[KINDS] = {"illegal", "kill", "hang"};

struct arguments {
    const char *bin, *pool;
    uint32_t daemons, rounds, deadline_ms, seconds;
    bool faults[KINDS], json, small;
};

struct outcome {
    uint32_t count, missing, not_back;
    double seen_ms[TIMES_MOST], back_ms[TIMES_MOST];
};

struct drill {
    struct arguments arguments;
    struct drill_model model;
    struct fake_cuda_control *fake; /* NULL: a real GPU */
    char folder[64], address[96];
    pid_t daemon;
    struct outcome outcomes[KINDS];
    struct drill_count answers;
};

static const struct drill_shape shapes[2] = {
    {{.dim = 128, .group = 128, .bits_k = 4, .bits_v = 2, .dtype = KVARN_F16, .iterations = 8},
     4,
     4,
     16,
     "kvarn_k4v2_g128",
     ""},
    {{.dim = 64, .group = 64, .bits_k = 2, .bits_v = 2, .dtype = KVARN_F16, .iterations = 8},
     2,
     2,
     4,
     "kvarn_k2v2_g64",
     ""},
};

/* ---- the daemon ---- */

static void run_daemon(const struct drill *drill, int ready)
{
    char path[4096], worker[4096], fd[16], stall[16];

    snprintf(path, sizeof(path), "%s/kvarnd", drill->arguments.bin);
    snprintf(worker, sizeof(worker), "%s/kvarn-worker", drill->arguments.bin);
    snprintf(fd, sizeof(fd), "%d", ready);
    snprintf(stall, sizeof(stall), "%d", STALL_MS);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(path, "kvarnd", "--listen", drill->address, "--pool", drill->arguments.pool, "--worker",
          worker, "--worker-stall", stall, "--staging", "64MiB", "--quiet", "--ready-fd", fd,
          (char *)NULL);
    fprintf(stderr, "drill: %s: %s\n", path, strerror(errno));
    _exit(127);
}

static void start_daemon(struct drill *drill)
{
    int ready[2];
    char byte;

    if (pipe2(ready, 0) != 0 || (drill->daemon = fork()) < 0)
        drill_die("no process");
    if (drill->daemon == 0) {
        close(ready[0]);
        run_daemon(drill, ready[1]);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        drill_die("kvarnd does not start");
    close(ready[0]);
}

static void stop_daemon(const struct drill *drill)
{
    int status = -1;

    kill(drill->daemon, SIGTERM);
    waitpid(drill->daemon, &status, 0);
    if (status != 0)
        drill_die("kvarnd ended with status %#x", status);
}

/* The one child of the daemon; 0: none now. */
static pid_t worker_of(pid_t daemon)
{
    char path[64], text[64] = "";

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)daemon, (int)daemon);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    if (file != NULL)
        fclose(file);
    return (pid_t)strtol(text, NULL, 10);
}

/* ---- faults ---- */

static void write_trigger(const char *kind)
{
    const char *path = getenv("KVARN_BAD_CUDA");
    char made[4096];

    if (path == NULL)
        drill_die("%s needs bad_cuda.so; see tests/gpu/faults.sh", kind);
    snprintf(made, sizeof(made), "%s.new", path);
    FILE *file = fopen(made, "w");
    if (file == NULL || fputs(kind, file) < 0 || fclose(file) != 0 || rename(made, path) != 0)
        drill_die("%s cannot be written", path);
}

static void inject(struct drill *drill, enum kind kind)
{
    if (kind == KILL) {
        pid_t worker = worker_of(drill->daemon);
        if (worker <= 0 || kill(worker, SIGKILL) != 0)
            drill_die("there is no worker to kill");
    } else if (drill->fake != NULL) {
        fake_cuda_arm(drill->fake, 0, "kvk_cuda_",
                      kind == HANG ? FAKE_CUDA_HANG : KVD_CU_ILLEGAL_ADDRESS, 0, 1);
    } else {
        write_trigger(kind_names[kind]);
    }
}

/* Blocks of the model that are gone. A wrong one is found by the clients, who read them all the
 * time. */
static uint32_t missing(const struct drill *drill, kvarn_client *client, uint64_t space)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    kvarn_key keys[DRILL_BLOCKS];
    kvarn_block_result results[DRILL_BLOCKS];
    uint32_t gone = 0;

    for (uint32_t b = 0; b < DRILL_BLOCKS; b++)
        keys[b] = drill->model.blocks[b].key;
    args.space = space;
    args.keys = keys;
    args.count = DRILL_BLOCKS;
    args.results = results;
    drill_must(client, "lookup", kvarn_lookup(client, &args));
    for (uint32_t b = 0; b < DRILL_BLOCKS; b++)
        gone += results[b].status != KVARN_OK;
    return gone;
}

/* False: the daemon did not come back. */
static bool one_fault(struct drill *drill, struct drill_clients *clients, enum kind kind)
{
    struct outcome *outcome = &drill->outcomes[kind];
    uint32_t deadline = drill->arguments.deadline_ms;
    uint64_t at = drill_now_ns();

    if (drill_clients_wait(clients, DRILL_ALL_GOOD, at, deadline) == 0)
        drill_die("the load does not run");
    at = drill_now_ns();
    inject(drill, kind);
    uint64_t seen = drill_clients_wait(clients, DRILL_LOST, at, deadline);
    uint64_t back = seen == 0 ? 0 : drill_clients_wait(clients, DRILL_FIRST_GOOD, seen, deadline);
    if (back == 0 || drill_clients_wait(clients, DRILL_ALL_GOOD, seen, deadline) == 0) {
        printf("%s: %s\n", kind_names[kind],
               seen == 0 ? "no call was lost" : "the daemon did not come back");
        outcome->not_back++;
        return false;
    }
    outcome->seen_ms[outcome->count] = (double)(seen - at) * 1e-6;
    outcome->back_ms[outcome->count++] = (double)(back - seen) * 1e-6;
    return true;
}

static void one_daemon(struct drill *drill, uint32_t number)
{
    kvarn_client *client = NULL;

    start_daemon(drill);
    drill_must(client, "connect", kvarn_connect(&client, drill->address, NULL));
    uint64_t space = drill_open(client, &drill->model.shape);
    if (number == 0)
        drill_model_make(&drill->model, client, space);
    else
        drill_model_give(&drill->model, client, space);
    struct drill_clients *clients = drill_clients_start(&drill->model, drill->address);
    bool back = true;
    for (uint32_t i = 0; i < KINDS * drill->arguments.rounds && back; i++) {
        enum kind kind = (enum kind)((number + i) % KINDS);
        if (!drill->arguments.faults[kind])
            continue;
        back = one_fault(drill, clients, kind);
        drill->outcomes[kind].missing += missing(drill, client, space);
    }
    /* nothing is waited for here: this is how long the load is asked to run */
    for (uint32_t left = drill->arguments.seconds; left > 0; left = sleep(left))
        ;
    struct drill_count count = drill_clients_stop(&clients);
    drill->answers.good += count.good;
    drill->answers.lost += count.lost;
    drill->answers.wrong += count.wrong;
    kvarn_close(&client);
    stop_daemon(drill);
}

/* ---- results ---- */

static void print_row(const char *kind, const char *what, double value, double reach)
{
    char name[64];
    struct bench_row row = {
        .name = name, .unit = "ms", .value = value, .direction = '<', .reach = reach};

    snprintf(name, sizeof(name), "gpu_fault_%s_%s", kind, what);
    bench_row_print_share(&row, 0);
}

static bool report(struct drill *drill)
{
    uint32_t gone = 0, not_back = 0;

    printf("%-8s %5s  %19s  %19s  %s\n", "fault", "times", "seen ms: median max",
           "back ms: median max", "blocks gone");
    for (int k = 0; k < KINDS; k++) {
        struct outcome *outcome = &drill->outcomes[k];
        gone += outcome->missing;
        not_back += outcome->not_back;
        if (outcome->count == 0)
            continue;
        double *seen = outcome->seen_ms, *back = outcome->back_ms;
        double seen_half = bench_percentile(seen, outcome->count, 0.5);
        double seen_most = bench_percentile(seen, outcome->count, 1.0);
        double back_half = bench_percentile(back, outcome->count, 0.5);
        double back_most = bench_percentile(back, outcome->count, 1.0);
        printf("%-8s %5u  %12.1f %6.1f  %12.1f %6.1f  %u\n", kind_names[k], outcome->count,
               seen_half, seen_most, back_half, back_most, outcome->missing);
        if (drill->arguments.json) {
            print_row(kind_names[k], "back_median", back_half, 1000);
            print_row(kind_names[k], "back_max", back_most, 1000);
        }
    }
    printf("answers: %llu right, %llu lost and made again, %llu wrong\n",
           (unsigned long long)drill->answers.good, (unsigned long long)drill->answers.lost,
           (unsigned long long)drill->answers.wrong);
    return gone == 0 && not_back == 0 && drill->answers.wrong == 0;
}

/* ---- arguments ---- */

static void parse_faults(struct arguments *arguments, const char *text)
{
    for (int k = 0; k < KINDS; k++)
        arguments->faults[k] = strstr(text, kind_names[k]) != NULL;
}

static void parse(struct arguments *arguments, int argc, char **argv)
{
    *arguments = (struct arguments){
        .pool = "cuda:0:1GiB", .daemons = 1, .rounds = 1, .deadline_ms = DEADLINE_MS};
    parse_faults(arguments, "illegal,kill,hang");
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--json") == 0) {
            arguments->json = true;
            continue;
        }
        if (strcmp(argv[i], "--small") == 0) {
            arguments->small = true;
            continue;
        }
        if (strcmp(argv[i], "--bin") == 0)
            arguments->bin = value;
        else if (strcmp(argv[i], "--pool") == 0)
            arguments->pool = value;
        else if (strcmp(argv[i], "--daemons") == 0)
            arguments->daemons = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            arguments->rounds = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--deadline") == 0)
            arguments->deadline_ms = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            arguments->seconds = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--faults") == 0)
            parse_faults(arguments, value);
        else
            arguments->bin = NULL, i = argc;
        i++;
    }
    if (arguments->bin != NULL && arguments->daemons > 0 && arguments->rounds > 0 &&
        (uint64_t)arguments->daemons * arguments->rounds <= TIMES_MOST)
        return;
    fprintf(stderr,
            "usage: drill --bin FOLDER [--pool DEVICE:SIZE] [--daemons N] [--rounds N] [--faults "
            "illegal,kill,hang|none] [--seconds S] [--deadline MS] [--small] [--json]\n(daemons x "
            "rounds: at most %d)\n",
            TIMES_MOST);
    exit(2);
}

/* "cuda:0:1GiB" is on "cuda:0". Without it the daemon would serve from the CPU where there is no
 * GPU, and the drill would say that all is well. */
static void name_device(const char *pool, char *device, size_t room)
{
    const char *size = strrchr(pool, ':');

    if (size == NULL || (size_t)(size - pool) >= room)
        drill_die("--pool %s: DEVICE:SIZE is wanted", pool);
    snprintf(device, room, "%.*s", (int)(size - pool), pool);
}

int main(int argc, char **argv)
{
    static struct drill drill;
    const char *fake = getenv("KVARN_FAKE_CUDA");
    char lock[128];

    parse(&drill.arguments, argc, argv);
    drill.model.shape = shapes[drill.arguments.small];
    name_device(drill.arguments.pool, drill.model.shape.device, sizeof(drill.model.shape.device));
    if (fake != NULL && (drill.fake = fake_cuda_open(fake, UINT64_C(1) << 30)) == NULL)
        drill_die("%s cannot be made", fake);
    strcpy(drill.folder, "/tmp/kvarn-drill.XXXXXX");
    if (mkdtemp(drill.folder) == NULL)
        drill_die("no folder in /tmp");
    snprintf(drill.address, sizeof(drill.address), "unix:%s/s", drill.folder);
    for (uint32_t i = 0; i < drill.arguments.daemons; i++)
        one_daemon(&drill, i);
    bool fine = report(&drill);
    drill_model_free(&drill.model);
    fake_cuda_close(&drill.fake);
    snprintf(lock, sizeof(lock), "%s/s.lock", drill.folder);
    unlink(lock);
    rmdir(drill.folder);
    return fine ? 0 : 1;
}
