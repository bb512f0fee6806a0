/* kvarnd with a GPU pool where the GPU, its driver or its memory are not as they should be at the
 * start: one line that says what is missing, and either no service or one from the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/device/cuda_abi.h"
#include "tests/e2e/gpu_rig.h"

enum { TEXT_BYTES = 8192 };

static const char *const only_gpu[] = {"--pool", "cuda:0:8MiB", "--staging", "16MiB", NULL};
static const char *const beside_host[] = {"--pool",    "cuda:0:50%", "--pool", "host:16MiB",
                                          "--staging", "16MiB",      NULL};

static struct gpu_rig rig;
static struct model model;

static int open_rig(void **state)
{
    (void)state;
    gpu_rig_open(&rig);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    gpu_rig_close(&rig);
    return 0;
}

/* Stores and reads blocks somewhere. */
static void works(struct test_daemon *daemon)
{
    kvarn_client *client = model_connect(daemon->unix_address);
    uint64_t space = model_open(client, "anywhere");
    kvarn_blocks_args verify = KVARN_BLOCKS_INIT;

    model_expect(client, model_put(client, space, &model, MODEL_BLOCKS, NULL), KVARN_OK,
                 "compress");
    verify.space = space;
    verify.all = 1;
    model_expect(client, kvarn_verify(client, &verify), KVARN_OK, "verify");
    assert_int_equal(verify.matched, MODEL_BLOCKS);
    kvarn_close(&client);
}

/* Serves without the GPU and says why in one line. */
static void left_out(const char *const *arguments, const char *why)
{
    char text[TEXT_BYTES];
    int code = -1;

    if (!test_daemon_try(&rig.daemon, arguments, text, sizeof text, &code))
        fail_msg("kvarnd ended with %d: %s", code, text);
    works(&rig.daemon);
    assert_int_equal(test_daemon_stop(&rig.daemon), 0);
    const char *line = strstr(text, "device_missing");
    if (line == NULL || strstr(line, why) == NULL)
        fail_msg("'%s' is not said in: %s", why, text);
    assert_null(strstr(line + 1, "device_missing"));
}

static void no_gpu_to_use(const char *why)
{
    left_out(only_gpu, why);
    left_out(beside_host, why);
}

