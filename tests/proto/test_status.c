/* proto/status.c: every status has a name, a text and the class its number range says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/status.h>

static void every_status_is_described(void **state)
{
    (void)state;
#define CHECK(name, number, text)                                                                  \
    assert_string_equal(kvarn_status_name(KVARN_##name), #name);                                   \
    assert_true(strlen(kvarn_status_text(KVARN_##name)) > 0);
    KVARN_STATUS_LIST(CHECK)
#undef CHECK
}

static void classes_follow_ranges(void **state)
{
    (void)state;
    assert_int_equal(kvarn_status_class_of(KVARN_EXISTS), KVARN_CLASS_SUCCESS);
    assert_true(kvarn_status_known(KVARN_OK) && kvarn_status_known(KVARN_INTERNAL));
    assert_false(kvarn_status_known((kvarn_status)2) || kvarn_status_known(KVARN_STATUS_MAX));
    assert_int_equal(kvarn_status_class_of(KVARN_BAD_FRAME), KVARN_CLASS_FIX);
    assert_int_equal(kvarn_status_class_of(KVARN_LEASE_EXPIRED), KVARN_CLASS_FIX);
    assert_int_equal(kvarn_status_class_of(KVARN_RETRY), KVARN_CLASS_RETRY);
    assert_int_equal(kvarn_status_class_of(KVARN_DRAINING), KVARN_CLASS_RETRY);
    assert_int_equal(kvarn_status_class_of(KVARN_DEADLINE), KVARN_CLASS_LOST);
    assert_int_equal(kvarn_status_class_of(KVARN_CORRUPT), KVARN_CLASS_LOST);
    assert_int_equal(kvarn_status_class_of(KVARN_INTERNAL), KVARN_CLASS_FATAL);
}

static void unknown_numbers_are_safe(void **state)
{
    (void)state;
    assert_string_equal(kvarn_status_name((kvarn_status)200), "UNKNOWN");
    assert_non_null(kvarn_status_text((kvarn_status)200));
    assert_int_equal(kvarn_status_class_of((kvarn_status)200), KVARN_CLASS_FATAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_is_described),
        cmocka_unit_test(classes_follow_ranges),
        cmocka_unit_test(unknown_numbers_are_safe),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
