/* proto/frame.c: header bytes, limits, and one stream read whole, byte by byte and in random pieces
 * with the same outcome. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/bytes.h"
#include "proto/frame.h"
#include "proto/wire.h"

enum { PAYLOAD_MAX = 1 << 20, STREAM_ROOM = 1 << 18, RECORD_ROOM = 1 << 19 };

static uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);

static uint32_t any(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 32) % below);
}

static const struct kvw_header plain = {
    .version = 1, .op = KVW_PING, .request_id = 7, .metadata_bytes = 3, .payload_bytes = 5};

static void header_bytes(void **state)
{
    static const uint8_t expected[KVW_HEADER_BYTES] = {'K', 'V', 'R', 'N', 1,  6, 1, 0, 1, 2,  3,
                                                       4,   5,   6,   7,   8,  1, 2, 0, 0, 17, 18,
                                                       19,  20,  33,  34,  35, 0, 0, 0, 0, 0};
    struct kvw_header header = {.version = 1,
                                .op = KVW_COMPRESS,
                                .flags = KVW_FLAG_REPLY,
                                .request_id = UINT64_C(0x0807060504030201),
                                .metadata_bytes = 0x201,
                                .deadline_us = 0x14131211,
                                .payload_bytes = 0x232221};
    struct kvw_header back;
    uint8_t bytes[KVW_HEADER_BYTES];
    const char *why = "untouched";

    (void)state;
    kvw_header_pack(bytes, &header);
    assert_memory_equal(bytes, expected, sizeof bytes);
    assert_int_equal(kvw_header_unpack(&back, bytes, UINT64_MAX, &why), KVARN_OK);
    assert_int_equal(back.version, 1);
    assert_int_equal(back.op, KVW_COMPRESS);
    assert_int_equal(back.flags, KVW_FLAG_REPLY);
    assert_true(back.request_id == header.request_id);
    assert_int_equal(back.metadata_bytes, header.metadata_bytes);
    assert_int_equal(back.deadline_us, header.deadline_us);
    assert_true(back.payload_bytes == header.payload_bytes);
}

static kvarn_status unpack_of(const struct kvw_header *header, uint64_t payload_max)
{
    uint8_t bytes[KVW_HEADER_BYTES];
    struct kvw_header back;
    const char *why = NULL;
    kvarn_status status;

    kvw_header_pack(bytes, header);
    status = kvw_header_unpack(&back, bytes, payload_max, &why);
    if (status != KVARN_OK)
        assert_true(why != NULL && why[0] != '\0');
    return status;
}

static void lengths_are_bounded(void **state)
{
    static const uint32_t metadata_bad[] = {KVW_METADATA_MAX_BYTES + 1, INT32_MAX, UINT32_MAX};
    static const uint64_t payload_bad[] = {PAYLOAD_MAX + 1, INT32_MAX, UINT32_MAX,
                                           UINT64_C(1) << 63, UINT64_MAX};
    struct kvw_header header = plain;

    (void)state;
    for (size_t i = 0; i < sizeof metadata_bad / sizeof metadata_bad[0]; i++) {
        header.metadata_bytes = metadata_bad[i];
        assert_int_equal(unpack_of(&header, PAYLOAD_MAX), KVARN_TOO_LARGE);
    }
    for (uint32_t good = 0; good <= KVW_METADATA_MAX_BYTES; good += KVW_METADATA_MAX_BYTES) {
        header.metadata_bytes = good;
        assert_int_equal(unpack_of(&header, PAYLOAD_MAX), KVARN_OK);
    }
    for (size_t i = 0; i < sizeof payload_bad / sizeof payload_bad[0]; i++) {
        header.payload_bytes = payload_bad[i];
        assert_int_equal(unpack_of(&header, PAYLOAD_MAX), KVARN_TOO_LARGE);
    }
    header.payload_bytes = PAYLOAD_MAX;
    assert_int_equal(unpack_of(&header, PAYLOAD_MAX), KVARN_OK);
    header.payload_bytes = UINT64_MAX;
    assert_int_equal(unpack_of(&header, UINT64_MAX), KVARN_OK);
    header.payload_bytes = 1;
    assert_int_equal(unpack_of(&header, 0), KVARN_TOO_LARGE);
}

static void versions_and_flags(void **state)
{
    struct kvw_header header = plain;

    (void)state;
    for (unsigned version = 0; version < 256; version++) {
        header.version = (uint8_t)version;
        assert_int_equal(unpack_of(&header, PAYLOAD_MAX),
                         version >= KVW_VERSION_MIN && version <= KVW_VERSION_MAX
                             ? KVARN_OK
                             : KVARN_UNSUPPORTED);
    }
    header = plain;
    for (unsigned bit = 0; bit < 16; bit++) {
        header.flags = (uint16_t)(1u << bit);
        assert_int_equal(unpack_of(&header, PAYLOAD_MAX), bit == 0 ? KVARN_OK : KVARN_UNSUPPORTED);
    }
    header = plain; /* whoever dispatches answers these; the frame is sound */
    header.op = 255;
    header.request_id = 0;
    assert_int_equal(unpack_of(&header, PAYLOAD_MAX), KVARN_OK);
}

