/* What goes wrong on a GPU under a running daemon, with the stand-in driver: every request gets a
 * typed answer, the worker comes back on the same memory, and what is served then is right. */
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
#include "tests/e2e/gpu_known.h"

enum { MODEL_SEED = 23, ROUNDS = 3 };

static struct gpu_rig rig;
static struct model model;

static struct gpu_known gpu, other, host;

/* A daemon of the test's own: the more often a worker ended lately, the later it is started again.
 */
static void start(void)
{
    static const char *const arguments[] = {
        "--pool",      "cuda:0:16MiB",   "--pool", "cuda:1:16MiB", "--pool",
        "host:32MiB",  "--worker-stall", "500",    "--staging",    "16MiB",
        "--log-level", "error",          NULL};

    gpu_rig_open(&rig);
    rig.control->devices = 2;
    test_daemon_start_with(&rig.daemon, arguments);
}

static double restarts(const char *device)
{
    char name[96];

    snprintf(name, sizeof name, "kvarn_device_restarts_total{device=\"%s\"}", device);
    return gpu_rig_figure(host.client, name);
}

/* One fault after the other on cuda:0: the call that meets it is lost, all others are not. */
static void survive(const char *where, uint32_t result, uint32_t skip)
{
    double before = restarts("cuda:0"), beside = restarts("cuda:1");

    for (int round = 0; round < ROUNDS; round++) {
        fake_cuda_arm(rig.control, 0, where, result, skip, 1);
        rig.control->faults[0].device = 0;
        unsigned lost = 0;
        for (uint32_t call = 0; call <= skip && lost == 0; call++)
            lost = gpu_known_until_back(&gpu);
        assert_int_equal(lost, 1);
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
        gpu_known_unharmed(&gpu);
        gpu_known_unharmed(&other);
        gpu_known_unharmed(&host);
    }
    assert_true(restarts("cuda:0") == before + ROUNDS);
    assert_true(restarts("cuda:1") == beside);
}

static int fill_all(void **state)
{
    (void)state;
    start();
    gpu_known_fill(&gpu, &rig, &model, "on-gpu-0", "cuda:0");
    gpu_known_fill(&other, &rig, &model, "on-gpu-1", "cuda:1");
    gpu_known_fill(&host, &rig, &model, "on-host", "host");
    return 0;
}

static int leave_all(void **state)
{
    (void)state;
    assert_true(gpu_rig_figure(host.client, "kvarn_device_blocks_lost_total{device=\"cuda:1\"}") ==
                0.0);
    kvarn_close(&gpu.client);
    kvarn_close(&other.client);
    kvarn_close(&host.client);
    assert_int_equal(test_daemon_stop(&rig.daemon), 0);
    gpu_rig_close(&rig);
    return 0;
}

static void a_kernel_may_fail(void **state)
{
    (void)state;
    survive("kvk_cuda_attend", KVD_CU_ILLEGAL_ADDRESS, 0);
    survive("kvk_cuda_attend", KVD_CU_LAUNCH_FAILED, 2);
}

static void a_launch_may_fail(void **state)
{
    (void)state;
    survive("cuLaunchKernelEx", KVD_CU_LAUNCH_OUT_OF_RESOURCES, 0);
}

static void the_device_may_be_lost(void **state)
{
    (void)state;
    survive("cuEventQuery", KVD_CU_UNKNOWN, 0);
    survive("cuMemcpyHtoDAsync_v2", KVD_CU_ECC_UNCORRECTABLE, 0);
}

static void a_kernel_may_never_end(void **state)
{
    uint32_t before = atomic_load(&rig.control->hanging);

    (void)state;
    survive("kvk_cuda_attend", FAKE_CUDA_HANG, 1);
    assert_int_equal(atomic_load(&rig.control->hanging), before + ROUNDS);
}

/* The worker process of cuda:0: the one that made the last context on it. */
static pid_t worker_of(const char *device)
{
    pid_t workers[8];
    size_t count = test_children(rig.daemon.pid, workers, 8);
    char path[64], text[4096];

    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)workers[i]);
        FILE *file = fopen(path, "r");
        size_t bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file != NULL)
            fclose(file);
        text[bytes] = '\0';
        for (char *at = text; at < text + bytes; at += strlen(at) + 1)
            if (strcmp(at, device) == 0)
                return workers[i];
    }
    fail_msg("no worker of %s", device);
    return 0;
}

