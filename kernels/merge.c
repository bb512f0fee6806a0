/* Joins attention results of the same queries over disjoint key ranges (METHOD.md, section 8):
 *      M = max lse_i;  o = sum_i e^(lse_i - M) o_i / sum_i e^(lse_i - M);  lse = M + ln(sum)
 *
 * A part that saw no key has lse = -inf and counts for nothing; when all are empty the result is
 * out = 0, lse = -inf. Taking -inf from -inf would give NaN, hence the two guards. */
#include <math.h>

#include "kernels/kernels.h"

static void merge_row(float *dst_out, float *dst_lse, const float *out, const float *lse,
                      size_t parts, size_t rows, size_t dim)
{
    float top = -INFINITY, total = 0.0f, inverse;

    for (size_t p = 0; p < parts; p++)
        top = lse[p * rows] > top ? lse[p * rows] : top;
    for (size_t d = 0; d < dim; d++)
        dst_out[d] = 0.0f;
    *dst_lse = top;
    if (top == -INFINITY)
        return;
    for (size_t p = 0; p < parts; p++) {
        float weight = lse[p * rows] == -INFINITY ? 0.0f : expf(lse[p * rows] - top);
        const float *part = out + p * rows * dim;

        if (weight == 0.0f)
            continue;
        total += weight;
        for (size_t d = 0; d < dim; d++)
            dst_out[d] += weight * part[d];
    }
    inverse = 1.0f / total;
    for (size_t d = 0; d < dim; d++)
        dst_out[d] *= inverse;
    *dst_lse = top + logf(total);
}

void kvk_merge(float *dst_out, float *dst_lse, const float *out, const float *lse, size_t parts,
               size_t rows, size_t dim)
{
    for (size_t r = 0; r < rows; r++)
        merge_row(dst_out + r * dim, dst_lse + r, out + r * dim, lse + r, parts, rows, dim);
}
