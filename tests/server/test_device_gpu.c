/* The device over a GPU: its real worker process with the stand-in driver. Whose the pool is, what
 * of it outlives a worker, that its parts read as zero when that was asked for, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "device_rig.h"
#include "server/core/limits.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/rng.h"

enum { CHUNKS = 8, CHUNK = 2 << 20, GPU_POOL = CHUNKS * CHUNK, WAIT_MS = 10000 };
enum { SLOT = LAYERS * HEADS * 2 * GROUP * ROW }; /* an EXACT one */

static struct fake_cuda_control *control;
static char control_path[] = "/tmp/kvarn-fake-cuda-XXXXXX";
static unsigned restarted, done_at_restart;

static void on_restart(void *context)
{
    struct device_rig *f = context;

    assert_true(kvd_device_ready(f->device));
    done_at_restart = f->done;
    restarted++;
}

static struct kvd_device_options gpu_options(void)
{
    struct kvd_device_options options = device_options(1);

    options.gpu = true;
    options.pool_bytes = GPU_POOL;
    options.staging_bytes = 8 << 20;
    return options;
}

static int open_gpu(void **state)
{
    struct kvd_device_options options = gpu_options();
    struct device_rig *f;
    const char *why = NULL;

    if (device_setup(state) != 0)
        return -1;
    f = *state;
    kvd_device_close(&f->device);
    restarted = done_at_restart = 0;
    if (kvd_device_open(&f->device, f->loop, &options, &why) != KVARN_OK) {
        print_error("%s\n", why);
        return -1;
    }
    kvd_device_on_restart(f->device, on_restart, f);
    return 0;
}

static int close_gpu(void **state)
{
    int failed = device_teardown(state); /* also: no descriptor of the pool is left */

    assert_int_equal(fake_cuda_held(getpid()), 0);
    return failed;
}

/* Bytes of a slot of finite numbers, in staging. */
static uint8_t *slot_new(struct device_rig *f, uint64_t seed)
{
    uint8_t *slot = kvd_staging_take(f->device, SLOT);
    struct rng rng = rng_make(seed);

    assert_non_null(slot);
    for (uint32_t i = 0; i < SLOT / 2; i++) {
        uint16_t bits = (uint16_t)((rng_next(&rng) & 0x83ff) | 15u << 10);
        memcpy(slot + 2 * i, &bits, 2);
    }
    return slot;
}

static struct kvd_job *copy_job(struct device_rig *f, struct kvd_place from, struct kvd_place to)
{
    struct kvd_job *job = device_job(f, KVD_JOB_COPY, 1, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copy = (struct kvd_copy *)(job + 1);

    *copy = (struct kvd_copy){.src = from, .dst = to, .bytes = SLOT, .kind = KVARN_BLOCK_EXACT};
    return job;
}

static struct kvd_place in_pool(uint64_t offset)
{
    return (struct kvd_place){KVD_REGION_POOL, 0, offset};
}

static void put(struct device_rig *f, const uint8_t *slot, uint64_t offset)
{
    struct kvd_job *job = copy_job(f, kvd_device_place(f->device, slot), in_pool(offset));

    device_run(f, job);
    assert_int_equal(((struct kvd_copy *)(job + 1))->status, KVARN_OK);
    device_job_free(f, job);
}

static void get(struct device_rig *f, uint64_t offset, uint8_t *slot)
{
    struct kvd_job *job = copy_job(f, in_pool(offset), kvd_device_place(f->device, slot));

    device_run(f, job);
    assert_int_equal(((struct kvd_copy *)(job + 1))->status, KVARN_OK);
    device_job_free(f, job);
}

static void wait_until_ready(struct device_rig *f)
{
    while (!kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
}

static void kill_worker(struct device_rig *f)
{
    assert_int_equal(kill(device_worker_pid(), SIGKILL), 0);
    while (kvd_device_ready(f->device))
        kvd_loop_turn(f->loop);
}

/* Bytes of chunk i that are not zero, as the memory itself says. */
static uint32_t used_bytes(uint32_t chunk)
{
    static uint8_t bytes[CHUNK];
    int fd = fake_cuda_borrow(getpid(), chunk);
    uint32_t count = 0;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, bytes, CHUNK, 0), CHUNK);
    close(fd);
    for (uint32_t i = 0; i < CHUNK; i++)
        count += bytes[i] != 0;
    return count;
}

