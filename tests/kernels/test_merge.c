/* kernels/merge.c: against double precision, with empty parts, huge and tiny weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/kernels.h"
#include "support/tile_case.h"

enum { PARTS = 5, ROWS = 7, DIM = 24 };

static float out[PARTS][ROWS][DIM], lse[PARTS][ROWS], got[ROWS][DIM], got_lse[ROWS];

static void expect(size_t parts)
{
    for (size_t r = 0; r < ROWS; r++) {
        double top = -INFINITY, total = 0;

        for (size_t p = 0; p < parts; p++)
            top = fmax(top, (double)lse[p][r]);
        for (size_t p = 0; p < parts && isfinite(top); p++)
            total += exp((double)lse[p][r] - top);
        for (size_t d = 0; d < DIM; d++) {
            double sum = 0;

            for (size_t p = 0; p < parts && isfinite(top); p++)
                sum += exp((double)lse[p][r] - top) * (double)out[p][r][d];
            sum = isfinite(top) ? sum / total : 0;
            assert_true(fabs((double)got[r][d] - sum) <= 1e-5);
        }
        if (isfinite(top))
            assert_true(fabs((double)got_lse[r] - top - log(total)) <= 1e-5 + 1e-6 * fabs(top));
        else
            assert_true(got_lse[r] == -INFINITY);
    }
}

static void joins_like_double(void **state)
{
    struct rng rng = rng_make(tile_seed("merge"));

    (void)state;
    for (int turn = 0; turn < 300; turn++) {
        size_t parts = 1 + rng_below(&rng, PARTS);
        double width = turn % 3 == 0 ? 200 : 3;

        for (size_t p = 0; p < PARTS; p++) {
            for (size_t r = 0; r < ROWS; r++) {
                int empty = rng_below(&rng, 4) == 0;

                lse[p][r] = empty ? -INFINITY : (float)(width * rng_normal(&rng));
                for (size_t d = 0; d < DIM; d++)
                    out[p][r][d] = empty ? 0 : (float)rng_normal(&rng);
            }
        }
        kvk_merge(got[0], got_lse, out[0][0], lse[0], parts, ROWS, DIM);
        expect(parts);
    }
}

static void nothing_gives_nothing(void **state)
{
    (void)state;
    got[0][0] = 7;
    kvk_merge(got[0], got_lse, out[0][0], lse[0], 0, ROWS, DIM);
    expect(0);
    for (size_t r = 0; r < ROWS; r++)
        lse[0][r] = lse[1][r] = -INFINITY;
    kvk_merge(got[0], got_lse, out[0][0], lse[0], 2, ROWS, DIM);
    expect(2);
}

static void one_part_comes_through_unchanged(void **state)
{
    (void)state;
    for (size_t r = 0; r < ROWS; r++) {
        lse[0][r] = (float)r * 40;
        for (size_t d = 0; d < DIM; d++)
            out[0][r][d] = (float)(d + 1) / 7.0f;
    }
    kvk_merge(got[0], got_lse, out[0][0], lse[0], 1, ROWS, DIM);
    assert_memory_equal(got, out[0], sizeof(got));
    assert_memory_equal(got_lse, lse[0], sizeof(got_lse));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_like_double),
        cmocka_unit_test(nothing_gives_nothing),
        cmocka_unit_test(one_part_comes_through_unchanged),
    };
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