/* What a reader said, written down so that two readings can be compared. */
struct record {
    uint8_t bytes[RECORD_ROOM];
    size_t count;
    unsigned frames;
    kvarn_status broken;
};

static void note(struct record *record, const void *bytes, size_t count)
{
    assert_true(count <= RECORD_ROOM - record->count);
    if (count > 0)
        memcpy(record->bytes + record->count, bytes, count);
    record->count += count;
}

static uint8_t metadata[KVW_METADATA_MAX_BYTES];

/* Feeds one piece until the reader wants more. False when framing is lost. */
static int feed(struct kvw_reader *reader, const uint8_t *in, size_t count, struct record *record)
{
    for (;;) {
        size_t taken;
        kvarn_status status;
        const char *why;
        enum kvw_event event = kvw_reader_feed(reader, in, count, &taken, &status, &why);

        assert_true(taken <= count);
        switch (event) {
        case KVW_NEED_MORE:
            assert_int_equal(taken, count);
            return 1;
        case KVW_HEADER:
            note(record, "H", 1);
            note(record, reader->head, KVW_HEADER_BYTES);
            note(record, metadata, reader->header.metadata_bytes);
            break;
        case KVW_PAYLOAD:
            assert_true(taken > 0);
            note(record, in, taken);
            break;
        case KVW_FRAME_END:
            assert_int_equal(taken, 0);
            note(record, "E", 1);
            record->frames++;
            break;
        case KVW_BROKEN:
            assert_true(why != NULL && why[0] != '\0');
            record->broken = status;
            return 0;
        }
        in += taken;
        count -= taken;
    }
}

static size_t append_frame(uint8_t *stream, size_t at, uint32_t metadata_bytes,
                           uint64_t payload_bytes)
{
    struct kvw_header header = plain;

    header.metadata_bytes = metadata_bytes;
    header.payload_bytes = payload_bytes;
    header.request_id = at + 1;
    kvw_header_pack(stream + at, &header);
    at += KVW_HEADER_BYTES;
    for (uint64_t i = 0; i < metadata_bytes + payload_bytes; i++)
        stream[at++] = (uint8_t)any(256);
    return at;
}

static size_t make_stream(uint8_t *stream)
{
    static const struct {
        uint32_t metadata;
        uint32_t payload;
    } shapes[] = {{0, 0}, {3, 0},  {0, 5}, {1, 1},  {300, 2000}, {KVW_METADATA_MAX_BYTES, 0},
                  {0, 0}, {9, 90}, {0, 1}, {200, 0}};
    size_t count = 0;

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        count = append_frame(stream, count, shapes[i].metadata, shapes[i].payload);
    return count;
}

static void pieces_do_not_matter(void **state)
{
    uint8_t *stream = malloc(STREAM_ROOM);
    struct record *whole = calloc(1, sizeof *whole), *pieces = calloc(1, sizeof *pieces);
    size_t count = make_stream(stream);
    struct kvw_reader reader;

    (void)state;
    kvw_reader_init(&reader, metadata, PAYLOAD_MAX);
    assert_true(feed(&reader, stream, count, whole));
    assert_int_equal(whole->frames, 10);
    for (unsigned round = 0; round < 2001; round++) { /* round 0: byte by byte */
        size_t at = 0;
        uint32_t most = round % 3 == 0 ? 8 : round % 3 == 1 ? 4096 : 70000;

        pieces->count = pieces->frames = 0;
        kvw_reader_init(&reader, metadata, PAYLOAD_MAX);
        while (at < count) {
            size_t piece = round == 0 ? 1 : any(most);

            /* small pieces around the interesting places, large ones inside the long metadata */
            if (round % 3 == 0 && round > 0 && at > 2500 && at < 60000)
                piece += 5000;
            if (piece > count - at)
                piece = count - at;
            assert_true(feed(&reader, stream + at, piece, pieces));
            at += piece;
        }
        assert_int_equal(pieces->count, whole->count);
        assert_memory_equal(pieces->bytes, whole->bytes, whole->count);
    }
    free(stream);
    free(whole);
    free(pieces);
}

