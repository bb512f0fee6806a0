/* See method_f64.h. Section numbers are those of the method's description. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/method_f64.h"

enum { SIDE = KVARN_MAX_HEAD_DIM, SIZE = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM };

struct work {
    double t[SIZE], x[SIZE];
    double log_col[SIDE], log_row[SIDE], best_col[SIDE], best_row[SIDE];
    double std_col[SIDE], std_row[SIDE];
    uint32_t rows, cols;
    struct method_noise *noise; /* or NULL */
};

void method_rotate(double *x, uint32_t dim)
{
    for (uint32_t step = dim / 2; step > 0; step /= 2) {
        for (uint32_t i = 0; i < dim; i++) {
            if ((i & step) == 0) {
                double a = x[i], b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
        }
    }
    for (uint32_t i = 0; i < dim; i++)
        x[i] /= sqrt((double)dim);
}

double method_round_f16(double x)
{
    int exponent;
    double unit;

    if (x == 0)
        return x;
    frexp(x, &exponent);
    unit = ldexp(1.0, (exponent < -13 ? -13 : exponent) - 11);
    x = nearbyint(x / unit) * unit;
    return x > 65504 ? 65504 : x < -65504 ? -65504 : x;
}

static double rounded(struct method_noise *noise, double x, double share)
{
    return x * (1 + share * (2 * rng_unit(&noise->rng) - 1));
}

/* Sample deviation of n values `stride` apart. Rounding errors are those of squares: they stay when
 * the mean's is taken away. */
static double deviation(struct method_noise *noise, const double *x, uint32_t n, size_t stride)
{
    double mean = 0, squares = 0;

    for (uint32_t i = 0; i < n; i++)
        mean += x[i * stride] / n;
    for (uint32_t i = 0; i < n; i++)
        squares += (x[i * stride] - mean) * (x[i * stride] - mean);
    if (noise != NULL)
        squares += rounded(noise, squares + n * mean * mean, noise->measured) -
                   (squares + n * mean * mean);
    return sqrt(fmax(squares, 0) / (n - 1));
}

static void measure_cols(struct work *w, const double *x)
{
    for (uint32_t c = 0; c < w->cols; c++)
        w->std_col[c] = deviation(w->noise, x + c, w->rows, w->cols);
}

static void measure_rows(struct work *w, const double *x)
{
    for (uint32_t r = 0; r < w->rows; r++)
        w->std_row[r] = deviation(w->noise, x + (size_t)r * w->cols, w->cols, 1);
}

static void apply(struct work *w)
{
    double col[SIDE];

    for (uint32_t c = 0; c < w->cols; c++)
        col[c] = exp(w->log_col[c]);
    for (uint32_t r = 0; r < w->rows; r++) {
        double row = exp(w->log_row[r]);
        for (uint32_t c = 0; c < w->cols; c++)
            w->x[r * w->cols + c] = w->t[r * w->cols + c] / col[c] / row;
    }
}

static double spread(const double *x, uint32_t n)
{
    double low = x[0], high = x[0];

    for (uint32_t i = 1; i < n; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
    }
    return high / fmax(low, 1e-8);
}

static void update(double *log_scale, const double *measured, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double clipped = fmin(fmax(measured[i], 1e-3), 1e3);
        log_scale[i] = fmin(fmax(log_scale[i] + log(clipped), -0.3), 10);
    }
}

static void keep(struct work *w)
{
    memcpy(w->best_col, w->log_col, sizeof(w->best_col));
    memcpy(w->best_row, w->log_row, sizeof(w->best_row));
}

/* METHOD.md, section 2, as published: logarithms, both scales applied before every measurement. */
static void normalise(struct work *w, uint32_t iterations)
{
    double best, now;

    memset(w->log_col, 0, sizeof(w->log_col));
    memset(w->log_row, 0, sizeof(w->log_row));
    measure_cols(w, w->t);
    measure_rows(w, w->t);
    best = spread(w->std_col, w->cols) + spread(w->std_row, w->rows);
    keep(w);
    for (uint32_t i = 0; i < iterations; i++) {
        update(w->log_col, w->std_col, w->cols);
        apply(w);
        measure_rows(w, w->x);
        update(w->log_row, w->std_row, w->rows);
        apply(w);
        measure_rows(w, w->x);
        measure_cols(w, w->x);
        now = spread(w->std_col, w->cols) + spread(w->std_row, w->rows);
        if (now <= best) {
            best = now;
            keep(w);
        }
    }
}

/* METHOD.md, section 3. */
static double find_gain(struct work *w)
{
    double high = 0, low;

    measure_cols(w, w->t);
    measure_rows(w, w->t);
    for (uint32_t i = 0; i < w->cols; i++)
        high = fmax(high, w->std_col[i]);
    for (uint32_t i = 0; i < w->rows; i++)
        high = fmax(high, w->std_row[i]);
    if (high == 0)
        return 1;
    low = high;
    for (uint32_t i = 0; i < w->cols; i++)
        low = w->std_col[i] >= 1e-4 * high ? fmin(low, w->std_col[i]) : low;
    for (uint32_t i = 0; i < w->rows; i++)
        low = w->std_row[i] >= 1e-4 * high ? fmin(low, w->std_row[i]) : low;
    return low;
}

static double clamp(double x, double low, double high)
{
    return fmin(fmax(x, low), high);
}

