/* proto/codec_request: what absent fields of requests mean, sub-messages, the smallest encodings.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "codec_cases.h"

static uint8_t wire[KVW_METADATA_MAX_BYTES];

static void defaults_of_open_space(void **state)
{
    union codec_any out;
    struct kvw_open_space in = {.model = "m"};
    size_t count;

    (void)state;
    assert_int_equal(codec_case_decode(codec_case_named("open_space"), &out, NULL, 0), KVARN_OK);
    assert_int_equal(out.open_space.iterations, KVARN_DEFAULT_ITERATIONS);
    assert_int_equal(out.open_space.sink_tokens, KVARN_SINK_TOKENS);
    assert_false(out.open_space.has_iterations);
    assert_false(out.open_space.has_sink_tokens);
    in.has_sink_tokens = in.has_iterations = true; /* 0, and meant */
    count = kvw_open_space_encode(wire, sizeof wire, &in);
    assert_int_equal(codec_case_decode(codec_case_named("open_space"), &out, wire, count),
                     KVARN_OK);
    assert_int_equal(out.open_space.sink_tokens, 0);
    assert_true(out.open_space.has_sink_tokens);
    assert_int_equal(out.open_space.iterations, 0);
    assert_true(out.open_space.has_iterations);
}

/* Presence of a sub-message says something even when all of it is 0. */
static void empty_layout_is_present(void **state)
{
    struct kvw_blocks in = {.layout.present = true};
    union codec_any out;
    size_t count = kvw_blocks_encode(wire, sizeof wire, &in);

    (void)state;
    assert_int_equal(codec_case_decode(codec_case_named("blocks"), &out, wire, count), KVARN_OK);
    assert_true(out.blocks.layout.present);
    assert_false(out.blocks.query.present);
}

/* The two sub-messages stand for themselves in both requests that have them. */
static void layout_and_query_are_apart(void **state)
{
    struct kvw_sequences in = {.query = {.present = true, .full = true}};
    union codec_any out;
    size_t count = kvw_sequences_encode(wire, sizeof wire, &in);

    (void)state;
    assert_int_equal(codec_case_decode(codec_case_named("sequences"), &out, wire, count), KVARN_OK);
    assert_false(out.sequences.layout.present);
    assert_true(out.sequences.query.present);
    assert_true(out.sequences.query.full);
    assert_false(out.sequences.query.deterministic);
    in = (struct kvw_sequences){.layout = {.present = true, .v_offset = UINT64_MAX}};
    count = kvw_sequences_encode(wire, sizeof wire, &in);
    assert_int_equal(codec_case_decode(codec_case_named("sequences"), &out, wire, count), KVARN_OK);
    assert_int_equal(out.sequences.layout.v_offset, UINT64_MAX);
    assert_int_equal(out.sequences.layout.k_offset, 0);
    assert_false(out.sequences.query.present);
}

/* What stands in a struct beside "not present" is not sent. */
static void absent_parts_are_not_sent(void **state)
{
    const struct kvw_blocks bare = {.space = 1},
                            full = {.space = 1, .layout = {.k_offset = 5}, .query = {.q_heads = 7}};
    const struct kvw_open_space plain = {.model = "m"}, more = {.model = "m", .preset = ""};
    uint8_t other[64];
    size_t count = kvw_blocks_encode(wire, sizeof wire, &bare);

    (void)state;
    assert_int_equal(kvw_blocks_encode(other, sizeof other, &full), count);
    assert_memory_equal(wire, other, count);
    count = kvw_open_space_encode(wire, sizeof wire, &plain);
    assert_int_equal(kvw_open_space_encode(other, sizeof other, &more), count);
    assert_memory_equal(wire, other, count);
}

static void no_request_is_empty(void **state)
{
    static const union codec_any zero;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);

        if (strstr(test->name, "_reply") == NULL)
            assert_in_range(test->encode(wire, sizeof wire, &zero), 1, 4);
        assert_int_equal(test->encode(wire, 0, &zero), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_open_space),     cmocka_unit_test(empty_layout_is_present),
        cmocka_unit_test(layout_and_query_are_apart), cmocka_unit_test(absent_parts_are_not_sent),
        cmocka_unit_test(no_request_is_empty),
    };
    return cmocka_run_group_tests_name("codec_request", tests, NULL, NULL);
}
