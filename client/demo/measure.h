/* What the demo measures: attention in double precision, relative errors, percentiles. */
#ifndef DEMO_MEASURE_H
#define DEMO_MEASURE_H

#include <stddef.h>
#include <stdint.h>

/* Rows of one layer: [token][head][dim], f32, dense. */
struct demo_rows {
    const float *k, *v;
    size_t tokens;
    uint32_t heads, dim;
};

/* out [dim] = softmax(q . k / sqrt(dim)) v over the first `tokens` rows of one head. scratch
 * [tokens]. */
void demo_attention(float *out, const float *q, const struct demo_rows *rows, uint32_t head,
                    size_t tokens, double *scratch);

/* Running sums of |a - b|^2 and |b|^2. */
struct demo_error {
    double difference, reference;
};
void demo_error_add(struct demo_error *error, const float *value, const float *reference,
                    size_t count);
double demo_error_relative(const struct demo_error *error); /* sqrt of the ratio */

/* | |a| - |b| | / |b| of two vectors; 0 when both are zero. */
double demo_norm_error(const float *value, const float *reference, size_t count);

double demo_mean(const double *values, size_t count);
/* Sorts values. share in 0..1. 0 when count is 0. */
double demo_percentile(double *values, size_t count, double share);

#endif
