/* Ends kvarnd again and again, by SIGKILL or by a power cut, and looks whether every block that it
 * acknowledged as persistent is there afterwards, with the bytes it had.
 *
 *   disk_cycles BIN_DIR kill|cut|forgets CYCLES [SEED [sealed]]
 *
 * kill: SIGKILL at a random moment; io_uring where there is. cut: the preloaded powercut library
 * ends it at a random file operation, and what was not synced goes. forgets: the same with syncs
 * that do nothing; here something must be lost, else the test would see nothing. sealed: the disk
 * is encrypted. Prints one line; exits 0 when that is as it should be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/model.h"
#include "tests/support/folder.h"
#include "tests/support/rng.h"

enum {
    CONTENTS = MODEL_BLOCKS, /* different blocks; a key names one of them */
    KEYS_MAX = 1 << 20,
    LIVE_MAX = 48, /* persistent at a time; the oldest are dropped */
    ROUNDS_MAX = 400,
    CUT_OPS = 90,
    KILL_US = 60000
};

enum ways { KILL, CUT, FORGETS };

struct ledger {
    uint32_t live[LIVE_MAX + 8]; /* acknowledged, not dropped */
    uint32_t count, next;
    uint32_t digests[CONTENTS]; /* 0: not known yet */
    uint64_t acknowledged, checked, lost, wrong;
};

static struct model model;
static struct ledger ledger;
static char folder[64], disk[96], address[96], key_file[96] = "none";
static struct rng rng;

static kvarn_key key_of(uint32_t number)
{
    kvarn_key key = {{1}};

    memcpy(key.bytes + 8, &number, sizeof number);
    return key;
}

/* ---- the daemon */

