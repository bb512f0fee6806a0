/* See near.h. */
#include "gpu/support/near.h"

#include <math.h>
#include <stdlib.h>

#include "gpu/support/gpu.h"
#include "support/method_f64.h"

enum { DRAWS = 64 };

/* Elements are stored in fp16. So are the weights and squares of which deviations are made: shares
 * of a sum of squares, as far as they do not average out along a row, which depends on the data;
 * therefore of several sizes. Also none at all: an imbalance that is the same to the last bit stays
 * so only if deviations are exact. */
static const double element = 0x1p-11, measured[] = {0, 0x1p-11, 0x1p-13, 0x1p-15};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void near_reference(const struct kvk_shape *shape, const void *k, const void *v,
                    size_t token_stride_bytes, uint64_t seed, struct record_error *error,
                    struct record_error *drift)
{
    size_t count = (size_t)shape->group * shape->dim;
    double *rows = malloc(4 * count * sizeof *rows), *read = rows + 2 * count;
    struct method_tile *tile = malloc(sizeof *tile);
    struct method_noise noise = {.element = element, .rng = rng_make(seed)};
    struct kvk_shape rotated = *shape;

    if (rows == NULL || tile == NULL)
        gpu_fail("no memory");
    record_rows(shape, 0, k, token_stride_bytes, rows);
    record_rows(shape, 1, v, token_stride_bytes, rows + count);
    rotated.k_rotated = rotated.v_rotated = 1;
    *error = *drift = (struct record_error){0, 0};
    for (uint32_t i = 0; i < DRAWS; i++) {
        noise.measured = measured[i % 4];
        method_compress_near(&rotated, rows, rows + count, &noise, tile);
        /* not rounded: vectors here have no exponent to spare as those of a record do */
        method_reconstruct(&rotated, tile, 0, read, read + count);
        error->k = larger(error->k, record_rows_error(shape, read, rows));
        error->v = larger(error->v, record_rows_error(shape, read + count, rows + count));
        drift->k = larger(drift->k, record_rows_drift(shape, 0, read, rows));
        drift->v = larger(drift->v, record_rows_drift(shape, 1, read + count, rows + count));
    }
    free(rows);
    free(tile);
}
