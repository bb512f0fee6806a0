/* proto/codec_prescan.c against a peer that means harm: cut, nested, doubled, over-long, wrongly
 * typed. What the schema allows passes, everything else is BAD_FRAME. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec_cases.h"

static uint8_t wire[2 * KVW_METADATA_MAX_BYTES];

static kvarn_status decode_as(const char *name, const void *in, size_t count)
{
    union codec_any out;

    return codec_case_decode(codec_case_named(name), &out, in, count);
}

/* A cut at a field's end is a shorter message; anywhere else it is an error. Never more than the
 * given bytes are read: each piece is an allocation of its own, so that a sanitizer sees. */
static void every_cut(void **state)
{
    union codec_any example, out;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count, refused = 0;

        memset(&example, 0, sizeof example);
        test->fill(&example);
        if (strcmp(test->name, "list_reply") == 0)
            example.list_reply.count = 3;
        count = test->encode(wire, sizeof wire, &example);
        for (size_t cut = 0; cut < count; cut++) {
            uint8_t *piece = malloc(cut > 0 ? cut : 1);

            memcpy(piece, wire, cut);
            refused += codec_case_decode(test, &out, piece, cut) != KVARN_OK;
            free(piece);
        }
        assert_true(refused > 0);
        assert_true(refused < count);
    }
}

static const void *default_of(const ProtobufCFieldDescriptor *field, size_t *count)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT:
        *count = 4;
        return "\0\0\0\0";
    case PROTOBUF_C_TYPE_DOUBLE:
        *count = 8;
        return "\0\0\0\0\0\0\0\0";
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        *count = 1;
        return "\0"; /* of no length */
    default:
        *count = 1;
        return "\1";
    }
}

static unsigned wire_type_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT:
        return 5;
    case PROTOBUF_C_TYPE_DOUBLE:
        return 1;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 2;
    default:
        return 0;
    }
}

static kvarn_status scan(const ProtobufCMessageDescriptor *descriptor, size_t count)
{
    const char *why;

    return kvw_codec_prescan(descriptor, wire, count, &why);
}

/* Of one message type and those below it: every field with every wire type, then twice. */
static void abuse_fields(const ProtobufCMessageDescriptor *descriptor)
{
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        size_t value_count, count;
        const void *value = default_of(field, &value_count);

        for (unsigned type = 0; type < 8; type++) {
            /* zeroes behind it satisfy any wire type's length */
            memset(wire, 0, 32);
            count = codec_put_varint(wire, (uint64_t)field->id << 3 | type);
            if (type == wire_type_of(field)) {
                memcpy(wire + count, value, value_count);
                assert_int_equal(scan(descriptor, count + value_count), KVARN_OK);
            } else {
                assert_int_equal(scan(descriptor, count + 1), KVARN_BAD_FRAME);
                assert_int_equal(scan(descriptor, count + 4), KVARN_BAD_FRAME);
                assert_int_equal(scan(descriptor, count + 8), KVARN_BAD_FRAME);
            }
        }
        count = codec_put_varint(wire, (uint64_t)field->id << 3 | wire_type_of(field));
        memcpy(wire + count, value, value_count);
        count += value_count;
        memcpy(wire + count, wire, count);
        assert_int_equal(scan(descriptor, 2 * count),
                         field->label == PROTOBUF_C_LABEL_REPEATED ? KVARN_OK : KVARN_BAD_FRAME);
        if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            abuse_fields(field->descriptor);
    }
}

static void wrong_types_and_doubles(void **state)
{
    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++)
        abuse_fields(codec_case_at(i)->descriptor());
}

static void numbers(void **state)
{
    static const char ok_64[] = "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    static const char over_64[] = "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02";
    static const char eleven[] = "\x18\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00";
    static const char ok_32[] = "\x08\xff\xff\xff\xff\x0f";
    static const char over_32[] = "\x08\x80\x80\x80\x80\x10";
    static const char long_zero[] = "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00";

    (void)state;
    assert_int_equal(decode_as("hello", ok_64, sizeof ok_64 - 1), KVARN_OK);
    assert_int_equal(decode_as("hello", over_64, sizeof over_64 - 1), KVARN_BAD_FRAME);
    assert_int_equal(decode_as("hello", eleven, sizeof eleven - 1), KVARN_BAD_FRAME);
    assert_int_equal(decode_as("hello", ok_32, sizeof ok_32 - 1), KVARN_OK);
    assert_int_equal(decode_as("hello", over_32, sizeof over_32 - 1), KVARN_BAD_FRAME);
    assert_int_equal(decode_as("hello", long_zero, sizeof long_zero - 1), KVARN_OK);
    assert_int_equal(decode_as("stats", "\x08\x02", 2), KVARN_BAD_FRAME);
    assert_int_equal(decode_as("ping_reply", "\x08\xff\x01", 3), KVARN_OK);
    assert_int_equal(decode_as("ping_reply", "\x08\x80\x02", 3), KVARN_BAD_FRAME);
}

