/* kernels/tight.h, through compress of every variant: what the tight range keeps, where it clamps,
 * and where the correction of a column stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/tight.h"
#include "support/decode.h"
#include "support/method_f64.h"
#include "support/tile_case.h"

enum { SIZE = KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM };

static const char *const names[] = {"ref", "avx2", "avx512"};
static double k[SIZE], v[SIZE];

static struct tile_plan tight_plan(uint16_t dim, uint16_t group, uint8_t bits)
{
    return (struct tile_plan){.shape = {dim, group, bits, bits, KVARN_F16, KVARN_BALANCE_SCALE_FREE,
                                        KVARN_RANGE_TIGHT, 0, 1, 8},
                              .kind = TILE_OUTLIERS,
                              .gain = 1};
}

static double dot(const double *a, const double *b, size_t count, size_t stride)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += a[i * stride] * b[i * stride];
    return sum;
}

/* A case's record with the tight range and with the whole one. */
struct pair {
    struct tile_run tight, whole;
};

static struct pair pair_make(struct tile_case *c, const struct kvk_table *table)
{
    struct pair p;

    c->plan.shape.range = KVARN_RANGE_TIGHT;
    tile_run_make(c, table, &p.tight);
    c->plan.shape.range = KVARN_RANGE_MINMAX;
    tile_run_make(c, table, &p.whole);
    c->plan.shape.range = KVARN_RANGE_TIGHT;
    assert_int_equal(p.tight.compress, KVARN_OK);
    assert_int_equal(p.whole.compress, KVARN_OK);
    return p;
}

static void pair_free(struct pair *p)
{
    tile_run_free(&p->tight);
    tile_run_free(&p->whole);
}

/* By what element i of the vector at `place` was corrected: balancing does not know of ranges, so
 * the other record has the balanced scale. */
static double correction(const struct pair *p, size_t place, size_t i)
{
    return decode_half(kvk_u16_load(p->tight.record + place + 2 * i), KVARN_F16) /
           decode_half(kvk_u16_load(p->whole.record + place + 2 * i), KVARN_F16);
}

static bool is_limit(double x)
{
    return fabs(x - (double)KVK_TIGHT_LOW) < 1e-3 || fabs(x - (double)KVK_TIGHT_HIGH) < 1e-3;
}

/* Tokens and channels of one tile that are not kept although their scale is at no limit; *limited:
 * how many are at one. fp16 rounds a scale by 5e-4 at most. */
static size_t count_lost(const struct tile_case *c, const struct pair *p, size_t *limited)
{
    const struct kvk_shape *s = &c->plan.shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);
    size_t lost = 0, dim = s->dim;

    decode_tile(s, p->tight.record, k, v);
    for (size_t g = 0; g < s->group; g++) {
        double given = dot(c->k64 + g * dim, c->k64 + g * dim, dim, 1);
        double got = dot(k + g * dim, k + g * dim, dim, 1);
        bool limit = is_limit(correction(p, at.k_token, g));

        *limited += limit;
        lost += !limit && !(fabs(sqrt(got / given) - 1) < 6e-4);
    }
    for (size_t d = 0; d < dim; d++) {
        double given = dot(c->v64 + d, c->v64 + d, s->group, dim);
        double got = dot(c->v64 + d, v + d, s->group, dim);
        bool limit = is_limit(correction(p, at.v_channel, d));

        *limited += limit;
        lost += !limit && !(fabs(got / given - 1) < 6e-4);
    }
    return lost;
}

/* What the correction is for, in the tile that is read back: every key has its length, and every
 * channel of V its product with what was given. */
static void lengths_and_products_are_kept(void **state)
{
    static const uint16_t dims[] = {64, 128, 256}, groups[] = {64, 128};
    size_t limited = 0, lost, all = 0;

    (void)state;
    for (size_t i = 0; i < 3 * 2 * 2 * 3; i++) {
        struct tile_plan plan =
            tight_plan(dims[i % 3], groups[i / 3 % 2], (uint8_t)(i / 6 % 2 ? 4 : 2));
        struct tile_case *c;
        struct pair p;

        if (kvk_cpu_table(names[i / 12]) == NULL)
            continue;
        c = tile_case_make(&plan, 77 + i);
        p = pair_make(c, kvk_cpu_table(names[i / 12]));
        lost = count_lost(c, &p, &limited);
        if (lost > 0)
            fail_msg("%s: %zu: %s", names[i / 12], lost, tile_plan_text(&plan, c->seed));
        all += (size_t)plan.shape.dim + plan.shape.group;
        pair_free(&p);
        tile_case_free(c);
    }
    printf("  %zu of %zu scales at a limit\n", limited, all);
    assert_true(limited < all / 50);
}

static uint32_t code_at(const uint8_t *codes, size_t index, uint32_t bits)
{
    return (uint32_t)codes[index * bits / 8] >> (index * bits % 8) & ((1u << bits) - 1);
}

/* Rows of V that are ramps: the codes span the middle share of a row, and what lies outside has the
 * code of its end. One step is share * span / 3, and a code reaches half a step to both sides. */