static void the_worker_may_be_killed(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        double before = restarts("cuda:0");
        assert_int_equal(kill(worker_of("cuda:0"), SIGKILL), 0);
        gpu_rig_wait(host.client, "kvarn_device_restarts_total{device=\"cuda:0\"}", before + 1);
        gpu_known_until_back(&gpu);
        gpu_known_unharmed(&gpu);
        gpu_known_unharmed(&other);
        gpu_known_unharmed(&host);
    }
}

/* ---- each kernel, by an operation that needs it ---- */

static kvarn_status put_fresh(void)
{
    static struct model fresh;
    static uint32_t seed = 100;

    model_fill(&fresh, seed++);
    return model_put(gpu.client, gpu.space, &fresh, MODEL_BLOCKS, NULL);
}

static kvarn_status get_all(void)
{
    static uint16_t k[GPU_KNOWN_ROWS], v[GPU_KNOWN_ROWS];

    return gpu_known_decompress(&gpu, 4, k, v);
}

static uint8_t bytes[1 << 20];
static kvarn_block_result exported[4];
static kvarn_origin origin;
static size_t exported_bytes;

static kvarn_status export_all(void)
{
    kvarn_export_args args = KVARN_EXPORT_INIT;

    args.space = gpu.space;
    args.keys = model.keys;
    args.count = 4;
    args.bytes = bytes;
    args.bytes_capacity = sizeof bytes;
    args.results = exported;
    kvarn_status status = kvarn_export(gpu.client, &args);
    exported_bytes = args.bytes_used;
    origin = args.origin;
    return status;
}

/* The blocks under other keys. */
static kvarn_status import_all(void)
{
    kvarn_import_args args = KVARN_IMPORT_INIT;
    static uint8_t number;
    kvarn_key keys[4];

    memcpy(keys, model.keys, sizeof keys);
    for (int i = 0; i < 4; i++)
        keys[i].bytes[0] ^= (uint8_t)(number + 1);
    number++;
    args.space = gpu.space;
    args.keys = keys;
    args.blocks = exported;
    args.count = 4;
    args.bytes = bytes;
    args.bytes_count = exported_bytes;
    args.origin = &origin;
    return kvarn_import_blocks(gpu.client, &args);
}

static void every_kernel_may_fail(void **state)
{
    static const struct {
        const char *kernel;
        kvarn_status (*call)(void);
    } cases[] = {
        {"kvk_cuda_decompress", get_all}, {"kvk_cuda_read", get_all},
        {"kvk_cuda_export", export_all},  {"kvk_cuda_import", import_all},
        {"kvk_cuda_compress", put_fresh}, {"kvk_cuda_write", put_fresh},
        {"kvk_cuda_digest", put_fresh},
    };

    (void)state;
    model_expect(gpu.client, export_all(), KVARN_OK, "export");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_cuda_arm(rig.control, 0, cases[i].kernel, KVD_CU_ILLEGAL_ADDRESS, 0, 1);
        rig.control->faults[0].device = 0;
        model_expect(gpu.client, cases[i].call(), KVARN_GPU_LOST, cases[i].kernel);
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
        gpu_known_until_back(&gpu);
        model_expect(gpu.client, cases[i].call(), KVARN_OK, cases[i].kernel);
        gpu_known_unharmed(&gpu);
    }
    gpu_known_unharmed(&other);
    gpu_known_unharmed(&host);
}

