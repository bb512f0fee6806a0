/* The support library itself: what is written can be read, poison is poison, repeats repeat,
 * records are those that this CPU decompresses, and a graph replay takes the time of its work. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/support/check.h"
#include "gpu/support/data.h"
#include "gpu/support/gpu.h"
#include "kernels/tile.h"

enum { BYTES = 1 << 20, PIECE = 4099 };

static void memory(struct gpu *gpu)
{
    uint8_t *sent = malloc(BYTES), *got = malloc(BYTES);

    if (sent == NULL || got == NULL)
        gpu_fail("no memory");
    data_normal(sent, KVARN_F16, BYTES / 128, 64, 1, 7);
    uint64_t at = gpu_alloc(gpu, BYTES);
    gpu_poison(gpu, at, BYTES);
    gpu_read(gpu, got, at, BYTES);
    for (size_t i = 0; i < BYTES; i += 1000)
        CHECK(got[i] == 0xff, "byte %zu of poisoned memory is %d", i, got[i]);
    gpu_write(gpu, at, sent, BYTES);
    gpu_read(gpu, got, at, BYTES);
    CHECK(memcmp(sent, got, BYTES) == 0, "copy there and back");
    uint64_t repeated = gpu_put_repeated(gpu, BYTES, sent, PIECE);
    gpu_read(gpu, got, repeated, BYTES);
    for (size_t i = 0; i < BYTES; i += 777)
        CHECK(got[i] == sent[i % PIECE], "byte %zu of repeats", i);
    gpu_free(gpu, at);
    gpu_free(gpu, repeated);
    free(sent);
    free(got);
}

static void records(void)
{
    const struct kvk_shape shape = {.dim = 64,
                                    .group = 64,
                                    .bits_k = 4,
                                    .bits_v = 2,
                                    .dtype = KVARN_F16,
                                    .balance = KVARN_BALANCE_PUBLIC,
                                    .range = KVARN_RANGE_MINMAX,
                                    .iterations = 8};
    size_t bytes = kvk_layout_of(64, 64, 4, 2).bytes;
    uint8_t *canonical = malloc(4 * bytes), *device = malloc(4 * bytes), *back = malloc(bytes);
    struct kvk_fault fault;

    if (canonical == NULL || device == NULL || back == NULL)
        gpu_fail("no memory");
    data_records(&shape, 4, 11, canonical, device);
    for (size_t i = 0; i < 4; i++) {
        kvk_record_from_device(&shape, back, device + i * bytes);
        CHECK(memcmp(back, canonical + i * bytes, bytes) == 0, "record %zu", i);
        CHECK(kvk_cell_check(&shape, KVARN_BLOCK_TILE, back, &fault) == KVARN_OK, "record %zu", i);
    }
    CHECK(memcmp(canonical, canonical + bytes, bytes) != 0, "records differ");
    free(canonical);
    free(device);
    free(back);
}

struct fill {
    uint64_t at;
    size_t bytes;
};

static void fill(struct gpu *gpu, void *context, uint32_t round)
{
    const struct fill *work = context;

    gpu_must(gpu, gpu->cu.set_bytes(work->at, (unsigned char)round, work->bytes, gpu->stream),
             "fill");
}

static void times(struct gpu *gpu)
{
    struct fill work = {.bytes = (size_t)1 << 30};

    work.at = gpu_alloc(gpu, work.bytes);
    struct gpu_time one = gpu_time(gpu, fill, &work, 1, 9), four = gpu_time(gpu, fill, &work, 4, 9);
    work.bytes /= 2;
    struct gpu_time half = gpu_time(gpu, fill, &work, 4, 9);
    printf("1 GiB filled in %.1f us (alone %.1f), half of it in %.1f\n", four.us, one.us, half.us);
    CHECK(fabs(one.us / four.us - 1) < 0.2, "alone %.1f us, in fours %.1f", one.us, four.us);
    CHECK(fabs(2 * half.us / four.us - 1) < 0.2, "half %.1f us of %.1f", half.us, four.us);
    CHECK(four.low <= four.us && four.us <= four.high, "percentiles");
    CHECK(gpu_rotations(gpu, 3 * gpu->l2_bytes, 100) == 1, "rotations of a large input");
    CHECK(gpu_rotations(gpu, gpu->l2_bytes / 10, 100) == 30, "rotations of a small input");
    gpu_free(gpu, work.at);
}

int main(int argc, char **argv)
{
    bool small = check_small(argc, argv);
    struct gpu gpu;

    gpu_open(&gpu);
    printf("%s, driver for CUDA %d.%d, %u multiprocessors, L2 %zu MiB\n", gpu.name,
           gpu.cu.version / 1000, gpu.cu.version % 1000 / 10, gpu.multiprocessors,
           gpu.l2_bytes >> 20);
    memory(&gpu);
    records();
    if (!small)
        times(&gpu);
    CHECK(!gpu_has_kernel(&gpu, "kvk_cuda_no_such_kernel"), "a kernel that is not there");
    gpu_close(&gpu);
    return check_done("test_support_gpu");
}
