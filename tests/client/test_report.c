/* client/demo/report: one object per line, appended; failures are told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "client/demo/report.h"
#include "support/output.h"

static void lines_are_appended(void **state)
{
    char path[] = "/tmp/kvarn-report-XXXXXX", text[256];
    int fd = mkstemp(path);
    ssize_t count;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(demo_report(path, json_pack("{s:i}", "a", 1)), 0);
    assert_int_equal(demo_report(path, json_pack("{s:s, s:f}", "b", "x\ny", "c", 0.1)), 0);
    count = read(fd, text, sizeof text - 1);
    assert_true(count > 0);
    text[count] = '\0';
    assert_string_equal(text, "{\"a\":1}\n{\"b\":\"x\\ny\",\"c\":0.1}\n");
    close(fd);
    unlink(path);
}

static void without_a_path_it_is_printed(void **state)
{
    struct output output;
    char text[64];
    int result;

    (void)state;
    assert_int_equal(output_begin(&output), 0);
    result = demo_report(NULL, json_pack("{s:i}", "a", 1));
    output_end(&output, text, sizeof text);
    assert_int_equal(result, 0);
    assert_string_equal(text, "{\"a\":1}\n");
}

static void failures_are_told(void **state)
{
    (void)state;
    assert_int_equal(demo_report("/no/such/directory/report", json_pack("{s:i}", "a", 1)), -1);
    assert_int_equal(demo_report("/dev/full", json_pack("{s:i}", "a", 1)), -1);
    assert_int_equal(demo_report("/dev/null", NULL), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_appended),
        cmocka_unit_test(without_a_path_it_is_printed),
        cmocka_unit_test(failures_are_told),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
