/* The stand-in driver through the shipped table: it must fail where a GPU would, or what is tested
 * with it proves nothing. Every test has a process of its own, since a broken context stays so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/args.h"
#include "kernels/tile.h"
#include "server/device/chunks.h"
#include "server/device/cuda_driver.h"
#include "tests/support/child.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/rng.h"

enum { CHUNK = 2 << 20, LAYERS = 2, HEADS = 2, DIM = 64, GROUP = 64, CELLS = LAYERS * HEADS };

static const struct kvk_shape shape = {
    .dim = DIM, .group = GROUP, .bits_k = 4, .bits_v = 2, .dtype = KVARN_F16, .iterations = 4};

static struct fake_cuda_control *control;
static struct kvd_cuda_driver driver;
static kvd_cu_stream stream;
static kvd_cu_address pool;  /* two chunks, of which the first is mapped */
static kvd_cu_memory memory; /* the first */
static uint8_t *host;        /* CHUNK bytes, pinned */

/* ---- a device to work with ---- */

static void ok(kvd_cu_result result)
{
    assert_int_equal(result, KVD_CU_SUCCESS);
}

static void map_pool(void)
{
    const struct kvd_cu_access access = {.location = {.type = KVD_CU_LOCATION_DEVICE},
                                         .flags = KVD_CU_ACCESS_READ_WRITE};

    ok(driver.address_reserve(&pool, 2 * CHUNK, CHUNK, 0, 0));
    ok(driver.memory_map(pool, CHUNK, 0, memory, 0));
    ok(driver.memory_access(pool, CHUNK, &access, 1));
}

static void open_device(void)
{
    char why[KVD_CUDA_TEXT_BYTES];
    kvd_cu_context context;
    void *at;

    if (kvd_cuda_driver_open(&driver, why) != KVD_CUDA_FOUND)
        fail_msg("%s", why);
    ok(driver.context_retain(&context, 0));
    ok(driver.context_set(context));
    ok(driver.stream_create(&stream, KVD_CU_STREAM_NON_BLOCKING));
    ok(driver.host_alloc(&at, CHUNK, 0));
    host = at;
}

static void make_memory(void)
{
    const struct kvd_cu_memory_properties properties = {
        .type = KVD_CU_ALLOCATION_PINNED,
        .handles = KVD_CU_HANDLE_FD,
        .location = {.type = KVD_CU_LOCATION_DEVICE}};

    ok(driver.memory_create(&memory, CHUNK, &properties, 0));
}

