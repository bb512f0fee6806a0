/* Its input comes from integers only, as the CPU tables' own test (kernels/selftest.c). What
 * compress writes may differ from the reference's bits, not in what it is worth: the rows it stands
 * for are as near to the input. Everything else follows from the record, and is held against it. */
#include "server/device/cuda_selftest.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/device/bounds.h"

enum {
    Q_HEADS = 4,
    EXACT_TOKENS = 40,
    MEMORY_BYTES = 4 << 20, /* of each region */
};

/* Of error sums against the reference's; of attention, relative. */
#define WORSE  1.02
#define ATTEND 1e-3f
#define SCALE  0.05f

static const struct kvk_shape shape = {
    .dim = 128, .group = 128, .bits_k = 4, .bits_v = 2, .dtype = KVARN_F16, .iterations = 8};

/* Offsets of 64 KiB steps in staging; the pool has the two slots. */
enum {
    STEP = 64 << 10,
    AT_JOB = 0,
    AT_K = STEP,
    AT_V = 2 * STEP,
    AT_Q = 3 * STEP,
    AT_OUT = 4 * STEP,
    AT_LSE = 5 * STEP,
    AT_TILE = 6 * STEP,  /* its record, as it came out */
    AT_EXACT = 7 * STEP, /* 64 KiB */
    AT_K_BACK = 8 * STEP,
    AT_V_BACK = 9 * STEP,
    SLOT_TILE = 0,
    SLOT_EXACT = STEP
};

struct test {
    struct kvd_gpu *gpu;
    struct kvd_cuda_executor *executor;
    uint8_t *staging;
    kvd_cu_address pool;
    void *scratch;
    uint8_t *record; /* the reference's */
    uint8_t *rows;   /* K, then V, decoded */
};

static bool differs(struct test *test, const char *why)
{
    return kvd_gpu_failed(test->gpu, KVD_LINK_BAD_GPU, why);
}

static size_t rows_bytes(void)
{
    return kvd_row_bytes(&shape) * shape.group;
}

/* Halves of sums of four uniform numbers, one loud channel: multiples of 2^-6 below 16. */
static void fill(uint8_t *rows, size_t count, uint32_t state)
{
    for (size_t i = 0; i < count; i++) {
        int32_t sum = i % shape.dim == 5 ? 512 : 0;
        for (int n = 0; n < 4; n++) {
            state = state * 1664525u + 1013904223u;
            sum += (int32_t)(state >> 26) - 32;
        }
        /* sum * 2^-6 as fp16: normalise by hand, sums have at most 10 bits */
        uint32_t magnitude = (uint32_t)(sum < 0 ? -sum : sum), bits = 0;
        if (magnitude != 0) {
            uint32_t top = 31u - (uint32_t)__builtin_clz(magnitude);
            bits = (top + 9) << 10 | (magnitude << (10 - top) & 0x3ff);
        }
        uint16_t half = (uint16_t)(bits | (sum < 0 ? 0x8000u : 0));
        memcpy(rows + 2 * i, &half, 2);
    }
}

