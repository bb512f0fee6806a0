/* The device with its real worker process: jobs end to end, a worker that dies, nothing left over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/core/log.h"
#include "server/core/loop.h"
#include "server/device/device.h"
#include "server/device/link.h"
#include "support/rng.h"

enum { LAYERS = 3, HEADS = 2, DIM = 64, GROUP = 64, ROW = DIM * 2 };
enum { POOL_BYTES = 64 << 20, STAGING_BYTES = 32 << 20, TOKENS = GROUP };

static const struct kvk_shape shape = {
    .dim = DIM, .group = GROUP, .bits_k = 4, .bits_v = 4, .dtype = KVARN_F16, .iterations = 8};

struct fixture {
    struct uv_loop_s *loop;
    struct kvd_device *device;
    unsigned fds_before, done, lost, refused;
};

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* The one child of this process. */
static pid_t worker_pid(void)
{
    char text[64] = "", path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *got = fgets(text, sizeof(text), file);
    fclose(file);
    return got != NULL ? (pid_t)atoi(text) : 0;
}

static struct kvd_device_options options_of(uint32_t threads)
{
    return (struct kvd_device_options){.worker_path = KVARN_WORKER,
                                       .pool_bytes = POOL_BYTES,
                                       .staging_bytes = STAGING_BYTES,
                                       .threads = threads};
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct kvd_device_options options = options_of(2);
    const char *why = NULL;

    kvd_log_set_level(KVD_LOG_ERROR);
    f->fds_before = open_fds();
    f->loop = kvd_loop_new();
    *state = f;
    return kvd_device_open(&f->device, f->loop, &options, &why) == KVARN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    kvd_device_close(&f->device);
    kvd_loop_free(&f->loop);
    assert_null(f->device);
    assert_int_equal(open_fds(), f->fds_before);
    assert_int_equal(waitpid(-1, NULL, 0), -1);
    assert_int_equal(errno, ECHILD);
    free(f);
    return 0;
}

static void on_done(void *context, struct kvd_job *job, kvarn_status status)
{
    struct fixture *f = context;
    (void)job;
    f->done++;
    f->lost += status == KVARN_GPU_LOST;
    f->refused += status == KVARN_INTERNAL;
}

/* ---- making jobs ---- */

static struct kvd_job *job_new(struct fixture *f, uint32_t op, uint32_t count, size_t entry_bytes,
                               size_t more)
{
    size_t bytes = sizeof(struct kvd_job) + count * entry_bytes + more;
    struct kvd_job *job = (struct kvd_job *)(void *)kvd_staging_take(f->device, bytes);
    assert_non_null(job);
    memset(job, 0, bytes);
    job->op = op;
    job->count = count;
    job->shape = shape;
    job->layers = LAYERS;
    job->heads = HEADS;
    job->layer_count = LAYERS;
    job->job_bytes = bytes;
    return job;
}

static void job_free(struct fixture *f, struct kvd_job *job)
{
    kvd_staging_give(f->device, (uint8_t *)job);
}

static void submit(struct fixture *f, struct kvd_job *job)
{
    assert_int_equal(kvd_device_submit(f->device, job, on_done, f), KVARN_OK);
}

static void run(struct fixture *f, struct kvd_job *job)
{
    unsigned before = f->done;
    submit(f, job);
    while (f->done == before)
        kvd_loop_turn(f->loop);
}

static struct kvd_strides strides(void)
{
    return (struct kvd_strides){
        .layer = (uint64_t)TOKENS * HEADS * ROW, .token = HEADS * ROW, .head = ROW};
}

enum { ROWS_BYTES = LAYERS * TOKENS * HEADS * ROW };

/* fp16 in [-2, 2) */
static uint8_t *rows_new(struct fixture *f, struct rng *rng)
{
    uint8_t *rows = kvd_staging_take(f->device, ROWS_BYTES);
    assert_non_null(rows);
    for (uint32_t i = 0; i < ROWS_BYTES / 2; i++) {
        uint16_t bits = (uint16_t)((rng_next(rng) & 0x83ff) | (14u + rng_below(rng, 2)) << 10);
        memcpy(rows + 2 * i, &bits, 2);
    }
    return rows;
}

static void put_entry(struct fixture *f, struct kvd_put *put, const uint8_t *k, const uint8_t *v,
                      uint64_t slot, uint32_t kind)
{
    *put = (struct kvd_put){.k = kvd_device_place(f->device, k),
                            .v = kvd_device_place(f->device, v),
                            .strides = strides(),
                            .slot = {KVD_REGION_POOL, 0, slot},
                            .kind = kind,
                            .status = 77};
}

