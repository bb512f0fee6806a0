/* See device_rig.h. */
#include "device_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/core/clock.h"
#include "server/core/log.h"

static const struct kvk_shape shape = {
    .dim = DIM, .group = GROUP, .bits_k = 4, .bits_v = 4, .dtype = KVARN_F16, .iterations = 8};

unsigned device_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* The one child of this process. */
pid_t device_worker_pid(void)
{
    char text[64] = "", path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *got = fgets(text, sizeof(text), file);
    fclose(file);
    return got != NULL ? (pid_t)atoi(text) : 0;
}

struct kvd_device_options device_options(uint32_t threads)
{
    return (struct kvd_device_options){.worker_path = KVARN_WORKER,
                                       .pool_bytes = POOL_BYTES,
                                       .staging_bytes = STAGING_BYTES,
                                       .threads = threads};
}

int device_setup(void **state)
{
    struct device_rig *f = calloc(1, sizeof(*f));
    struct kvd_device_options options = device_options(2);
    const char *why = NULL;

    kvd_log_set_level(KVD_LOG_ERROR);
    f->fds_before = device_open_fds();
    f->loop = kvd_loop_new();
    *state = f;
    return kvd_device_open(&f->device, f->loop, &options, &why) == KVARN_OK ? 0 : -1;
}

int device_teardown(void **state)
{
    struct device_rig *f = *state;
    kvd_device_close(&f->device);
    kvd_loop_free(&f->loop);
    assert_null(f->device);
    assert_int_equal(device_open_fds(), f->fds_before);
    assert_int_equal(waitpid(-1, NULL, 0), -1);
    assert_int_equal(errno, ECHILD);
    free(f);
    return 0;
}

void device_on_done(void *context, struct kvd_job *job, kvarn_status status)
{
    struct device_rig *f = context;
    (void)job;
    f->done++;
    f->lost += status == KVARN_GPU_LOST;
    f->refused += status == KVARN_INTERNAL;
}

struct kvd_job *device_job(struct device_rig *f, uint32_t op, uint32_t count, size_t entry_bytes,
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

void device_job_free(struct device_rig *f, struct kvd_job *job)
{
    kvd_staging_give(f->device, (uint8_t *)job);
}

void device_submit(struct device_rig *f, struct kvd_job *job)
{
    assert_int_equal(kvd_device_submit(f->device, job, device_on_done, f), KVARN_OK);
}

void device_run(struct device_rig *f, struct kvd_job *job)
{
    unsigned before = f->done;
    device_submit(f, job);
    while (f->done == before)
        kvd_loop_turn(f->loop);
}

uint64_t device_now_ms(void)
{
    return kvd_now_ns() / 1000000;
}

static void wake_up(void *context)
{
    (void)context;
}

/* Runs the loop until this time. */
void device_run_until(struct device_rig *f, uint64_t until_ms)
{
    struct kvd_timer *timer = NULL;
    assert_int_equal(kvd_timer_open(&timer, f->loop, wake_up, NULL), KVARN_OK);
    kvd_timer_start(timer, 1, 5);
    while (device_now_ms() < until_ms)
        kvd_loop_turn(f->loop);
    kvd_timer_close(&timer);
}

void device_reopen(struct device_rig *f, uint32_t stall_ms)
{
    struct kvd_device_options options = device_options(1);
    const char *why = NULL;
    kvd_device_close(&f->device);
    options.stall_ms = stall_ms;
    assert_int_equal(kvd_device_open(&f->device, f->loop, &options, &why), KVARN_OK);
}

/* The first loop of a process opens libuv's own signal pipe, which stays. */
int device_open_what_stays(void **state)
{
    (void)state;
    struct uv_loop_s *loop = kvd_loop_new();
    kvd_loop_free(&loop);
    return 0;
}
