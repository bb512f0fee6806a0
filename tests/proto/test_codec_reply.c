/* proto/codec_reply: results, error texts, lists of every length, fields that a reply must not
 * have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "codec_cases.h"

static uint8_t wire[KVW_METADATA_MAX_BYTES];

static size_t encode_example(const struct codec_case *test, union codec_any *example)
{
    memset(example, 0, sizeof *example);
    test->fill(example);
    return test->encode(wire, sizeof wire, example);
}

/* Any reply gives up its result, even one whose body is long. */
static void result_of_any_reply(void **state)
{
    static uint8_t memory[4096];
    union codec_any in;
    unsigned replies = 0;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count = encode_example(test, &in);
        struct kvw_arena arena;
        struct kvw_result out;
        const char *why;

        if (strstr(test->name, "_reply") == NULL)
            continue;
        kvw_arena_init(&arena, memory, sizeof memory);
        assert_int_equal(kvw_result_decode(&out, wire, count, &arena, &why), KVARN_OK);
        assert_int_equal(out.status, KVARN_RETRY);
        assert_string_equal(out.text, "busy: 4 of 4 slots; \xe2\x82\xac");
        assert_int_equal(out.retry_after_us, 1500);
        replies++;
    }
    assert_int_equal(replies, 8);
}

/* The text of an error may quote anything; the error must arrive all the same. */
static void error_texts_always_get_through(void **state)
{
    static uint8_t memory[4096];
    static char text[2 * KVW_TEXT_MAX_BYTES];
    struct kvw_arena arena;
    struct kvw_result in = {KVARN_INVALID_SHAPE, text, 0}, out;
    const char *why;
    size_t count;

    (void)state;
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 4);
    count = kvw_result_encode(wire, sizeof wire, &in);
    kvw_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(kvw_result_decode(&out, wire, count, &arena, &why), KVARN_OK);
    assert_int_equal(strlen(out.text), 510); /* cut between characters */
    assert_memory_equal(out.text, text, 510);
    in.text = "bad \xff name";
    count = kvw_result_encode(wire, sizeof wire, &in);
    kvw_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(kvw_result_decode(&out, wire, count, &arena, &why), KVARN_OK);
    assert_string_equal(out.text, "bad ? name");
}

/* 255 is the last status; a larger one is no status of a later version, but damage. */
static void statuses_are_bytes(void **state)
{
    const uint8_t last[] = {0x08, 0xff, 0x01}, over[] = {0x08, 0x80, 0x02};
    struct kvw_result result;
    static uint8_t memory[1024];
    union codec_any out;
    struct kvw_arena arena;
    const char *why = "";

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);

        if (strstr(test->name, "_reply") == NULL)
            continue;
        assert_int_equal(codec_case_decode(test, &out, last, sizeof last), KVARN_OK);
        assert_int_equal(codec_case_decode(test, &out, over, sizeof over), KVARN_BAD_FRAME);
    }
    kvw_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(kvw_result_decode(&result, last, sizeof last, &arena, &why), KVARN_OK);
    assert_int_equal(result.status, 255);
    assert_int_equal(kvw_result_decode(&result, over, sizeof over, &arena, &why), KVARN_BAD_FRAME);
    assert_non_null(strstr(why, "255"));
}

static void lists_of_every_length(void **state)
{
    static struct kvw_metric metrics[KVW_METRICS_MAX];
    static struct kvw_space_info spaces[KVW_SPACES_MAX];
    static char names[KVW_METRICS_MAX][8];
    union codec_any out;

    (void)state;
    for (unsigned i = 0; i < KVW_METRICS_MAX; i++) {
        snprintf(names[i], sizeof names[i], "m%u", i);
        metrics[i] = (struct kvw_metric){names[i], i * 0.5};
    }
    for (uint32_t i = 0; i < KVW_SPACES_MAX; i++) {
        spaces[i] = (struct kvw_space_info){
            .space = i, .model = "m", .preset = "p", .layers = i + 1, .bytes = 1ull << 40 | i};
        memset(spaces[i].fingerprint, (int)i, sizeof spaces[i].fingerprint);
    }
    for (size_t count = 0; count <= KVW_METRICS_MAX; count += count < 4 ? 1 : 63) {
        struct kvw_stats_reply in = {.count = count, .metrics = metrics};
        size_t bytes = kvw_stats_reply_encode(wire, sizeof wire, &in);

        assert_int_equal(codec_case_decode(codec_case_named("stats_reply"), &out, wire, bytes),
                         KVARN_OK);
        assert_int_equal(out.stats_reply.count, count);
        for (size_t i = 0; i < count; i++) {
            assert_string_equal(out.stats_reply.metrics[i].name, names[i]);
            assert_true(out.stats_reply.metrics[i].value == (double)i * 0.5);
        }
    }
    for (size_t count = 0; count <= KVW_SPACES_MAX; count += count < 4 ? 1 : 63) {
        struct kvw_list_reply in = {.count = count, .spaces = spaces};
        size_t bytes = kvw_list_reply_encode(wire, sizeof wire, &in);

        assert_int_equal(codec_case_decode(codec_case_named("list_reply"), &out, wire, bytes),
                         KVARN_OK);
        assert_int_equal(out.list_reply.count, count);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(out.list_reply.spaces[i].space, i);
            assert_int_equal(out.list_reply.spaces[i].layers, i + 1);
            assert_int_equal(out.list_reply.spaces[i].bytes, 1ull << 40 | i);
            assert_int_equal(out.list_reply.spaces[i].fingerprint[31], i & 255);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(result_of_any_reply),
        cmocka_unit_test(error_texts_always_get_through),
        cmocka_unit_test(statuses_are_bytes),
        cmocka_unit_test(lists_of_every_length),
    };
    return cmocka_run_group_tests_name("codec_reply", tests, NULL, NULL);
}
