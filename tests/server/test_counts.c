/* store/counts: bounds hold to the last one, and only for their tenant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/store/counts.h"

static struct kvd_counts counts;

static void bounds(void **state)
{
    (void)state;
    kvd_counts_init(&counts);
    assert_true(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, UINT32_MAX - 1));
    kvd_counts_give(&counts, 3, KVD_COUNTED_LEASES, UINT32_MAX - 1);
    counts.most[3][KVD_COUNTED_LEASES] = 5;
    assert_false(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, 6));
    assert_true(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, 3));
    assert_false(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, 3));
    assert_int_equal(counts.used[3][KVD_COUNTED_LEASES], 3);
    assert_true(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, 2));
    assert_false(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, 1));
    assert_int_equal(counts.refusals, 3);
    assert_true(kvd_counts_take(&counts, 4, KVD_COUNTED_LEASES, 100));
    assert_true(kvd_counts_take(&counts, 3, KVD_COUNTED_SEQUENCES, 100));
    kvd_counts_give(&counts, 3, KVD_COUNTED_LEASES, 1);
    assert_true(kvd_counts_take(&counts, 3, KVD_COUNTED_LEASES, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds)};

    return cmocka_run_group_tests_name("counts", tests, NULL, NULL);
}
