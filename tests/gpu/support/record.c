/* See record.h. Compared rotated, where nothing is rounded after decoding. */
#include "gpu/support/record.h"

#include <math.h>
#include <stdlib.h>

#include "gpu/support/data.h"
#include "gpu/support/gpu.h"
#include "kernels/half.h"
#include "kernels/tile.h"
#include "support/method_f64.h"

struct side {
    const uint8_t *rows, *codes, *step, *zero, *other;
    uint32_t bits;
    int is_v;
};

static double number(const uint8_t *vector, uint32_t index)
{
    return (double)kvk_half_to_f32(kvk_u16_load(vector + 2 * (size_t)index), KVARN_F16);
}

static uint32_t code(const struct side *side, uint32_t row, uint32_t column, uint32_t columns)
{
    size_t bit = ((size_t)row * columns + column) * side->bits;

    return (uint32_t)side->codes[bit / 8] >> bit % 8 & ((1u << side->bits) - 1);
}

/* Element of the rotated matrix as the record has it. */
static double decoded(const struct kvk_shape *shape, const struct side *side, uint32_t token,
                      uint32_t channel)
{
    uint32_t row = side->is_v ? token : channel, column = side->is_v ? channel : token;
    uint32_t columns = side->is_v ? shape->dim : shape->group;

    return (code(side, row, column, columns) * number(side->step, row) + number(side->zero, row)) *
           number(side->other, column);
}

void record_rows(const struct kvk_shape *shape, int is_v, const void *rows, size_t stride,
                 double *matrix)
{
    for (uint32_t g = 0; g < shape->group; g++) {
        double *row = matrix + (size_t)g * shape->dim;

        for (uint32_t d = 0; d < shape->dim; d++)
            row[d] = (double)kvk_half_to_f32(
                kvk_u16_load((const uint8_t *)rows + g * stride + 2 * (size_t)d),
                (kvarn_dtype)shape->dtype);
        if (is_v ? !shape->v_rotated : !shape->k_rotated)
            method_rotate(row, shape->dim);
    }
}

double record_rows_error(const struct kvk_shape *shape, const double *read, const double *rows)
{
    size_t count = (size_t)shape->group * shape->dim;
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (read[i] - rows[i]) * (read[i] - rows[i]);
    return sum;
}

/* Of every token of K, every channel of V. */
double record_rows_drift(const struct kvk_shape *shape, int is_v, const double *read,
                         const double *rows)
{
    double written[KVARN_MAX_HEAD_DIM] = {0}, product[KVARN_MAX_HEAD_DIM] = {0}, off = 0, all = 0;
    uint32_t columns = is_v ? shape->dim : shape->group;

    for (uint32_t g = 0; g < shape->group; g++) {
        for (uint32_t d = 0; d < shape->dim; d++) {
            size_t i = (size_t)g * shape->dim + d;
            uint32_t column = is_v ? d : g;

            written[column] += rows[i] * rows[i];
            product[column] += (is_v ? rows[i] : read[i]) * read[i];
        }
    }
    for (uint32_t c = 0; c < columns; c++) {
        double off_by = (is_v ? product[c] : sqrt(product[c] * written[c])) - written[c];

        off += written[c] > 0 ? off_by * off_by / written[c] : 0;
        all += written[c];
    }
    return all > 0 ? sqrt(off / all) : 0;
}

/* What the record and the rows have of one side, rotated: [group][dim] each, in one allocation. */
static double *side_matrices(const struct kvk_shape *shape, const struct side *side, size_t stride)
{
    size_t count = (size_t)shape->group * shape->dim;
    double *rows = calloc(2 * count, sizeof *rows);

    if (rows == NULL)
        gpu_fail("no memory");
    record_rows(shape, side->is_v, side->rows, stride, rows);
    for (size_t i = 0; i < count && side->codes != NULL; i++)
        rows[count + i] =
            decoded(shape, side, (uint32_t)(i / shape->dim), (uint32_t)(i % shape->dim));
    return rows;
}

/* Without a record: of zeros. */
static double side_error(const struct kvk_shape *shape, const struct side *side, size_t stride)
{
    double *rows = side_matrices(shape, side, stride);
    double error = record_rows_error(shape, rows + (size_t)shape->group * shape->dim, rows);

    free(rows);
    return error;
}

static double side_drift(const struct kvk_shape *shape, const struct side *side, size_t stride)
{
    double *rows = side_matrices(shape, side, stride);
    double drift =
        record_rows_drift(shape, side->is_v, rows + (size_t)shape->group * shape->dim, rows);

    free(rows);
    return drift;
}

static struct side side_of(const struct kvk_shape *shape, const uint8_t *record, const void *rows,
                           int is_v)
{
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);

    return (struct side){.rows = rows,
                         .codes = record + (is_v ? at.v_codes : at.k_codes),
                         .step = record + (is_v ? at.v_step : at.k_step),
                         .zero = record + (is_v ? at.v_zero : at.k_zero),
                         .other = record + (is_v ? at.v_channel : at.k_token),
                         .bits = is_v ? shape->bits_v : shape->bits_k,
                         .is_v = is_v};
}

struct record_error record_error(const struct kvk_shape *shape, const uint8_t *record,
                                 const void *k, const void *v, size_t token_stride_bytes)
{
    const struct side k_side = side_of(shape, record, k, 0), v_side = side_of(shape, record, v, 1);

    return (struct record_error){side_error(shape, &k_side, token_stride_bytes),
                                 side_error(shape, &v_side, token_stride_bytes)};
}

struct record_error record_drift(const struct kvk_shape *shape, const uint8_t *record,
                                 const void *k, const void *v, size_t token_stride_bytes)
{
    const struct side k_side = side_of(shape, record, k, 0), v_side = side_of(shape, record, v, 1);

    return (struct record_error){side_drift(shape, &k_side, token_stride_bytes),
                                 side_drift(shape, &v_side, token_stride_bytes)};
}

struct record_error record_norm(const struct kvk_shape *shape, const void *k, const void *v,
                                size_t token_stride_bytes)
{
    const struct side k_side = {.rows = k}, v_side = {.rows = v, .is_v = 1};

    return (struct record_error){side_error(shape, &k_side, token_stride_bytes),
                                 side_error(shape, &v_side, token_stride_bytes)};
}

struct record_error record_reference(const struct kvk_shape *shape, const void *k, const void *v,
                                     size_t token_stride_bytes, struct record_error *drift)
{
    size_t bytes = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint8_t *record = malloc(bytes);
    void *scratch = aligned_alloc(64, (kvk_scratch_bytes(shape) + 63) / 64 * 64);
    struct kvk_compress op = {.shape = *shape,
                              .k = k,
                              .v = v,
                              .k_token_stride_bytes = token_stride_bytes,
                              .v_token_stride_bytes = token_stride_bytes,
                              .record = record,
                              .scratch = scratch};
    const struct kvk_table *table = data_table();
    struct record_error error;

    if (record == NULL || scratch == NULL || table == NULL || table->compress(&op) != KVARN_OK)
        gpu_fail("the reference does not compress");
    error = record_error(shape, record, k, v, token_stride_bytes);
    *drift = record_drift(shape, record, k, v, token_stride_bytes);
    free(record);
    free(scratch);
    return error;
}