static void ends_are_clamped(void **state)
{
    struct tile_plan plan = tight_plan(128, 128, 2);
    struct tile_case *c = tile_case_make(&plan, 1);
    struct kvk_layout at = kvk_layout_of(128, 128, 2, 2);
    const double share = (double)kvk_tight_share(1, 2), first = (1 - share) / 2 + share / 6;

    (void)state;
    for (size_t g = 0; g < 128; g++) {
        for (size_t d = 0; d < 128; d++)
            kvk_u16_store(c->v + g * c->plan.v_stride + 2 * d,
                          kvk_f16_from_f32((float)(int)((d * 37 + g) % 128) - 64.0f));
    }
    for (size_t i = 0; i < 3; i++) {
        struct tile_run run;

        if (kvk_cpu_table(names[i]) == NULL)
            continue;
        tile_run_make(c, kvk_cpu_table(names[i]), &run);
        assert_int_equal(run.compress, KVARN_OK);
        for (size_t g = 0; g < 128; g++) {
            for (size_t d = 0; d < 128; d++) {
                double part = (double)((d * 37 + g) % 128) / 127;
                uint32_t code = code_at(run.record + at.v_codes, g * 128 + d, 2);
                uint32_t expected = part < first ? 0 : part < 0.5 ? 1 : part < 1 - first ? 2 : 3;

                /* columns are alike, so balancing hardly moves a value: only borders may change */
                if (code != expected && fabs(part - first) > 0.01 && fabs(part - 0.5) > 0.01 &&
                    fabs(part - 1 + first) > 0.01)
                    fail_msg("%s: row %zu, %g of its range has code %u", names[i], g, part, code);
            }
        }
        tile_run_free(&run);
    }
    tile_case_free(c);
}

static void extremes(const struct tile_case *c, const struct pair *p, double *least, double *most)
{
    const struct kvk_shape *s = &c->plan.shape;
    struct kvk_layout at = kvk_layout_of(s->dim, s->group, s->bits_k, s->bits_v);

    *least = INFINITY;
    *most = 0;
    for (size_t i = 0; i < (size_t)s->group + s->dim; i++) {
        double x =
            i < s->group ? correction(p, at.k_token, i) : correction(p, at.v_channel, i - s->group);

        *least = fmin(*least, x);
        *most = fmax(*most, x);
    }
}

/* Scales move within their limits whatever the tile is, stay where they are when there is nothing
 * to go by, and do end at a limit in a tile that asks for more: a key too faint for any code but
 * those of its neighbours would have to shrink further. */
static void corrections_have_limits(void **state)
{
    static const struct {
        enum tile_kind kind;
        uint8_t dtype;
        int moves;
    } cases[] = {
        {TILE_NORMAL, KVARN_F16, 1}, {TILE_ZERO_TOKENS, KVARN_F16, 1},
        {TILE_ZERO, KVARN_F16, 0},   {TILE_SUBNORMAL, KVARN_BF16, 0},
        {TILE_ONE, KVARN_F16, 1},    {TILE_LARGE, KVARN_BF16, 1},
    };
    double lowest = 1, highest = 1;

    (void)state;
    for (size_t i = 0; i < 3 * 6; i++) {
        struct tile_plan plan = tight_plan(128, 128, 2);
        struct tile_case *c;
        struct pair p;
        double least, most;

        if (kvk_cpu_table(names[i / 6]) == NULL)
            continue;
        plan.kind = cases[i % 6].kind;
        plan.shape.dtype = cases[i % 6].dtype;
        c = tile_case_make(&plan, 5 + i % 6);
        for (size_t d = 0; i % 6 == 0 && d < 128; d++)
            kvk_u16_store(c->k + 40 * c->plan.k_stride + 2 * d, (uint16_t)(d % 3));
        p = pair_make(c, kvk_cpu_table(names[i / 6]));
        extremes(c, &p, &least, &most);
        if (!(least >= (double)KVK_TIGHT_LOW - 1e-3 && most <= (double)KVK_TIGHT_HIGH + 1e-3) ||
            (cases[i % 6].moves != 0) != (least != 1 || most != 1))
            fail_msg("%s: scales times %g to %g: %s", names[i / 6], least, most,
                     tile_plan_text(&plan, c->seed));
        lowest = fmin(lowest, least);
        highest = fmax(highest, most);
        pair_free(&p);
        tile_case_free(c);
    }
    assert_true(is_limit(lowest));
    assert_true(is_limit(highest));
}

/* Where the share is 1 the codes, steps and zeros are those of the whole range. */
static void a_whole_share_changes_no_code(void **state)
{
    struct tile_plan plan = tight_plan(128, 64, 4);
    struct kvk_layout at = kvk_layout_of(128, 64, 4, 4);
    struct tile_case *c = tile_case_make(&plan, 3);
    struct pair p = pair_make(c, &kvk_table_ref);

    (void)state;
    if (kvk_tight_share(0, 4) == 1.0f)
        assert_memory_equal(p.tight.record, p.whole.record, at.k_token);
    if (kvk_tight_share(1, 4) == 1.0f) {
        assert_memory_equal(p.tight.record + at.v_codes, p.whole.record + at.v_codes,
                            at.v_channel - at.v_codes);
        assert_memory_equal(p.tight.record + at.v_step, p.whole.record + at.v_step,
                            at.bytes - at.v_step);
    }
    pair_free(&p);
    tile_case_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_and_products_are_kept),
        cmocka_unit_test(ends_are_clamped),
        cmocka_unit_test(corrections_have_limits),
        cmocka_unit_test(a_whole_share_changes_no_code),
    };
    return cmocka_run_group_tests_name("tight", tests, NULL, NULL);
}
