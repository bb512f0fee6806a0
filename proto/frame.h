/* The frame: a 32-byte header, then metadata, then payload. No I/O, no allocation.
 *
 *   0  magic           4  "KVRN"
 *   4  version         1
 *   5  op              1  kvw_op
 *   6  flags           2  kvw_flag
 *   8  request id      8  chosen by the client, never 0, unique among its unanswered requests
 *  16  metadata bytes  4  protobuf, at most KVW_METADATA_MAX_BYTES
 *  20  deadline us     4  from arrival; 0 = the daemon's default. In a reply: 0
 *  24  payload bytes   8
 *
 * kvw_reader takes bytes in any pieces and says what they are; kvw_header_pack writes one. */
#ifndef KVW_FRAME_H
#define KVW_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

enum { KVW_HEADER_BYTES = 32 };

enum kvw_flag { KVW_FLAG_REPLY = 1u << 0 };
enum { KVW_FLAGS_KNOWN = KVW_FLAG_REPLY };

struct kvw_header {
    uint8_t version, op;
    uint16_t flags;
    uint64_t request_id;
    uint32_t metadata_bytes;
    uint32_t deadline_us;
    uint64_t payload_bytes;
};

void kvw_header_pack(uint8_t out[KVW_HEADER_BYTES], const struct kvw_header *header);

/* Checks magic, version range, flags, metadata bound and a payload bound. BAD_FRAME or TOO_LARGE
 * with *why (static text) set mean that framing is lost and the connection must end; UNSUPPORTED (a
 * version outside min..max, an unknown flag) too. An unknown op and a request id of 0 are no errors
 * here: the header is filled in, and whoever dispatches answers them. */
kvarn_status kvw_header_unpack(struct kvw_header *header, const uint8_t in[KVW_HEADER_BYTES],
                               uint64_t payload_max_bytes, const char **why);

/* Incremental reader over bytes that arrive in pieces. The owner gives it metadata memory once;
 * payload bytes are not touched: the reader says how many of the following bytes are payload and
 * where it stands. */
enum kvw_reader_state { KVW_READ_HEADER, KVW_READ_METADATA, KVW_READ_PAYLOAD };

struct kvw_reader {
    enum kvw_reader_state state;
    uint64_t payload_max_bytes;
    struct kvw_header header; /* valid after KVW_READ_HEADER */
    uint8_t head[KVW_HEADER_BYTES];
    uint32_t head_fill;
    uint8_t *metadata; /* kept; KVW_METADATA_MAX_BYTES long */
    uint32_t metadata_fill;
    uint64_t payload_fill;
};

enum kvw_event {
    KVW_NEED_MORE, /* all bytes were taken and nothing is complete */
    KVW_HEADER,    /* header and metadata are complete and stay valid until KVW_FRAME_END */
    KVW_PAYLOAD,   /* the first *taken bytes of `in` are payload, at offset payload_fill - *taken */
    KVW_FRAME_END, /* takes no byte: the frame is complete, the reader is ready for the next one.
                      Comes after KVW_HEADER too when payload_bytes is 0 */
    KVW_BROKEN     /* framing is lost for good; *status and *why say how */
};

void kvw_reader_init(struct kvw_reader *reader, uint8_t *metadata, uint64_t payload_max_bytes);

/* Takes some of `count` bytes at `in`, at most up to the next event. Call it again with the rest,
 * even when no byte is left, until it says KVW_NEED_MORE: the last KVW_FRAME_END needs no byte. */
enum kvw_event kvw_reader_feed(struct kvw_reader *reader, const uint8_t *in, size_t count,
                               size_t *taken, kvarn_status *status, const char **why);

/* After KVW_HEADER: bytes the owner read straight into the payload's place (no copy through feed).
 * count <= what is missing. KVW_FRAME_END when the payload is now complete, else KVW_NEED_MORE. */
enum kvw_event kvw_reader_payload_placed(struct kvw_reader *reader, uint64_t count);

#endif
