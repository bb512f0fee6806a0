/* attend on packed tiles against exact attention over an uncompressed fp32 cache, one thread.
 *
 * Baselines: OpenBLAS (sgemv for one query head, sgemm for more; a vector softmax between) and our
 * own AVX-512 loop; the faster one counts. All candidates take turns inside every round; a row is
 * the 10th percentile of its rounds. `--quick`: fewer rounds. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/attend_fp32.h"
#include "bench/row.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "support/rng.h"

#ifdef KVARN_HAVE_OPENBLAS
#include <cblas.h>
#endif

enum { TOKENS = 32768, DIM = 128, GROUP = 128, TILES = TOKENS / GROUP, MAX_ROUNDS = 64 };

static struct {
    float *k, *v, *k_blocks; /* [TOKENS][DIM]; K again in blocks [DIM][GROUP] */
    float *s, *q, *out, *lse;
    uint8_t *records;
    struct kvk_span spans[TILES];
    void *scratch;
} data;

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (memory == NULL)
        abort();
    memset(memory, 0, bytes);
    return memory;
}

static void put_f16(uint8_t *at, uint32_t count, struct rng *rng, uint32_t top)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t half = (uint16_t)(top | rng_below(rng, 1024));
        memcpy(at + 2 * i, &half, sizeof(half));
    }
}

/* Random codes with vectors of a size that compress gives for unit normal data. */
static void make_records(struct rng *rng, uint32_t bits_k, uint32_t bits_v)
{
    struct kvk_layout at = kvk_layout_of(DIM, GROUP, bits_k, bits_v);

    for (size_t i = 0; i < TILES; i++) {
        uint8_t *record = data.records + i * at.bytes;
        for (size_t j = 0; j < at.bytes; j++)
            record[j] = (uint8_t)rng_next(rng);
        put_f16(record + at.k_step, DIM, rng, 0x3800);
        put_f16(record + at.k_zero, DIM, rng, 0xb800);
        put_f16(record + at.k_token, GROUP, rng, 0x3800);
        put_f16(record + at.v_channel, DIM, rng, 0x3800);
        put_f16(record + at.v_step, GROUP, rng, 0x3800);
        put_f16(record + at.v_zero, GROUP, rng, 0xb800);
        data.spans[i] = (struct kvk_span){.kind = KVARN_BLOCK_TILE,
                                          .position = (uint32_t)(i * GROUP),
                                          .tokens = GROUP,
                                          .data = record};
    }
}

static void make_data(void)
{
    struct rng rng = rng_make(1);

    data.k = room(sizeof(float) * TOKENS * DIM);
    data.v = room(sizeof(float) * TOKENS * DIM);
    data.k_blocks = room(sizeof(float) * TOKENS * DIM);
    data.s = room(sizeof(float) * TOKENS * FP32_HEADS);
    data.q = room(sizeof(float) * FP32_HEADS * DIM);
    data.out = room(sizeof(float) * FP32_HEADS * DIM);
    data.lse = room(sizeof(float) * FP32_HEADS);
    data.records = room(TILES * kvk_layout_of(DIM, GROUP, 4, 4).bytes);
    data.scratch = room(kvk_attend_scratch_bytes(1, FP32_HEADS, DIM));
    for (size_t i = 0; i < (size_t)TOKENS * DIM; i++) {
        size_t token = i / DIM, d = i % DIM;
        data.k[i] = (float)(rng_unit(&rng) * 2 - 1);
        data.v[i] = (float)(rng_unit(&rng) * 2 - 1);
        data.k_blocks[(token / GROUP * DIM + d) * GROUP + token % GROUP] = data.k[i];
    }
    for (size_t i = 0; i < FP32_HEADS * DIM; i++)
        data.q[i] = (float)rng_normal(&rng);
}

static double run_table(const struct kvk_table *table, uint32_t bits_k, uint32_t bits_v, int heads)
{
    struct kvk_attend op = {
        .shape = {.dim = DIM,
                  .group = GROUP,
                  .bits_k = (uint8_t)bits_k,
                  .bits_v = (uint8_t)bits_v,
                  .dtype = KVARN_F16,
                  .iterations = 8},
        .q = data.q,
        .q_dtype = KVARN_F32,
        .q_tokens = 1,
        .q_heads = (uint32_t)heads,
        .q_token_stride_bytes = (size_t)heads * DIM * sizeof(float),
        .q_head_stride_bytes = DIM * sizeof(float),
        .scale = 0.0883883476f,
        .limit = TOKENS,
        .spans = data.spans,
        .span_count = TILES,
        .out = data.out,
        .lse = data.lse,
        .scratch = data.scratch,
    };
    double start = bench_seconds();

    if (table->attend(&op) != KVARN_OK)
        abort();
    return bench_seconds() - start;
}

