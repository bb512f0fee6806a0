/* Fresh data; see data.h. */
#include "gpu/support/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/support/gpu.h"
#include "kernels/half.h"
#include "kernels/tile.h"
#include "support/rng.h"

uint64_t data_seed(const char *program)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = rng_seed((uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec);
    printf("%s: KVARN_SEED=%llu\n", program, (unsigned long long)seed);
    return seed;
}

static void store(void *to, kvarn_dtype dtype, size_t index, double x)
{
    if (dtype == KVARN_F32)
        memcpy((uint8_t *)to + 4 * index, &(float){(float)x}, 4);
    else
        kvk_u16_store((uint8_t *)to + 2 * index, kvk_half_from_f32((float)x, dtype));
}

void data_rows(void *to, kvarn_dtype dtype, size_t rows, uint32_t dim, double gain, uint64_t seed)
{
    struct rng rng = rng_make(seed);
    uint32_t first = rng_below(&rng, 31);

    for (size_t row = 0; row < rows; row++) {
        double loud = rng_below(&rng, 40) == 0 ? 8 * gain : gain;

        for (uint32_t d = 0; d < dim; d++)
            store(to, dtype, row * dim + d,
                  loud * rng_normal(&rng) + (d % 31 == first ? 9 * gain : 0));
    }
}

void data_normal(void *to, kvarn_dtype dtype, size_t rows, uint32_t dim, double gain, uint64_t seed)
{
    struct rng rng = rng_make(seed);

    for (size_t i = 0; i < rows * dim; i++)
        store(to, dtype, i, gain * rng_normal(&rng));
}

const struct kvk_table *data_table(void)
{
    static const char *const names[] = {"avx512", "avx2", "ref"};
    const struct kvk_table *table = NULL;

    for (int i = 0; i < 3 && table == NULL; i++)
        table = kvk_cpu_table(names[i]);
    return table;
}

void data_records(const struct kvk_shape *shape, size_t count, uint64_t seed, uint8_t *canonical,
                  uint8_t *device)
{
    const struct kvk_table *table = data_table();
    size_t row_bytes = (size_t)shape->dim * 2, rows = shape->group;
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint8_t *k = malloc(2 * rows * row_bytes), *v = k + rows * row_bytes, *record = malloc(bytes);
    void *scratch = aligned_alloc(64, (kvk_scratch_bytes(shape) + 63) / 64 * 64);

    if (k == NULL || record == NULL || scratch == NULL)
        gpu_fail("no memory for records");
    for (size_t i = 0; i < count; i++) {
        struct kvk_compress op = {.shape = *shape,
                                  .k = k,
                                  .v = v,
                                  .k_token_stride_bytes = row_bytes,
                                  .v_token_stride_bytes = row_bytes,
                                  .record = record,
                                  .scratch = scratch};

        data_rows(k, (kvarn_dtype)shape->dtype, rows, shape->dim, 1, seed + 2 * i);
        data_normal(v, (kvarn_dtype)shape->dtype, rows, shape->dim, 1, seed + 2 * i + 1);
        if (table->compress(&op) != KVARN_OK)
            gpu_fail("compress of random rows failed");
        if (canonical != NULL)
            memcpy(canonical + i * bytes, record, bytes);
        if (device != NULL)
            kvk_device_from_record(shape, device + i * bytes, record);
    }
    free(k);
    free(record);
    free(scratch);
}
