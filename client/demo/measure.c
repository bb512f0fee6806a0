/* What the demo measures; see measure.h. Double precision throughout, so that it is the reference.
 */
#include "client/demo/measure.h"

#include <math.h>
#include <stdlib.h>

void demo_attention(float *out, const float *q, const struct demo_rows *rows, uint32_t head,
                    size_t tokens, double *scratch)
{
    uint32_t dim = rows->dim;
    size_t stride = (size_t)rows->heads * dim;
    double scale = 1.0 / sqrt((double)dim), top = -INFINITY, total = 0.0;

    for (size_t t = 0; t < tokens; t++) {
        const float *k = rows->k + t * stride + (size_t)head * dim;
        double dot = 0.0;

        for (uint32_t d = 0; d < dim; d++)
            dot += (double)q[d] * (double)k[d];
        scratch[t] = dot * scale;
        top = scratch[t] > top ? scratch[t] : top;
    }
    for (size_t t = 0; t < tokens; t++) {
        scratch[t] = exp(scratch[t] - top);
        total += scratch[t];
    }
    for (uint32_t d = 0; d < dim; d++) {
        const float *v = rows->v + (size_t)head * dim + d;
        double sum = 0.0;

        for (size_t t = 0; t < tokens; t++)
            sum += scratch[t] * (double)v[t * stride];
        out[d] = tokens > 0 ? (float)(sum / total) : 0.0f;
    }
}

void demo_error_add(struct demo_error *error, const float *value, const float *reference,
                    size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double d = (double)value[i] - (double)reference[i];

        error->difference += d * d;
        error->reference += (double)reference[i] * (double)reference[i];
    }
}

double demo_error_relative(const struct demo_error *error)
{
    return error->reference > 0.0 ? sqrt(error->difference / error->reference) : 0.0;
}

static double norm(const float *value, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += (double)value[i] * (double)value[i];
    return sqrt(sum);
}

double demo_norm_error(const float *value, const float *reference, size_t count)
{
    double want = norm(reference, count), got = norm(value, count);

    if (want == 0.0)
        return got == 0.0 ? 0.0 : INFINITY;
    return fabs(got - want) / want;
}

double demo_mean(const double *values, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return count > 0 ? sum / (double)count : 0.0;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

double demo_percentile(double *values, size_t count, double share)
{
    size_t at;

    if (count == 0)
        return 0.0;
    qsort(values, count, sizeof *values, ascending);
    at = (size_t)(share * (double)(count - 1) + 0.5);
    return values[at];
}