static pid_t start_daemon(const char *bin, enum ways way, bool *serves)
{
    char program[512], library[512], fd[16], size[160], after[24], number[24], byte;
    int ready[2];
    pid_t pid;

    snprintf(program, sizeof program, "%s/kvarnd", bin);
    snprintf(library, sizeof library, "%s/../tests/libpowercut.so", bin);
    snprintf(size, sizeof size, "%s:24MiB", disk);
    snprintf(after, sizeof after, "%u", 1 + rng_below(&rng, CUT_OPS));
    snprintf(number, sizeof number, "%u", rng_below(&rng, UINT32_MAX));
    if (pipe(ready) != 0)
        abort();
    snprintf(fd, sizeof fd, "%d", ready[1]);
    pid = fork();
    if (pid == 0) {
        char *const arguments[] = {program,
                                   (char[]){"--listen"},
                                   address,
                                   (char[]){"--pool"},
                                   (char[]){"host:16MiB"},
                                   (char[]){"--staging"},
                                   (char[]){"16MiB"},
                                   (char[]){"--threads"},
                                   (char[]){"1"},
                                   (char[]){"--disk"},
                                   size,
                                   (char[]){"--disk-key"},
                                   key_file,
                                   (char[]){"--disk-io"},
                                   way == KILL ? (char[]){"auto"} : (char[]){"threads"},
                                   (char[]){"--ready-fd"},
                                   fd,
                                   (char[]){"--log-level"},
                                   (char[]){"error"},
                                   (char[]){"--quiet"},
                                   NULL};

        close(ready[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("KVARN_CPU", "ref", 1);
        if (way != KILL) {
            setenv("LD_PRELOAD", library, 1);
            setenv("KVARN_CUT_FOLDER", disk, 1);
            setenv("KVARN_CUT_AFTER", after, 1);
            setenv("KVARN_CUT_SEED", number, 1);
        }
        if (way == FORGETS)
            setenv("KVARN_CUT_IGNORE_SYNC", "1", 1);
        execv(program, arguments);
        _exit(127);
    }
    close(ready[1]);
    *serves = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return pid;
}

struct killer {
    pid_t pid;
    uint32_t after_us;
};

static void *kill_later(void *context)
{
    const struct killer *killer = context;
    struct timespec time = {0, (long)killer->after_us * 1000};

    nanosleep(&time, NULL); /* the moment itself is what is tried, nothing waits for it */
    kill(killer->pid, SIGKILL);
    return NULL;
}

/* ---- what a client does; all of it may end at any call with the daemon */

/* LOOKUP until nothing is being loaded any more. False: the daemon ended. */
static bool look(kvarn_client *client, uint64_t space, const kvarn_key *keys, size_t count,
                 kvarn_block_result *results)
{
    for (;;) {
        kvarn_blocks_args args = KVARN_BLOCKS_INIT;
        bool loading = false;

        args.space = space;
        args.keys = keys;
        args.count = count;
        args.results = results;
        if (kvarn_lookup(client, &args) != KVARN_OK)
            return false;
        for (size_t i = 0; i < count; i++)
            loading = loading || results[i].status == KVARN_RETRY;
        if (!loading)
            return true;
    }
}

static bool check(kvarn_client *client, uint64_t space)
{
    kvarn_key keys[LIVE_MAX + 8];
    kvarn_block_result results[LIVE_MAX + 8];
    uint32_t kept = 0;

    if (ledger.count == 0)
        return true;
    for (uint32_t i = 0; i < ledger.count; i++)
        keys[i] = key_of(ledger.live[i]);
    if (!look(client, space, keys, ledger.count, results))
        return false;
    for (uint32_t i = 0; i < ledger.count; i++) {
        bool there = results[i].status == KVARN_OK;
        bool right = there && results[i].digest == ledger.digests[ledger.live[i] % CONTENTS];

        ledger.checked++;
        ledger.lost += !there;
        ledger.wrong += there && !right;
        if (right)
            ledger.live[kept++] = ledger.live[i];
    }
    ledger.count = kept;
    return true;
}

static bool put_one(kvarn_client *client, uint64_t space, uint32_t number)
{
    kvarn_compress_args args = KVARN_COMPRESS_INIT;
    kvarn_blocks_args keep = KVARN_BLOCKS_INIT;
    kvarn_strides strides = model_strides();
    kvarn_block_kind kind = KVARN_BLOCK_TILE;
    kvarn_block_result result;
    kvarn_key key = key_of(number);
    uint32_t content = number % CONTENTS;

    args.space = keep.space = space;
    args.keys = keep.keys = &key;
    args.kinds = &kind;
    args.count = keep.count = 1;
    args.k = model.k[0][(size_t)content * MODEL_GROUP];
    args.v = model.v[0][(size_t)content * MODEL_GROUP];
    args.strides = &strides;
    args.results = keep.results = &result;
    if (kvarn_compress(client, &args) != KVARN_OK)
        return false;
    if (ledger.digests[content] == 0)
        ledger.digests[content] = result.digest;
    ledger.wrong += result.digest != ledger.digests[content];
    if (kvarn_persist(client, &keep) != KVARN_OK)
        return false;
    ledger.acknowledged++;
    ledger.live[ledger.count++] = number;
    return true;
}

static bool drop_oldest(kvarn_client *client, uint64_t space)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    kvarn_key key = key_of(ledger.live[0]);

    /* From here on it may be there or not. */
    memmove(ledger.live, ledger.live + 1, --ledger.count * sizeof *ledger.live);
    args.space = space;
    args.keys = &key;
    args.count = 1;
    return kvarn_drop(client, &args) == KVARN_OK;
}

static void use(void)
{
    kvarn_client *client = NULL;
    kvarn_space_options options = model_space("cycles");
    uint64_t space = 0;
    bool alive;

    alive = kvarn_connect(&client, address, NULL) == KVARN_OK &&
            kvarn_open_space(client, &options) == KVARN_OK;
    space = options.space;
    alive = alive && check(client, space);
    for (int round = 0; alive && round < ROUNDS_MAX; round++) {
        alive = put_one(client, space, ledger.next++);
        if (alive && ledger.count > LIVE_MAX)
            alive = drop_oldest(client, space);
    }
    kvarn_close(&client);
}

static bool cycle(const char *bin, enum ways way)
{
    pthread_t thread;
    struct killer killer;
    bool serves;
    int status;

    killer.pid = start_daemon(bin, way, &serves);
    killer.after_us = 500 + rng_below(&rng, KILL_US);
    if (!serves && way == KILL)
        return false;
    if (way == KILL && pthread_create(&thread, NULL, kill_later, &killer) != 0)
        return false;
    if (serves)
        use();
    if (way == KILL) {
        pthread_join(thread, NULL);
    } else if (serves) {
        kill(killer.pid, SIGKILL); /* if it was not reached */
    }
    if (waitpid(killer.pid, &status, 0) != killer.pid)
        return false;
    /* a start that ended was cut, not refused */
    return serves || (WIFEXITED(status) && WEXITSTATUS(status) == 137);
}

static void make_key(void)
{
    FILE *file;

    snprintf(key_file, sizeof key_file, "%s/key", folder);
    file = fopen(key_file, "w");
    if (!file || fprintf(file, "%064d\n", 7) < 0 || fclose(file) != 0 || chmod(key_file, 0600) != 0)
        abort();
}

static void make_folder(void)
{
    folder_new(folder, sizeof folder);
    snprintf(disk, sizeof disk, "%s/disk", folder);
    snprintf(address, sizeof address, "unix:%s/s", folder);
    if (mkdir(disk, 0700) != 0)
        abort();
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"kill", "cut", "forgets"};
    enum ways way = KILL;
    uint32_t cycles, done = 0;
    bool fine = true;

    while (argc >= 4 && way <= FORGETS && strcmp(names[way], argv[2]) != 0)
        way++;
    if (argc < 4 || way > FORGETS) {
        fprintf(stderr, "usage: disk_cycles BIN_DIR kill|cut|forgets CYCLES [SEED [sealed]]\n");
        return 2;
    }
    cycles = (uint32_t)strtoul(argv[3], NULL, 10);
    rng = rng_make(argc > 4 ? strtoull(argv[4], NULL, 10) : rng_seed(1));
    model_fill(&model, 3);
    make_folder();
    if (argc > 5 && strcmp(argv[5], "sealed") == 0)
        make_key();
    while (done < cycles && fine && !(way == FORGETS && ledger.lost)) {
        fine = cycle(argv[1], way);
        done++;
    }
    printf("%s: %u cycles, %llu blocks acknowledged, %llu looked for, %llu lost, %llu wrong\n",
           argv[2], done, (unsigned long long)ledger.acknowledged,
           (unsigned long long)ledger.checked, (unsigned long long)ledger.lost,
           (unsigned long long)ledger.wrong);
    if (!fine)
        fprintf(stderr, "kvarnd did not start; its folder is %s\n", folder);
    else
        folder_remove(folder);
    if (!fine || ledger.wrong || ledger.checked == 0)
        return 1;
    return (ledger.lost > 0) == (way == FORGETS) ? 0 : 1;
}
