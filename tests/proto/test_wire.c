/* proto/wire.c: rows byte for byte, names of operations, choice of the version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/bytes.h"
#include "proto/wire.h"

/* Bytes 1, 2, 3, ...: each field of a row then has one value that only its place explains. */
static void count_up(uint8_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (uint8_t)(i + 1);
}

/* Loads at every misalignment, stores elsewhere, compares; nothing beyond the row is touched. */
#define ROUND_TRIP(name, BYTES, row)                                                               \
    for (size_t skew = 0; skew < 8; skew++) {                                                      \
        uint8_t in[(BYTES) + 16], out[(BYTES) + 16];                                               \
        memset(in, 0xee, sizeof in);                                                               \
        memset(out, 0xee, sizeof out);                                                             \
        count_up(in + skew, BYTES);                                                                \
        kvw_##name##_load(&(row), in + skew);                                                      \
        kvw_##name##_store(out + skew, &(row));                                                    \
        assert_memory_equal(in, out, sizeof in);                                                   \
    }

static void put_row(void **state)
{
    struct kvw_put_row row;

    (void)state;
    ROUND_TRIP(put_row, KVW_PUT_ROW_BYTES, row)
    assert_int_equal(row.key.bytes[0], 1);
    assert_int_equal(row.key.bytes[31], 32);
    assert_int_equal(row.kind, 0x24232221);
    assert_int_equal(row.tokens, 0x28272625);
    assert_true(row.bytes == UINT64_C(0x302f2e2d2c2b2a29));
    assert_int_equal(row.digest, 0x34333231);
    assert_int_equal(row.reserved, 0x38373635);
}

static void block_status(void **state)
{
    struct kvw_block_status row;

    (void)state;
    ROUND_TRIP(block_status, KVW_BLOCK_STATUS_BYTES, row)
    assert_int_equal(row.status, 0x04030201);
    assert_int_equal(row.kind, 0x08070605);
    assert_int_equal(row.digest, 0x0c0b0a09);
    assert_int_equal(row.reserved, 0x100f0e0d);
}

static void seq_row(void **state)
{
    struct kvw_seq_row row;

    (void)state;
    ROUND_TRIP(seq_row, KVW_SEQ_ROW_BYTES, row)
    assert_true(row.sequence == UINT64_C(0x0807060504030201));
    assert_true(row.position == UINT64_C(0x100f0e0d0c0b0a09));
    assert_int_equal(row.q_tokens, 0x14131211);
    assert_int_equal(row.tokens, 0x18171615);
    assert_int_equal(row.keys, 0x1c1b1a19);
    assert_int_equal(row.expected, 0x201f1e1d);
}

static void seq_status(void **state)
{
    struct kvw_seq_status row;

    (void)state;
    ROUND_TRIP(seq_status, KVW_SEQ_STATUS_BYTES, row)
    assert_true(row.sequence == UINT64_C(0x0807060504030201));
    assert_true(row.committed == UINT64_C(0x100f0e0d0c0b0a09));
    assert_int_equal(row.status, 0x14131211);
    assert_int_equal(row.blocks, 0x18171615);
    assert_true(row.reserved == UINT64_C(0x201f1e1d1c1b1a19));
}

static void event_row(void **state)
{
    struct kvw_event_row row;

    (void)state;
    ROUND_TRIP(event_row, KVW_EVENT_ROW_BYTES, row)
    assert_true(row.sequence == UINT64_C(0x0807060504030201));
    assert_true(row.space == UINT64_C(0x100f0e0d0c0b0a09));
    assert_int_equal(row.key.bytes[0], 0x11);
    assert_int_equal(row.key.bytes[31], 0x30);
    assert_int_equal(row.type, 0x34333231);
    assert_int_equal(row.kind, 0x38373635);
}

static void bytes_are_little_endian(void **state)
{
    uint8_t at[8];

    (void)state;
    kvw_le16_store(at, 0xff01);
    assert_memory_equal(at, "\x01\xff", 2);
    kvw_le64_store(at, UINT64_C(0xfffefdfcfbfaf9f8));
    assert_memory_equal(at, "\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff", 8);
    assert_int_equal(kvw_le16_load(at), 0xf9f8);
    assert_true(kvw_le32_load(at) == 0xfbfaf9f8);
    assert_true(kvw_le64_load(at) == UINT64_C(0xfffefdfcfbfaf9f8));
}

static void operations_have_names(void **state)
{
    size_t named = 0;

    (void)state;
    for (unsigned op = 0; op < 256; op++)
        named += kvw_op_name((uint8_t)op) != NULL;
    assert_int_equal(named, 26);
    assert_string_equal(kvw_op_name(KVW_HELLO), "HELLO");
    assert_string_equal(kvw_op_name(KVW_COMPRESS), "COMPRESS");
    assert_string_equal(kvw_op_name(KVW_SEQ_RELEASE), "SEQ_RELEASE");
    assert_string_equal(kvw_op_name(KVW_PERSIST), "PERSIST");
    assert_string_equal(kvw_op_name(KVW_EVENTS), "EVENTS");
    assert_null(kvw_op_name(0));
    assert_null(kvw_op_name(15));
}

static kvarn_status choose(uint32_t client_min, uint32_t client_max, uint32_t server_min,
                           uint32_t server_max, uint32_t expected)
{
    uint32_t chosen = 99;
    kvarn_status status = kvw_negotiate(client_min, client_max, server_min, server_max, &chosen);

    assert_int_equal(chosen, expected);
    return status;
}

/* Ranges that no release has yet: what an N server does with an N-1 client, and the reverse. */
static void versions_are_negotiated(void **state)
{
    (void)state;
    assert_int_equal(choose(1, 1, 1, 1, 1), KVARN_OK);
    assert_int_equal(choose(1, 2, 2, 3, 2), KVARN_OK); /* N-1 client */
    assert_int_equal(choose(2, 3, 1, 2, 2), KVARN_OK); /* N-1 server */
    assert_int_equal(choose(1, 9, 2, 3, 3), KVARN_OK); /* the newest both know */
    assert_int_equal(choose(2, 3, 1, 9, 3), KVARN_OK);
    assert_int_equal(choose(3, UINT32_MAX, 2, 3, 3), KVARN_OK);
    assert_int_equal(choose(1, 1, 2, 3, 0), KVARN_UNSUPPORTED);
    assert_int_equal(choose(4, 5, 2, 3, 0), KVARN_UNSUPPORTED);
    assert_int_equal(choose(0, 0, 1, 1, 0), KVARN_BAD_FRAME); /* fields absent */
    assert_int_equal(choose(0, 3, 1, 1, 0), KVARN_BAD_FRAME);
    assert_int_equal(choose(3, 2, 1, 5, 0), KVARN_BAD_FRAME);
}

static void refusal_names_both_ranges(void **state)
{
    char text[128];

    (void)state;
    kvw_negotiate_text(text, sizeof text, 1, 1, 2, 3);
    assert_string_equal(text,
                        "no common protocol version: the client speaks 1..1, the server 2..3");
    kvw_negotiate_text(text, sizeof text, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    assert_non_null(strstr(text, "the server 4294967295..4294967295"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_row),
        cmocka_unit_test(block_status),
        cmocka_unit_test(seq_row),
        cmocka_unit_test(seq_status),
        cmocka_unit_test(event_row),
        cmocka_unit_test(bytes_are_little_endian),
        cmocka_unit_test(operations_have_names),
        cmocka_unit_test(versions_are_negotiated),
        cmocka_unit_test(refusal_names_both_ranges),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