/* ---- tests ---- */

static void backend_is_named(void **state)
{
    struct fixture *f = *state;
    assert_memory_equal(kvd_device_backend(f->device), "cpu/", 4);
    assert_true(kvd_device_ready(f->device));
    assert_int_equal(kvd_device_restarts(f->device), 0);
    assert_int_equal(kvd_staging_capacity_bytes(f->device), STAGING_BYTES);
    assert_int_equal(kvd_staging_free_bytes(f->device), STAGING_BYTES);
}

static void exact_block_comes_back_as_it_was(void **state)
{
    struct fixture *f = *state;
    struct rng rng = rng_make(rng_seed(1));
    uint8_t *k = rows_new(f, &rng), *v = rows_new(f, &rng);
    uint8_t *k2 = kvd_staging_take(f->device, ROWS_BYTES);
    uint8_t *v2 = kvd_staging_take(f->device, ROWS_BYTES);
    struct kvd_job *job = job_new(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    put_entry(f, put, k, v, 4096, KVARN_BLOCK_EXACT);
    run(f, job);
    assert_int_equal(put->status, KVARN_OK);
    assert_int_equal(put->digest, kvk_digest(0, kvd_device_pool(f->device) + 4096, 2 * ROWS_BYTES));
    job_free(f, job);

    job = job_new(f, KVD_JOB_DECOMPRESS, 1, sizeof(struct kvd_get), 0);
    struct kvd_get *get = (struct kvd_get *)(job + 1);
    *get = (struct kvd_get){.slot = {KVD_REGION_POOL, 0, 4096},
                            .kind = KVARN_BLOCK_EXACT,
                            .k = kvd_device_place(f->device, k2),
                            .v = kvd_device_place(f->device, v2),
                            .strides = strides()};
    run(f, job);
    assert_int_equal(get->status, KVARN_OK);
    assert_memory_equal(k, k2, ROWS_BYTES);
    assert_memory_equal(v, v2, ROWS_BYTES);
    assert_int_equal(f->lost + f->refused, 0);
}

static void jobs_of_a_turn_all_come_back(void **state)
{
    struct fixture *f = *state;
    struct rng rng = rng_make(rng_seed(2));
    uint8_t *k = rows_new(f, &rng), *v = rows_new(f, &rng);
    struct kvd_job *jobs[KVD_RING_ENTRIES];
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++) {
        if (i % 3 == 0) {
            jobs[i] = job_new(f, KVD_JOB_DIGEST, 1, sizeof(struct kvd_copy), 0);
            *(struct kvd_copy *)(jobs[i] + 1) = (struct kvd_copy){
                .src = kvd_device_place(f->device, k), .bytes = 100 + i, .status = 77};
        } else {
            jobs[i] = job_new(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
            put_entry(f, (struct kvd_put *)(jobs[i] + 1), k, v,
                      (uint64_t)(i % 100) * 2 * ROWS_BYTES, KVARN_BLOCK_EXACT);
        }
        submit(f, jobs[i]);
    }
    /* as many as the ring holds; the next one is told to come again */
    struct kvd_job *more = job_new(f, KVD_JOB_DIGEST, 0, 0, 0);
    assert_int_equal(kvd_device_submit(f->device, more, on_done, f), KVARN_RETRY);
    while (f->done < KVD_RING_ENTRIES)
        kvd_loop_turn(f->loop);
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++) {
        if (i % 3 == 0) {
            struct kvd_copy *copy = (struct kvd_copy *)(jobs[i] + 1);
            assert_int_equal(copy->status, KVARN_OK);
            assert_int_equal(copy->digest, kvk_digest(0, k, 100 + i));
        } else {
            assert_int_equal(((struct kvd_put *)(jobs[i] + 1))->status, KVARN_OK);
        }
    }
    run(f, more);
    assert_int_equal(f->lost + f->refused, 0);
}

