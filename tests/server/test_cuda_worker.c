/* device/cuda_worker, cuda_pool, cuda_gpu, cuda_kernels, cuda_selftest: a GPU's worker from its
 * start to its hello, over the stand-in driver; what a pool holds outlives the worker. Every test
 * has a process of its own, as a worker has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "server/core/limits.h"
#include "server/device/bounds.h"
#include "server/device/chunks.h"
#include "server/device/cuda_abi.h"
#include "server/device/cuda_worker.h"
#include "support/fake_cuda/fake_cuda.h"

enum { STAGING_BYTES = 4 << 20, POOL_BYTES = 70 << 20, CHUNKS_MAX = 1024 };

static struct fake_cuda_control *control;
static char control_path[] = "/tmp/kvarn-fake-cuda-XXXXXX";

struct front {
    int socket; /* the other end of KVD_LINK_CONTROL */
    struct kvd_memory staging;
    struct kvd_link_pool pool;
    int fds[CHUNKS_MAX];
    uint32_t have;
    struct kvd_cuda_worker *worker;
    struct kvd_link_hello hello;
    _Atomic uint32_t progress;
};

static void front_open(struct front *front)
{
    int pair[2];

    *front = (struct front){.socket = -1};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    front->socket = fcntl(pair[0], F_DUPFD_CLOEXEC, 64);
    assert_int_equal(dup2(pair[1], KVD_LINK_CONTROL), KVD_LINK_CONTROL);
    for (int i = 0; i < 2; i++)
        if (pair[i] != KVD_LINK_CONTROL)
            close(pair[i]);
    assert_int_equal(kvd_memory_open(&front->staging, "test", STAGING_BYTES), KVARN_OK);
}

static struct kvd_cuda_worker_options options_of(struct front *front)
{
    return (struct kvd_cuda_worker_options){
        .pool_bytes = POOL_BYTES, .staging = &front->staging, .progress = &front->progress};
}

static bool start(struct front *front, const struct kvd_cuda_worker_options *options)
{
    front->hello = (struct kvd_link_hello){.kind = KVD_LINK_HELLO};
    return kvd_cuda_worker_open(&front->worker, options, &front->hello);
}

static void refused(struct front *front, const struct kvd_cuda_worker_options *options,
                    uint32_t refusal, const char *word)
{
    assert_false(start(front, options));
    assert_int_equal(front->hello.refusal, refusal);
    if (strstr(front->hello.text, word) == NULL)
        fail_msg("'%s' does not speak of %s", front->hello.text, word);
    assert_null(strchr(front->hello.text, '\n'));
}

/* What the worker said about the pool it made. */
static void take_pool(struct front *front)
{
    int fds[KVD_LINK_FDS_MAX];
    uint32_t got, count;

    assert_int_equal(
        kvd_chunks_receive(front->socket, &front->pool, sizeof(front->pool), &got, fds, &count),
        KVARN_OK);
    assert_int_equal(got, sizeof(front->pool));
    assert_int_equal(front->pool.kind, KVD_LINK_POOL_MADE);
    while (front->have < front->pool.chunks) {
        struct kvd_link_chunks chunks;
        assert_int_equal(
            kvd_chunks_receive(front->socket, &chunks, sizeof(chunks), &got, fds, &count),
            KVARN_OK);
        assert_int_equal(chunks.kind, KVD_LINK_CHUNKS);
        assert_int_equal(chunks.first, front->have);
        assert_int_equal(chunks.count, count);
        memcpy(front->fds + front->have, fds, count * sizeof(int));
        front->have += count;
    }
}

static void *job_of(struct front *front, uint32_t op, size_t entry_bytes)
{
    struct kvd_job *job = (struct kvd_job *)(void *)front->staging.base;

    *job = (struct kvd_job){.op = op,
                            .count = 1,
                            .shape = {64, 64, 2, 2, KVARN_F16, 0, 0, 0, 0, 1},
                            .layers = 1,
                            .heads = 1,
                            .layer_count = 1,
                            .job_bytes = sizeof(*job) + entry_bytes};
    return job + 1;
}

static void run(struct front *front)
{
    const uint64_t offset = 0;
    kvarn_status status;

    assert_int_equal(kvd_cuda_worker_run(front->worker, &offset, 1, &status), 1);
    assert_int_equal(status, KVARN_OK);
}

/* In the pool's last whole slot. */
static struct kvd_place last_slot(const struct front *front)
{
    uint64_t bytes = front->pool.chunks * front->pool.chunk_bytes;

    return (struct kvd_place){KVD_REGION_POOL, 0, bytes - 16384};
}

static uint32_t digest_of_slot(struct front *front)
{
    struct kvd_copy *copy = job_of(front, KVD_JOB_DIGEST, sizeof(*copy));

    *copy = (struct kvd_copy){.src = last_slot(front), .bytes = 16384, .kind = KVARN_BLOCK_EXACT};
    run(front);
    assert_int_equal(copy->status, KVARN_OK);
    return copy->digest;
}

