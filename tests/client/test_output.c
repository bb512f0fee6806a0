/* client/ctl/output: the same rows as a table, as CSV and as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/output.h"
#include "support/output.h"

static char text[8192];
static struct output output;

static void begin(void)
{
    assert_int_equal(output_begin(&output), 0);
}

static void printed(const char *want)
{
    output_end(&output, text, sizeof text);
    assert_string_equal(text, want);
}

static json_t *two_rows(void)
{
    return json_pack("[{s:s, s:I, s:i, s:f}, {s:s, s:I, s:i, s:f}]", "name", "a", "bytes",
                     (json_int_t)1536, "n", 7, "ratio", 0.5, "name", "longer", "bytes",
                     (json_int_t)(3ll << 40), "n", -12345, "ratio", 1.0 / 3);
}

static void tables_are_aligned(void **state)
{
    (void)state;
    begin();
    ctl_print(CTL_TABLE, "rows", two_rows());
    printed("name      bytes       n     ratio\n"
            "a       1.5 KiB       7       0.5\n"
            "longer  3.0 TiB  -12345  0.333333\n");
}

static void pieces_of_a_table_need_no_head(void **state)
{
    json_t *rows = json_pack("[{s:i, s:s}]", "n", 5, "last", "x");

    (void)state;
    begin();
    ctl_print_rows(CTL_TABLE, rows, 0);
    ctl_print_rows(CTL_CSV, rows, 0);
    ctl_print_rows(CTL_CSV, rows, 1);
    printed("5  x\n"
            "5,x\n"
            "n,last\n5,x\n");
    json_decref(rows);
}

static void csv_is_exact_and_quoted(void **state)
{
    (void)state;
    begin();
    ctl_print(CTL_CSV, "rows", two_rows());
    printed("name,bytes,n,ratio\n"
            "a,1536,7,0.5\n"
            "longer,3298534883328,-12345,0.333333333333333\n");
    begin();
    ctl_print(CTL_CSV, "rows",
              json_pack("[{s:s, s:s, s:s, s:n, s:b}]", "a", "x,y", "b", "say \"hi\"", "c",
                        "two\nlines", "d", "e", 1));
    printed("a,b,c,d,e\n\"x,y\",\"say \"\"hi\"\"\",\"two\nlines\",,yes\n");
}

static void json_says_its_schema(void **state)
{
    (void)state;
    begin();
    ctl_print(CTL_JSON, "rows",
              json_pack("[{s:I, s:b, s:n}]", "bytes", (json_int_t)1536, "b", 0, "x"));
    ctl_print_one(CTL_JSON, "one", json_pack("{s:s}", "a", "b"));
    printed("{\"schema\":1,\"rows\":[{\"bytes\":1536,\"b\":false,\"x\":null}]}\n"
            "{\"schema\":1,\"one\":{\"a\":\"b\"}}\n");
}

static void one_object_has_a_line_per_key(void **state)
{
    json_t *one = json_pack("{s:s, s:I, s:b, s:n}", "server", "kvarnd", "pool_bytes",
                            (json_int_t)1 << 30, "draining", 0, "backend");

    (void)state;
    begin();
    ctl_print_one(CTL_TABLE, "daemon", json_incref(one));
    printed("server             kvarnd\n"
            "pool_bytes         1.0 GiB\n"
            "draining           no\n"
            "backend            -\n");
    begin();
    ctl_print_one(CTL_CSV, "daemon", one);
    printed("server,pool_bytes,draining,backend\nkvarnd,1073741824,no,\n");
}

static void units_change_at_their_bounds(void **state)
{
    static const struct {
        json_int_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {1 << 20, "1.0 MiB"},
                 {(json_int_t)1 << 60, "1024.0 PiB"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char want[64];

        snprintf(want, sizeof want, "%-18s %s\n", "bytes", cases[i].text);
        begin();
        ctl_print_one(CTL_TABLE, "x", json_pack("{s:I}", "bytes", cases[i].bytes));
        printed(want);
    }
}

static void an_empty_list_prints_nothing(void **state)
{
    (void)state;
    begin();
    ctl_print(CTL_TABLE, "rows", json_array());
    ctl_print(CTL_CSV, "rows", json_array());
    ctl_print_head(CTL_TABLE, json_pack("{s:i}", "a", 0));
    ctl_print_head(CTL_JSON, json_pack("{s:i}", "a", 0));
    printed("");
    begin();
    ctl_print_head(CTL_CSV, json_pack("{s:i, s:s}", "a", 0, "b", "x"));
    printed("a,b\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_aligned),
        cmocka_unit_test(pieces_of_a_table_need_no_head),
        cmocka_unit_test(csv_is_exact_and_quoted),
        cmocka_unit_test(json_says_its_schema),
        cmocka_unit_test(one_object_has_a_line_per_key),
        cmocka_unit_test(units_change_at_their_bounds),
        cmocka_unit_test(an_empty_list_prints_nothing),
    };
    return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
