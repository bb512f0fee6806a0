/* The gate in front of protobuf-c: walks untrusted metadata and refuses what would cost more than
 * its size says.
 *
 * protobuf-c allocates about 60 bytes per byte of a hostile message and recurses without limit.
 * Here every field is counted and checked against the schema's descriptors first: wire type,
 * length, range, text. A singular field that comes twice is refused (protobuf would let the last
 * one win or merge: two readings of one message). */
#include <limits.h>
#include <string.h>

#include "proto/codec_internal.h"

enum {
    WIRE_VARINT = 0,
    WIRE_64 = 1,
    WIRE_BYTES = 2,
    WIRE_32 = 5,
    VARINT_MAX_BYTES = 10,
    TAG_MAX_BYTES = 5,
    FIELDS_PER_MESSAGE_MAX = 64, /* bits of `seen` */
};

struct scan {
    const uint8_t *at, *end;
    unsigned unknown, unknown_max; /* of the whole message tree; how many are too many */
    uint8_t *kept;                 /* NULL, or where known fields are copied to */
    size_t kept_room, kept_count;
    const char *why;
};

static bool refuse(struct scan *scan, const char *why)
{
    scan->why = why;
    return false;
}

static bool read_varint(struct scan *scan, unsigned max_bytes, uint64_t *value)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < max_bytes; i++) {
        uint8_t byte;

        if (scan->at == scan->end)
            return refuse(scan, "a number is cut off");
        byte = *scan->at++;
        if (i == VARINT_MAX_BYTES - 1 && byte > 1)
            return refuse(scan, "a number over 64 bits");
        sum |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = sum;
            return true;
        }
    }
    return refuse(scan, "a number is too long");
}

static bool skip(struct scan *scan, uint64_t count)
{
    if (count > (uint64_t)(scan->end - scan->at))
        return refuse(scan, "a field goes past the end of its message");
    scan->at += count;
    return true;
}

bool kvw_text_valid(const uint8_t *text, size_t count)
{
    size_t i = 0;

    while (i < count) {
        uint8_t lead = text[i++];
        unsigned tail, low = 0x80, high = 0xbf; /* bounds of the next byte */

        if (lead == 0)
            return false;
        if (lead < 0x80)
            continue;
        if (lead < 0xc2 || lead > 0xf4)
            return false;
        tail = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
        if (lead == 0xe0)
            low = 0xa0; /* overlong */
        if (lead == 0xed)
            high = 0x9f; /* surrogates */
        if (lead == 0xf0)
            low = 0x90; /* overlong */
        if (lead == 0xf4)
            high = 0x8f; /* over U+10FFFF */
        for (; tail > 0; tail--) {
            if (i == count || text[i] < low || text[i] > high)
                return false;
            i++;
            low = 0x80;
            high = 0xbf;
        }
    }
    return true;
}

static unsigned wire_type_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return WIRE_32;
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_BYTES;
    default:
        return WIRE_VARINT;
    }
}

static bool skip_unknown(struct scan *scan, unsigned wire_type)
{
    uint64_t value;

    if (++scan->unknown > scan->unknown_max)
        return refuse(scan, "too many unknown fields");
    switch (wire_type) {
    case WIRE_VARINT:
        return read_varint(scan, VARINT_MAX_BYTES, &value);
    case WIRE_64:
        return skip(scan, 8);
    case WIRE_32:
        return skip(scan, 4);
    case WIRE_BYTES:
        return read_varint(scan, TAG_MAX_BYTES, &value) && skip(scan, value);
    default: /* groups, and the two types that do not exist */
        return refuse(scan, "a wire type that is not in use");
    }
}

static bool scan_number(struct scan *scan, const ProtobufCFieldDescriptor *field)
{
    uint64_t value;

    if (!read_varint(scan, VARINT_MAX_BYTES, &value))
        return false;
    if (field->type == PROTOBUF_C_TYPE_UINT32 && value > UINT32_MAX)
        return refuse(scan, "a number over 32 bits");
    if (field->type == PROTOBUF_C_TYPE_BOOL && value > 1)
        return refuse(scan, "a truth value that is neither 0 nor 1");
    return true;
}

static bool scan_message(struct scan *scan, const ProtobufCMessageDescriptor *descriptor,
                         unsigned depth);