/* METHOD.md, section 4: the scale of a column that makes up for what the codes changed in it. */
static void correct(const struct work *w, double gain, int is_k, struct method_matrix *m)
{
    for (uint32_t c = 0; c < w->cols; c++) {
        double kept = 0, seen = 0, x;

        for (uint32_t r = 0; r < w->rows; r++) {
            double t = w->t[r * w->cols + c] * gain;
            double p = m->code[r * w->cols + c] * method_round_f16(m->step[r]) +
                       method_round_f16(m->zero[r]);

            kept += t * t;
            seen += is_k ? p * p : t * p;
        }
        if (kept < 0x1p-126 || seen < 0x1p-126)
            continue;
        x = is_k ? sqrt(kept / seen) : kept / seen;
        m->other[c] = clamp(x, 0.7 * m->other[c], 1.5 * m->other[c]);
    }
}

/* Sections 4 and 5. `share` of a row's range is what the codes span. */
static void quantise(struct work *w, double gain, uint32_t bits, double share,
                     struct method_matrix *m)
{
    double qmax = (1 << bits) - 1;

    memcpy(w->log_col, w->best_col, sizeof(w->log_col));
    memcpy(w->log_row, w->best_row, sizeof(w->log_row));
    apply(w);
    for (uint32_t c = 0; c < w->cols; c++)
        m->other[c] = exp(w->best_col[c]);
    for (uint32_t r = 0; r < w->rows; r++) {
        double *x = w->x + (size_t)r * w->cols, low = DBL_MAX, high = -DBL_MAX, step;

        for (uint32_t c = 0; c < w->cols; c++) {
            low = fmin(low, x[c]);
            high = fmax(high, x[c]);
        }
        step = fmax(share * (high - low) / qmax, 1e-10);
        low += (1 - share) / 2 * (high - low);
        for (uint32_t c = 0; c < w->cols; c++) {
            double at = (x[c] - low) / step;
            m->code[r * w->cols + c] = (uint8_t)clamp(nearbyint(at), 0, qmax);
            m->margin[r * w->cols + c] = fabs(at - clamp(floor(at) + 0.5, 0.5, qmax - 0.5));
        }
        m->step[r] = exp(w->best_row[r]) * step * gain;
        m->zero[r] = exp(w->best_row[r]) * low * gain;
    }
}

static void compress_matrix(const struct kvk_shape *shape, struct work *w, uint32_t bits, int is_k,
                            struct method_matrix *m)
{
    int tight = shape->range == KVARN_RANGE_TIGHT;
    double share = !tight || bits == 4 ? 1 : is_k ? 0.75 : 0.7;
    double gain;

    for (uint32_t i = 0; w->noise != NULL && i < w->rows * w->cols; i++)
        w->t[i] = rounded(w->noise, w->t[i], w->noise->element);
    gain = shape->balance == KVARN_BALANCE_SCALE_FREE ? find_gain(w) : 1;
    m->rows = w->rows;
    m->cols = w->cols;
    for (uint32_t i = 0; i < w->rows * w->cols; i++)
        w->t[i] /= gain;
    normalise(w, shape->iterations);
    quantise(w, gain, bits, share, m);
    if (tight)
        correct(w, gain, is_k, m);
}

void method_compress_near(const struct kvk_shape *shape, const double *k, const double *v,
                          struct method_noise *noise, struct method_tile *tile)
{
    struct work *w = calloc(1, sizeof(*w));
    uint32_t dim = shape->dim, group = shape->group;
    double row[SIDE];

    if (w == NULL)
        abort();
    w->noise = noise;
    w->rows = dim;
    w->cols = group;
    for (uint32_t g = 0; g < group; g++) {
        memcpy(row, k + (size_t)g * dim, dim * sizeof(*row));
        if (!shape->k_rotated)
            method_rotate(row, dim);
        for (uint32_t d = 0; d < dim; d++)
            w->t[d * group + g] = row[d];
    }
    compress_matrix(shape, w, shape->bits_k, 1, &tile->k);
    w->rows = group;
    w->cols = dim;
    memcpy(w->t, v, (size_t)group * dim * sizeof(*v));
    for (uint32_t g = 0; g < group && !shape->v_rotated; g++)
        method_rotate(w->t + (size_t)g * dim, dim);
    compress_matrix(shape, w, shape->bits_v, 0, &tile->v);
    free(w);
}

void method_compress(const struct kvk_shape *shape, const double *k, const double *v,
                     struct method_tile *tile)
{
    method_compress_near(shape, k, v, NULL, tile);
}

static double value_at(const struct method_matrix *m, uint32_t r, uint32_t c, int round)
{
    double step = m->step[r], zero = m->zero[r], other = m->other[c];

    if (round) {
        step = method_round_f16(step);
        zero = method_round_f16(zero);
        other = method_round_f16(other);
    }
    return (m->code[r * m->cols + c] * step + zero) * other;
}

void method_reconstruct(const struct kvk_shape *shape, const struct method_tile *tile, int round,
                        double *k, double *v)
{
    uint32_t dim = shape->dim;

    for (uint32_t g = 0; g < shape->group; g++) {
        double *k_row = k + (size_t)g * dim, *v_row = v + (size_t)g * dim;
        for (uint32_t d = 0; d < dim; d++) {
            k_row[d] = value_at(&tile->k, d, g, round);
            v_row[d] = value_at(&tile->v, g, d, round);
        }
        if (!shape->k_rotated)
            method_rotate(k_row, dim);
        if (!shape->v_rotated)
            method_rotate(v_row, dim);
    }
}