static void field_numbers(void **state)
{
    (void)state;
    assert_int_equal(decode_as("hello", "\x00\x00", 2), KVARN_BAD_FRAME);
    assert_int_equal(decode_as("hello", "\x02\x00", 2), KVARN_BAD_FRAME);
    /* the largest, 2^29 - 1; one over; a tag of six bytes */
    assert_int_equal(decode_as("hello", "\xf8\xff\xff\xff\x0f\x00", 6), KVARN_OK);
    assert_int_equal(decode_as("hello", "\xf8\xff\xff\xff\x1f\x00", 6), KVARN_BAD_FRAME);
    assert_int_equal(decode_as("hello", "\x88\x80\x80\x80\x80\x00\x00", 7), KVARN_BAD_FRAME);
}

static void lengths(void **state)
{
    static const uint64_t bad[] = {1, 513, INT32_MAX, UINT32_MAX, UINT64_C(1) << 34, UINT64_MAX};

    (void)state;
    assert_int_equal(decode_as("hello", "\x22\x00", 2), KVARN_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        static const uint8_t tags[] = {0x22, 0x32, 0x3a, 0x4a}; /* text, sub-messages, unknown */

        for (size_t t = 0; t < sizeof tags; t++) {
            size_t count = 1 + codec_put_varint(wire + 1, bad[i]);

            wire[0] = tags[t];
            assert_int_equal(decode_as(t == 0 ? "hello" : "blocks", wire, count), KVARN_BAD_FRAME);
        }
    }
}

/* A hello whose client is `count` bytes at `text`. */
static kvarn_status hello_from(const void *text, size_t count)
{
    size_t at = 1 + codec_put_varint(wire + 1, count);

    wire[0] = 0x22;
    memcpy(wire + at, text, count);
    return decode_as("hello", wire, at + count);
}

static void texts(void **state)
{
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xe2\x82",
                                      "\xc3",
                                      "a\xff",
                                      "\xc3("};
    static const char *const good[] = {"",
                                       "a",
                                       "../../etc/passwd\n",
                                       "\xc2\x80",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf"};
    static char text[60000];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(hello_from(bad[i], strlen(bad[i])), KVARN_BAD_FRAME);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(hello_from(good[i], strlen(good[i])), KVARN_OK);
    assert_int_equal(hello_from("\0", 1), KVARN_BAD_FRAME);
    assert_int_equal(hello_from("a\0b", 3), KVARN_BAD_FRAME);
    memset(text, 'x', sizeof text);
    assert_int_equal(hello_from(text, KVW_TEXT_MAX_BYTES), KVARN_OK);
    assert_int_equal(hello_from(text, KVW_TEXT_MAX_BYTES + 1), KVARN_BAD_FRAME);
    assert_int_equal(hello_from(text, sizeof text), KVARN_BAD_FRAME);
}

static void fingerprints_have_one_length(void **state)
{
    (void)state;
    memset(wire, 0, 64);
    wire[0] = 0x2a;
    for (uint8_t size = 0; size < 40; size++) {
        wire[1] = size;
        assert_int_equal(decode_as("open_space_reply", wire, 2 + (size_t)size),
                         size == 32 ? KVARN_OK : KVARN_BAD_FRAME);
    }
}