/* The bytes of a text, of raw bytes, or of a sub-message. */
static bool scan_bytes(struct scan *scan, const ProtobufCFieldDescriptor *field, unsigned depth)
{
    const uint8_t *start, *outer_end = scan->end;
    uint64_t count;

    if (!read_varint(scan, TAG_MAX_BYTES, &count))
        return false;
    start = scan->at;
    if (!skip(scan, count))
        return false;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        scan->end = scan->at;
        scan->at = start;
        if (!scan_message(scan, field->descriptor, depth + 1))
            return false;
        scan->end = outer_end;
        return true;
    }
    if (count > KVW_TEXT_MAX_BYTES)
        return refuse(scan, "a text over 512 bytes");
    if (field->type == PROTOBUF_C_TYPE_STRING && !kvw_text_valid(start, (size_t)count))
        return refuse(scan, "a text is not UTF-8 or holds NUL");
    return true;
}

static bool scan_known(struct scan *scan, const ProtobufCFieldDescriptor *field, unsigned wire_type,
                       unsigned depth)
{
    if (wire_type != wire_type_of(field))
        return refuse(scan, "a field has the wrong wire type");
    switch (wire_type) {
    case WIRE_VARINT:
        return scan_number(scan, field);
    case WIRE_64:
        return skip(scan, 8);
    case WIRE_32:
        return skip(scan, 4);
    default:
        return scan_bytes(scan, field, depth);
    }
}

static bool keep(struct scan *scan, const uint8_t *from)
{
    size_t count = (size_t)(scan->at - from);

    if (scan->kept == NULL)
        return true;
    if (count > scan->kept_room - scan->kept_count)
        return refuse(scan, "a field is too long");
    memcpy(scan->kept + scan->kept_count, from, count);
    scan->kept_count += count;
    return true;
}

static bool scan_message(struct scan *scan, const ProtobufCMessageDescriptor *descriptor,
                         unsigned depth)
{
    uint64_t seen = 0;
    unsigned repeated = 0;

    if (depth > KVW_DEPTH_MAX || descriptor->n_fields > FIELDS_PER_MESSAGE_MAX)
        return refuse(scan, "metadata is nested too deep");
    while (scan->at < scan->end) {
        const ProtobufCFieldDescriptor *field;
        const uint8_t *start = scan->at;
        uint64_t tag, bit;
        unsigned wire_type;

        if (!read_varint(scan, TAG_MAX_BYTES, &tag))
            return false;
        wire_type = (unsigned)(tag & 7);
        tag >>= 3;
        if (tag == 0 || tag > 0x1fffffff)
            return refuse(scan, "a field number that cannot be");
        field = protobuf_c_message_descriptor_get_field(descriptor, (unsigned)tag);
        if (field == NULL) {
            if (!skip_unknown(scan, wire_type))
                return false;
            continue;
        }
        bit = UINT64_C(1) << (field - descriptor->fields);
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            if (++repeated > KVW_REPEATED_MAX)
                return refuse(scan, "a list has too many elements");
        } else if ((seen & bit) != 0) {
            return refuse(scan, "a field comes twice");
        }
        seen |= bit;
        if (!scan_known(scan, field, wire_type, depth) || !keep(scan, start))
            return false;
    }
    return true;
}

static kvarn_status run(struct scan *scan, const ProtobufCMessageDescriptor *descriptor,
                        const uint8_t *in, size_t count, const char **why)
{
    *why = "";
    if (count > KVW_METADATA_MAX_BYTES) {
        *why = "metadata over 65536 bytes";
        return KVARN_BAD_FRAME;
    }
    if (count == 0)
        return KVARN_OK;
    scan->at = in;
    scan->end = in + count;
    if (scan_message(scan, descriptor, 1))
        return KVARN_OK;
    *why = scan->why;
    return KVARN_BAD_FRAME;
}

kvarn_status kvw_codec_prescan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *in,
                               size_t count, const char **why)
{
    struct scan scan = {.unknown_max = KVW_UNKNOWN_FIELDS_MAX};

    return run(&scan, descriptor, in, count, why);
}

kvarn_status kvw_codec_pick(const ProtobufCMessageDescriptor *descriptor, const uint8_t *in,
                            size_t count, uint8_t *kept, size_t room, size_t *kept_count,
                            const char **why)
{
    struct scan scan = {.unknown_max = UINT_MAX, .kept = kept, .kept_room = room};
    kvarn_status status = run(&scan, descriptor, in, count, why);

    *kept_count = scan.kept_count;
    return status;
}
