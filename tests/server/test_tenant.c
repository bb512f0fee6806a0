/* store/tenant: one number per credential, stable, bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/core/limits.h"
#include "server/store/tenant.h"

static void numbers_follow_credentials(void **state)
{
    struct kvd_tenants *tenants;
    uint32_t own, other, again, loopback;

    (void)state;
    assert_int_equal(kvd_tenants_open(&tenants, 1000), KVARN_OK);
    assert_int_equal(kvd_tenants_of_uid(tenants, 1000, &own), KVARN_OK);
    assert_int_equal(kvd_tenants_of_uid(tenants, 0, &other), KVARN_OK);
    assert_int_equal(kvd_tenants_of_loopback(tenants, &loopback), KVARN_OK);
    assert_int_equal(kvd_tenants_of_uid(tenants, 0, &again), KVARN_OK);
    assert_int_equal(own, KVD_TENANT_DEFAULT);
    assert_int_equal(other, again);
    assert_true(other != own && loopback != own && loopback != other);
    assert_string_equal(kvd_tenants_name(tenants, own), "default");
    assert_string_equal(kvd_tenants_name(tenants, other), "uid-0");
    assert_string_equal(kvd_tenants_name(tenants, loopback), "tcp-loopback");
    assert_null(kvd_tenants_name(tenants, 3));
    kvd_tenants_close(&tenants);
    assert_null(tenants);
}

static void the_table_is_bounded(void **state)
{
    struct kvd_tenants *tenants;
    uint32_t number;

    (void)state;
    assert_int_equal(kvd_tenants_open(&tenants, 0), KVARN_OK);
    for (uint32_t i = 1; i < KVD_TENANTS_MAX; i++)
        assert_int_equal(kvd_tenants_of_uid(tenants, UINT32_MAX - i, &number), KVARN_OK);
    assert_int_equal(kvd_tenants_of_uid(tenants, 77, &number), KVARN_QUOTA);
    assert_int_equal(kvd_tenants_of_uid(tenants, UINT32_MAX - 1, &number), KVARN_OK);
    assert_int_equal(number, 1);
    kvd_tenants_close(&tenants);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_follow_credentials),
        cmocka_unit_test(the_table_is_bounded),
    };
    return cmocka_run_group_tests_name("tenant", tests, NULL, NULL);
}
