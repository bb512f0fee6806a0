/* kernels/dispatch.c: the stairs and the mask. */
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
            assert_true(table->compress && table->decompress && table->attend);
        }
    }
    assert_ptr_equal(kvk_cpu_best("ref", NULL), &kvk_table_ref);
    assert_null(kvk_cpu_best("sse", NULL));
    assert_null(kvk_cpu_table("sse"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_table_passes_its_self_test),
        cmocka_unit_test(the_mask_limits),
    };
    return cmocka_run_group_tests_name("dispatch", tests, NULL, NULL);
}