static void without_a_driver(void **state)
{
    (void)state;
    setenv("KVARN_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    no_gpu_to_use("/nowhere/libcuda.so.1");
}

static void with_half_a_driver(void **state)
{
    (void)state;
    setenv("KVARN_CUDA_DRIVER", HALF_A_DRIVER, 1);
    no_gpu_to_use("has no cu");
}

static void with_an_old_driver(void **state)
{
    (void)state;
    rig.control->version = 12040;
    no_gpu_to_use("CUDA 12.4");
}

static void without_a_device(void **state)
{
    (void)state;
    rig.control->devices = 0;
    no_gpu_to_use("offers no GPU");
}

static void with_a_driver_that_does_not_start(void **state)
{
    (void)state;
    fake_cuda_arm(rig.control, 0, "cuInit", KVD_CU_UNKNOWN, 0, UINT32_MAX);
    no_gpu_to_use("does not start");
}

/* Ends before it serves, with exit code 1 and the reason. */
static void refuses(const char *why)
{
    char text[TEXT_BYTES];
    int code = -1;

    if (test_daemon_try(&rig.daemon, only_gpu, text, sizeof text, &code)) {
        test_daemon_stop(&rig.daemon);
        fail_msg("kvarnd serves; it should have said '%s'", why);
    }
    assert_int_equal(code, 1);
    if (strstr(text, why) == NULL)
        fail_msg("'%s' is not said in: %s", why, text);
}

static void calls_may_fail(void **state)
{
    static const struct {
        const char *where;
        uint32_t result;
        const char *why;
    } faults[] = {
        {"cuDevicePrimaryCtxRetain", KVD_CU_DEVICE_UNAVAILABLE, "device is unavailable"},
        {"cuMemMap", KVD_CU_INVALID_VALUE, "invalid argument"},
        {"cuMemExportToShareableHandle", KVD_CU_NOT_SUPPORTED, "(801)"},
        {"cuMemHostGetDevicePointer_v2", KVD_CU_INVALID_VALUE, "invalid argument"},
        {"cuLibraryGetKernel", KVD_CU_UNKNOWN, "unknown error"},
        {"kvk_cuda_compress", KVD_CU_ILLEGAL_ADDRESS, "illegal memory access"},
        {"kvk_cuda_attend", KVD_CU_LAUNCH_FAILED, "unspecified launch failure"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        fake_cuda_arm(rig.control, 0, faults[i].where, faults[i].result, 0, 1);
        refuses(faults[i].why);
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
    }
    fake_cuda_disarm(rig.control, 0);
}

/* Every allocation that the start makes fails once, the last of them too. */
static void memory_may_run_out(void **state)
{
    char text[TEXT_BYTES];
    uint32_t at = 0;
    int code = -1;

    (void)state;
    for (;; at++) {
        fake_cuda_arm(rig.control, 0, "allocation", KVD_CU_OUT_OF_MEMORY, at, 1);
        if (test_daemon_try(&rig.daemon, only_gpu, text, sizeof text, &code))
            break;
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
        assert_int_equal(code, 1);
        if (strstr(text, "out of memory") == NULL)
            fail_msg("allocation %u: %s", at, text);
        assert_true(at < 1000);
    }
    assert_int_equal(fake_cuda_fired(rig.control, 0), 0); /* there are no more */
    assert_true(at > 8);                                  /* at least the chunks of the pool */
    fake_cuda_disarm(rig.control, 0); /* or the first job's images would meet it */
    works(&rig.daemon);
    assert_int_equal(test_daemon_stop(&rig.daemon), 0);
}

static void more_than_there_is(void **state)
{
    (void)state;
    rig.control->memory_bytes = 4 << 20;
    refuses("out of memory");
}

/* A worker that cannot start again is tried again, and the blocks are there when one can. */
static void memory_may_run_out_later(void **state)
{
    static const char restarts[] = "kvarn_worker_restarts_total";
    kvarn_blocks_args verify = KVARN_BLOCKS_INIT;
    pid_t worker[2];
    char text[TEXT_BYTES];
    int code;

    (void)state;
    assert_true(test_daemon_try(&rig.daemon, only_gpu, text, sizeof text, &code));
    kvarn_client *client = model_connect(rig.daemon.unix_address);
    uint64_t space = model_open(client, "kept");
    model_expect(client, model_put(client, space, &model, MODEL_BLOCKS, NULL), KVARN_OK,
                 "compress");
    fake_cuda_arm(rig.control, 0, "allocation", KVD_CU_OUT_OF_MEMORY, 3, 1);
    assert_int_equal(test_children(rig.daemon.pid, worker, 2), 1);
    assert_int_equal(kill(worker[0], SIGKILL), 0);
    gpu_rig_wait(client, restarts, 2); /* the first of them failed */
    gpu_rig_wait(client, "kvarn_device_ready", 1);
    assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
    verify.space = space;
    verify.all = 1;
    model_expect(client, kvarn_verify(client, &verify), KVARN_OK, "verify");
    assert_int_equal(verify.matched, MODEL_BLOCKS);
    kvarn_close(&client);
    assert_int_equal(test_daemon_stop(&rig.daemon), 0);
}

#define START(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        START(without_a_driver),
        START(with_half_a_driver),
        START(with_an_old_driver),
        START(without_a_device),
        START(with_a_driver_that_does_not_start),
        START(calls_may_fail),
        START(memory_may_run_out),
        START(more_than_there_is),
        START(memory_may_run_out_later),
    };

    model_fill(&model, 31);
    return cmocka_run_group_tests_name("gpu_start", tests, NULL, NULL);
}