static uint32_t store(struct front *front)
{
    struct kvd_put *put = job_of(front, KVD_JOB_COMPRESS, sizeof(*put));

    memset(front->staging.base + (1 << 20), 0x35, 1 << 20);
    *put = (struct kvd_put){.k = {KVD_REGION_STAGING, 0, 1 << 20},
                            .v = {KVD_REGION_STAGING, 0, (1 << 20) + 8192},
                            .strides = {.token = 128},
                            .slot = last_slot(front),
                            .kind = KVARN_BLOCK_EXACT};
    run(front);
    assert_int_equal(put->status, KVARN_OK);
    assert_int_equal(put->digest, kvk_digest(0, front->staging.base + (1 << 20), 16384));
    return put->digest;
}

static struct kvd_cuda_worker_options again(struct front *front)
{
    struct kvd_cuda_worker_options options = options_of(front);

    options.pool_bytes = 0;
    options.pool_chunks = front->pool.chunks;
    options.chunk_bytes = front->pool.chunk_bytes;
    return options;
}

/* ---- tests ---- */

static void a_pool_outlives_its_workers(void **state)
{
    struct front front;

    (void)state;
    front_open(&front);
    struct kvd_cuda_worker_options options = options_of(&front);
    if (!start(&front, &options))
        fail_msg("%s", front.hello.text);
    assert_int_equal(front.hello.refusal, KVD_LINK_READY);
    assert_int_equal(strncmp(front.hello.backend, "cuda/sm_", 8), 0);
    take_pool(&front);
    assert_int_equal(front.pool.chunk_bytes, 4 << 20); /* 70 MiB / 16, in units of 2 MiB */
    assert_int_equal(front.pool.chunks, 17);
    uint32_t digest = store(&front);
    for (int life = 0; life < 3; life++) {
        kvd_cuda_worker_close(&front.worker);
        memset(front.staging.base, 0, STAGING_BYTES);
        assert_int_equal(kvd_chunks_send(front.socket, 0, front.fds, 5), KVARN_OK);
        assert_int_equal(kvd_chunks_send(front.socket, 5, front.fds + 5, front.have - 5), KVARN_OK);
        options = again(&front);
        if (!start(&front, &options))
            fail_msg("%s", front.hello.text);
        assert_int_equal(digest_of_slot(&front), digest);
    }
    assert_true(front.progress > 0);
    kvd_cuda_worker_close(&front.worker);
}

static void a_new_pool_is_zero(void **state)
{
    struct front front;
    uint8_t zeros[16384] = {0};

    (void)state;
    front_open(&front);
    struct kvd_cuda_worker_options options = options_of(&front);
    options.pool_bytes = 0;
    options.pool_percent = 25; /* of 1 GiB, less what the worker itself has by then */
    if (!start(&front, &options))
        fail_msg("%s", front.hello.text);
    take_pool(&front);
    uint64_t bytes = front.pool.chunks * front.pool.chunk_bytes;
    assert_in_range(bytes, UINT64_C(200) << 20, UINT64_C(256) << 20);
    assert_int_equal(digest_of_slot(&front), kvk_digest(0, zeros, sizeof(zeros)));
    kvd_cuda_worker_close(&front.worker);
}

static void a_pool_that_does_not_fit_is_refused(void **state)
{
    struct front front;

    (void)state;
    front_open(&front);
    struct kvd_cuda_worker_options options = options_of(&front);
    options.pool_bytes = UINT64_C(2) << 30;
    refused(&front, &options, KVD_LINK_NO_GPU_MEMORY, "2048 MiB");
    options.pool_bytes = 1 << 20;
    refused(&front, &options, KVD_LINK_NO_GPU_MEMORY, "1048576");
    options.pool_bytes = UINT64_MAX;
    refused(&front, &options, KVD_LINK_NO_GPU_MEMORY, "not possible");
}

/* Every allocation of the start in turn: a refusal with a line, and nothing is left behind that the
 * next start would stumble over. */
static void no_memory_anywhere_is_a_refusal(void **state)
{
    struct front front;
    uint32_t refusals = 0;

    (void)state;
    front_open(&front);
    struct kvd_cuda_worker_options options = options_of(&front);
    for (uint32_t skip = 0;; skip++) {
        fake_cuda_arm(control, 0, "allocation", KVD_CU_OUT_OF_MEMORY, skip, 1);
        bool opened = start(&front, &options);
        bool fired = fake_cuda_fired(control, 0) > 0;
        fake_cuda_disarm(control, 0);
        kvd_cuda_worker_close(&front.worker);
        assert_int_equal(opened, !fired);
        if (opened)
            break;
        assert_int_equal(front.hello.refusal, KVD_LINK_NO_GPU_MEMORY);
        assert_non_null(strstr(front.hello.text, "CUDA_ERROR_OUT_OF_MEMORY"));
        refusals++;
        /* what was sent of the pool is for nobody */
        close(front.socket);
        kvd_memory_close(&front.staging);
        front_open(&front);
        options.staging = &front.staging;
    }
    assert_true(refusals > 10);
}

