/* KIVI and plain round-to-nearest; see baseline.h. */
#include "client/demo/baseline.h"

#include <math.h>

#include "client/demo/capture.h"

enum { KIVI_GROUP = 128 };

const char *demo_method_name(enum demo_method method)
{
    return method == DEMO_KIVI ? "KIVI g128" : "RTN";
}

static float through_half(float value)
{
    return demo_half(demo_to_half(value));
}

/* One group of `count` values, `stride` apart. */
static void quantise_group(float *x, size_t count, size_t stride, uint32_t bits)
{
    float levels = (float)((1u << bits) - 1), low = x[0], high = x[0], step;

    for (size_t i = 1; i < count; i++) {
        float value = x[i * stride];

        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    step = fmaxf((high - low) / levels, 1e-10f);
    for (size_t i = 0; i < count; i++) {
        float code = nearbyintf((x[i * stride] - low) / step);

        code = fminf(fmaxf(code, 0.0f), levels);
        x[i * stride] = code * through_half(step) + through_half(low);
    }
}

/* One step and minimum per token and head, over groups of channels. */
static void per_token(float *x, size_t first, size_t count, uint32_t heads, uint32_t dim,
                      uint32_t group, uint32_t bits)
{
    for (size_t t = first; t < first + count; t++) {
        for (uint32_t c = 0; c < heads * dim; c += group)
            quantise_group(x + t * heads * dim + c, group, 1, bits);
    }
}

static void per_channel(float *x, size_t first, size_t count, uint32_t heads, uint32_t dim,
                        uint32_t bits)
{
    size_t width = (size_t)heads * dim;

    for (size_t t = first; t < first + count; t += KIVI_GROUP) {
        size_t left = first + count - t;

        for (size_t c = 0; c < width; c++)
            quantise_group(x + t * width + c, left < KIVI_GROUP ? left : KIVI_GROUP, width, bits);
    }
}

static uint32_t channel_group(uint32_t dim)
{
    return dim < KIVI_GROUP ? dim : KIVI_GROUP;
}

void demo_baseline_apply(enum demo_method method, float *k, float *v, size_t first, size_t count,
                         uint32_t heads, uint32_t dim, uint32_t bits_k, uint32_t bits_v)
{
    if (method == DEMO_KIVI) {
        per_channel(k, first, count, heads, dim, bits_k);
        per_token(v, first, count, heads, dim, channel_group(dim), bits_v);
    } else {
        per_token(k, first, count, heads, dim, dim, bits_k);
        per_token(v, first, count, heads, dim, dim, bits_v);
    }
}

double demo_baseline_bytes(enum demo_method method, uint32_t dim, uint32_t bits_k, uint32_t bits_v)
{
    double codes = (double)dim * (bits_k + bits_v) / 8.0;

    if (method == DEMO_KIVI)
        return codes + 4.0 * dim / KIVI_GROUP + 4.0 * dim / channel_group(dim);
    return codes + 8.0;
}
