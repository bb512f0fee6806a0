/* client/demo/capture: the two conversions over every half and every boundary between two, and
 * captures that are sound, damaged or do not fit together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <unistd.h>

#include "client/demo/capture.h"
#include "client/demo/safetensors.h"

/* ---- halves */

/* The definition, by ldexp. */
static double half_value(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                  : exponent == 0 ? ldexp(mantissa, -24)
                                  : ldexp(1024 + mantissa, exponent - 25);

    return half & 0x8000 ? -size : size;
}

static void every_half_is_exact_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        uint16_t half = (uint16_t)code;
        float value = demo_half(half);
        double want = half_value(half);

        if (isnan(want)) {
            assert_true(isnan(value));
            assert_int_equal(demo_to_half(value), (half & 0x8000) | 0x7e00);
            continue;
        }
        if ((double)value != want || (signbit(value) != 0) != (half >= 0x8000) ||
            demo_to_half(value) != half)
            fail_msg("%04x: %a, back %04x", half, (double)value, demo_to_half(value));
    }
}

/* Between two neighbours: the middle goes to the even one, its own neighbours to the nearer. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t half = 0; half < 0x7c00; half++) {
            double low = half_value((uint16_t)half),
                   up = half + 1 < 0x7c00 ? half_value((uint16_t)(half + 1)) : 65536.0;
            float middle = (float)((low + up) / 2), side = sign ? -1.0f : 1.0f;
            uint32_t even = half + (half & 1u);

            if (demo_to_half(side * middle) != (sign | even) ||
                demo_to_half(side * nextafterf(middle, 0.0f)) != (sign | half) ||
                demo_to_half(side * nextafterf(middle, INFINITY)) != (sign | (half + 1)))
                fail_msg("above %04x", half);
        }
    }
    assert_int_equal(demo_to_half(3.4e38f), 0x7c00);
    assert_int_equal(demo_to_half(-INFINITY), 0xfc00);
    assert_int_equal(demo_to_half(1e-45f), 0);
    assert_int_equal(demo_to_half(-0.0f), 0x8000);
}

/* ---- captures */

struct made {
    size_t layers, tokens, k[3], v[3], q[3], v1; /* v1: tokens of layer 1's V */
    const char *dtype;                           /* of K */
    const char *without;                         /* a tensor that is left out */
};

static const struct made good = {.layers = 2,
                                 .tokens = 5,
                                 .k = {5, 2, 4},
                                 .v = {5, 2, 4},
                                 .q = {3, 4, 4},
                                 .v1 = 5,
                                 .dtype = "F16"};

static size_t add(char *header, size_t room, const struct made *made, const char *name,
                  const char *dtype, const size_t *shape, size_t rank, size_t *at)
{
    size_t bytes = strcmp(dtype, "I32") == 0 || strcmp(dtype, "F32") == 0 ? 4 : 2;
    char list[64] = "";

    if (made->without != NULL && strcmp(made->without, name) == 0)
        return 0;
    for (size_t i = 0; i < rank; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%zu", i ? "," : "", shape[i]);
        bytes *= shape[i];
    }
    *at += bytes;
    return (size_t)snprintf(header, room,
                            ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                            name, dtype, list, *at - bytes, *at);
}

/* Byte i of the data is i mod 251. Opens what it wrote. */
static int open_made(const struct made *made, struct demo_capture *capture, char why[256])
{
    char path[] = "/tmp/kvarn-capture-XXXXXX", header[2048] = "{\"__metadata__\":{\"model\":\"m\"}";
    size_t used = strlen(header), at = 0;
    uint64_t bytes;
    int fd = mkstemp(path), result;
    FILE *file;

    assert_true(fd >= 0);
    used += add(header + used, sizeof header - used, made, "tokens", "I32", &made->tokens, 1, &at);
    for (size_t layer = 0; layer < made->layers; layer++) {
        size_t v[3] = {layer == 1 ? made->v1 : made->v[0], made->v[1], made->v[2]};
        char name[3][32];

        for (int i = 0; i < 3; i++)
            snprintf(name[i], sizeof name[i], "layer.%zu.%c", layer, "kvq"[i]);
        used +=
            add(header + used, sizeof header - used, made, name[0], made->dtype, made->k, 3, &at);
        used += add(header + used, sizeof header - used, made, name[1], "F16", v, 3, &at);
        used += add(header + used, sizeof header - used, made, name[2], "F16", made->q, 3, &at);
    }
    used += (size_t)snprintf(header + used, sizeof header - used, "}%*s", (int)(7 - used % 8), "");
    assert_int_equal(used % 8, 0);
    bytes = used;
    file = fdopen(fd, "wb");
    assert_int_equal(fwrite(&bytes, sizeof bytes, 1, file), 1);
    assert_int_equal(fwrite(header, used, 1, file), 1);
    for (size_t i = 0; i < at; i++)
        fputc((int)(i % 251), file);
    assert_int_equal(fclose(file), 0);
    result = demo_capture_open(capture, path, why, 256);
    unlink(path);
    return result;
}

