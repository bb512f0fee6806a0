/* kernels/dispatch.c and selftest.c: the stairs, the mask, and a table that is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/variants.h"

static int lines;

static void count_line(const char *line)
{
    printf("  %s\n", line);
    lines++;
}

static void the_best_table_passes_its_self_test(void **state)
{
    static const char *const stairs[] = {"avx512", "avx2", "ref"};
    const struct kvk_table *best = kvk_cpu_best(NULL, count_line);
    int missing = 0;

    (void)state;
    assert_non_null(best);
    while (kvk_cpu_table(stairs[missing]) == NULL)
        missing++;
    assert_string_equal(best->name, stairs[missing]); /* none is skipped for being wrong */
    assert_int_equal(lines, missing);
    assert_ptr_equal(kvk_cpu_best("", NULL), best);
}

static void the_mask_limits(void **state)
{
    static const char *const names[] = {"ref", "avx2", "avx512"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct kvk_table *table = kvk_cpu_table(names[i]);
        const struct kvk_table *chosen = kvk_cpu_best(names[i], NULL);

        assert_non_null(chosen);
        if (table != NULL) {
            assert_ptr_equal(chosen, table);
            assert_string_equal(table->name, names[i]);
            assert_true(table->compress && table->decompress && table->attend && table->copy_rows);
        }
    }
    assert_ptr_equal(kvk_cpu_best("ref", NULL), &kvk_table_ref);
    assert_null(kvk_cpu_best("sse", NULL));
    assert_null(kvk_cpu_table("sse"));
}

static kvarn_status wrong_compress(struct kvk_compress *op)
{
    kvarn_status status = kvk_table_ref.compress(op);

    op->record[3] ^= 1;
    return status;
}

static kvarn_status wrong_decompress(struct kvk_decompress *op)
{
    kvarn_status status = kvk_table_ref.decompress(op);

    if (op->shape.dim == 256)
        *((uint8_t *)op->v + 17) ^= 1;
    return status;
}

static kvarn_status wrong_attend(struct kvk_attend *op)
{
    kvarn_status status = kvk_table_ref.attend(op);

    op->lse[0] += 0.1f;
    return status;
}

static void a_wrong_table_is_caught(void **state)
{
    struct kvk_table table = kvk_table_ref;
    const char *why = NULL;

    (void)state;
    assert_true(kvk_selftest_passes(&table, &why));
    assert_null(why);
    table.compress = wrong_compress;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_non_null(strstr(why, "compress"));
    table = kvk_table_ref;
    table.decompress = wrong_decompress;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_non_null(strstr(why, "decompress"));
    table = kvk_table_ref;
    table.attend = wrong_attend;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_non_null(strstr(why, "attend"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_table_passes_its_self_test),
        cmocka_unit_test(the_mask_limits),
        cmocka_unit_test(a_wrong_table_is_caught),
    };
    return cmocka_run_group_tests_name("dispatch", tests, NULL, NULL);
}
