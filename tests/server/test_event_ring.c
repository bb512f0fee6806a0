/* store/events: numbers of each tenant, what has left the ring is lost and told so, bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/store/events.h"

static void rings_end(void **state)
{
    static struct kvd_events events;
    struct kvw_event_row rows[8], row = {.space = 4, .type = KVW_EVENT_STORED};
    bool lost;

    (void)state;
    kvd_events_init(&events, 9);
    assert_int_equal(kvd_events_next(&events, 3), 0);
    kvd_events_add(&events, 3, &row); /* nobody asks: not kept */
    assert_int_equal(kvd_events_watch(&events, 3), KVARN_OK);
    assert_int_equal(kvd_events_next(&events, 3), 1);
    assert_int_equal(kvd_events_read(&events, 3, 1, rows, 8, &lost), 0);
    assert_false(lost);
    for (uint32_t i = 1; i <= KVD_EVENTS_KEPT + 5; i++) {
        row.space = i;
        kvd_events_add(&events, 3, &row);
    }
    assert_int_equal(kvd_events_read(&events, 3, 5, rows, 8, &lost), 0);
    assert_true(lost);
    assert_int_equal(kvd_events_read(&events, 3, 6, rows, 8, &lost), 8);
    assert_false(lost);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(rows[i].sequence, 6 + i);
        assert_int_equal(rows[i].space, 6 + i);
    }
    assert_int_equal(kvd_events_read(&events, 3, KVD_EVENTS_KEPT + 4, rows, 8, &lost), 2);
    assert_int_equal(kvd_events_read(&events, 3, KVD_EVENTS_KEPT + 7, rows, 8, &lost), 0);
    assert_true(lost); /* never given out */
    assert_int_equal(kvd_events_read(&events, 4, 1, rows, 8, &lost), 0);
    assert_true(lost);
    for (uint32_t i = 10; i < 10 + KVD_EVENT_TENANTS_MAX - 1; i++)
        assert_int_equal(kvd_events_watch(&events, i), KVARN_OK);
    assert_int_equal(kvd_events_watch(&events, 200), KVARN_RETRY);
    assert_int_equal(kvd_events_watch(&events, 3), KVARN_OK);
    kvd_events_free(&events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rings_end)};

    return cmocka_run_group_tests_name("event_ring", tests, NULL, NULL);
}
