/* core/quota: what an operator may write, and what is refused with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/core/quota.h"

static void quotas(void **state)
{
    struct kvd_quota q;
    const char *why = "";

    (void)state;
    assert_true(kvd_quota_parse("uid-1001  host=1GiB..4GiB gpu=..8GiB requests=16 spaces=2\t"
                                "sequences=100 leases=50 leased-blocks=1000 pinned-blocks=7",
                                &q, &why));
    assert_string_equal(q.name, "uid-1001");
    assert_int_equal(q.guaranteed[KVD_TIER_HOST], 1ull << 30);
    assert_int_equal(q.maximum[KVD_TIER_HOST], 4ull << 30);
    assert_int_equal(q.guaranteed[KVD_TIER_GPU], 0);
    assert_int_equal(q.maximum[KVD_TIER_GPU], 8ull << 30);
    assert_int_equal(q.most[KVD_COUNTED_REQUESTS], 16);
    assert_int_equal(q.most[KVD_COUNTED_SPACES], 2);
    assert_int_equal(q.most[KVD_COUNTED_SEQUENCES], 100);
    assert_int_equal(q.most[KVD_COUNTED_LEASES], 50);
    assert_int_equal(q.most[KVD_COUNTED_LEASED_BLOCKS], 1000);
    assert_int_equal(q.most[KVD_COUNTED_PINNED_BLOCKS], 7);
    assert_true(kvd_quota_parse("a host=5MiB", &q, &why));
    assert_int_equal(q.guaranteed[KVD_TIER_HOST], 0);
    assert_int_equal(q.maximum[KVD_TIER_HOST], 5 << 20);
    assert_int_equal(q.maximum[KVD_TIER_GPU], UINT64_MAX);
    assert_int_equal(q.most[KVD_COUNTED_LEASES], UINT32_MAX);
    assert_true(kvd_quota_parse("a host=5MiB..", &q, &why));
    assert_int_equal(q.guaranteed[KVD_TIER_HOST], 5 << 20);
    assert_int_equal(q.maximum[KVD_TIER_HOST], UINT64_MAX);
}

static void wrong_quotas(void **state)
{
    static const struct {
        const char *text, *why;
    } table[] = {
        {"", "begins with a tenant's name"},
        {"uid-1001", "says something"},
        {"a/b host=1GiB", "letters, digits"},
        {"a123456789012345678901234567890123 host=1GiB", "at most 31"},
        {"a host", "after the name come"},
        {"a disc=1GiB", "after the name come"},
        {"a host=12", "unit"},
        {"a host=2GiB..1GiB", "more than the maximum"},
        {"a leases=0", "whole number"},
        {"a leases=-1", "whole number"},
        {"a leases=4294967295", "whole number"},
        {"a leases=1x", "whole number"},
        {"a leases=", "whole number"},
        {"a leases=1 " /* a word of 130 letters */
         "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
         "bbbbb"
         "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
         "longer than 127"},
    };
    struct kvd_quota q;

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *why = "";

        assert_false(kvd_quota_parse(table[i].text, &q, &why));
        if (!strstr(why, table[i].why))
            fail_msg("\"%s\": %s", table[i].text, why);
    }
}

static void shares(void **state)
{
    struct kvd_share s;
    const char *why = "";
    char many[256] = "g";

    (void)state;
    assert_true(kvd_share_parse("team uid-1 uid-2", &s, &why));
    assert_string_equal(s.name, "team");
    assert_int_equal(s.count, 2);
    assert_string_equal(s.members[0], "uid-1");
    assert_string_equal(s.members[1], "uid-2");
    assert_false(kvd_share_parse("team", &s, &why));
    assert_false(kvd_share_parse("", &s, &why));
    assert_false(kvd_share_parse("team a$", &s, &why));
    for (int i = 0; i < KVD_SHARE_MEMBERS_MAX; i++)
        strcat(many, " m");
    assert_true(kvd_share_parse(many, &s, &why));
    strcat(many, " m");
    assert_false(kvd_share_parse(many, &s, &why));
    assert_non_null(strstr(why, "at most 16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas),
        cmocka_unit_test(wrong_quotas),
        cmocka_unit_test(shares),
    };
    return cmocka_run_group_tests_name("quota", tests, NULL, NULL);
}
