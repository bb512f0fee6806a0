/* Header packing and the incremental reader.
 *
 * The reader holds one header and one metadata buffer and never more, whatever the peer announces:
 * every length is checked before a byte behind it is looked at. A wrong magic is seen at its first
 * wrong byte, so that foreign protocols are answered by closing at once. */
#include "proto/frame.h"

#include <assert.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/wire.h"

static const uint8_t magic[4] = {'K', 'V', 'R', 'N'};

void kvw_header_pack(uint8_t out[KVW_HEADER_BYTES], const struct kvw_header *header)
{
    memcpy(out, magic, sizeof magic);
    out[4] = header->version;
    out[5] = header->op;
    kvw_le16_store(out + 6, header->flags);
    kvw_le64_store(out + 8, header->request_id);
    kvw_le32_store(out + 16, header->metadata_bytes);
    kvw_le32_store(out + 20, header->deadline_us);
    kvw_le64_store(out + 24, header->payload_bytes);
}

kvarn_status kvw_header_unpack(struct kvw_header *header, const uint8_t in[KVW_HEADER_BYTES],
                               uint64_t payload_max_bytes, const char **why)
{
    header->version = in[4];
    header->op = in[5];
    header->flags = kvw_le16_load(in + 6);
    header->request_id = kvw_le64_load(in + 8);
    header->metadata_bytes = kvw_le32_load(in + 16);
    header->deadline_us = kvw_le32_load(in + 20);
    header->payload_bytes = kvw_le64_load(in + 24);

    if (memcmp(in, magic, sizeof magic) != 0) {
        *why = "not a kvarn frame: wrong magic";
        return KVARN_BAD_FRAME;
    }
    if (header->version < KVW_VERSION_MIN || header->version > KVW_VERSION_MAX) {
        *why = "the frame's version is not spoken here";
        return KVARN_UNSUPPORTED;
    }
    /* A flag may change how the bytes behind it are to be read, so an unknown one ends framing. */
    if ((header->flags & ~(unsigned)KVW_FLAGS_KNOWN) != 0) {
        *why = "a flag that this version does not know";
        return KVARN_UNSUPPORTED;
    }
    if (header->metadata_bytes > KVW_METADATA_MAX_BYTES) {
        *why = "metadata over 65536 bytes";
        return KVARN_TOO_LARGE;
    }
    if (header->payload_bytes > payload_max_bytes) {
        *why = "payload over the limit stated in the HELLO reply";
        return KVARN_TOO_LARGE;
    }
    return KVARN_OK;
}

void kvw_reader_init(struct kvw_reader *reader, uint8_t *metadata, uint64_t payload_max_bytes)
{
    memset(reader, 0, sizeof *reader);
    reader->state = KVW_READ_HEADER;
    reader->metadata = metadata;
    reader->payload_max_bytes = payload_max_bytes;
}

static void reader_start_over(struct kvw_reader *reader)
{
    reader->state = KVW_READ_HEADER;
    reader->head_fill = 0;
    reader->metadata_fill = 0;
    reader->payload_fill = 0;
}

/* Copies what is missing of one part, or all there is. */
static size_t take_part(uint8_t *to, uint32_t *fill, uint32_t whole, const uint8_t *in,
                        size_t count)
{
    size_t part = whole - *fill;

    if (part > count)
        part = count;
    if (part > 0)
        memcpy(to + *fill, in, part);
    *fill += (uint32_t)part;
    return part;
}

static enum kvw_event broken(kvarn_status *status, kvarn_status why_status)
{
    *status = why_status;
    return KVW_BROKEN;
}

/* Fills the header. KVW_HEADER here means only that it is complete and sound. A broken header stays
 * in `head`, so that every later call finds it broken again. */
static enum kvw_event feed_header(struct kvw_reader *reader, const uint8_t *in, size_t count,
                                  size_t *taken, kvarn_status *status, const char **why)
{
    size_t seen;
    kvarn_status result;

    *taken = take_part(reader->head, &reader->head_fill, KVW_HEADER_BYTES, in, count);
    seen = reader->head_fill < sizeof magic ? reader->head_fill : sizeof magic;
    if (memcmp(reader->head, magic, seen) != 0) {
        *why = "not a kvarn frame: wrong magic";
        return broken(status, KVARN_BAD_FRAME);
    }
    if (reader->head_fill < KVW_HEADER_BYTES)
        return KVW_NEED_MORE;
    result = kvw_header_unpack(&reader->header, reader->head, reader->payload_max_bytes, why);
    return result == KVARN_OK ? KVW_HEADER : broken(status, result);
}

enum kvw_event kvw_reader_feed(struct kvw_reader *reader, const uint8_t *in, size_t count,
                               size_t *taken, kvarn_status *status, const char **why)
{
    uint64_t missing;

    *taken = 0;
    *status = KVARN_OK;
    *why = "";
    if (reader->state == KVW_READ_HEADER) {
        enum kvw_event event = feed_header(reader, in, count, taken, status, why);

        if (event != KVW_HEADER)
            return event;
        reader->state = KVW_READ_METADATA;
    }
    if (reader->state == KVW_READ_METADATA) {
        if (*taken < count)
            *taken += take_part(reader->metadata, &reader->metadata_fill,
                                reader->header.metadata_bytes, in + *taken, count - *taken);
        if (reader->metadata_fill < reader->header.metadata_bytes)
            return KVW_NEED_MORE;
        reader->state = KVW_READ_PAYLOAD;
        return KVW_HEADER;
    }
    missing = reader->header.payload_bytes - reader->payload_fill;
    if (missing == 0) {
        reader_start_over(reader);
        return KVW_FRAME_END;
    }
    if (count == 0)
        return KVW_NEED_MORE;
    *taken = missing < count ? (size_t)missing : count;
    reader->payload_fill += *taken;
    return KVW_PAYLOAD;
}

enum kvw_event kvw_reader_payload_placed(struct kvw_reader *reader, uint64_t count)
{
    assert(reader->state == KVW_READ_PAYLOAD);
    assert(count <= reader->header.payload_bytes - reader->payload_fill);
    reader->payload_fill += count;
    if (reader->payload_fill < reader->header.payload_bytes)
        return KVW_NEED_MORE;
    reader_start_over(reader);
    return KVW_FRAME_END;
}
