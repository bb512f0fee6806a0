/* kernels/compress_*.c: the reference against double precision, every variant against the
 * reference bit for bit, refusal of non-finite values by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/half.h"
#include "kernels/variants.h"
#include "support/decode.h"
#include "support/method_f64.h"
#include "support/tile_case.h"

enum { SIZE = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CODES = 300000, TILES = 100 }; /* slow builds look for other things */
#else
enum { CODES = 2500000, TILES = 400 };
#endif

static const char *const names[] = {"ref", "avx2", "avx512"};

static uint32_t code_at(const uint8_t *codes, size_t index, uint32_t bits)
{
    return (uint32_t)codes[index * bits / 8] >> (index * bits % 8) & ((1u << bits) - 1);
}

/* Codes that differ; *ties: how many more do on an exact tie, which the rounding of the double
 * decides as well. */
static size_t count_differences(const uint8_t *codes, uint32_t bits, const struct method_matrix *m,
                                size_t *ties)
{
    size_t count = 0;

    *ties = 0;
    for (size_t i = 0; i < (size_t)m->rows * m->cols; i++) {
        if (code_at(codes, i, bits) == m->code[i])
            continue;
        if (m->margin[i] > 1e-10)
            count++;
        else
            ++*ties;
    }
    return count;
}

static double distance(const double *a, const double *b, size_t count)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

struct accuracy {
    size_t codes, wrong, tiles;
    double worst; /* norm-wise, of matrices whose codes are all the same */
    double share; /* the same, relative to what fp16 vectors cost the double result */
};

/* Both against the double result before its vectors are rounded to fp16. Iterates that differ by a
 * factor between u and a, z tie to the last bit (METHOD.md, section 10): the codes are the same,
 * but the vectors are rounded at other places, so only the size of the error can be compared. */
static void note_distance(struct accuracy *sum, const double *got, const double *rounded,
                          const double *exact, size_t count)
{
    double error = distance(got, exact, count), format = distance(rounded, exact, count);

    sum->worst = fmax(sum->worst, error);
    sum->share = fmax(sum->share, error / (format + 1e-6));
}

static void compare_with_method(const struct tile_case *c, struct accuracy *sum)
{
    static struct method_tile expected;
    static double k[SIZE], v[SIZE], k64[SIZE], v64[SIZE], k16[SIZE], v16[SIZE];
    const struct kvk_shape *s = &c->plan.shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);
    size_t count = (size_t)s->dim * s->group, wrong_k, wrong_v, ties_k, ties_v;
    struct tile_run run;

    tile_run_make(c, &kvk_table_ref, &run);
    assert_int_equal(run.compress, KVARN_OK);
    method_compress(s, c->k64, c->v64, &expected);
    wrong_k = count_differences(run.record + at.k_codes, s->bits_k, &expected.k, &ties_k);
    wrong_v = count_differences(run.record + at.v_codes, s->bits_v, &expected.v, &ties_v);
    decode_tile(s, run.record, k, v);
    method_reconstruct(s, &expected, 0, k64, v64);
    method_reconstruct(s, &expected, 1, k16, v16);
    if (wrong_k + ties_k == 0)
        note_distance(sum, k, k16, k64, count);
    if (wrong_v + ties_v == 0)
        note_distance(sum, v, v16, v64, count);
    if (wrong_k + wrong_v > 3)
        printf("  %zu + %zu codes differ: %s\n", wrong_k, wrong_v,
               tile_plan_text(&c->plan, c->seed));
    sum->wrong += wrong_k + wrong_v;
    sum->codes += 2 * count;
    sum->tiles++;
    tile_run_free(&run);
}

/* Rounding decides codes that lie on a boundary: fewer than 1 in 100000 in a run of 2.5
 * million. */
static void codes_agree_with_double(void **state)
{
    static const enum tile_kind kinds[] = {TILE_NORMAL, TILE_OUTLIERS, TILE_OUTLIERS, TILE_OFFSET,
                                           TILE_ZERO_TOKENS};
    struct rng rng = rng_make(tile_seed("compress"));
    struct accuracy sum = {0};

    (void)state;
    while (sum.codes < CODES) {
        struct tile_plan plan = tile_plan_random(&rng);
        struct tile_case *c;

        plan.kind = kinds[rng_below(&rng, 5)];
        c = tile_case_make(&plan, rng_next(&rng));
        compare_with_method(c, &sum);
        tile_case_free(c);
    }
    printf("  %zu of %zu codes differ from float64 (%.1e) in %zu tiles\n"
           "  reconstruction within %.1e, at most %.2f of what fp16 vectors cost float64\n",
           sum.wrong, sum.codes, (double)sum.wrong / (double)sum.codes, sum.tiles, sum.worst,
           sum.share);
    assert_true((double)sum.wrong < 1e-5 * (double)sum.codes + 1);
    assert_true(sum.share < 4);
}

