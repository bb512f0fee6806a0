/* proto/codec*.c between friends: every field of every message survives the way there and back,
 * absent fields mean what the header says, and the bytes do not drift between releases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec_cases.h"

static uint8_t wire[KVW_METADATA_MAX_BYTES], again[KVW_METADATA_MAX_BYTES];

static size_t encode_example(const struct codec_case *test, union codec_any *example)
{
    memset(example, 0, sizeof *example);
    test->fill(example);
    return test->encode(wire, sizeof wire, example);
}

static void every_field_survives(void **state)
{
    union codec_any in, out;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count = encode_example(test, &in);

        assert_true(count > 0);
        assert_int_equal(codec_case_decode(test, &out, wire, count), KVARN_OK);
        codec_case_assert_equal(test, &in, &out);
        assert_int_equal(test->encode(again, sizeof again, &out), count);
        assert_memory_equal(wire, again, count);
    }
}

/* The examples would prove nothing about a field that they leave out. */
static void assert_all_present(const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const uint8_t *member = (const uint8_t *)message + field->offset;
        const void *pointer = NULL;

        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t elements;

            memcpy(&elements, (const uint8_t *)message + field->quantifier_offset, sizeof elements);
            memcpy(&pointer, member, sizeof pointer);
            assert_true(elements > 0);
            assert_all_present(((const ProtobufCMessage *const *)pointer)[0]);
        } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            memcpy(&pointer, member, sizeof pointer);
            assert_non_null(pointer);
            assert_all_present(pointer);
        } else if (field->type == PROTOBUF_C_TYPE_STRING) {
            memcpy(&pointer, member, sizeof pointer);
            assert_non_null(pointer);
        } else {
            protobuf_c_boolean has;

            memcpy(&has, (const uint8_t *)message + field->quantifier_offset, sizeof has);
            assert_true(has);
        }
    }
}

static void examples_are_full(void **state)
{
    static uint8_t memory[KVW_ARENA_BYTES];
    union codec_any in;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count = encode_example(test, &in);
        struct kvw_arena arena;
        const char *why;
        ProtobufCMessage *message;

        kvw_arena_init(&arena, memory, sizeof memory);
        message = kvw_codec_unpack(test->descriptor(), wire, count, &arena, &why);
        assert_non_null(message);
        assert_all_present(message);
    }
}

/* A struct of zeroes: the smallest encoding is not empty, and it decodes to the same as no bytes.
 */
static void zeroes_and_absence_are_one(void **state)
{
    static const union codec_any zero;
    union codec_any a, b;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count = test->encode(wire, sizeof wire, &zero);

        assert_true(count > 0);
        assert_int_equal(codec_case_decode(test, &a, wire, count), KVARN_OK);
        assert_int_equal(codec_case_decode(test, &b, NULL, 0), KVARN_OK);
        codec_case_assert_equal(test, &a, &b);
        for (const size_t *at = test->texts; *at != SIZE_MAX; at++) {
            const char *text;

            memcpy(&text, (const uint8_t *)&b + *at, sizeof text);
            assert_string_equal(text, "");
        }
    }
}

static void bytes_are_frozen(void **state)
{
    static const char hello[] = "\x08\x01\x10\x01\x18\x01\x22\x01"
                                "c";
    static const char error[] = "\x08\x20\x12\x04"
                                "busy\x18\xdc\x0b";
    static const char blocks[] = "\x08\x07\x10\x02\x20\x03\x28\x01\x3a\x07\x08\x0c\x2d\x00\x00\x00"
                                 "\x3e\x40\x01";
    struct kvw_hello a = {1, 1, 1, "c"};
    struct kvw_result b = {KVARN_RETRY, "busy", 1500};
    struct kvw_blocks c = {.space = 7, .block_count = 2, .layer_begin = 3, .layer_count = 1};

    (void)state;
    c.all = true;
    c.query = (struct kvw_query){.present = true, .q_heads = 12, .scale = 0.125f};
    assert_int_equal(kvw_hello_encode(wire, sizeof wire, &a), sizeof hello - 1);
    assert_memory_equal(wire, hello, sizeof hello - 1);
    assert_int_equal(kvw_result_encode(wire, sizeof wire, &b), sizeof error - 1);
    assert_memory_equal(wire, error, sizeof error - 1);
    assert_int_equal(kvw_blocks_encode(wire, sizeof wire, &c), sizeof blocks - 1);
    assert_memory_equal(wire, blocks, sizeof blocks - 1);
}

/* Exactly enough room works, one byte less gives 0 and nothing past the room is written. */
static void room_is_respected(void **state)
{
    union codec_any in;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count = encode_example(test, &in);
        size_t step = count > 2000 ? 97 : 1;

        for (size_t room = 0; room < count; room += step) {
            uint8_t *exact = malloc(room > 0 ? room : 1);

            assert_int_equal(test->encode(exact, room, &in), 0);
            free(exact);
        }
        assert_int_equal(test->encode(again, count, &in), count);
        assert_memory_equal(again, wire, count);
    }
}

static void encoders_refuse_what_decoders_would(void **state)
{
    static char text[KVW_TEXT_MAX_BYTES + 2];
    static struct kvw_metric metrics[KVW_METRICS_MAX + 1];
    static struct kvw_space_info spaces[KVW_SPACES_MAX + 1];
    struct kvw_hello hello = {.client = text};
    struct kvw_stats_reply stats = {.count = KVW_METRICS_MAX + 1, .metrics = metrics};
    struct kvw_list_reply list = {.count = KVW_SPACES_MAX + 1, .spaces = spaces};

    (void)state;
    memset(text, 'x', KVW_TEXT_MAX_BYTES);
    assert_true(kvw_hello_encode(wire, sizeof wire, &hello) > KVW_TEXT_MAX_BYTES);
    text[KVW_TEXT_MAX_BYTES] = 'x';
    assert_int_equal(kvw_hello_encode(wire, sizeof wire, &hello), 0);
    hello.client = "\xff";
    assert_int_equal(kvw_hello_encode(wire, sizeof wire, &hello), 0);
    assert_int_equal(kvw_stats_reply_encode(wire, sizeof wire, &stats), 0);
    assert_int_equal(kvw_list_reply_encode(wire, sizeof wire, &list), 0);
    metrics[0].name = "\xff";
    stats.count = 1;
    assert_int_equal(kvw_stats_reply_encode(wire, sizeof wire, &stats), 0);
    spaces[0].model = "\xff";
    list.count = 1;
    assert_int_equal(kvw_list_reply_encode(wire, sizeof wire, &list), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_survives),
        cmocka_unit_test(examples_are_full),
        cmocka_unit_test(zeroes_and_absence_are_one),
        cmocka_unit_test(bytes_are_frozen),
        cmocka_unit_test(room_is_respected),
        cmocka_unit_test(encoders_refuse_what_decoders_would),
    };
    return cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