static double run_own(int heads)
{
    double start = bench_seconds();

    attend_fp32(data.k_blocks, data.v, TILES, data.q, heads, 0.0883883476f, data.out);
    return bench_seconds() - start;
}

#ifdef KVARN_HAVE_OPENBLAS
static double run_blas(int heads)
{
    double start = bench_seconds();

    if (heads == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, TOKENS, DIM, 1, data.k, DIM, data.q, 1, 0, data.s,
                    1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, heads, TOKENS, DIM, 1, data.q, DIM,
                    data.k, DIM, 0, data.s, TOKENS);
    for (int h = 0; h < heads; h++)
        (void)attend_fp32_softmax(data.s + (size_t)h * TOKENS, TOKENS, 0.0883883476f);
    if (heads == 1)
        cblas_sgemv(CblasRowMajor, CblasTrans, TOKENS, DIM, 1, data.v, DIM, data.s, 1, 0, data.out,
                    1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, heads, DIM, TOKENS, 1, data.s,
                    TOKENS, data.v, DIM, 0, data.out, DIM);
    return bench_seconds() - start;
}
#endif

struct times {
    double avx512[MAX_ROUNDS], avx2[MAX_ROUNDS], own[MAX_ROUNDS], blas[MAX_ROUNDS];
};

static void measure(struct times *times, uint32_t bits_k, uint32_t bits_v, int heads, size_t rounds)
{
    const struct kvk_table *avx2 = kvk_cpu_table("avx2");

    for (size_t i = 0; i < rounds + 1; i++) { /* the first round warms up and is overwritten */
        size_t at = i == 0 ? 0 : i - 1;
        times->own[at] = run_own(heads);
        times->avx512[at] = run_table(kvk_cpu_table("avx512"), bits_k, bits_v, heads);
        times->avx2[at] = run_table(avx2, bits_k, bits_v, heads);
#ifdef KVARN_HAVE_OPENBLAS
        times->blas[at] = run_blas(heads);
#else
        times->blas[at] = INFINITY;
#endif
    }
}

/* The quick end of the distribution: other work on the machine slows single rounds. */
static double best_of(double *seconds, size_t rounds)
{
    return 1e6 * bench_percentile(seconds, rounds, 0.1);
}

static int report(uint32_t bits_k, uint32_t bits_v, int heads, size_t rounds)
{
    static struct times times;
    char name[80];

    measure(&times, bits_k, bits_v, heads, rounds);
    double own = best_of(times.own, rounds), blas = best_of(times.blas, rounds);
    double baseline = own < blas ? own : blas;
    snprintf(name, sizeof(name), "attend k%uv%u 32k heads=%d avx512", bits_k, bits_v, heads);
    struct bench_row row = {name, "us", best_of(times.avx512, rounds), baseline, 0, 0};
    if (bits_k == 2) { /* three times faster than fp32 */
        row.direction = '<';
        row.reach = 1.0 / 3;
    }
    int ok = bench_row_print(&row);
    snprintf(name, sizeof(name), "attend k%uv%u 32k heads=%d avx2", bits_k, bits_v, heads);
    bench_row_print(&(struct bench_row){name, "us", best_of(times.avx2, rounds), baseline, 0, 0});
    if (bits_k == 4) /* the baselines do not depend on the preset: print them once */
        return ok;
    snprintf(name, sizeof(name), "fp32 attention 32k heads=%d own loop", heads);
    bench_row_print(&(struct bench_row){name, "us", own, 0, 0, 0});
    snprintf(name, sizeof(name), "fp32 attention 32k heads=%d OpenBLAS", heads);
    if (isfinite(blas))
        bench_row_print(&(struct bench_row){name, "us", blas, 0, 0, 0});
    return ok;
}

int main(int argc, char **argv)
{
    static const uint32_t bits[][2] = {{2, 2}, {4, 2}, {4, 4}};
    static const int heads[] = {1, 4, 8};
    size_t rounds = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 7 : 31;
    int ok = 1;

    if (kvk_cpu_table("avx512") == NULL) {
        fprintf(stderr, "bench_attend: this CPU or build has no AVX-512\n");
        return 0;
    }
#ifdef KVARN_HAVE_OPENBLAS
    /* An OpenBLAS that does not know this CPU falls back to its slowest kernels. It reads the
     * variable when it is loaded, so start again with it. */
    if (getenv("OPENBLAS_CORETYPE") == NULL) {
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
        execv("/proc/self/exe", argv);
    }
    openblas_set_num_threads(1);
#endif
    make_data();
    for (size_t i = 0; i < 3; i++) {
        struct rng rng = rng_make(2 + i);
        make_records(&rng, bits[i][0], bits[i][1]);
        for (size_t h = 0; h < 3; h++)
            ok &= report(bits[i][0], bits[i][1], heads[h], rounds);
    }
    return ok ? 0 : 1;
}