static void every_variant_gives_the_same_bits(void **state)
{
    struct rng rng = rng_make(tile_seed("compress"));

    (void)state;
    for (int turn = 0; turn < TILES; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);
        uint64_t seed = rng_next(&rng);
        struct tile_case *c = tile_case_make(&plan, seed);
        struct tile_run expected, got;

        tile_run_make(c, &kvk_table_ref, &expected);
        if (expected.compress != KVARN_OK || expected.damage != NULL)
            fail_msg("ref: %s: %s", tile_plan_text(&plan, seed), expected.damage);
        for (size_t i = 1; i < 3; i++) {
            size_t rows = tile_case_row(c) * plan.shape.group;

            if (kvk_cpu_table(names[i]) == NULL)
                continue;
            tile_run_make(c, kvk_cpu_table(names[i]), &got);
            if (got.compress != KVARN_OK || got.damage != NULL)
                fail_msg("%s: %s: %s", names[i], tile_plan_text(&plan, seed), got.damage);
            if (memcmp(got.record, expected.record, c->record_bytes) != 0)
                fail_msg("%s: another record: %s", names[i], tile_plan_text(&plan, seed));
            if (memcmp(got.k, expected.k, rows) != 0 || memcmp(got.v, expected.v, rows) != 0)
                fail_msg("%s: other rows: %s", names[i], tile_plan_text(&plan, seed));
            tile_run_free(&got);
        }
        tile_run_free(&expected);
        tile_case_free(c);
    }
}

/* The build of the reference that calls fmaf() and the one with the instruction. */
static void both_builds_of_the_reference_agree(void **state)
{
    struct rng rng = rng_make(tile_seed("compress"));
    struct kvk_table plain = kvk_table_ref;

    (void)state;
    plain.compress = kvk_compress_ref;
    for (int turn = 0; turn < 12; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);
        uint64_t seed = rng_next(&rng);
        struct tile_case *c = tile_case_make(&plan, seed);
        struct tile_run expected, got;

        tile_run_make(c, &kvk_table_ref, &expected);
        tile_run_make(c, &plain, &got);
        if (memcmp(got.record, expected.record, c->record_bytes) != 0)
            fail_msg("another record: %s", tile_plan_text(&plan, seed));
        tile_run_free(&got);
        tile_run_free(&expected);
        tile_case_free(c);
    }
}

/* The worst error of a token relative to its norm, among tokens that are not zero. */
static double worst_token(const struct tile_case *c, const double *got, const double *given)
{
    uint32_t dim = c->plan.shape.dim;
    double worst = 0;

    for (uint32_t g = 0; g < c->plan.shape.group; g++) {
        double norm = 0;

        for (uint32_t d = 0; d < dim; d++)
            norm += fabs(given[(size_t)g * dim + d]);
        if (norm > 0)
            worst = fmax(worst, distance(got + (size_t)g * dim, given + (size_t)g * dim, dim));
    }
    return worst;
}

/* 4 bits, both policies: an all-zero token costs the others nothing, and decodes to nearly zero. */
static void zero_tokens_leave_the_others_alone(void **state)
{
    static double k[SIZE], v[SIZE];
    struct rng rng = rng_make(tile_seed("compress"));

    (void)state;
    for (int turn = 0; turn < 40; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);
        uint64_t seed = rng_next(&rng);
        struct tile_case *c;
        struct tile_run run;

        plan.kind = TILE_ZERO_TOKENS;
        plan.gain = plan.shape.balance == KVARN_BALANCE_PUBLIC ? 1 : plan.gain;
        plan.shape.bits_k = plan.shape.bits_v = 4;
        c = tile_case_make(&plan, seed);
        tile_run_make(c, &kvk_table_ref, &run);
        decode_tile(&plan.shape, run.record, k, v);
        if (worst_token(c, k, c->k64) > 0.25 || worst_token(c, v, c->v64) > 0.25)
            fail_msg("error %g %g: %s", worst_token(c, k, c->k64), worst_token(c, v, c->v64),
                     tile_plan_text(&plan, seed));
        tile_run_free(&run);
        tile_case_free(c);
    }
}

