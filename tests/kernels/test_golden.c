/* The committed golden vectors: support/method_f64.c and every variant against the records of the
 * numpy reference (tests/data/README.md says how to compare). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "client/demo/safetensors.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "support/decode.h"
#include "support/method_f64.h"

enum { SIZE = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM, RECORD = SIZE + 6 * 384 };

static const char *const names[] = {"ref", "avx2", "avx512"};
static _Alignas(64) uint8_t scratch[SIZE * 4 + 65536];

struct golden {
    struct kvk_shape shape;
    const uint8_t *k, *v, *record;
    const float *k_hat, *v_hat; /* NULL when the file has none */
    int k_floats, v_floats;     /* vectors may carry another common factor */
    char name[96];
};

static const void *find(const struct demo_st_file *file, const char *name)
{
    struct demo_st_tensor tensor;
    struct demo_st_error error;

    return demo_st_find(file, name, &tensor, &error) ? tensor.data : NULL;
}

/* Is it a whole entry of the comma-separated list? */
static int floats(const struct demo_st_file *file, const char *tile, const char *policy,
                  const char *side)
{
    const char *list = demo_st_metadata(file, "floating");
    char name[64];
    size_t count = (size_t)snprintf(name, sizeof(name), "%s.%s.%s", tile, policy, side);

    while (list != NULL && *list != '\0') {
        size_t entry = strcspn(list, ",");

        if (entry == count && memcmp(list, name, count) == 0)
            return 1;
        list += entry + (list[entry] == ',');
    }
    return 0;
}

static int golden_find(const struct demo_st_file *file, const char *tile, struct golden *g)
{
    const struct kvk_shape *s = &g->shape;
    const char *policy = s->range == KVARN_RANGE_TIGHT        ? "tight"
                         : s->balance == KVARN_BALANCE_PUBLIC ? "kvarn"
                                                              : "scalefree";
    char name[128];

    snprintf(g->name, sizeof(g->name), "%s.%s_k%dv%d_g%d%s", tile, policy, s->bits_k, s->bits_v,
             s->group, s->k_rotated ? ".k_rotated" : "");
    snprintf(name, sizeof(name), "%s.record", g->name);
    g->record = find(file, name);
    snprintf(name, sizeof(name), "%s.k_hat", g->name);
    g->k_hat = find(file, name);
    snprintf(name, sizeof(name), "%s.v_hat", g->name);
    g->v_hat = find(file, name);
    snprintf(name, sizeof(name), "%s.k", tile);
    g->k = find(file, name);
    snprintf(name, sizeof(name), "%s.v", tile);
    g->v = find(file, name);
    g->k_floats = floats(file, tile, policy, s->k_rotated ? "k_rotated" : "k");
    g->v_floats = floats(file, tile, policy, "v");
    return g->record != NULL;
}

static double vector_unit(double x)
{
    int exponent;

    frexp(x, &exponent);
    return ldexp(1.0, (exponent < -13 ? -13 : exponent) - 11);
}

static void compare_vector(const struct golden *g, const uint8_t *got, size_t at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        double a = decode_half(kvk_u16_load(got + at + 2 * (size_t)i), KVARN_F16);
        double b = decode_half(kvk_u16_load(g->record + at + 2 * (size_t)i), KVARN_F16);

        if (fabs(a - b) > 1.01 * vector_unit(b))
            fail_msg("%s D=%d: vector at %zu, element %u: %g, golden %g", g->name, g->shape.dim, at,
                     i, a, b);
    }
}

static void compare_record(const struct golden *g, const uint8_t *got, const char *who)
{
    const struct kvk_shape *s = &g->shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);

    if (memcmp(got + at.k_codes, g->record + at.k_codes, at.k_step - at.k_codes) != 0)
        fail_msg("%s D=%d: %s: other K codes", g->name, s->dim, who);
    if (memcmp(got + at.v_codes, g->record + at.v_codes, at.v_channel - at.v_codes) != 0)
        fail_msg("%s D=%d: %s: other V codes", g->name, s->dim, who);
    if (!g->k_floats) {
        compare_vector(g, got, at.k_step, s->dim);
        compare_vector(g, got, at.k_zero, s->dim);
        compare_vector(g, got, at.k_token, s->group);
    }
    if (!g->v_floats) {
        compare_vector(g, got, at.v_channel, s->dim);
        compare_vector(g, got, at.v_step, s->group);
        compare_vector(g, got, at.v_zero, s->group);
    }
}

static void compare_rows(const struct golden *g, const double *got, const float *expected,
                         double limit)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < (size_t)g->shape.dim * g->shape.group; i++) {
        difference += (got[i] - (double)expected[i]) * (got[i] - (double)expected[i]);
        norm += (double)expected[i] * (double)expected[i];
    }
    if (sqrt(difference / norm) > limit)
        fail_msg("%s D=%d: reconstruction off by %g", g->name, g->shape.dim,
                 sqrt(difference / norm));
}

static void widen(const struct golden *g, const uint8_t *rows, double *values)
{
    for (size_t i = 0; i < (size_t)g->shape.dim * g->shape.group; i++)
        values[i] = decode_half(kvk_u16_load(rows + 2 * i), g->shape.dtype);
}

