/* store/tenant: one number per credential, stable, bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

static void a_group_is_one_tenant(void **state)
{
    struct kvd_share team = {"team", {"uid-7", "default"}, 2}, again = {"other", {"uid-7"}, 1},
                     nested = {"uid-7", {"uid-9"}, 1}, of_group = {"outer", {"team"}, 1};
    struct kvd_tenants *tenants;
    uint32_t own, seven, eight, named;

    (void)state;
    assert_int_equal(kvd_tenants_open(&tenants, 1000), KVARN_OK);
    assert_int_equal(kvd_tenants_share(tenants, &team), KVARN_OK);
    assert_int_equal(kvd_tenants_share(tenants, &again), KVARN_INVALID_SHAPE);
    assert_int_equal(kvd_tenants_share(tenants, &nested), KVARN_INVALID_SHAPE);
    assert_int_equal(kvd_tenants_share(tenants, &of_group), KVARN_INVALID_SHAPE);
    assert_int_equal(kvd_tenants_of_uid(tenants, 1000, &own), KVARN_OK);
    assert_int_equal(kvd_tenants_of_uid(tenants, 7, &seven), KVARN_OK);
    assert_int_equal(kvd_tenants_of_uid(tenants, 8, &eight), KVARN_OK);
    assert_int_equal(kvd_tenants_of_name(tenants, "uid-7", &named), KVARN_OK);
    assert_int_equal(own, seven);
    assert_int_equal(own, named);
    assert_int_not_equal(own, eight);
    assert_string_equal(kvd_tenants_name(tenants, own), "team");
    for (uint32_t i = 1; i < KVD_SHARES_MAX; i++) {
        struct kvd_share more = {.count = 1};

        snprintf(more.name, sizeof more.name, "g%u", i);
        snprintf(more.members[0], sizeof more.members[0], "m%u", i);
        assert_int_equal(kvd_tenants_share(tenants, &more), KVARN_OK);
    }
    assert_int_equal(kvd_tenants_share(tenants, &(struct kvd_share){"last", {"m"}, 1}),
                     KVARN_QUOTA);
    kvd_tenants_close(&tenants);
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
        cmocka_unit_test(a_group_is_one_tenant),
        cmocka_unit_test(the_table_is_bounded),
    };
    return cmocka_run_group_tests_name("tenant", tests, NULL, NULL);
}
