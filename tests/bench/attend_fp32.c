/* See attend_fp32.h. Both products are y[128] += sum over 128 rows of x[row] * m[row][128]. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "attend_fp32.h"
#include "kernels/attend_codes.h"
#include "kernels/vec512.h"

#include "kernels/attend_math.h"

KVK_INLINE void block(const float *m, const float *x, float *y, int rows, int k0, int n)
{
    vf acc[24];

    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        acc[i] = v_load(y + i / n * 128 + 16 * (k0 + i % n));
    for (int s = 0; s < 128; s++) {
        KVK_UNROLL
        for (int k = 0; k < n; k++) {
            vf value = v_load(m + s * 128 + 16 * (k0 + k));
            KVK_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r * n + k] = v_fma(value, v_set(x[r * 128 + s]), acc[r * n + k]);
        }
    }
    KVK_UNROLL
    for (int i = 0; i < rows * n; i++)
        v_store(y + i / n * 128 + 16 * (k0 + i % n), acc[i]);
}

static void multiply(const float *m, const float *x, float *y, int heads)
{
    for (; heads >= 4; heads -= 4, x += 4 * 128, y += 4 * 128) {
        block(m, x, y, 4, 0, 4);
        block(m, x, y, 4, 4, 4);
    }
    for (; heads >= 2; heads -= 2, x += 2 * 128, y += 2 * 128)
        block(m, x, y, 2, 0, 8);
    if (heads == 1)
        block(m, x, y, 1, 0, 8);
}

static float maximum(const float *s, size_t count)
{
    vf top = v_load(s);

    for (size_t i = 16; i < count; i += 16)
        top = v_max(top, v_load(s + i));
    return v_reduce_max(top);
}

/* s -> exp(scale (s - top)); returns the sum. */
static float exponentials(float *s, size_t count, float scale, float top)
{
    vf sum = v_set(0.0f);

    for (size_t i = 0; i < count; i += 16) {
        vf p = v_exp(v_fma(v_load(s + i), v_set(scale), v_set(-scale * top)));
        v_store(s + i, p);
        sum = v_add(sum, p);
    }
    return v_reduce_add(sum);
}

float attend_fp32_softmax(float *s, size_t count, float scale)
{
    return exponentials(s, count, scale, maximum(s, count));
}

void attend_fp32(const float *k, const float *v, size_t blocks, const float *q, int heads,
                 float scale, float *out)
{
    float s[FP32_HEADS * 128], top[FP32_HEADS], sum[FP32_HEADS] = {0};

    memset(out, 0, (size_t)heads * 128 * sizeof(float));
    for (int h = 0; h < heads; h++)
        top[h] = -INFINITY;
    for (size_t b = 0; b < blocks; b++, k += 128 * 128, v += 128 * 128) {
        memset(s, 0, (size_t)heads * 128 * sizeof(float));
        multiply(k, q, s, heads);
        for (int h = 0; h < heads; h++) {
            float m = fmaxf(top[h], maximum(s + h * 128, 128));
            if (m > top[h]) {
                float shrink = expf(scale * (top[h] - m));
                for (int d = 0; d < 128; d += 16)
                    v_store(out + h * 128 + d, v_mul(v_load(out + h * 128 + d), v_set(shrink)));
                sum[h] *= shrink;
                top[h] = m;
            }
            sum[h] += exponentials(s + h * 128, 128, scale, m);
        }
        multiply(v, s, out, heads);
    }
    for (int h = 0; h < heads; h++) {
        for (int d = 0; d < 128; d++)
            out[h * 128 + d] /= sum[h];
    }
}