/* Unknown fields are skipped, to let versions differ, up to a bound and at any depth. */
static void unknown_fields_are_counted(void **state)
{
    static const char each_type[] = "\xa0\x06\x01\xa1\x06"
                                    "12345678\xa2\x06\x01z\xa5\x06"
                                    "1234";
    size_t count = 0;

    (void)state;
    assert_int_equal(decode_as("hello", each_type, sizeof each_type - 1), KVARN_OK);
    assert_int_equal(decode_as("hello", "\xa3\x06", 2), KVARN_BAD_FRAME); /* groups */
    assert_int_equal(decode_as("hello", "\xa3\x06\xa4\x06", 4), KVARN_BAD_FRAME);
    for (unsigned i = 0; i < KVW_UNKNOWN_FIELDS_MAX; i++, count += 3)
        memcpy(wire + count, "\xa0\x06\x01", 3);
    assert_int_equal(decode_as("hello", wire, count), KVARN_OK);
    memcpy(wire + count, "\xa0\x06\x01", 3);
    assert_int_equal(decode_as("hello", wire, count + 3), KVARN_BAD_FRAME);
    /* 33 elements with two each */
    for (count = 0; count < 33 * 8; count += 8)
        memcpy(wire + count, "\x22\x06\xa0\x06\x01\xa0\x06\x01", 8);
    assert_int_equal(decode_as("stats_reply", wire, 32 * 8), KVARN_OK);
    assert_int_equal(decode_as("stats_reply", wire, 33 * 8), KVARN_BAD_FRAME);
    for (count = 0; count + 3 <= KVW_METADATA_MAX_BYTES; count += 3)
        memcpy(wire + count, "\xa0\x06\x01", 3);
    assert_int_equal(decode_as("hello", wire, count), KVARN_BAD_FRAME);
    memset(wire, 0, sizeof wire);
    assert_int_equal(decode_as("hello", wire, KVW_METADATA_MAX_BYTES + 1), KVARN_BAD_FRAME);
}

static void lists_are_bounded(void **state)
{
    static const char *const names[] = {"stats_reply", "list_reply"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        for (size_t count = 0; count < sizeof wire; count += 2)
            memcpy(wire + count, "\x22\x00", 2);
        assert_int_equal(decode_as(names[i], wire, 256 * 2), KVARN_OK);
        assert_int_equal(decode_as(names[i], wire, 257 * 2), KVARN_BAD_FRAME);
        assert_int_equal(decode_as(names[i], wire, KVW_METADATA_MAX_BYTES), KVARN_BAD_FRAME);
    }
}

/* Fields that hold themselves, 17 and 20,000 deep: here only unknown ones can, and those are not
 * descended into. */
static void nesting_is_not_followed(void **state)
{
    static const unsigned depths[] = {17, 20000};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        size_t at = sizeof wire;

        for (unsigned depth = 0; depth < depths[i]; depth++) {
            uint8_t head[8];
            size_t count = 1 + codec_put_varint(head + 1, sizeof wire - at);

            head[0] = 0x32; /* field 6 of Blocks: the layout, which has no field 6 of that type */
            at -= count;
            memcpy(wire + at, head, count);
        }
        assert_int_equal(decode_as("blocks", wire + at, sizeof wire - at), KVARN_BAD_FRAME);
    }
}

/* The deepest chain of message types; fails on a cycle instead of running for ever. */
static unsigned depth_of(const ProtobufCMessageDescriptor *descriptor, unsigned above)
{
    unsigned deepest = 1;

    assert_true(above < 16);
    assert_true(descriptor->n_fields <= 64);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        if (descriptor->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
            unsigned depth = 1 + depth_of(descriptor->fields[i].descriptor, above + 1);

            if (depth > deepest)
                deepest = depth;
        }
    }
    return deepest;
}

static void schema_has_no_cycle(void **state)
{
    unsigned deepest = 0;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const ProtobufCMessageDescriptor *descriptor = codec_case_at(i)->descriptor();
        unsigned depth;

        assert_non_null(descriptor);
        depth = depth_of(descriptor, 0);
        if (depth > deepest)
            deepest = depth;
    }
    assert_int_equal(deepest, KVW_DEPTH_MAX);
    assert_null(kvw_codec_descriptor("no such message"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut),
        cmocka_unit_test(wrong_types_and_doubles),
        cmocka_unit_test(numbers),
        cmocka_unit_test(field_numbers),
        cmocka_unit_test(lengths),
        cmocka_unit_test(texts),
        cmocka_unit_test(fingerprints_have_one_length),
        cmocka_unit_test(unknown_fields_are_counted),
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(nesting_is_not_followed),
        cmocka_unit_test(schema_has_no_cycle),
    };
    return cmocka_run_group_tests_name("codec_prescan", tests, NULL, NULL);
}
