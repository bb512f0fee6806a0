/* Fuzz target: the frame reader. Byte 0 chooses the payload limit, byte 1 how the rest is cut into
 * pieces; the rest is the stream. The stream is read whole and in pieces: both readings must say
 * the same, keep to their bounds, and a broken stream must stay broken. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proto/frame.h"
#include "proto/wire.h"

struct outcome {
    uint64_t payload, frames, headers, digest; /* of what was seen, in order */
    kvarn_status broken;
};

static void mix(struct outcome *outcome, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        outcome->digest = (outcome->digest ^ bytes[i]) * UINT64_C(0x100000001b3);
}

static void feed(struct kvw_reader *reader, const uint8_t *in, size_t count,
                 struct outcome *outcome)
{
    while (outcome->broken == KVARN_OK) {
        size_t taken = SIZE_MAX;
        kvarn_status status;
        const char *why = NULL;
        enum kvw_event event = kvw_reader_feed(reader, in, count, &taken, &status, &why);

        FUZZ_CHECK(taken <= count);
        FUZZ_CHECK((event == KVW_BROKEN) == (status != KVARN_OK));
        if (event == KVW_NEED_MORE) {
            FUZZ_CHECK(taken == count);
            return;
        }
        if (event == KVW_BROKEN) {
            FUZZ_CHECK(why != NULL && why[0] != '\0');
            outcome->broken = status;
        } else if (event == KVW_HEADER) {
            FUZZ_CHECK(reader->header.metadata_bytes <= KVW_METADATA_MAX_BYTES);
            FUZZ_CHECK(reader->header.payload_bytes <= reader->payload_max_bytes);
            outcome->headers++;
            mix(outcome, reader->head, KVW_HEADER_BYTES);
            mix(outcome, reader->metadata, reader->header.metadata_bytes);
        } else if (event == KVW_PAYLOAD) {
            FUZZ_CHECK(taken > 0 && taken <= reader->payload_fill);
            outcome->payload += taken;
            mix(outcome, in, taken);
        } else {
            outcome->frames++;
        }
        in += taken;
        count -= taken;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t metadata[KVW_METADATA_MAX_BYTES];
    struct kvw_reader reader;
    struct outcome whole = {0}, pieces = {0};
    uint64_t payload_max;
    size_t piece;

    if (size < 2)
        return 0;
    payload_max = data[0] == 255 ? UINT64_MAX : (uint64_t)data[0] << 8;
    piece = 1 + (size_t)data[1];
    data += 2;
    size -= 2;
    kvw_reader_init(&reader, metadata, payload_max);
    feed(&reader, data, size, &whole);
    kvw_reader_init(&reader, metadata, payload_max);
    for (size_t at = 0; at < size; at += piece)
        feed(&reader, data + at, size - at < piece ? size - at : piece, &pieces);
    FUZZ_CHECK(memcmp(&whole, &pieces, sizeof whole) == 0);
    return 0;
}