/* Tiles without any spread come back as they are (up to the rounding of the vectors). */
static void constant_and_zero_tiles(void **state)
{
    static double k[SIZE], v[SIZE];
    static const enum tile_kind kinds[] = {TILE_CONSTANT, TILE_ZERO, TILE_ONE};
    struct rng rng = rng_make(tile_seed("compress"));

    (void)state;
    for (int turn = 0; turn < 60; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);
        uint64_t seed = rng_next(&rng);
        size_t count = (size_t)plan.shape.dim * plan.shape.group;
        double limit = 2e-3, limit_k, limit_v;
        struct tile_case *c;
        struct tile_run run;

        plan.kind = kinds[turn % 3];
        if (plan.kind == TILE_ONE) /* one loud element among zeros: coded, not exact */
            limit = 0.5;
        /* METHOD.md, section 10: the tight range lifts the zeros of such a row by 0.15 of it */
        limit_k = plan.shape.range == KVARN_RANGE_TIGHT && plan.shape.bits_k == 2 ? 2.5 : limit;
        limit_v = plan.shape.range == KVARN_RANGE_TIGHT && plan.shape.bits_v == 2 ? 2.5 : limit;
        c = tile_case_make(&plan, seed);
        tile_run_make(c, &kvk_table_ref, &run);
        decode_tile(&plan.shape, run.record, k, v);
        if (distance(k, c->k64, count) > limit_k || distance(v, c->v64, count) > limit_v)
            fail_msg("error %g %g: %s", distance(k, c->k64, count), distance(v, c->v64, count),
                     tile_plan_text(&plan, seed));
        tile_run_free(&run);
        tile_case_free(c);
    }
}

static void check_fault(const struct tile_case *c, char tensor, uint32_t g, uint32_t d)
{
    for (size_t i = 0; i < 3; i++) {
        struct tile_run run;

        if (kvk_cpu_table(names[i]) == NULL)
            continue;
        tile_run_make(c, kvk_cpu_table(names[i]), &run);
        if (run.compress != KVARN_NON_FINITE || run.fault.tensor != tensor ||
            run.fault.token != g || run.fault.channel != d || run.damage != NULL)
            fail_msg("%s: status %d, '%c' token %u channel %u instead of '%c' %u %u: %s", names[i],
                     run.compress, run.fault.tensor, run.fault.token, run.fault.channel, tensor, g,
                     d, tile_plan_text(&c->plan, c->seed));
        tile_run_free(&run);
    }
}

/* Corners and random places, in K, in V, in both: the first in token order, K before V. */
static void non_finite_values_are_named(void **state)
{
    static const uint16_t bad[2][4] = {{0x7c00, 0xfc00, 0x7e00, 0x7c01},
                                       {0x7f80, 0xff80, 0x7fc0, 0x7f81}};
    struct rng rng = rng_make(tile_seed("compress"));

    (void)state;
    for (int turn = 0; turn < 160; turn++) {
        struct tile_plan plan = tile_plan_random(&rng);
        uint32_t last_g = plan.shape.group - 1u, last_d = plan.shape.dim - 1u;
        uint32_t g = turn & 1 ? last_g : 0, d = turn & 2 ? last_d : 0;
        int in_v = turn >> 2 & 1, in_both = turn >> 3 & 1;
        uint16_t value = bad[plan.shape.dtype == KVARN_BF16][rng_below(&rng, 4)];
        struct tile_case *c;

        plan.shape.iterations = 1;
        c = tile_case_make(&plan, rng_next(&rng));
        if (turn >> 4 & 1) {
            g = rng_below(&rng, last_g + 1);
            d = rng_below(&rng, last_d + 1);
        }
        if (in_v || in_both)
            kvk_u16_store(c->v + g * c->plan.v_stride + 2 * (size_t)d, value);
        if (!in_v)
            kvk_u16_store(c->k + g * c->plan.k_stride + 2 * (size_t)d, value);
        if (!in_v && g < last_g)
            kvk_u16_store(c->k + last_g * c->plan.k_stride, value); /* a later token */
        if (!in_v && d < last_d)
            kvk_u16_store(c->k + g * c->plan.k_stride + 2 * (size_t)last_d, value);
        check_fault(c, in_v ? 'v' : 'k', g, d);
        tile_case_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_agree_with_double),
        cmocka_unit_test(every_variant_gives_the_same_bits),
        cmocka_unit_test(both_builds_of_the_reference_agree),
        cmocka_unit_test(zero_tokens_leave_the_others_alone),
        cmocka_unit_test(constant_and_zero_tiles),
        cmocka_unit_test(non_finite_values_are_named),
    };
    return cmocka_run_group_tests_name("compress", tests, NULL, NULL);
}