/* Rows whose append was lost do not count; the sequence goes on where it was. */
static void a_tail_may_be_lost_and_written_again(void **state)
{
    float on_gpu[MODEL_Q_ROW], on_host[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
    kvarn_strides strides = model_strides();
    size_t at = 5 * MODEL_GROUP + 7;

    (void)state;
    for (int round = 0; round < ROUNDS; round++, at += 3) {
        kvarn_seq seq = {.sequence = gpu.sequence, .position = KVARN_AT_END, .tokens = 3};
        kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
        args.space = gpu.space;
        args.seqs = &seq;
        args.count = 1;
        args.k = model.k[0][at + 5]; /* other rows than those that will count */
        args.v = model.v[0][at + 5];
        args.strides = &strides;
        fake_cuda_arm(rig.control, 0, "kvk_cuda_write", KVD_CU_ILLEGAL_ADDRESS, 0, 1);
        rig.control->faults[0].device = 0;
        assert_int_equal(kvarn_sequence_append(gpu.client, &args), KVARN_GPU_LOST);
        gpu_known_until_back(&gpu);
        model_extend(gpu.client, gpu.space, &model, gpu.sequence, at, 3);
        model_extend(host.client, host.space, &model, host.sequence, at, 3);
        model_expect(gpu.client, gpu_known_attend(&gpu, on_gpu, lse), KVARN_OK, "attend");
        model_expect(host.client, gpu_known_attend(&host, on_host, lse), KVARN_OK, "attend");
        /* the scalar kernel made the records of the one, the best of this CPU those of the other:
         * the same bits */
        for (size_t i = 0; i < MODEL_Q_ROW; i++)
            assert_float_equal(on_gpu[i], on_host[i], 1e-3f);
    }
}

/* Kills the worker of cuda:0 and waits until it has been started `times` times and serves. */
static void kill_and_wait(uint32_t times)
{
    double before = restarts("cuda:0");

    assert_int_equal(kill(worker_of("cuda:0"), SIGKILL), 0);
    gpu_rig_wait(host.client, "kvarn_device_restarts_total{device=\"cuda:0\"}", before + times);
    gpu_rig_wait(host.client, "kvarn_device_serving{device=\"cuda:0\"}", 1);
}

/* What went wrong may go wrong again while the blocks are being looked at. */
static void the_check_may_fail_too(void **state)
{
    static const uint32_t results[] = {KVD_CU_ILLEGAL_ADDRESS, FAKE_CUDA_HANG};

    (void)state;
    /* digests of a start: those of the self-test, then those of the check */
    fake_cuda_arm(rig.control, 0, "kvk_cuda_digest", KVD_CU_UNKNOWN, 0, 0);
    rig.control->faults[0].device = 0;
    kill_and_wait(1);
    uint32_t digests = atomic_load(&rig.control->faults[0].visits);
    assert_true(digests > 1);
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        fake_cuda_arm(rig.control, 0, "kvk_cuda_digest", results[i], digests - 1, 1);
        rig.control->faults[0].device = 0;
        kill_and_wait(2);
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
        gpu_known_unharmed(&gpu);
        gpu_known_unharmed(&other);
        gpu_known_unharmed(&host);
    }
}

/* Flips a byte in every page of the device memory of cuda:0. Its blocks are gone then, and nothing
 * wrong is served. */
static void damaged_blocks_are_dropped(void **state)
{
    static const char lost[] = "kvarn_device_blocks_lost_total{device=\"cuda:0\"}";
    uint32_t chunks = fake_cuda_held(rig.daemon.pid);
    double before = gpu_rig_figure(host.client, lost);
    kvarn_blocks_args find = KVARN_BLOCKS_INIT;
    kvarn_block_result results[4];
    uint8_t byte;

    (void)state;
    assert_int_equal(chunks, 16);               /* 8 of each GPU */
    for (uint32_t i = 0; i < chunks / 2; i++) { /* those of cuda:0 came first */
        int fd = fake_cuda_borrow(rig.daemon.pid, i);
        assert_true(fd >= 0);
        for (off_t at = 100; at < (2 << 20); at += 4096) {
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= 1;
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
    }
    kill_and_wait(1);
    assert_true(gpu_rig_figure(host.client, lost) >= before + 5);
    find.space = gpu.space;
    find.keys = model.keys;
    find.count = 4;
    find.results = results;
    model_expect(gpu.client, kvarn_lookup(gpu.client, &find), KVARN_OK, "lookup");
    assert_int_equal(find.matched, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(results[i].status, KVARN_NOT_FOUND);
    gpu_known_unharmed(&other);
    gpu_known_unharmed(&host);
    /* and may be stored again */
    model_expect(gpu.client, model_put(gpu.client, gpu.space, &model, 4, NULL), KVARN_OK,
                 "compress");
}

#define FAULT(name) cmocka_unit_test_setup_teardown(name, fill_all, leave_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAULT(a_kernel_may_fail),
        FAULT(a_launch_may_fail),
        FAULT(the_device_may_be_lost),
        FAULT(a_kernel_may_never_end),
        FAULT(the_worker_may_be_killed),
        FAULT(every_kernel_may_fail),
        FAULT(a_tail_may_be_lost_and_written_again),
        FAULT(the_check_may_fail_too),
        FAULT(damaged_blocks_are_dropped),
    };

    model_fill(&model, MODEL_SEED);
    return cmocka_run_group_tests_name("gpu_faults", tests, NULL, NULL);
}
