/* client/demo/table: reports in, the tables of the quickstart out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "client/demo/demo.h"
#include "support/output.h"

static char text[8192];

#define METHOD(name, bytes, error)                                                                 \
    "{\"name\":\"" name "\",\"bytes_per_token\":" bytes ",\"attention_error\":" error              \
    ",\"norm_mean\":0.02,\"norm_p99\":0.07}"
#define DECODE(preset, bits, methods)                                                              \
    "{\"stage\":\"decode\",\"preset\":\"" preset "\",\"model\":\"m\",\"layers\":2,\"kv_heads\":3," \
    "\"dim\":64,\"tokens\":900,\"positions\":10,\"sink_tokens\":128,"                              \
    "\"prompt_sink_tokens\":128,\"prompt_tile_tokens\":640,\"prompt_tail_tokens\":122,"            \
    "\"bits_k\":" bits                                                                             \
    ",\"bits_v\":2,\"read_bytes\":3e6,\"read_seconds\":0.5,\"attend_p50\":1e-4,"                   \
    "\"attend_p99\":2e-4,\"ping_p50\":3e-5,\"ping_p99\":4e-5,\"methods\":[" methods "]}\n"
#define PREFILL(preset)                                                                            \
    "{\"stage\":\"prefill\",\"preset\":\"" preset "\",\"input_bytes\":8e6,\"seconds\":2}\n"

/* Exit code; what was printed stands in text. */
static int table_of(const char *report)
{
    char path[] = "/tmp/kvarn-table-XXXXXX";
    struct demo_options options = {.report = path};
    struct output output;
    int fd = mkstemp(path), code;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, report, strlen(report)), strlen(report));
    close(fd);
    assert_int_equal(output_begin(&output), 0);
    code = demo_table(&options);
    output_end(&output, text, sizeof text);
    unlink(path);
    return code;
}

static size_t count_of(const char *word)
{
    size_t count = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

static void has(const char *word, size_t times)
{
    if (count_of(word) != times)
        fail_msg("'%s' is there %zu times, not %zu:\n%s", word, count_of(word), times, text);
}

static void lines_fit(void)
{
    for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL))
        if (strcspn(at, "\n") > 110)
            fail_msg("%zu columns: %.120s", strcspn(at, "\n"), at);
}

static void numbers_have_their_plural(void **state)
{
    (void)state;
    assert_int_equal(
        table_of(
            "{\"stage\":\"decode\",\"preset\":\"a\",\"model\":\"m\",\"layers\":1,\"kv_heads\":1,"
            "\"dim\":64,\"tokens\":900,\"positions\":10,\"bits_k\":2,\"bits_v\":2,"
            "\"methods\":[" METHOD("a", "32", "0.1") "]}\n"),
        0);
    has("m: 1 layer, 1 kv head, head dim 64; 900 tokens, the last 10 decoded.", 1);
}

/* The line of `name` with its blanks joined, so that column widths do not matter. */
static void has_row(const char *name, const char *want)
{
    const char *at = strstr(text, name);
    char line[256];
    size_t used = 0;

    assert_non_null(at);
    for (; *at != '\n' && *at != '\0' && used + 1 < sizeof line; at++)
        if (*at != ' ' || used == 0 || line[used - 1] != ' ')
            line[used++] = *at;
    line[used] = '\0';
    assert_string_equal(line, want);
}

static void one_preset(void **state)
{
    (void)state;
    assert_int_equal(
        table_of(PREFILL("p2") DECODE(
            "p2", "2", METHOD("kvarn p2", "32", "0.05") "," METHOD("RTN", "40", "0.5"))),
        0);
    has("m: 2 layers, 3 kv heads, head dim 64; 900 tokens, the last 10 decoded.", 1);
    has("(fp16: 256)", 1);
    has("The first 128 are the sink", 1);
    has("lower is better", 2);
    has("2402.02750", 1);
    has("K2V2", 1);
    /* 890 tokens: 250 exact at 256 bytes and 640 at 32 */
    has_row("* kvarn p2", "* kvarn p2 32.0 8.00x 640 122 2.70x 5.00 % 2.00 % 7.00 %");
    has_row("    RTN", " RTN 40.0 6.40x 640 122 2.54x 50.00 % 2.00 % 7.00 %");
    lines_fit();
    has("4 MB/s", 1); /* compress: 8 MB in 2 s */
    has("6 MB/s", 1); /* decompress: 3 MB in half a second */
    has("100 us", 1);
    has("200 us", 1);
    has("30 us", 1);
    has("40 us", 1);
}

/* Baselines are printed once for each pair of bits, every preset stands under its own bits. */
static void presets_are_grouped_by_bits(void **state)
{
    (void)state;
    assert_int_equal(
        table_of(DECODE("a", "2", METHOD("kvarn a", "32", "0.1") "," METHOD("RTN", "40", "0.5"))
                     DECODE("b", "4", METHOD("kvarn b", "48", "0.2") "," METHOD("RTN", "56", "0.3"))
                         DECODE("c", "2",
                                METHOD("kvarn c", "33", "0.1") "," METHOD("RTN", "40", "0.5"))),
        0);
    has("K2V2", 1);
    has("K4V2", 1);
    has("    RTN", 2);
    has("kvarn c", 1);
    assert_true(strstr(text, "kvarn c") < strstr(text, "K4V2"));
    assert_true(strstr(text, "kvarn b") > strstr(text, "K4V2"));
}

/* A prefill belongs to the decode of its preset, in whatever order they come. */
static void prefills_are_joined_by_preset(void **state)
{
    (void)state;
    assert_int_equal(table_of(PREFILL("nobody") DECODE("a", "2", METHOD("kvarn a", "32", "0.1"))
                                  DECODE("b", "2", METHOD("kvarn b", "32", "0.1"))
                                      PREFILL("b") "{\"stage\":\"other\"}\n[1]\n"),
                     0);
    has_row("  a  ", " a 0 MB/s 6 MB/s 100 us 200 us 30 us 40 us");
    has_row("  b  ", " b 4 MB/s 6 MB/s 100 us 200 us 30 us 40 us");
}

static void bad_reports_fail(void **state)
{
    struct demo_options options = {.report = "/no/such/report"};

    (void)state;
    assert_int_equal(table_of(""), 1);
    assert_int_equal(table_of(PREFILL("a")), 1);
    assert_int_equal(table_of(DECODE("a", "2", METHOD("k", "32", "0.1")) "{\"stage\":\n"), 1);
    assert_string_equal(text, "");
    assert_int_equal(demo_table(&options), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_preset),
        cmocka_unit_test(numbers_have_their_plural),
        cmocka_unit_test(presets_are_grouped_by_bits),
        cmocka_unit_test(prefills_are_joined_by_preset),
        cmocka_unit_test(bad_reports_fail),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