/* ---- tests ---- */

static void the_pool_is_kept_as_descriptors(void **state)
{
    struct device_rig *f = *state;

    assert_string_equal(kvd_device_name(f->device), "cuda:0");
    assert_true(kvd_device_is_gpu(f->device));
    assert_memory_equal(kvd_device_backend(f->device), "cuda/", 5);
    assert_int_equal(kvd_device_pool_bytes(f->device), GPU_POOL);
    assert_int_equal(kvd_device_pool_unit_bytes(f->device), CHUNK);
    assert_int_equal(kvd_device_pool_descriptors(f->device), CHUNKS);
    assert_int_equal(fake_cuda_held(getpid()), CHUNKS);
    assert_null(kvd_device_pool(f->device));
}

static void it_outlives_the_worker(void **state)
{
    struct device_rig *f = *state;
    const uint64_t at[] = {0, CHUNK - SLOT, 3 * CHUNK, GPU_POOL - SLOT};
    uint8_t *slots[4], *back = kvd_staging_take(f->device, SLOT);

    for (int i = 0; i < 4; i++) {
        slots[i] = slot_new(f, 10 + (uint64_t)i);
        put(f, slots[i], at[i]);
    }
    for (unsigned life = 1; life <= 3; life++) {
        kill_worker(f);
        assert_int_equal(restarted, life - 1);
        wait_until_ready(f);
        assert_int_equal(restarted, life);
        assert_int_equal(done_at_restart, f->done);
        assert_int_equal(fake_cuda_held(getpid()), CHUNKS);
        for (int i = 0; i < 4; i++) {
            memset(back, 0xA5, SLOT);
            get(f, at[i], back);
            assert_memory_equal(back, slots[i], SLOT);
        }
    }
    assert_int_equal(kvd_device_restarts(f->device), 3);
    for (int i = 0; i < 4; i++)
        kvd_staging_give(f->device, slots[i]);
    kvd_staging_give(f->device, back);
}

/* Before anything that is queued later, and nothing else. */
static void parts_read_as_zero_when_asked(void **state)
{
    struct device_rig *f = *state;
    uint8_t *slot = slot_new(f, 3);

    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        put(f, slot, (uint64_t)chunk * CHUNK + 128);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        assert_true(used_bytes(chunk) > SLOT / 2);
    kvd_device_pool_zero(f->device, 2 * CHUNK, 2 * CHUNK);
    kvd_device_pool_zero(f->device, 6 * CHUNK, CHUNK);
    put(f, slot, 3 * CHUNK + CHUNK / 2);
    assert_int_equal(used_bytes(2), 0);
    assert_true(used_bytes(3) > SLOT / 2 && used_bytes(3) <= SLOT); /* the new one alone */
    assert_int_equal(used_bytes(6), 0);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        if (chunk < 2 || chunk == 4 || chunk == 5 || chunk == 7)
            assert_true(used_bytes(chunk) > SLOT / 2);
    /* also when nothing comes after it */
    kvd_device_pool_zero(f->device, 0, CHUNK);
    while (used_bytes(0) != 0)
        kvd_loop_turn(f->loop);
    kvd_staging_give(f->device, slot);
}

static void they_do_after_the_worker_ended_too(void **state)
{
    struct device_rig *f = *state;
    uint8_t *slot = slot_new(f, 5);
    struct kvd_job *job;

    put(f, slot, 128);
    put(f, slot, CHUNK);
    /* told to a worker that never does it, and what came after is lost with it */
    assert_int_equal(kill(device_worker_pid(), SIGSTOP), 0);
    kvd_device_pool_zero(f->device, 0, CHUNK);
    job = copy_job(f, kvd_device_place(f->device, slot), in_pool(5 * CHUNK));
    device_submit(f, job);
    kill_worker(f);
    assert_int_equal(f->lost, 1);
    device_job_free(f, job);
    /* and what is asked for while there is none */
    kvd_device_pool_zero(f->device, CHUNK, CHUNK);
    assert_true(used_bytes(0) > SLOT / 2);
    wait_until_ready(f);
    put(f, slot, 5 * CHUNK);
    assert_int_equal(used_bytes(0), 0);
    assert_int_equal(used_bytes(1), 0);
    assert_true(used_bytes(5) > SLOT / 2);
    /* also when nothing comes after it */
    kill_worker(f);
    kvd_device_pool_zero(f->device, 5 * CHUNK, CHUNK);
    wait_until_ready(f);
    kvd_staging_give(f->device, slot);
    for (uint64_t limit = device_now_ms() + WAIT_MS;
         used_bytes(5) != 0 || kvd_staging_free_bytes(f->device) != 8 << 20;) {
        assert_true(device_now_ms() < limit);
        device_run_until(f, device_now_ms() + 10);
    }
}

