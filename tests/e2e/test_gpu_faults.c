/* What goes wrong on a GPU under a running daemon, with the stand-in driver: every request gets a
 * typed answer, the worker comes back on the same memory, and what is served then is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/device/cuda_abi.h"
#include "tests/e2e/gpu_rig.h"

enum { MODEL_SEED = 23, ROUNDS = 3, BLOCK_ROWS = MODEL_LAYERS * MODEL_TOKENS * MODEL_ROW };

static struct gpu_rig rig;
static struct model model;

/* What stood in a space before a fault. */
struct known {
    kvarn_client *client;
    uint64_t space, sequence;
    uint16_t k[BLOCK_ROWS], v[BLOCK_ROWS];
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
};

static struct known gpu, other, host;

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

static kvarn_status attend(struct known *known, float *out, float *lse)
{
    kvarn_seq seq = {.sequence = known->sequence, .position = KVARN_AT_END, .q_tokens = 1};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = known->space;
    args.seqs = &seq;
    args.count = 1;
    args.layer_begin = 1;
    args.q = model.q[1][0];
    args.query.q_heads = MODEL_Q_HEADS;
    args.out = out;
    args.lse = lse;
    return kvarn_sequence_attend(known->client, &args);
}

static kvarn_status decompress(struct known *known, size_t count, uint16_t *k, uint16_t *v)
{
    kvarn_decompress_args args = KVARN_DECOMPRESS_INIT;

    args.space = known->space;
    args.keys = model.keys;
    args.count = count;
    args.k = k;
    args.v = v;
    return kvarn_decompress(known->client, &args);
}

/* Four blocks by COMPRESS, then a sequence over them with rows of its own behind, in blocks and in
 * a tail; and what all of it gives. */
static void fill(struct known *known, const char *name, const char *device)
{
    static float k[MODEL_TOKENS][MODEL_ROW], v[MODEL_TOKENS][MODEL_ROW];
    double want[MODEL_Q_ROW];
    uint32_t blocks;
    size_t tokens = 5 * MODEL_GROUP + 7;

    known->client = model_connect(rig.daemon.unix_address);
    known->space = gpu_rig_space(known->client, name, device);
    model_expect(known->client, model_put(known->client, known->space, &model, 4, NULL), KVARN_OK,
                 "compress");
    known->sequence = model_sequence(known->client, known->space, &model, 4, &blocks);
    assert_int_equal(blocks, 4);
    model_extend(known->client, known->space, &model, known->sequence, 4 * MODEL_GROUP,
                 tokens - 4 * MODEL_GROUP);
    model_expect(known->client, decompress(known, 5, known->k, known->v), KVARN_OK, "decompress");
    model_expect(known->client, attend(known, known->out, known->lse), KVARN_OK, "attend");
    /* right in itself: attention over the rows that are stored */
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < MODEL_ROW; i++) {
            size_t at = (5 * MODEL_GROUP + t) * MODEL_ROW + i;
            bool stored = t < 5 * MODEL_GROUP;
            k[t][i] = model_half(stored ? known->k[at] : (&model.k[1][t][0][0])[i]);
            v[t][i] = model_half(stored ? known->v[at] : (&model.v[1][t][0][0])[i]);
        }
    model_attention(k[0], v[0], model.q[1][0][0], tokens, want);
    for (size_t i = 0; i < MODEL_Q_ROW; i++)
        assert_true(fabs((double)known->out[i] - want[i]) < 2e-3);
}

static void leave(struct known *known)
{
    kvarn_close(&known->client);
}

/* Everything is as it was, and nothing was lost on the way to it. */
static void unharmed(struct known *known)
{
    static uint16_t k[BLOCK_ROWS], v[BLOCK_ROWS];
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];

    model_expect(known->client, decompress(known, 5, k, v), KVARN_OK, "decompress");
    assert_memory_equal(k, known->k, sizeof(uint16_t) * 5 * BLOCK_ROWS / MODEL_BLOCKS);
    assert_memory_equal(v, known->v, sizeof(uint16_t) * 5 * BLOCK_ROWS / MODEL_BLOCKS);
    model_expect(known->client, attend(known, out, lse), KVARN_OK, "attend");
    assert_memory_equal(out, known->out, sizeof out);
    assert_memory_equal(lse, known->lse, sizeof lse);
}