static double value_of(const uint8_t *rows, size_t i)
{
    uint16_t half;

    memcpy(&half, rows + 2 * i, 2);
    uint32_t exponent = half >> 10 & 31, fraction = half & 0x3ff;
    double magnitude =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, (int)exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

static double error_of(const uint8_t *rows, const uint8_t *back)
{
    double sum = 0;

    for (size_t i = 0; i < (size_t)shape.group * shape.dim; i++) {
        double error = value_of(rows, i) - value_of(back, i);
        sum += error * error;
    }
    return sum;
}

/* ---- jobs ---- */

static struct kvd_place in_staging(uint64_t offset)
{
    return (struct kvd_place){.region = KVD_REGION_STAGING, .offset = offset};
}

static struct kvd_place in_pool(uint64_t offset)
{
    return (struct kvd_place){.region = KVD_REGION_POOL, .offset = offset};
}

/* A job of one entry; where the entry goes. */
static void *job_of(struct test *test, uint32_t op, size_t entry_bytes, size_t tail_bytes)
{
    struct kvd_job *job = (struct kvd_job *)(void *)(test->staging + AT_JOB);

    assert(job != NULL);
    *job = (struct kvd_job){.op = op,
                            .count = 1,
                            .shape = shape,
                            .layers = 1,
                            .heads = 1,
                            .layer_count = 1,
                            .job_bytes = sizeof(*job) + entry_bytes + tail_bytes};
    return job + 1;
}

static bool run(struct test *test)
{
    const uint64_t job = AT_JOB;
    kvarn_status status;

    return kvd_cuda_executor_run(test->executor, &job, 1, &status) == 1 &&
           (status == KVARN_OK || differs(test, "self-test: a job was refused"));
}

static const struct kvd_strides strides = {.token = 256, .head = 256}; /* of one head */

static bool put(struct test *test, uint32_t kind, uint64_t slot, uint32_t *digest)
{
    struct kvd_put *entry = job_of(test, KVD_JOB_COMPRESS, sizeof(*entry), 0);

    *entry = (struct kvd_put){.k = in_staging(AT_K),
                              .v = in_staging(AT_V),
                              .strides = strides,
                              .slot = in_pool(slot),
                              .kind = kind};
    if (!run(test))
        return false;
    *digest = entry->digest;
    return entry->status == KVARN_OK || differs(test, "self-test: compress refused a valid block");
}

/* Out of the pool; the digest is held against what came. */
static bool fetch(struct test *test, uint32_t kind, uint64_t slot, uint64_t to, uint32_t digest)
{
    struct kvd_copy *entry = job_of(test, KVD_JOB_COPY, sizeof(*entry), 0);
    uint64_t bytes = kvd_cell_bytes(&shape, kind);

    *entry = (struct kvd_copy){.dst = in_staging(to),
                               .src = in_pool(slot),
                               .bytes = bytes,
                               .digest = digest,
                               .check = KVD_CHECK_DIGEST,
                               .kind = kind};
    if (!run(test))
        return false;
    if (entry->status != KVARN_OK || kvk_digest(0, test->staging + to, bytes) != digest)
        return differs(test, "self-test: digests differ from the reference");
    return true;
}

static bool get(struct test *test)
{
    struct kvd_get *entry = job_of(test, KVD_JOB_DECOMPRESS, sizeof(*entry), 0);

    *entry = (struct kvd_get){.slot = in_pool(SLOT_TILE),
                              .kind = KVARN_BLOCK_TILE,
                              .k = in_staging(AT_K_BACK),
                              .v = in_staging(AT_V_BACK),
                              .strides = strides};
    return run(test) &&
           (entry->status == KVARN_OK || differs(test, "self-test: decompress refused a tile"));
}

static bool attend(struct test *test)
{
    struct kvd_attend *entry =
        job_of(test, KVD_JOB_ATTEND, sizeof(*entry), 2 * sizeof(struct kvd_job_span));
    struct kvd_job_span *spans = (struct kvd_job_span *)(void *)(entry + 1);

    *entry = (struct kvd_attend){.q = in_staging(AT_Q),
                                 .out = in_staging(AT_OUT),
                                 .lse = in_staging(AT_LSE),
                                 .q_tokens = 1,
                                 .q_heads = Q_HEADS,
                                 .q_dtype = KVARN_F16,
                                 .out_dtype = KVARN_F32,
                                 .scale = SCALE,
                                 .limit = shape.group + EXACT_TOKENS - 3u,
                                 .spans_offset = sizeof(struct kvd_job) + sizeof(*entry),
                                 .span_count = 2};
    spans[0] = (struct kvd_job_span){
        .slot = in_pool(SLOT_TILE), .kind = KVARN_BLOCK_TILE, .tokens = shape.group};
    spans[1] = (struct kvd_job_span){.slot = in_pool(SLOT_EXACT),
                                     .kind = KVARN_BLOCK_EXACT,
                                     .position = shape.group,
                                     .tokens = EXACT_TOKENS};
    return run(test) &&
           (entry->status == KVARN_OK || differs(test, "self-test: attend refused a valid call"));
}

/* ---- what they gave ---- */

static void decode(const struct test *test, const uint8_t *record)
{
    struct kvk_decompress op = {.shape = shape,
                                .record = record,
                                .k = test->rows,
                                .v = test->rows + rows_bytes(),
                                .k_token_stride_bytes = kvd_row_bytes(&shape),
                                .v_token_stride_bytes = kvd_row_bytes(&shape),
                                .scratch = test->scratch};

    kvk_table_ref.decompress(&op);
}

static double reconstruction(const struct test *test, const uint8_t *record)
{
    decode(test, record);
    return error_of(test->staging + AT_K, test->rows) +
           error_of(test->staging + AT_V, test->rows + rows_bytes());
}

static bool check_compress(struct test *test)
{
    struct kvk_compress op = {.shape = shape,
                              .k = test->staging + AT_K,
                              .v = test->staging + AT_V,
                              .k_token_stride_bytes = kvd_row_bytes(&shape),
                              .v_token_stride_bytes = kvd_row_bytes(&shape),
                              .record = test->record,
                              .scratch = test->scratch};

    kvk_table_ref.compress(&op);
    double reference = reconstruction(test, test->record);
    return reconstruction(test, test->staging + AT_TILE) <= WORSE * reference ||
           differs(test, "self-test: compress is not as good as the reference");
}

static bool check_rows(struct test *test)
{
    const uint8_t *exact = test->staging + AT_EXACT;

    decode(test, test->staging + AT_TILE);
    if (memcmp(test->rows, test->staging + AT_K_BACK, rows_bytes()) != 0 ||
        memcmp(test->rows + rows_bytes(), test->staging + AT_V_BACK, rows_bytes()) != 0)
        return differs(test, "self-test: decompress differs from the reference");
    if (memcmp(exact, test->staging + AT_K, rows_bytes()) != 0 ||
        memcmp(exact + rows_bytes(), test->staging + AT_V, rows_bytes()) != 0)
        return differs(test, "self-test: exact rows are not what was stored");
    return true;
}

static bool check_attend(struct test *test)
{
    size_t row = kvd_row_bytes(&shape);
    const struct kvk_span spans[2] = {
        {.kind = KVARN_BLOCK_TILE, .tokens = shape.group, .data = test->staging + AT_TILE},
        {.kind = KVARN_BLOCK_EXACT,
         .position = shape.group,
         .tokens = EXACT_TOKENS,
         .data = test->staging + AT_K,
         .v = test->staging + AT_V,
         .token_stride_bytes = row}};
    float out[Q_HEADS * 128], lse[Q_HEADS], given[Q_HEADS * 128], given_lse[Q_HEADS];
    struct kvk_attend op = {.shape = shape,
                            .q = test->staging + AT_Q,
                            .q_dtype = KVARN_F16,
                            .q_tokens = 1,
                            .q_heads = Q_HEADS,
                            .q_token_stride_bytes = Q_HEADS * row,
                            .q_head_stride_bytes = row,
                            .scale = SCALE,
                            .limit = shape.group + EXACT_TOKENS - 3u,
                            .spans = spans,
                            .span_count = 2,
                            .out = out,
                            .lse = lse,
                            .scratch = test->scratch};

    kvk_table_ref.attend(&op);
    memcpy(given, test->staging + AT_OUT, sizeof(given));
    memcpy(given_lse, test->staging + AT_LSE, sizeof(given_lse));
    for (size_t r = 0; r < Q_HEADS; r++) {
        float error = 0.0f, norm = 0.0f;
        for (size_t i = r * shape.dim; i < (r + 1) * shape.dim; i++) {
            error += (out[i] - given[i]) * (out[i] - given[i]);
            norm += out[i] * out[i];
        }
        if (!(sqrtf(error) <= ATTEND * sqrtf(norm)) || !(fabsf(lse[r] - given_lse[r]) <= ATTEND))
            return differs(test, "self-test: attend differs from the reference");
    }
    return true;
}

static bool check_all(struct test *test)
{
    uint32_t tile, exact;

    fill(test->staging + AT_K, (size_t)shape.group * shape.dim, 1);
    fill(test->staging + AT_V, (size_t)shape.group * shape.dim, 2);
    fill(test->staging + AT_Q, (size_t)Q_HEADS * shape.dim, 3);
    return put(test, KVARN_BLOCK_TILE, SLOT_TILE, &tile) &&
           put(test, KVARN_BLOCK_EXACT, SLOT_EXACT, &exact) &&
           fetch(test, KVARN_BLOCK_TILE, SLOT_TILE, AT_TILE, tile) &&
           fetch(test, KVARN_BLOCK_EXACT, SLOT_EXACT, AT_EXACT, exact) && get(test) &&
           attend(test) && check_compress(test) && check_rows(test) && check_attend(test);
}

/* ---- its memory ---- */

static bool take_memory(struct test *test, kvd_cu_address *staging)
{
    size_t scratch = kvk_scratch_bytes(&shape);
    size_t attend_scratch = kvk_attend_scratch_bytes(1, Q_HEADS, shape.dim);
    struct kvd_gpu *gpu = test->gpu;
    void *host = NULL;

    scratch = (scratch > attend_scratch ? scratch : attend_scratch) / 64 * 64 + 64;
    test->scratch = aligned_alloc(64, scratch);
    test->record = malloc(kvd_cell_bytes(&shape, KVARN_BLOCK_TILE));
    test->rows = malloc(2 * rows_bytes());
    if (test->scratch == NULL || test->record == NULL || test->rows == NULL)
        return kvd_gpu_failed(gpu, KVD_LINK_NO_THREADS, "no memory for the self-test");
    if (!kvd_gpu_did(gpu, "memory for the self-test",
                     gpu->driver.host_alloc(&host, MEMORY_BYTES, KVD_CU_HOST_REGISTER_DEVICE_MAP)))
        return false;
    test->staging = host;
    return kvd_gpu_did(gpu, "memory for the self-test",
                       gpu->driver.host_address(staging, host, 0)) &&
           kvd_gpu_did(gpu, "memory for the self-test",
                       gpu->driver.memory_alloc(&test->pool, MEMORY_BYTES));
}

static void give_memory(struct test *test)
{
    struct kvd_gpu *gpu = test->gpu;

    kvd_gpu_settle(gpu);
    free(test->scratch);
    free(test->record);
    free(test->rows);
    if (!gpu->lost && test->pool != 0)
        gpu->driver.memory_free(test->pool);
    if (!gpu->lost && test->staging != NULL)
        gpu->driver.host_free(test->staging);
}

bool kvd_cuda_selftest(struct kvd_cuda_executor *executor, struct kvd_gpu *gpu)
{
    struct test test = {.gpu = gpu, .executor = executor};
    kvd_cu_address staging = 0;
    bool fine = take_memory(&test, &staging);

    if (fine) {
        const struct kvd_cuda_regions regions = {.staging = test.staging,
                                                 .staging_address = staging,
                                                 .staging_bytes = MEMORY_BYTES,
                                                 .pool_address = test.pool,
                                                 .pool_bytes = MEMORY_BYTES};
        kvd_cuda_executor_use(executor, &regions, NULL);
        fine = check_all(&test);
        kvd_cuda_executor_use(executor, &(const struct kvd_cuda_regions){.staging = NULL}, NULL);
    }
    give_memory(&test);
    return fine && gpu->failure == KVD_LINK_READY;
}