static void what_is_missing_is_named(void **state)
{
    struct front front;

    (void)state;
    front_open(&front);
    struct kvd_cuda_worker_options options = options_of(&front);
    options.device = 7;
    refused(&front, &options, KVD_LINK_NO_DEVICE, "no GPU 7");
    options.device = 0;
    fake_cuda_arm(control, 0, "cuLibraryGetKernel", KVD_CU_NOT_FOUND, 0, 1);
    refused(&front, &options, KVD_LINK_NO_KERNELS, "kvk_cuda_");
    fake_cuda_arm(control, 0, "cuMemHostRegister_v2", KVD_CU_NOT_PERMITTED, 0, 1);
    refused(&front, &options, KVD_LINK_BAD_GPU, "staging");
    fake_cuda_disarm(control, 0);
    setenv("KVARN_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
    refused(&front, &options, KVD_LINK_NO_DRIVER, "/nowhere/libcuda.so.1");
}

/* Descriptors of another pool, out of order, too many, or of no memory at all. */
static void descriptors_that_make_no_sense_are_refused(void **state)
{
    struct front front;

    (void)state;
    front_open(&front);
    struct kvd_cuda_worker_options options = options_of(&front);
    if (!start(&front, &options))
        fail_msg("%s", front.hello.text);
    take_pool(&front);
    kvd_cuda_worker_close(&front.worker);
    options = again(&front);
    assert_int_equal(kvd_chunks_send(front.socket, 1, front.fds, 3), KVARN_OK);
    refused(&front, &options, KVD_LINK_BAD_MEMORY, "descriptors");
    assert_int_equal(kvd_chunks_send(front.socket, 0, front.fds, front.have), KVARN_OK);
    options.pool_chunks = 2;
    refused(&front, &options, KVD_LINK_BAD_MEMORY, "descriptors");
    options = again(&front);
    assert_int_equal(kvd_chunks_send(front.socket, 0, &front.socket, 1), KVARN_OK);
    refused(&front, &options, KVD_LINK_BAD_GPU, "taking over");
    options.chunk_bytes = 3 << 20;
    refused(&front, &options, KVD_LINK_BAD_MEMORY, "chunks");
    close(front.socket);
    options = again(&front);
    refused(&front, &options, KVD_LINK_BAD_MEMORY, "descriptors");
}

/* A GPU that computes something else is given no pool. */
static void the_self_test_is_held_against_the_reference(void **state)
{
    static const char *const kernels[] = {"kvk_cuda_compress", "kvk_cuda_write", "kvk_cuda_export",
                                          "kvk_cuda_decompress", "kvk_cuda_attend"};
    struct front front;

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        front_open(&front);
        struct kvd_cuda_worker_options options = options_of(&front);
        fake_cuda_arm(control, 0, kernels[i], FAKE_CUDA_IDLE, 0, UINT32_MAX);
        refused(&front, &options, KVD_LINK_BAD_GPU, "self-test");
        fake_cuda_disarm(control, 0);
        close(front.socket);
        kvd_memory_close(&front.staging);
    }
}

/* ---- a process each ---- */

typedef void test_body(void **state);

static void in_a_process(test_body *body)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        const struct CMUnitTest test[] = {{"", body, NULL, NULL, NULL}};
        _exit(cmocka_run_group_tests(test, NULL, NULL));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define IN_A_PROCESS(name)                                                                         \
    static void alone_##name(void **state)                                                         \
    {                                                                                              \
        (void)state;                                                                               \
        in_a_process(name);                                                                        \
    }

IN_A_PROCESS(a_pool_outlives_its_workers)
IN_A_PROCESS(a_new_pool_is_zero)
IN_A_PROCESS(a_pool_that_does_not_fit_is_refused)
IN_A_PROCESS(no_memory_anywhere_is_a_refusal)
IN_A_PROCESS(what_is_missing_is_named)
IN_A_PROCESS(descriptors_that_make_no_sense_are_refused)
IN_A_PROCESS(the_self_test_is_held_against_the_reference)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_a_pool_outlives_its_workers),
        cmocka_unit_test(alone_a_new_pool_is_zero),
        cmocka_unit_test(alone_a_pool_that_does_not_fit_is_refused),
        cmocka_unit_test(alone_no_memory_anywhere_is_a_refusal),
        cmocka_unit_test(alone_what_is_missing_is_named),
        cmocka_unit_test(alone_descriptors_that_make_no_sense_are_refused),
        cmocka_unit_test(alone_the_self_test_is_held_against_the_reference),
    };
    int fd = mkstemp(control_path);

    control = fd >= 0 ? fake_cuda_open(control_path, UINT64_C(1) << 30) : NULL;
    if (control == NULL || setenv("KVARN_FAKE_CUDA", control_path, 1) != 0 ||
        setenv("KVARN_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1) != 0)
        return 1;
    int failed = cmocka_run_group_tests_name("cuda worker", tests, NULL, NULL);
    fake_cuda_close(&control);
    unlink(control_path);
    close(fd);
    return failed;
}