static void assert_bytes(const void *bytes, size_t from, size_t count)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < count; i++)
        assert_int_equal(at[i], (from + i) % 251);
}

static void layers_are_laid_end_to_end(void **state)
{
    const size_t tokens = 5 * 4, kv = 5 * 2 * 4 * 2, q = 3 * 4 * 4 * 2;
    struct demo_capture c;
    char why[256];

    (void)state;
    assert_int_equal(open_made(&good, &c, why), 0);
    assert_string_equal(c.model, "m");
    assert_int_equal(c.layers, 2);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.q_heads, 4);
    assert_int_equal(c.dim, 4);
    assert_int_equal(c.tokens, 5);
    assert_int_equal(c.positions, 3);
    assert_bytes(c.token_ids, 0, tokens);
    assert_bytes(c.k, tokens, kv);
    assert_bytes(c.v, tokens + kv, kv);
    assert_bytes(c.q, tokens + 2 * kv, q);
    assert_bytes((uint8_t *)c.k + kv, tokens + 2 * kv + q, kv);
    assert_bytes((uint8_t *)c.v + kv, tokens + 3 * kv + q, kv);
    assert_bytes((uint8_t *)c.q + q, tokens + 4 * kv + q, q);
    demo_capture_close(&c);
    assert_null(c.k);
    demo_capture_close(&c); /* twice is no harm */
}

static void refuses(struct made made, const char *says)
{
    struct demo_capture capture;
    char why[256] = "";

    if (open_made(&made, &capture, why) != -1 || strstr(why, says) == NULL)
        fail_msg("expected '%s', got '%s'", says, why);
    assert_null(capture.file);
    assert_null(capture.k);
}

static void what_does_not_fit_together_is_refused(void **state)
{
    struct made m;

    (void)state;
#define WITH(field, value, says)                                                                   \
    m = good, m.field = (value);                                                                   \
    refuses(m, says)
    WITH(without, "tokens", "tokens");
    WITH(without, "layer.0.k", "layer.0.k");
    WITH(without, "layer.0.q", "layer.0.q");
    WITH(without, "layer.0.v", "layer.0.v");
    WITH(without, "layer.1.q", "layer.1.q");
    WITH(dtype, "F32", "expected F16");
    WITH(dtype, "BF16", "expected F16");
    WITH(layers, 0, "layer.0.k");
    WITH(tokens, 6, "do not fit together");
    WITH(k[0], 4, "do not fit together");
    WITH(k[1], 0, "do not fit together");
    WITH(k[1], 3, "do not fit together"); /* 4 query heads */
    WITH(k[2], 8, "do not fit together");
    WITH(q[0], 5, "do not fit together"); /* nothing would be left to prefill */
    WITH(q[1], 128, "do not fit together");
    WITH(q[2], 2, "do not fit together");
    WITH(v[2], 2, "layer.0.v has another shape");
    WITH(v[1], 4, "layer.0.v has another shape");
    WITH(v1, 4, "layer.1.v has another shape");
#undef WITH
    m = good; /* the same bytes in another shape */
    m.v[0] = 2;
    m.v[1] = 5;
    refuses(m, "layer.0.v has another shape");
}

static void no_file_no_capture(void **state)
{
    struct demo_capture capture;
    char why[256] = "";

    (void)state;
    assert_int_equal(demo_capture_open(&capture, "/no/such/file", why, sizeof why), -1);
    assert_string_equal(why, "No such file or directory"); /* the path is the caller's to say */
    demo_capture_close(&capture);
}

/* The captures that come with the program. */
static void the_quickstarts_captures_open(void **state)
{
    static const char *const paths[] = {"tests/data/capture_smollm2_135m.safetensors",
                                        "tests/data/capture_gemma3_270m.safetensors"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct demo_capture c;
        char why[256];

        if (demo_capture_open(&c, paths[i], why, sizeof why) != 0)
            fail_msg("%s: %s", paths[i], why);
        for (size_t at = 0; at < c.layers * c.tokens * c.kv_heads * c.dim; at++)
            assert_true(isfinite(demo_half(c.k[at])) && isfinite(demo_half(c.v[at])));
        demo_capture_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_exact_and_comes_back),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(layers_are_laid_end_to_end),
        cmocka_unit_test(what_does_not_fit_together_is_refused),
        cmocka_unit_test(no_file_no_capture),
        cmocka_unit_test(the_quickstarts_captures_open),
    };
    return cmocka_run_group_tests_name("capture", tests, NULL, NULL);
}