static void bad_job_is_internal_and_the_worker_lives(void **state)
{
    struct fixture *f = *state;
    struct kvd_job *job = job_new(f, 99, 1, sizeof(struct kvd_put), 0);
    pid_t pid = worker_pid();
    run(f, job);
    assert_int_equal(job->status, KVARN_INTERNAL);
    job->op = KVD_JOB_COMPRESS;
    job->count = UINT32_MAX;
    run(f, job);
    job->count = 1;
    job->job_bytes = UINT64_MAX;
    run(f, job);
    job->job_bytes = sizeof(*job) + sizeof(struct kvd_put);
    job->heads = 0;
    run(f, job);
    assert_int_equal(f->refused, 4);

    job->heads = HEADS;
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    put_entry(f, put, (uint8_t *)job, (uint8_t *)job, POOL_BYTES - 100, KVARN_BLOCK_EXACT);
    run(f, job);
    assert_int_equal(job->status, KVARN_OK);
    assert_int_equal(put->status, KVARN_INTERNAL);
    assert_int_equal(f->lost, 0);
    assert_int_equal(worker_pid(), pid);
    assert_int_equal(kvd_device_restarts(f->device), 0);
}

/* Submits `count` jobs of some work each and kills the worker once it has begun. */
static void killed_worker_is_replaced(void **state)
{
    struct fixture *f = *state;
    enum { JOBS = 64 };
    struct rng rng = rng_make(rng_seed(3));
    uint8_t *k = rows_new(f, &rng), *v = rows_new(f, &rng);

    for (unsigned round = 1; round <= 3; round++) {
        struct kvd_job *jobs[JOBS];
        f->done = f->lost = 0;
        for (uint32_t i = 0; i < JOBS; i++) {
            jobs[i] = job_new(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
            put_entry(f, (struct kvd_put *)(jobs[i] + 1), k, v, 0, KVARN_BLOCK_TILE);
            submit(f, jobs[i]);
        }
        kill(worker_pid(), round == 1 ? SIGKILL : SIGSEGV);
        while (f->done < JOBS)
            kvd_loop_turn(f->loop);
        assert_true(f->lost > 0);
        assert_false(kvd_device_ready(f->device));
        assert_int_equal(kvd_device_submit(f->device, jobs[0], on_done, f), KVARN_RETRY);
        while (!kvd_device_ready(f->device))
            kvd_loop_turn(f->loop);
        assert_int_equal(kvd_device_restarts(f->device), round);
        /* the pool is still there, and the new worker writes it */
        memset(kvd_device_pool(f->device), 0, 4096);
        run(f, jobs[0]);
        assert_int_equal(((struct kvd_put *)(jobs[0] + 1))->status, KVARN_OK);
        assert_int_not_equal(kvk_digest(0, kvd_device_pool(f->device), 4096),
                             kvk_digest(0, kvd_device_pool(f->device) + POOL_BYTES - 4096, 4096));
        for (uint32_t i = 0; i < JOBS; i++)
            job_free(f, jobs[i]);
    }
}

static void wake_up(void *context)
{
    (void)context;
}

static uint64_t now_ms(void)
{
    return kvd_now_ns() / 1000000;
}

/* Runs the loop until this time. */
static void run_until(struct fixture *f, uint64_t until_ms)
{
    struct kvd_timer *timer = NULL;
    assert_int_equal(kvd_timer_open(&timer, f->loop, wake_up, NULL), KVARN_OK);
    kvd_timer_start(timer, 1, 5);
    while (now_ms() < until_ms)
        kvd_loop_turn(f->loop);
    kvd_timer_close(&timer);
}

static void reopen_with_stall(struct fixture *f, uint32_t stall_ms)
{
    struct kvd_device_options options = options_of(1);
    const char *why = NULL;
    kvd_device_close(&f->device);
    options.stall_ms = stall_ms;
    assert_int_equal(kvd_device_open(&f->device, f->loop, &options, &why), KVARN_OK);
}

static void stalled_worker_is_replaced(void **state)
{
    struct fixture *f = *state;
    reopen_with_stall(f, 50);
    struct kvd_job *job = job_new(f, KVD_JOB_DIGEST, 0, 0, 0);
    kill(worker_pid(), SIGSTOP);
    run(f, job);
    assert_int_equal(f->lost, 1);
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    run(f, job);
    assert_int_equal(f->lost, 1);
    assert_int_equal(f->done, 2);
    /* one that does not end when asked to is killed by close */
    kill(worker_pid(), SIGSTOP);
}

/* The time that a dead worker took does not count against the one after it. */
static void a_new_worker_has_the_whole_stall_time(void **state)
{
    struct fixture *f = *state;
    enum { STALL_MS = 2000 };
    reopen_with_stall(f, STALL_MS);
    struct kvd_job *job = job_new(f, KVD_JOB_DIGEST, 0, 0, 0);
    uint64_t begun = now_ms();
    kill(worker_pid(), SIGSTOP);
    submit(f, job);
    kill(worker_pid(), SIGKILL);
    while (f->lost == 0 || !kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    run_until(f, begun + 800);
    kill(worker_pid(), SIGSTOP);
    submit(f, job);
    run_until(f, begun + STALL_MS + 300);
    assert_int_equal(f->lost, 1);
    kill(worker_pid(), SIGCONT);
    while (f->done < 2)
        kvd_loop_turn(f->loop);
    assert_int_equal(f->lost, 1);
    assert_int_equal(kvd_device_restarts(f->device), 1);
}

/* A job that takes many stall times, and one before it that takes none. */
static void long_job_is_no_stall_and_holds_nobody_up(void **state)
{
    struct fixture *f = *state;
    enum { STALL_MS = 250, ENTRIES = 300 };
    reopen_with_stall(f, STALL_MS);
    struct kvd_job *brief = job_new(f, KVD_JOB_WRITE_ROWS, 0, sizeof(struct kvd_write), 0);
    struct kvd_job *lengthy = job_new(f, KVD_JOB_DIGEST, ENTRIES, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copies = (struct kvd_copy *)(lengthy + 1);
    memset(kvd_device_pool(f->device), 1, POOL_BYTES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        copies[i] = (struct kvd_copy){.src = {KVD_REGION_POOL, 0, 0}, .bytes = POOL_BYTES};
    uint64_t begun = now_ms();
    submit(f, brief);
    submit(f, lengthy);
    while (f->done == 0)
        kvd_loop_turn(f->loop);
    assert_int_equal(f->done, 1);
    while (f->done < 2)
        kvd_loop_turn(f->loop);
    print_message("%u ms\n", (unsigned)(now_ms() - begun));
    assert_int_equal(f->lost + f->refused, 0);
    assert_int_equal(copies[ENTRIES - 1].status, KVARN_OK);
    assert_int_equal(kvd_device_restarts(f->device), 0);
}

/* The rings as the worker sees them. */
static struct kvd_link_rings *map_rings(void)
{
    char path[64], target[128];
    struct kvd_link_rings *rings = MAP_FAILED;
    for (int fd = 3; fd < 64 && rings == MAP_FAILED; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t got = readlink(path, target, sizeof(target) - 1);
        target[got > 0 ? got : 0] = '\0';
        if (strstr(target, "kvarn-rings") != NULL)
            rings = mmap(NULL, KVD_LINK_RINGS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    assert_true(rings != MAP_FAILED);
    return rings;
}

/* From the first nonsense on nothing is taken or given until there is another worker. */
static void a_broken_ring_is_not_read_again(void **state)
{
    struct fixture *f = *state;
    struct kvd_link_rings *rings = map_rings();
    struct kvd_job *jobs[2] = {job_new(f, KVD_JOB_DIGEST, 0, 0, 0),
                               job_new(f, KVD_JOB_DIGEST, 0, 0, 0)};
    submit(f, jobs[0]);
    while (atomic_load(&rings->jobs.tail) == 0)
        kvd_loop_turn(f->loop);
    while (atomic_load(&rings->done.tail) == 0)
        ; /* answered, and not taken yet */
    atomic_store(&rings->done.tail, 5000);
    while (kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(f->done, 0); /* seen before the end of the process was */
    assert_int_equal(kvd_device_submit(f->device, jobs[1], on_done, f), KVARN_RETRY);
    atomic_store(&rings->done.tail, 1); /* makes sense again: too late */
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(f->lost, 1);
    run(f, jobs[1]);
    assert_int_equal(f->done, 2);
    assert_int_equal(kvd_device_restarts(f->device), 1);
    munmap(rings, KVD_LINK_RINGS_BYTES);
}

static void a_worker_that_moves_the_job_ring_is_replaced(void **state)
{
    struct fixture *f = *state;
    struct kvd_link_rings *rings = map_rings();
    struct kvd_job *job = job_new(f, KVD_JOB_DIGEST, 0, 0, 0);
    kill(worker_pid(), SIGSTOP);
    atomic_store(&rings->jobs.head, 5000);
    assert_int_equal(kvd_device_submit(f->device, job, on_done, f), KVARN_RETRY);
    assert_false(kvd_device_ready(f->device));
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(kvd_device_restarts(f->device), 1);
    run(f, job);
    assert_int_equal(f->lost + f->refused, 0);
    munmap(rings, KVD_LINK_RINGS_BYTES);
}

static void pool_zero_is_seen_by_the_worker(void **state)
{
    struct fixture *f = *state;
    memset(kvd_device_pool(f->device), 5, 8192);
    kvd_device_pool_zero(f->device, 4096, 4096);
    struct kvd_job *job = job_new(f, KVD_JOB_DIGEST, 1, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copy = (struct kvd_copy *)(job + 1);
    uint8_t expected[8192] = {0};
    memset(expected, 5, 4096);
    *copy = (struct kvd_copy){.src = {KVD_REGION_POOL, 0, 0}, .bytes = 8192};
    run(f, job);
    assert_int_equal(copy->digest, kvk_digest(0, expected, 8192));
}

static void worker_gets_only_its_descriptors(void **state)
{
    (void)state;
    char path[64], target[128];
    unsigned count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)worker_pid());
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        count++;
        assert_in_range(atoi(entry->d_name), 0, 8);
        ssize_t got = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);
        assert_true(got > 0);
        target[got] = '\0';
        if (atoi(entry->d_name) == 3)
            assert_non_null(strstr(target, "kvarn-staging"));
        if (atoi(entry->d_name) == 4)
            assert_non_null(strstr(target, "kvarn-pool"));
    }
    closedir(dir);
    assert_int_equal(count, 9);
}

static void a_worker_that_cannot_serve_is_told(void **state)
{
    (void)state;
    struct uv_loop_s *loop = kvd_loop_new();
    struct kvd_device *device = NULL;
    struct kvd_device_options options = options_of(1);
    const char *why = NULL;
    unsigned before = open_fds();

    options.worker_path = "/nonexistent/kvarn-worker";
    assert_int_equal(kvd_device_open(&device, loop, &options, &why), KVARN_INTERNAL);
    assert_string_equal(why, "the worker program cannot be run");
    options.worker_path = "/bin/true";
    assert_int_equal(kvd_device_open(&device, loop, &options, &why), KVARN_INTERNAL);
    assert_string_equal(why, "the worker ended before its self-test was done");
    options.worker_path = KVARN_WORKER;
    options.cpu_mask = "sse9";
    assert_int_equal(kvd_device_open(&device, loop, &options, &why), KVARN_INTERNAL);
    assert_non_null(strstr(why, "unknown CPU variant"));
    assert_null(device);
    assert_int_equal(waitpid(-1, NULL, 0), -1);
    kvd_loop_turn(loop);
    assert_int_equal(open_fds(), before);
    kvd_loop_free(&loop);
}

/* The front is a child of ours here; it is killed, and its worker must go too. */
static void worker_dies_with_the_front(void **state)
{
    (void)state;
    int pipe_ends[2];
    pid_t worker = 0;
    int ended;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t front = fork();
    if (front == 0) {
        struct kvd_device *device = NULL;
        struct kvd_device_options options = options_of(1);
        const char *why;
        struct uv_loop_s *loop = kvd_loop_new();
        if (kvd_device_open(&device, loop, &options, &why) != KVARN_OK)
            _exit(1);
        worker = worker_pid();
        (void)!write(pipe_ends[1], &worker, sizeof(worker));
        for (;;)
            pause();
    }
    close(pipe_ends[1]);
    assert_int_equal(read(pipe_ends[0], &worker, sizeof(worker)), sizeof(worker));
    kill(front, SIGKILL);
    waitpid(front, NULL, 0);
    /* its parent is gone, so it is our child now */
    assert_int_equal(waitpid(worker, &ended, 0), worker);
    assert_true(WIFSIGNALED(ended) || WEXITSTATUS(ended) == 0);
    close(pipe_ends[0]);
}

/* The first loop of a process opens libuv's own signal pipe, which stays. */
static int open_what_stays(void **state)
{
    (void)state;
    struct uv_loop_s *loop = kvd_loop_new();
    kvd_loop_free(&loop);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(backend_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(exact_block_comes_back_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(jobs_of_a_turn_all_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_job_is_internal_and_the_worker_lives, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_worker_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(stalled_worker_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_worker_has_the_whole_stall_time, setup, teardown),
        cmocka_unit_test_setup_teardown(long_job_is_no_stall_and_holds_nobody_up, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broken_ring_is_not_read_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_moves_the_job_ring_is_replaced, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(pool_zero_is_seen_by_the_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(worker_gets_only_its_descriptors, setup, teardown),
        cmocka_unit_test(a_worker_that_cannot_serve_is_told),
        cmocka_unit_test(worker_dies_with_the_front),
    };
    return cmocka_run_group_tests(tests, open_what_stays, NULL);
}
