/* The worker's process as the front sees it: it hangs, lies, cannot start, outlives nobody. */
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

#include "device_rig.h"
#include "server/device/link.h"

static void stalled_worker_is_replaced(void **state)
{
    struct device_rig *f = *state;
    device_reopen(f, 50);
    struct kvd_job *job = device_job(f, KVD_JOB_DIGEST, 0, 0, 0);
    kill(device_worker_pid(), SIGSTOP);
    device_run(f, job);
    assert_int_equal(f->lost, 1);
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    device_run(f, job);
    assert_int_equal(f->lost, 1);
    assert_int_equal(f->done, 2);
    /* one that does not end when asked to is killed by close */
    kill(device_worker_pid(), SIGSTOP);
}

/* The time that a dead worker took does not count against the one after it. */
static void a_new_worker_has_the_whole_stall_time(void **state)
{
    struct device_rig *f = *state;
    enum { STALL_MS = 2000 };
    device_reopen(f, STALL_MS);
    struct kvd_job *job = device_job(f, KVD_JOB_DIGEST, 0, 0, 0);
    uint64_t begun = device_now_ms();
    kill(device_worker_pid(), SIGSTOP);
    device_submit(f, job);
    kill(device_worker_pid(), SIGKILL);
    while (f->lost == 0 || !kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    device_run_until(f, begun + 800);
    kill(device_worker_pid(), SIGSTOP);
    device_submit(f, job);
    device_run_until(f, begun + STALL_MS + 300);
    assert_int_equal(f->lost, 1);
    kill(device_worker_pid(), SIGCONT);
    while (f->done < 2)
        kvd_loop_turn(f->loop);
    assert_int_equal(f->lost, 1);
    assert_int_equal(kvd_device_restarts(f->device), 1);
}

/* A job that takes many stall times, and one before it that takes none. */
static void long_job_is_no_stall_and_holds_nobody_up(void **state)
{
    struct device_rig *f = *state;
    enum { STALL_MS = 250, ENTRIES = 300 };
    device_reopen(f, STALL_MS);
    struct kvd_job *brief = device_job(f, KVD_JOB_WRITE_ROWS, 0, sizeof(struct kvd_write), 0);
    struct kvd_job *lengthy = device_job(f, KVD_JOB_DIGEST, ENTRIES, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copies = (struct kvd_copy *)(lengthy + 1);
    memset(kvd_device_pool(f->device), 1, POOL_BYTES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        copies[i] = (struct kvd_copy){.src = {KVD_REGION_POOL, 0, 0}, .bytes = POOL_BYTES};
    uint64_t begun = device_now_ms();
    device_submit(f, brief);
    device_submit(f, lengthy);
    while (f->done == 0)
        kvd_loop_turn(f->loop);
    assert_int_equal(f->done, 1);
    while (f->done < 2)
        kvd_loop_turn(f->loop);
    print_message("%u ms\n", (unsigned)(device_now_ms() - begun));
    assert_int_equal(f->lost + f->refused, 0);
    assert_int_equal(copies[ENTRIES - 1].status, KVARN_OK);
    assert_int_equal(kvd_device_restarts(f->device), 0);
}

/* However often it ends: one that served is soon there again. */
static void a_worker_that_served_is_soon_back(void **state)
{
    struct device_rig *f = *state;

    for (uint32_t life = 1; life <= 6; life++) {
        assert_int_equal(kill(device_worker_pid(), SIGKILL), 0);
        while (kvd_device_ready(f->device))
            kvd_loop_turn(f->loop);
        assert_true(kvd_device_wait_ms(f->device) <=
                    KVD_WORKER_DELAY_SERVED_MS + KVD_WORKER_START_MS);
        uint32_t wait = kvd_device_wait_ms(f->device);
        while (!kvd_device_ready(f->device)) {
            uint32_t now = kvd_device_wait_ms(f->device); /* falls, to soon at the least */
            assert_true(now <= wait && now >= KVD_WORKER_SOON_MS);
            wait = now;
            kvd_loop_turn(f->loop);
        }
        assert_int_equal(kvd_device_wait_ms(f->device), 0);
        assert_int_equal(kvd_device_restarts(f->device), life);
    }
}

/* A worker that hangs while it starts, as a GPU's may in the driver, does not take half a minute.
 */
static void a_start_that_hangs_is_given_up(void **state)
{
    struct device_rig *f = *state;
    uint64_t begun = device_now_ms();

    assert_int_equal(kill(device_worker_pid(), SIGKILL), 0);
    while (kvd_device_restarts(f->device) == 0)
        kvd_loop_turn(f->loop);
    assert_int_equal(kill(device_worker_pid(), SIGSTOP), 0);
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(kvd_device_restarts(f->device), 2);
    assert_true(device_now_ms() - begun < KVD_WORKER_HELLO_MS / 2);
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
    struct device_rig *f = *state;
    struct kvd_link_rings *rings = map_rings();
    struct kvd_job *jobs[2] = {device_job(f, KVD_JOB_DIGEST, 0, 0, 0),
                               device_job(f, KVD_JOB_DIGEST, 0, 0, 0)};
    device_submit(f, jobs[0]);
    while (atomic_load(&rings->jobs.tail) == 0)
        kvd_loop_turn(f->loop);
    while (atomic_load(&rings->done.tail) == 0)
        ; /* answered, and not taken yet */
    atomic_store(&rings->done.tail, 5000);
    while (kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(f->done, 0); /* seen before the end of the process was */
    assert_int_equal(kvd_device_submit(f->device, jobs[1], device_on_done, f), KVARN_RETRY);
    atomic_store(&rings->done.tail, 1); /* makes sense again: too late */
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(f->lost, 1);
    device_run(f, jobs[1]);
    assert_int_equal(f->done, 2);
    assert_int_equal(kvd_device_restarts(f->device), 1);
    munmap(rings, KVD_LINK_RINGS_BYTES);
}

static void a_worker_that_moves_the_job_ring_is_replaced(void **state)
{
    struct device_rig *f = *state;
    struct kvd_link_rings *rings = map_rings();
    struct kvd_job *job = device_job(f, KVD_JOB_DIGEST, 0, 0, 0);
    kill(device_worker_pid(), SIGSTOP);
    atomic_store(&rings->jobs.head, 5000);
    assert_int_equal(kvd_device_submit(f->device, job, device_on_done, f), KVARN_RETRY);
    assert_false(kvd_device_ready(f->device));
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
    assert_int_equal(kvd_device_restarts(f->device), 1);
    device_run(f, job);
    assert_int_equal(f->lost + f->refused, 0);
    munmap(rings, KVD_LINK_RINGS_BYTES);
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
        struct kvd_device_options options = device_options(1);
        const char *why;
        struct uv_loop_s *loop = kvd_loop_new();
        if (kvd_device_open(&device, loop, &options, &why) != KVARN_OK)
            _exit(1);
        worker = device_worker_pid();
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

static void a_worker_that_cannot_serve_is_told(void **state)
{
    (void)state;
    struct uv_loop_s *loop = kvd_loop_new();
    struct kvd_device *device = NULL;
    struct kvd_device_options options = device_options(1);
    const char *why = NULL;
    unsigned before = device_open_fds();

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
    assert_int_equal(device_open_fds(), before);
    kvd_loop_free(&loop);
}

static void worker_gets_only_its_descriptors(void **state)
{
    (void)state;
    char path[64], target[128];
    unsigned count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)device_worker_pid());
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stalled_worker_is_replaced, device_setup, device_teardown),
        cmocka_unit_test_setup_teardown(a_new_worker_has_the_whole_stall_time, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(long_job_is_no_stall_and_holds_nobody_up, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_served_is_soon_back, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(a_start_that_hangs_is_given_up, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(a_broken_ring_is_not_read_again, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_moves_the_job_ring_is_replaced, device_setup,
                                        device_teardown),
        cmocka_unit_test_setup_teardown(worker_gets_only_its_descriptors, device_setup,
                                        device_teardown),
        cmocka_unit_test(a_worker_that_cannot_serve_is_told),
        cmocka_unit_test(worker_dies_with_the_front),
    };
    return cmocka_run_group_tests(tests, device_open_what_stays, NULL);
}