/* Calls until the daemon is back; gives how often a call was lost with its worker. */
static unsigned until_back(struct known *known)
{
    time_t limit = time(NULL) + GPU_RIG_DEADLINE_S;
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
    unsigned lost = 0;
    kvarn_status status;

    do {
        status = attend(known, out, lse);
        if (status == KVARN_RETRY)
            usleep(kvarn_client_retry_after_us(known->client)); /* as the daemon asks */
        else if (status != KVARN_GPU_LOST)
            model_expect(known->client, status, KVARN_OK, "attend");
        lost += status == KVARN_GPU_LOST;
        assert_true(time(NULL) < limit);
    } while (status != KVARN_OK);
    return lost;
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
            lost = until_back(&gpu);
        assert_int_equal(lost, 1);
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
        unharmed(&gpu);
        unharmed(&other);
        unharmed(&host);
    }
    assert_true(restarts("cuda:0") == before + ROUNDS);
    assert_true(restarts("cuda:1") == beside);
}

static int fill_all(void **state)
{
    (void)state;
    start();
    fill(&gpu, "on-gpu-0", "cuda:0");
    fill(&other, "on-gpu-1", "cuda:1");
    fill(&host, "on-host", "host");
    return 0;
}

static int leave_all(void **state)
{
    (void)state;
    assert_true(gpu_rig_figure(host.client, "kvarn_device_blocks_lost_total{device=\"cuda:1\"}") ==
                0.0);
    leave(&gpu);
    leave(&other);
    leave(&host);
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
        until_back(&gpu);
        unharmed(&gpu);
        unharmed(&other);
        unharmed(&host);
    }
}

/* A write that was not answered may be made again. */
static void what_is_written_is_there_or_is_not(void **state)
{
    static const char *const kernels[] = {"kvk_cuda_compress", "kvk_cuda_write", "kvk_cuda_digest"};
    static struct model fresh;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        model_fill(&fresh, 100u + (uint32_t)round);
        fake_cuda_arm(rig.control, 0, kernels[round], KVD_CU_ILLEGAL_ADDRESS, 0, 1);
        rig.control->faults[0].device = 0;
        assert_int_equal(model_put(gpu.client, gpu.space, &fresh, MODEL_BLOCKS, NULL),
                         KVARN_GPU_LOST);
        assert_int_equal(fake_cuda_fired(rig.control, 0), 1);
        until_back(&gpu);
        model_expect(gpu.client, model_put(gpu.client, gpu.space, &fresh, MODEL_BLOCKS, NULL),
                     KVARN_OK, "compress again");
        unharmed(&gpu);
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
    double restarted = restarts("cuda:0");
    assert_int_equal(kill(worker_of("cuda:0"), SIGKILL), 0);
    gpu_rig_wait(host.client, "kvarn_device_restarts_total{device=\"cuda:0\"}", restarted + 1);
    gpu_rig_wait(host.client, "kvarn_device_serving{device=\"cuda:0\"}", 1);
    assert_true(gpu_rig_figure(host.client, lost) >= before + 5);
    find.space = gpu.space;
    find.keys = model.keys;
    find.count = 4;
    find.results = results;
    model_expect(gpu.client, kvarn_lookup(gpu.client, &find), KVARN_OK, "lookup");
    assert_int_equal(find.matched, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(results[i].status, KVARN_NOT_FOUND);
    unharmed(&other);
    unharmed(&host);
    /* and may be stored again */
    model_expect(gpu.client, model_put(gpu.client, gpu.space, &model, 4, NULL), KVARN_OK,
                 "compress");
}

#define FAULT(name) cmocka_unit_test_setup_teardown(name, fill_all, leave_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAULT(a_kernel_may_fail),          FAULT(a_launch_may_fail),
        FAULT(the_device_may_be_lost),     FAULT(a_kernel_may_never_end),
        FAULT(the_worker_may_be_killed),   FAULT(what_is_written_is_there_or_is_not),
        FAULT(damaged_blocks_are_dropped),
    };

    model_fill(&model, MODEL_SEED);
    return cmocka_run_group_tests_name("gpu_faults", tests, NULL, NULL);
}
