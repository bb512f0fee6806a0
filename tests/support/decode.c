/* See decode.h. The rotation is a dense product with the matrix's signs, O(dim^2): slow and plain.
 */
#include <math.h>
#include <string.h>

#include "kernels/tile.h"
#include "support/decode.h"

double decode_half(uint16_t bits, int dtype)
{
    int exponent = dtype == KVARN_F16 ? bits >> 10 & 31 : bits >> 7 & 255;
    int fraction = dtype == KVARN_F16 ? bits & 1023 : bits & 127;
    int width = dtype == KVARN_F16 ? 10 : 7, bias = dtype == KVARN_F16 ? 15 : 127;
    double sign = bits & 0x8000 ? -1.0 : 1.0;

    if (exponent == 2 * bias + 1)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - width);
    return sign * ldexp(fraction + (1 << width), exponent - bias - width);
}

void decode_rotate(double *x, uint32_t dim)
{
    double y[KVARN_MAX_HEAD_DIM];

    for (uint32_t i = 0; i < dim; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < dim; j++)
            y[i] += __builtin_popcount(i & j) % 2 ? -x[j] : x[j];
        y[i] /= sqrt((double)dim);
    }
    memcpy(x, y, dim * sizeof(*x));
}

static double vector_at(const uint8_t *record, size_t offset, uint32_t index)
{
    return decode_half((uint16_t)(record[offset + 2 * index] | record[offset + 2 * index + 1] << 8),
                       KVARN_F16);
}

/* Element `column` of row `row` in a code matrix of `columns` columns: LSB first in each byte. */
static double code(const uint8_t *codes, uint32_t bits, uint32_t row, uint32_t columns,
                   uint32_t column)
{
    size_t bit = ((size_t)row * columns + column) * bits;

    return codes[bit / 8] >> bit % 8 & (bits == 2 ? 3 : 15);
}

void decode_tile(const struct kvk_shape *shape, const uint8_t *record, double *k, double *v)
{
    uint32_t dim = shape->dim, group = shape->group;
    struct kvk_layout at = kvk_layout_of(dim, group, shape->bits_k, shape->bits_v);

    for (uint32_t g = 0; g < group; g++) {
        double *k_row = k + (size_t)g * dim, *v_row = v + (size_t)g * dim;
        for (uint32_t d = 0; d < dim; d++) {
            double ck = code(record + at.k_codes, shape->bits_k, d, group, g);
            double cv = code(record + at.v_codes, shape->bits_v, g, dim, d);
            k_row[d] = (ck * vector_at(record, at.k_step, d) + vector_at(record, at.k_zero, d)) *
                       vector_at(record, at.k_token, g);
            v_row[d] = (cv * vector_at(record, at.v_step, g) + vector_at(record, at.v_zero, g)) *
                       vector_at(record, at.v_channel, d);
        }
        if (!shape->k_rotated)
            decode_rotate(k_row, dim);
        if (!shape->v_rotated)
            decode_rotate(v_row, dim);
    }
}