static kvarn_status try_open(struct device_rig *f, const struct kvd_device_options *options,
                             const char **why)
{
    struct kvd_device *device = NULL;
    kvarn_status status = kvd_device_open(&device, f->loop, options, why);

    assert_int_equal(fake_cuda_held(getpid()), 0);
    if (status == KVARN_OK)
        kvd_device_close(&device);
    return status;
}

/* What is not there is told from what does not work. */
static void refusals_are_told(void **state)
{
    struct device_rig *f = *state;
    struct kvd_device_options options = gpu_options();
    const char *why = NULL;

    kvd_device_close(&f->device);
    options.number = 1;
    assert_int_equal(try_open(f, &options, &why), KVARN_UNSUPPORTED);
    assert_non_null(strstr(why, "no GPU 1"));
    setenv("KVARN_CUDA_DRIVER", "/no/such/driver", 1);
    options.number = 0;
    assert_int_equal(try_open(f, &options, &why), KVARN_UNSUPPORTED);
    assert_non_null(strstr(why, "/no/such/driver"));
    setenv("KVARN_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1);
    options.pool_bytes = 2 * control->memory_bytes;
    assert_int_equal(try_open(f, &options, &why), KVARN_INTERNAL);
    assert_non_null(strstr(why, "OUT_OF_MEMORY"));
    options.pool_bytes = 0;
    options.pool_percent = 50;
    if (kvd_device_open(&f->device, f->loop, &options, &why) != KVARN_OK)
        fail_msg("%s", why);
    assert_in_range(kvd_device_pool_bytes(f->device), control->memory_bytes / 4,
                    control->memory_bytes / 2);
}

/* With few descriptors more and more of the device can be opened; what cannot is told, and nothing
 * of it stays. */
static void descriptors_may_run_out(void **state)
{
    struct device_rig *f = *state;
    struct kvd_device_options options = gpu_options();
    struct rlimit before, few;
    unsigned open = device_open_fds(), of_the_pool = 0;
    const char *why = NULL;

    kvd_device_close(&f->device);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = f->fds_before;
    for (kvarn_status status = KVARN_INTERNAL; status != KVARN_OK; few.rlim_cur++) {
        assert_true(few.rlim_cur < open + 64);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        status = kvd_device_open(&f->device, f->loop, &options, &why);
        assert_true(status == KVARN_OK || status == KVARN_INTERNAL);
        assert_true(status == KVARN_OK || strstr(why, "memory for staging") == NULL);
        of_the_pool += status != KVARN_OK && strstr(why, "raise the limit of open files") != NULL;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(fake_cuda_held(getpid()), status == KVARN_OK ? CHUNKS : 0);
    }
    assert_true(of_the_pool > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_pool_is_kept_as_descriptors, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(it_outlives_the_worker, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(parts_read_as_zero_when_asked, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(they_do_after_the_worker_ended_too, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(refusals_are_told, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(descriptors_may_run_out, open_gpu, close_gpu),
    };
    int fd = mkstemp(control_path), failed;

    if (fd < 0)
        return 1;
    close(fd);
    control = fake_cuda_open(control_path, UINT64_C(1) << 30);
    if (control == NULL)
        return 1;
    setenv("KVARN_FAKE_CUDA", control_path, 1);
    setenv("KVARN_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1);
    failed = cmocka_run_group_tests_name("device_gpu", tests, device_open_what_stays, NULL);
    fake_cuda_close(&control);
    unlink(control_path);
    return failed;
}