/* A frame cut anywhere gives no end of frame, and no header before all of the metadata is there. */
static void every_cut_is_incomplete(void **state)
{
    static uint8_t stream[256];
    struct record *record = calloc(1, sizeof *record);
    size_t count = append_frame(stream, 0, 40, 50);

    (void)state;
    for (size_t cut = 0; cut < count; cut++) {
        struct kvw_reader reader;

        record->count = record->frames = 0;
        kvw_reader_init(&reader, metadata, PAYLOAD_MAX);
        assert_true(feed(&reader, stream, cut, record));
        assert_int_equal(record->frames, 0);
        assert_int_equal(record->count, cut < KVW_HEADER_BYTES + 40 ? 0 : cut + 1);
    }
    free(record);
}

/* Payload that the owner reads into its place by itself, alone and mixed with fed bytes. */
static void payload_can_be_placed(void **state)
{
    static uint8_t stream[256];
    struct kvw_reader reader;
    size_t count = append_frame(stream, 0, 10, 100), taken;
    kvarn_status status;
    const char *why;

    (void)state;
    kvw_reader_init(&reader, metadata, PAYLOAD_MAX);
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(kvw_reader_feed(&reader, stream, 52, &taken, &status, &why), KVW_HEADER);
        assert_int_equal(taken, 42);
        assert_int_equal(kvw_reader_feed(&reader, stream + 42, 10, &taken, &status, &why),
                         KVW_PAYLOAD);
        assert_int_equal(taken, 10);
        assert_int_equal(kvw_reader_payload_placed(&reader, 0), KVW_NEED_MORE);
        assert_int_equal(kvw_reader_payload_placed(&reader, 60), KVW_NEED_MORE);
        assert_true(reader.payload_fill == 70);
        assert_int_equal(kvw_reader_payload_placed(&reader, 30), KVW_FRAME_END);
    }
    count = append_frame(stream, 0, 10, 0);
    assert_int_equal(kvw_reader_feed(&reader, stream, count, &taken, &status, &why), KVW_HEADER);
    assert_int_equal(kvw_reader_payload_placed(&reader, 0), KVW_FRAME_END);
    assert_int_equal(kvw_reader_feed(&reader, stream, count, &taken, &status, &why), KVW_HEADER);
}

static kvarn_status first_fault(const void *bytes, size_t count)
{
    struct record *record = calloc(1, sizeof *record);
    struct kvw_reader reader;
    kvarn_status status = KVARN_OK;

    kvw_reader_init(&reader, metadata, PAYLOAD_MAX);
    if (!feed(&reader, bytes, count, record)) {
        status = record->broken;
        /* and it stays broken, with more bytes and with none */
        assert_false(feed(&reader, bytes, count, record));
        assert_false(feed(&reader, NULL, 0, record));
        assert_int_equal(record->broken, status);
    }
    free(record);
    return status;
}

static void foreign_protocols_end_at_once(void **state)
{
    static const char tls_hello[] = "\x16\x03\x01\x02\x00\x01";

    (void)state;
    assert_int_equal(first_fault("G", 1), KVARN_BAD_FRAME);
    assert_int_equal(first_fault("GET / HTTP/1.1\r\n\r\n", 18), KVARN_BAD_FRAME);
    assert_int_equal(first_fault("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24), KVARN_BAD_FRAME);
    assert_int_equal(first_fault("*1\r\n$4\r\nPING\r\n", 14), KVARN_BAD_FRAME);
    assert_int_equal(first_fault(tls_hello, sizeof tls_hello - 1), KVARN_BAD_FRAME);
    assert_int_equal(first_fault("KVRX", 4), KVARN_BAD_FRAME);
    assert_int_equal(first_fault("KVR", 3), KVARN_OK); /* may still become one */
}

static void faults_in_a_stream(void **state)
{
    static uint8_t stream[256];
    size_t count = append_frame(stream, 0, 10, 20), second = count;

    (void)state;
    count = append_frame(stream, count, 10, 20);
    assert_int_equal(first_fault(stream, count), KVARN_OK);
    kvw_le32_store(stream + second + 16, KVW_METADATA_MAX_BYTES + 1);
    assert_int_equal(first_fault(stream, count), KVARN_TOO_LARGE);
    kvw_le32_store(stream + second + 16, 10);
    kvw_le64_store(stream + second + 24, UINT64_MAX);
    assert_int_equal(first_fault(stream, count), KVARN_TOO_LARGE);
    kvw_le64_store(stream + second + 24, 20);
    stream[second + 4] = 2;
    assert_int_equal(first_fault(stream, count), KVARN_UNSUPPORTED);
    stream[second] = 'k';
    assert_int_equal(first_fault(stream, count), KVARN_BAD_FRAME);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_bytes),
        cmocka_unit_test(lengths_are_bounded),
        cmocka_unit_test(versions_and_flags),
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(every_cut_is_incomplete),
        cmocka_unit_test(payload_can_be_placed),
        cmocka_unit_test(foreign_protocols_end_at_once),
        cmocka_unit_test(faults_in_a_stream),
    };
    return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
