/* Log lines: form, escaping, level, rate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/core/log.h"

static int ends[2];
static char text[65536];

static int setup(void **state)
{
    (void)state;
    if (pipe(ends) != 0)
        return -1;
    kvd_log_set_fd(ends[1]);
    kvd_log_set_level(KVD_LOG_INFO);
    return 0;
}

static const char *written(void)
{
    close(ends[1]);
    ssize_t got, used = 0;
    while ((got = read(ends[0], text + used, sizeof(text) - 1 - (size_t)used)) > 0)
        used += got;
    text[used] = '\0';
    close(ends[0]);
    return text;
}

static void line_has_time_level_event_and_fields(void **state)
{
    (void)state;
    kvd_log(KVD_LOG_WARN, "worker_gone", kvd_number("pid", -7), kvd_text("backend", "cpu/ref"));
    const char *line = written();
    assert_memory_equal(line, "ts=20", 5);
    assert_string_equal(strchr(line, 'Z'),
                        "Z level=warn event=worker_gone pid=-7 backend=cpu/ref\n");
}

static void text_cannot_forge_a_field_or_a_line(void **state)
{
    (void)state;
    kvd_log(KVD_LOG_INFO, "refused", kvd_text("why", "a level=error\n\x1b[2J\"\\\x7f"),
            kvd_text("empty", ""),
            kvd_text("c1", "\xc2\x9b"
                           "1m \x9b"),
            kvd_text("name", "J\xc3\xbcrgen"));
    const char *line = strstr(written(), "event=");
    assert_string_equal(line,
                        "event=refused why=\"a level=error\\x0a\\x1b[2J\\\"\\\\\\x7f\" empty=\"\""
                        " c1=\"\\xc2\\x9b1m \\x9b\" name=\"J\xc3\xbcrgen\"\n");
}

static void level_is_kept(void **state)
{
    (void)state;
    kvd_log(KVD_LOG_DEBUG, "hidden", kvd_number("n", 1));
    kvd_log_set_level(KVD_LOG_ERROR);
    kvd_log(KVD_LOG_WARN, "hidden", kvd_number("n", 1));
    kvd_log(KVD_LOG_ERROR, "shown", kvd_number("n", 1));
    assert_null(strstr(written(), "hidden"));
    assert_non_null(strstr(text, "shown"));
    assert_int_equal(kvd_log_level_find("debug"), KVD_LOG_DEBUG);
    assert_int_equal(kvd_log_level_find("loud"), -1);
}

static void long_line_is_cut(void **state)
{
    (void)state;
    char value[4000];
    memset(value, 'x', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    kvd_log(KVD_LOG_INFO, "long", kvd_text("value", value));
    assert_int_equal(strlen(written()), KVD_LOG_LINE_MAX);
    assert_int_equal(text[KVD_LOG_LINE_MAX - 1], '\n');
}

static void flood_is_bounded_and_counted(void **state)
{
    (void)state;
    struct kvd_log_site site = {0};
    const struct kvd_log_field fields[] = {{"n", NULL, 1}, {NULL, NULL, 0}};
    for (int i = 0; i < 1000; i++)
        kvd_log_write(&site, KVD_LOG_INFO, "flood", fields);
    uint32_t dropped = atomic_load(&site.dropped);
    /* the loop may straddle a second, hardly three */
    assert_in_range(dropped, 1000 - 3 * KVD_LOG_BURST, 1000 - KVD_LOG_BURST);
    atomic_store(&site.second, 0);
    kvd_log_write(&site, KVD_LOG_INFO, "flood", fields);
    unsigned lines = 0;
    for (const char *at = written(); (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    assert_in_range(lines, KVD_LOG_BURST + 1, 3 * KVD_LOG_BURST + 1);
    char last[64];
    snprintf(last, sizeof(last), "event=flood n=1 dropped=%u\n", dropped);
    assert_non_null(strstr(text, last));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(line_has_time_level_event_and_fields, setup),
        cmocka_unit_test_setup(text_cannot_forge_a_field_or_a_line, setup),
        cmocka_unit_test_setup(level_is_kept, setup),
        cmocka_unit_test_setup(long_line_is_cut, setup),
        cmocka_unit_test_setup(flood_is_bounded_and_counted, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