static void check_method(const struct golden *g)
{
    static struct method_tile tile;
    static double k[SIZE], v[SIZE];
    const struct kvk_shape *s = &g->shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);
    uint32_t per_byte_k = 8u / s->bits_k, per_byte_v = 8u / s->bits_v;

    widen(g, g->k, k);
    widen(g, g->v, v);
    method_compress(s, k, v, &tile);
    for (size_t i = 0; i < (size_t)s->dim * s->group; i++) {
        uint32_t kc = (uint32_t)g->record[at.k_codes + i / per_byte_k];
        uint32_t vc = (uint32_t)g->record[at.v_codes + i / per_byte_v];

        assert_int_equal(tile.k.code[i],
                         kc >> i % per_byte_k * s->bits_k & ((1u << s->bits_k) - 1));
        assert_int_equal(tile.v.code[i],
                         vc >> i % per_byte_v * s->bits_v & ((1u << s->bits_v) - 1));
    }
    method_reconstruct(s, &tile, 1, k, v);
    if (g->k_hat != NULL)
        compare_rows(g, k, g->k_hat, 1e-3);
    if (g->v_hat != NULL)
        compare_rows(g, v, g->v_hat, 1e-3);
}

static void check_variants(const struct golden *g)
{
    static uint8_t record[RECORD];
    static double k[SIZE], v[SIZE];
    size_t row = 2 * (size_t)g->shape.dim;

    for (size_t i = 0; i < 3; i++) {
        const struct kvk_table *table = kvk_cpu_table(names[i]);
        struct kvk_compress op = {.shape = g->shape,
                                  .k = g->k,
                                  .v = g->v,
                                  .k_token_stride_bytes = row,
                                  .v_token_stride_bytes = row,
                                  .record = record,
                                  .scratch = scratch};

        if (table == NULL)
            continue;
        assert_int_equal(table->compress(&op), KVARN_OK);
        compare_record(g, record, names[i]);
        decode_tile(&g->shape, record, k, v);
        if (g->k_hat != NULL)
            compare_rows(g, k, g->k_hat, 1e-3);
        if (g->v_hat != NULL)
            compare_rows(g, v, g->v_hat, 1e-3);
    }
}

/* The decoder alone, on the golden record itself: rounding to 16 bits is all that may be lost. */
static void check_decoder(const struct golden *g)
{
    static uint8_t k16[2 * SIZE], v16[2 * SIZE];
    static double k[SIZE], v[SIZE];
    size_t row = 2 * (size_t)g->shape.dim;
    struct kvk_decompress op = {.shape = g->shape,
                                .record = g->record,
                                .k = k16,
                                .v = v16,
                                .k_token_stride_bytes = row,
                                .v_token_stride_bytes = row,
                                .scratch = scratch};

    if (g->k_hat == NULL || g->v_hat == NULL)
        return;
    assert_int_equal(kvk_table_ref.decompress(&op), KVARN_OK);
    widen(g, k16, k);
    widen(g, v16, v);
    compare_rows(g, k, g->k_hat, 3e-4);
    compare_rows(g, v, g->v_hat, 3e-4);
}

/* Every record of one family in the file: presets of that balance and range. */
static size_t check_family(const struct demo_st_file *file, struct kvk_shape family)
{
    static const char *const tiles[] = {"plain", "hard", "bf16"};
    static const uint8_t pairs[3][2] = {{2, 2}, {4, 2}, {4, 4}};
    size_t count = 0;

    for (size_t i = 0; i < 3 * 3 * 2; i++) {
        struct golden g = {.shape = family};

        g.shape.bits_k = pairs[i / 3 % 3][0];
        g.shape.bits_v = pairs[i / 3 % 3][1];
        g.shape.dtype = i % 3 == 2 ? KVARN_BF16 : KVARN_F16;
        g.shape.k_rotated = (uint8_t)(i / 9);
        if (!golden_find(file, tiles[i % 3], &g))
            continue;
        check_method(&g);
        check_variants(&g);
        check_decoder(&g);
        count++;
    }
    return count;
}

static size_t check_file(const char *kind, uint16_t dim, uint16_t group, kvarn_range range)
{
    struct kvk_shape family = {
        .dim = dim, .group = group, .range = (uint8_t)range, .iterations = 8};
    struct demo_st_error error;
    struct demo_st_file *file;
    char path[96];
    size_t count;

    snprintf(path, sizeof(path), "tests/data/golden_%sd%d_g%d.safetensors", kind, dim, group);
    file = demo_st_open(path, &error);
    if (file == NULL)
        fail_msg("%s: %s", path, error.text);
    family.balance = KVARN_BALANCE_SCALE_FREE;
    count = check_family(file, family);
    family.balance = KVARN_BALANCE_PUBLIC;
    if (range == KVARN_RANGE_MINMAX)
        count += check_family(file, family);
    demo_st_close(file);
    return count;
}

static void golden_records(void **state)
{
    static const uint16_t dims[] = {64, 128, 256}, groups[] = {64, 128};
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < 6; i++)
        count += check_file("", dims[i / 2], groups[i % 2], KVARN_RANGE_MINMAX);
    printf("  %zu golden records\n", count);
    assert_true(count >= 6 * 12);
}

/* The tight range, with K rotated and K as it comes. */
static void golden_tight_records(void **state)
{
    size_t count;

    (void)state;
    count = check_file("tight_", 64, 128, KVARN_RANGE_TIGHT);
    count += check_file("tight_", 128, 128, KVARN_RANGE_TIGHT);
    count += check_file("tight_", 256, 64, KVARN_RANGE_TIGHT);
    printf("  %zu golden records\n", count);
    assert_int_equal(count, 3 * 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_records),
                                       cmocka_unit_test(golden_tight_records)};

    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