static kvd_cu_result launch(const char *name, void *arguments, uint32_t grid)
{
    static const unsigned char image[1];
    static kvd_cu_library library;
    kvd_cu_kernel kernel;
    kvd_cu_function function;
    struct kvd_cu_launch how = {.grid = {grid, 1, 1}, .block = {128, 1, 1}, .stream = stream};

    if (library == NULL)
        ok(driver.library_load(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    ok(driver.library_kernel(&kernel, library, name));
    ok(driver.kernel_function(&function, kernel));
    return driver.launch(&how, function, &arguments, NULL);
}

static void run(const char *name, void *arguments)
{
    ok(launch(name, arguments, 1));
    ok(driver.stream_synchronize(stream));
}

static uint64_t device_of(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

/* Parts of the pinned memory. */
static void *part(uint32_t number)
{
    return host + number * (CHUNK / 16);
}

static void fill(void *at, size_t bytes, uint64_t seed)
{
    struct rng rng = rng_make(seed);
    uint16_t *rows = at;

    for (size_t i = 0; i < bytes / 2; i++) /* 0.25 to 2, either sign */
        rows[i] = (uint16_t)((rng_next(&rng) & 0x83ff) | (13 + rng_below(&rng, 3)) << 10);
}

static struct kvk_cuda_blocks blocks_of(struct kvk_cuda_block *block, uint32_t kind)
{
    *block = (struct kvk_cuda_block){.slot = pool,
                                     .k = device_of(part(1)),
                                     .v = device_of(part(2)),
                                     .layer_stride_bytes = HEADS * GROUP * DIM * 2,
                                     .head_stride_bytes = GROUP * DIM * 2,
                                     .token_stride_bytes = DIM * 2,
                                     .kind = kind,
                                     .tokens = GROUP};
    uint64_t *fault = part(3);
    *fault = KVK_CUDA_NO_FAULT;
    return (struct kvk_cuda_blocks){.shape = shape,
                                    .layers = LAYERS,
                                    .heads = HEADS,
                                    .layer_count = LAYERS,
                                    .count = 1,
                                    .blocks = device_of(block),
                                    .faults = device_of(fault),
                                    .digests = device_of(part(4))};
}

/* The record that the scalar kernel makes of cell `cell` of the rows in parts 1 and 2. */
static size_t expected_record(uint32_t cell, uint8_t *record)
{
    struct kvk_compress op = {.shape = shape,
                              .k = (uint8_t *)part(1) + cell * GROUP * DIM * 2,
                              .v = (uint8_t *)part(2) + cell * GROUP * DIM * 2,
                              .k_token_stride_bytes = DIM * 2,
                              .v_token_stride_bytes = DIM * 2,
                              .record = record,
                              .scratch =
                                  aligned_alloc(64, (kvk_scratch_bytes(&shape) + 63) / 64 * 64)};

    assert_int_equal(kvk_table_ref.compress(&op), KVARN_OK);
    free(op.scratch);
    return kvk_layout_of(DIM, GROUP, shape.bits_k, shape.bits_v).bytes;
}

static void compress_pool(void)
{
    struct kvk_cuda_blocks blocks;

    fill(part(1), CELLS * GROUP * DIM * 2, 1);
    fill(part(2), CELLS * GROUP * DIM * 2, 2);
    blocks = blocks_of(part(0), KVARN_BLOCK_TILE);
    run("kvk_cuda_compress_64_64_k4v2", &blocks);
    assert_true(*(uint64_t *)part(3) == KVK_CUDA_NO_FAULT);
}

/* ---- the tests ---- */

static void tiles_go_through_all_kernels(const char *unused)
{
    static uint8_t record[65536];
    uint16_t want[2][GROUP * DIM], *rows;
    struct kvk_cuda_block *block;
    struct kvk_cuda_blocks blocks;
    uint32_t *digests;

    (void)unused;
    open_device();
    make_memory();
    map_pool();
    compress_pool();
    block = part(0);
    blocks = blocks_of(block, KVARN_BLOCK_TILE);
    block->k = device_of(part(5));
    run("kvk_cuda_export", &blocks);
    digests = part(4);
    for (uint32_t cell = 0; cell < CELLS; cell++) {
        size_t bytes = expected_record(cell, record);
        assert_memory_equal((uint8_t *)part(5) + cell * bytes, record, bytes);
        assert_int_equal(digests[cell], kvk_digest(0, record, bytes));
    }
    /* there and back through canonical bytes gives the same slot */
    ok(driver.set_bytes(pool, 0, CHUNK, stream));
    run("kvk_cuda_import", &blocks);
    memset(digests, 0, CELLS * 4);
    run("kvk_cuda_digest", &blocks);
    for (uint32_t cell = 0; cell < CELLS; cell++)
        assert_int_equal(digests[cell], kvk_digest(0, record, expected_record(cell, record)));
    /* rows of the last cell */
    struct kvk_decompress op = {.shape = shape,
                                .record = record,
                                .k = want[0],
                                .v = want[1],
                                .k_token_stride_bytes = DIM * 2,
                                .v_token_stride_bytes = DIM * 2,
                                .scratch =
                                    aligned_alloc(64, (kvk_scratch_bytes(&shape) + 63) / 64 * 64)};
    kvk_table_ref.decompress(&op);
    free(op.scratch);
    block->k = device_of(part(6));
    block->v = 0;
    run("kvk_cuda_decompress_64_64_k4v2", &blocks);
    rows = part(6);
    assert_memory_equal(rows + 3 * GROUP * DIM, want[0], sizeof want[0]);
}

static void exact_rows_go_in_and_out(const char *unused)
{
    struct kvk_cuda_block *block;
    struct kvk_cuda_blocks blocks;
    uint16_t *rows;

    (void)unused;
    open_device();
    make_memory();
    map_pool();
    fill(part(1), CELLS * GROUP * DIM * 2, 3);
    fill(part(2), CELLS * GROUP * DIM * 2, 4);
    block = part(0);
    blocks = blocks_of(block, KVARN_BLOCK_EXACT);
    block->first_token = 5;
    block->tokens = 7;
    run("kvk_cuda_write", &blocks);
    block->k = device_of(part(5));
    block->v = device_of(part(6));
    run("kvk_cuda_read", &blocks);
    for (uint32_t cell = 0; cell < CELLS; cell++) {
        size_t at = (size_t)cell * GROUP * DIM * 2;
        assert_memory_equal((uint8_t *)part(5) + at, (uint8_t *)part(1) + at, 7 * DIM * 2);
        assert_memory_equal((uint8_t *)part(6) + at, (uint8_t *)part(2) + at, 7 * DIM * 2);
    }
    /* the smallest place of two */
    rows = part(2);
    rows[2 * GROUP * DIM + 3 * DIM + 9] = 0x7c00;
    rows[3 * GROUP * DIM + 1] = 0x7e00;
    blocks = blocks_of(block, KVARN_BLOCK_EXACT);
    run("kvk_cuda_write", &blocks);
    assert_true(*(uint64_t *)part(3) == KVK_CUDA_FAULT(2, 1, 3, 9));
}

/* Two pieces of kv head 1 and one of head 0, in a list that is spoilt in one of six ways (0: not).
 */
static kvd_cu_result attend(int spoil, float *out, float *lse)
{
    enum { Q_HEADS = 4, TILES = 2 };
    size_t record = kvk_layout_of(DIM, GROUP, shape.bits_k, shape.bits_v).bytes;
    struct kvk_cuda_span *spans = part(7);
    struct kvk_cuda_piece *pieces = part(8);
    uint32_t *joins = part(9);

    fill(part(10), Q_HEADS * DIM * 2, 5);
    memset(joins, 0, 4);
    for (uint32_t i = 0; i < TILES; i++) /* layers 0 and 1 as two tiles of one context */
        spans[i] = (struct kvk_cuda_span){.cell = pool + i * HEADS * record,
                                          .position = i * GROUP,
                                          .tokens = GROUP,
                                          .kind = KVARN_BLOCK_TILE};
    struct kvk_cuda_sequence of = {.q = device_of(part(10)),
                                   .out = device_of(out),
                                   .lse = device_of(lse),
                                   .q_token_stride_bytes = Q_HEADS * DIM * 2,
                                   .q_head_stride_bytes = DIM * 2,
                                   .spans = device_of(spans),
                                   .span_count = TILES,
                                   .q_tokens = 1,
                                   .limit = TILES * GROUP,
                                   .scale = 0.125f};
    for (uint32_t i = 0; i < 3; i++)
        pieces[i] = (struct kvk_cuda_piece){.of = of,
                                            .kv_head = i > 0,
                                            .span_begin = i == 2,
                                            .span_end = i == 1 ? 1 : 2,
                                            .part = i == 2,
                                            .parts = i > 0 ? 2 : 1};
    pieces[0].next = 2;
    pieces[1].span_end += spoil == 1;     /* the second tile twice */
    pieces[0].span_end -= spoil == 2;     /* one not at all */
    pieces[0].next -= spoil == 3 ? 2 : 0; /* the last one is nobody's */
    pieces[1].of.limit -= spoil == 4;
    for (uint32_t i = 0; i < 3; i++)
        pieces[i].units = pieces[i].span_end - pieces[i].span_begin;
    pieces[0].units += spoil == 6;
    joins[0] = spoil == 5;
    struct kvk_cuda_attend all = {.shape = shape,
                                  .kv_heads = HEADS,
                                  .q_heads = Q_HEADS,
                                  .q_dtype = KVARN_F16,
                                  .out_dtype = KVARN_F32,
                                  .blocks = 2,
                                  .piece_count = 3,
                                  .pieces = device_of(pieces),
                                  .parts = device_of(part(11)),
                                  .joins = device_of(joins),
                                  .faults = device_of(part(3))};
    kvd_cu_result result = launch("kvk_cuda_attend_64_64_k4v2_n1", &all, 2);
    return result == KVD_CU_SUCCESS ? driver.stream_synchronize(stream) : result;
}

static void attend_joins_its_pieces(const char *unused)
{
    static uint8_t records[2][65536];
    float *out = NULL, *lse = NULL, want[2 * DIM], want_lse[2];

    (void)unused;
    open_device();
    make_memory();
    map_pool();
    compress_pool();
    out = part(12);
    lse = part(13);
    ok(attend(0, out, lse));
    for (uint32_t head = 0; head < HEADS; head++) {
        struct kvk_span spans[2];
        for (uint32_t i = 0; i < 2; i++) {
            expected_record(i * HEADS + head, records[i]);
            spans[i] = (struct kvk_span){.kind = KVARN_BLOCK_TILE,
                                         .position = i * GROUP,
                                         .tokens = GROUP,
                                         .data = records[i]};
        }
        struct kvk_attend op = {.shape = shape,
                                .q = (uint16_t *)part(10) + head * 2 * DIM,
                                .q_dtype = KVARN_F16,
                                .q_tokens = 1,
                                .q_heads = 2,
                                .q_token_stride_bytes = 4 * DIM * 2,
                                .q_head_stride_bytes = DIM * 2,
                                .scale = 0.125f,
                                .limit = 2 * GROUP,
                                .spans = spans,
                                .span_count = 2,
                                .out = want,
                                .lse = want_lse,
                                .scratch = malloc(kvk_attend_scratch_bytes(1, 2, DIM))};
        assert_int_equal(kvk_table_ref.attend(&op), KVARN_OK);
        free(op.scratch);
        for (int i = 0; i < 2 * DIM; i++)
            assert_float_equal(out[head * 2 * DIM + (size_t)i], want[i], 1e-5f);
        for (int i = 0; i < 2; i++)
            assert_float_equal(lse[head * 2 + (size_t)i], want_lse[i], 1e-5f);
    }
}

/* argument: how the list is spoilt. */
static void a_wrong_list_ends_the_process(const char *argument)
{
    open_device();
    make_memory();
    map_pool();
    compress_pool();
    attend(atoi(argument), part(12), part(13));
}

static void unmapped_addresses_break_the_context(const char *argument)
{
    struct kvk_cuda_block *block;
    struct kvk_cuda_blocks blocks;
    size_t free_bytes, total;
    int which = atoi(argument);

    open_device();
    make_memory();
    map_pool();
    block = part(0);
    blocks = blocks_of(block, KVARN_BLOCK_TILE);
    fill(part(1), CELLS * GROUP * DIM * 2, 1);
    fill(part(2), CELLS * GROUP * DIM * 2, 2);
    uint16_t *plain = calloc(CELLS * GROUP * DIM, 2);
    block->slot += which == 0 ? CHUNK - 128 : 0;         /* its end is not mapped */
    block->k = which == 1 ? device_of(plain) : block->k; /* host memory that is not pinned */
    blocks.blocks = which == 2 ? device_of(plain) : blocks.blocks;
    block->slot += which == 3 ? 16 : 0;                     /* not aligned as slots are */
    ok(launch("kvk_cuda_compress_64_64_k4v2", &blocks, 1)); /* comes out later */
    kvd_cu_result want = which == 3 ? KVD_CU_MISALIGNED_ADDRESS : KVD_CU_ILLEGAL_ADDRESS;
    assert_int_equal(driver.stream_synchronize(stream), want);
    assert_int_equal(driver.memory_info(&free_bytes, &total), want);
    assert_int_equal(driver.set_bytes(pool, 0, 1, stream), want);
    assert_int_equal(atomic_load(&control->broken), 1);
    free(plain);
}

enum { CAUGHT = 42 };

static void say_caught(int number)
{
    (void)number;
    _exit(CAUGHT);
}

static void the_host_cannot_follow_device_addresses(const char *unused)
{
    (void)unused;
    open_device();
    make_memory();
    map_pool();
    signal(SIGSEGV, say_caught);
    *(volatile uint8_t *)(uintptr_t)pool = 1; /* NOLINT: this must not work */
}

static void faults_happen_when_they_are_due(const char *unused)
{
    struct kvk_cuda_blocks blocks;
    void *at;

    (void)unused;
    open_device();
    fake_cuda_arm(control, 0, "allocation", KVD_CU_OUT_OF_MEMORY, 1, 2);
    ok(driver.host_alloc(&at, 4096, 0));
    assert_int_equal(driver.host_alloc(&at, 4096, 0), KVD_CU_OUT_OF_MEMORY);
    assert_int_equal(fake_cuda_fired(control, 0), 1);
    assert_int_equal(driver.host_alloc(&at, 4096, 0), KVD_CU_OUT_OF_MEMORY);
    ok(driver.host_alloc(&at, 4096, 0));
    assert_int_equal(fake_cuda_fired(control, 0), 2);
    make_memory();
    map_pool();
    compress_pool();
    /* a kernel that does not end, then the work behind it */
    fake_cuda_arm(control, 1, "kvk_cuda_digest", FAKE_CUDA_HANG, 0, 1);
    blocks = blocks_of(part(0), KVARN_BLOCK_TILE);
    ok(launch("kvk_cuda_digest", &blocks, 1));
    while (atomic_load(&control->hanging) == 0)
        assert_int_equal(driver.stream_query(stream), KVD_CU_NOT_READY);
    ok(driver.set_bytes(pool, 0, 1, stream));
    assert_int_equal(driver.stream_query(stream), KVD_CU_NOT_READY);
    /* a call that is lost takes the context along */
    fake_cuda_arm(control, 2, "cuStreamQuery", KVD_CU_UNKNOWN, 0, 1);
    assert_int_equal(driver.stream_query(stream), KVD_CU_UNKNOWN);
    assert_int_equal(driver.host_alloc(&at, 4096, 0), KVD_CU_UNKNOWN);
}

/* Makes a chunk full of one value, hands its descriptor out and never ends. */
static void a_process_with_memory(const char *unused)
{
    int fd;

    (void)unused;
    open_device();
    make_memory();
    map_pool();
    ok(driver.set_bytes(pool, 0xa7, CHUNK, stream));
    ok(driver.stream_synchronize(stream));
    ok(driver.memory_export(&fd, memory, KVD_CU_HANDLE_FD, 0));
    assert_int_equal(kvd_chunks_send(TEST_CHILD_FD, 0, &fd, 1), KVARN_OK);
    for (;;)
        pause();
}

static void memory_outlives_its_process(const char *unused)
{
    struct kvd_link_chunks message;
    int pair[2], fds[KVD_LINK_FDS_MAX];
    uint32_t got, count;

    (void)unused;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t child = test_child_start("a_process_with_memory", "", pair[1]);
    close(pair[1]);
    assert_int_equal(kvd_chunks_receive(pair[0], &message, sizeof(message), &got, fds, &count),
                     KVARN_OK);
    assert_int_equal(count, 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(pair[0]);
    assert_int_equal(fake_cuda_held(getpid()), 1);
    open_device();
    ok(driver.memory_import(&memory, (void *)(intptr_t)fds[0], KVD_CU_HANDLE_FD));
    map_pool();
    ok(driver.copy_to_host(host, pool, CHUNK, stream));
    ok(driver.stream_synchronize(stream));
    for (size_t i = 0; i < CHUNK; i++)
        assert_int_equal(host[i], 0xa7);
    ok(driver.memory_unmap(pool, CHUNK));
    ok(driver.copy_to_host(host, pool, 1, stream));
    assert_int_equal(driver.stream_synchronize(stream), KVD_CU_ILLEGAL_ADDRESS);
}

static void graphs_repeat_what_was_captured(const char *unused)
{
    kvd_cu_graph graph;
    kvd_cu_graph_exec exec;

    (void)unused;
    open_device();
    make_memory();
    map_pool();
    memset(host, 1, 64);
    ok(driver.capture_begin(stream, KVD_CU_CAPTURE_THREAD_LOCAL));
    ok(driver.copy_on_device(device_of(host) + 64, device_of(host), 64, stream));
    ok(driver.capture_end(stream, &graph));
    ok(driver.graph_instantiate(&exec, graph, 0));
    ok(driver.graph_destroy(graph));
    assert_int_equal(host[64], 0);
    for (int i = 2; i < 4; i++) {
        memset(host, i, 64);
        ok(driver.graph_launch(exec, stream));
        ok(driver.stream_synchronize(stream));
        assert_int_equal(host[127], i);
    }
    ok(driver.graph_exec_destroy(exec));
}

/* ---- running them ---- */

#define BODY(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
static const struct test_body bodies[] = {BODY(tiles_go_through_all_kernels),
                                          BODY(exact_rows_go_in_and_out),
                                          BODY(attend_joins_its_pieces),
                                          BODY(a_wrong_list_ends_the_process),
                                          BODY(unmapped_addresses_break_the_context),
                                          BODY(the_host_cannot_follow_device_addresses),
                                          BODY(faults_happen_when_they_are_due),
                                          BODY(a_process_with_memory),
                                          BODY(memory_outlives_its_process),
                                          BODY(graphs_repeat_what_was_captured),
                                          {NULL, NULL}};

static char path[] = "/tmp/kvarn-fake-cuda.XXXXXX";

static int open_control(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    control = fake_cuda_open(path, UINT64_C(64) << 20);
    assert_non_null(control);
    setenv("KVARN_FAKE_CUDA", path, 1);
    setenv("KVARN_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1);
    return 0;
}

static int close_control(void **state)
{
    (void)state;
    fake_cuda_close(&control);
    unlink(path);
    strcpy(path, "/tmp/kvarn-fake-cuda.XXXXXX");
    return 0;
}

static int end_of(const char *body, const char *argument)
{
    pid_t child = test_child_start(body, argument, -1);
    int status = -1;

    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void all_kernels(void **state)
{
    (void)state;
    test_child_run("tiles_go_through_all_kernels", "");
    test_child_run("exact_rows_go_in_and_out", "");
    test_child_run("attend_joins_its_pieces", "");
    test_child_run("graphs_repeat_what_was_captured", "");
}

static void wrong_lists(void **state)
{
    (void)state;
    for (char spoil[] = "1"; spoil[0] <= '6'; spoil[0]++) {
        int status = end_of("a_wrong_list_ends_the_process", spoil);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    assert_int_equal(end_of("a_wrong_list_ends_the_process", "0"),
                     0); /* the list as it should be */
}

static void wrong_addresses(void **state)
{
    (void)state;
    for (char which[] = "0"; which[0] <= '3'; which[0]++) {
        atomic_store(&control->broken, 0);
        test_child_run("unmapped_addresses_break_the_context", which);
    }
    int status = end_of("the_host_cannot_follow_device_addresses", "");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == CAUGHT);
}

static void faults(void **state)
{
    (void)state;
    test_child_run("faults_happen_when_they_are_due", "");
}

static void memory_stays(void **state)
{
    (void)state;
    test_child_run("memory_outlives_its_process", "");
    assert_int_equal(fake_cuda_held(getpid()), 0);
}

int main(int count, char **values)
{
    const char *given = getenv("KVARN_FAKE_CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_kernels, open_control, close_control),
        cmocka_unit_test_setup_teardown(wrong_lists, open_control, close_control),
        cmocka_unit_test_setup_teardown(wrong_addresses, open_control, close_control),
        cmocka_unit_test_setup_teardown(faults, open_control, close_control),
        cmocka_unit_test_setup_teardown(memory_stays, open_control, close_control),
    };

    if (given != NULL)
        control = fake_cuda_attach(given);
    int child = test_child_main(count, values, bodies);
    return child >= 0 ? child : cmocka_run_group_tests_name("fake_cuda", tests, NULL, NULL);
}
