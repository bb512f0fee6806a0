/* A pretended daemon: reads requests, answers them as the contract says, or wrongly on purpose.
 *
 * Works on bytes alone; test_session drives it in memory, fake_daemon puts it behind a socket. All
 * of its spaces have one geometry: 2 layers, 2 kv heads, head_dim 64, groups of 64, f16. */
#ifndef TEST_PEER_H
#define TEST_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/codec.h"
#include "proto/frame.h"

enum {
    PEER_LAYERS = 2,
    PEER_HEADS = 2,
    PEER_DIM = 64,
    PEER_GROUP = 64,
    PEER_SPACE = 7,
    PEER_BLOCK_ROWS_BYTES = PEER_LAYERS * PEER_GROUP * PEER_HEADS * PEER_DIM * 2, /* K or V */
    PEER_TILE_BYTES = 1000,
    PEER_EXACT_BYTES = 2 * PEER_BLOCK_ROWS_BYTES,
    PEER_IN_FLIGHT_MAX = 8,
    PEER_PAYLOAD_MAX_BYTES = 8 << 20,
};

enum peer_fault {
    PEER_FINE,
    PEER_WRONG_ID,
    PEER_WRONG_OP,
    PEER_NOT_A_REPLY,
    PEER_BAD_MAGIC,
    PEER_UNKNOWN_FLAG,
    PEER_BAD_METADATA,
    PEER_PAYLOAD_SHORT, /* the frame is whole, but its payload shorter than the request implies */
    PEER_PAYLOAD_LONG,
    PEER_OVERSIZE, /* a payload over the bound that HELLO stated */
    PEER_CUT,      /* half of the frame, then the end */
    PEER_SILENT,
    PEER_REFUSES,  /* RETRY with a text, without payload */
    PEER_FAREWELL, /* RETRY to request 0: the connection ends */
    PEER_WRONG_COUNT,
    PEER_WRONG_ECHO,
    PEER_WRONG_VERSION,
    PEER_NO_BOUNDS,
    PEER_FAULTS
};

struct peer_buffer {
    uint8_t *bytes;
    size_t count, capacity;
};

struct peer_request {
    struct kvw_header header;
    const uint8_t *metadata;
    struct peer_buffer payload;
};

struct peer {
    enum peer_fault fault; /* of replies other than HELLO's */
    enum peer_fault hello_fault;
    struct kvw_reader reader;
    uint8_t *metadata;
    struct peer_request request;
    struct peer_buffer out; /* replies not yet taken */
    bool ends;              /* close after `out` */
    uint32_t requests;
    uint64_t payload_sum; /* checksum over the last request's payload */
};

void peer_init(struct peer *peer);
void peer_free(struct peer *peer);
/* Takes bytes of the client; answers whole requests into out. Fails the test on a bad frame. */
void peer_feed(struct peer *peer, const uint8_t *in, size_t count);
/* Appends one frame to a buffer. */
void peer_frame(struct peer_buffer *out, const struct kvw_header *header, const uint8_t *metadata,
                const uint8_t *payload);
void peer_append(struct peer_buffer *out, const void *bytes, size_t count);

/* Byte i of a pretended tensor; `salt` tells tensors apart. */
uint8_t peer_pattern(uint32_t salt, size_t i);
uint64_t peer_checksum(const void *bytes, size_t count);

#endif
