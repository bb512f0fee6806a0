/* The pretended daemon's answers. */
#include "peer.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 65536, ARENA = 262144 };

static void *must(void *at)
{
    if (!at) {
        fprintf(stderr, "peer: out of memory\n");
        abort();
    }
    return at;
}

uint8_t peer_pattern(uint32_t salt, size_t i)
{
    return (uint8_t)((i * 31 + (i >> 8) * 7 + salt * 101) & 0xff);
}

uint64_t peer_checksum(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    uint64_t sum = 14695981039346656037u;

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ at[i]) * 1099511628211u;
    return sum;
}

void peer_append(struct peer_buffer *out, const void *bytes, size_t count)
{
    if (count == 0)
        return;
    if (out->count + count > out->capacity) {
        out->capacity = 2 * (out->count + count);
        out->bytes = must(realloc(out->bytes, out->capacity));
    }
    if (bytes)
        memcpy(out->bytes + out->count, bytes, count);
    else
        memset(out->bytes + out->count, 0, count);
    out->count += count;
}

static void append_pattern(struct peer_buffer *out, uint32_t salt, size_t count)
{
    size_t at = out->count;

    peer_append(out, NULL, count);
    for (size_t i = 0; i < count; i++)
        out->bytes[at + i] = peer_pattern(salt, i);
}

void peer_frame(struct peer_buffer *out, const struct kvw_header *header, const uint8_t *metadata,
                const uint8_t *payload)
{
    uint8_t head[KVW_HEADER_BYTES];

    kvw_header_pack(head, header);
    peer_append(out, head, sizeof head);
    peer_append(out, metadata, header->metadata_bytes);
    peer_append(out, payload, header->payload_bytes);
}

void peer_init(struct peer *peer)
{
    memset(peer, 0, sizeof *peer);
    peer->metadata = must(malloc(KVW_METADATA_MAX_BYTES));
    kvw_reader_init(&peer->reader, peer->metadata, UINT64_MAX);
}

void peer_free(struct peer *peer)
{
    free(peer->metadata);
    free(peer->request.payload.bytes);
    free(peer->out.bytes);
}

/* ---- one answer */

struct answer {
    uint8_t metadata[ROOM];
    size_t metadata_bytes;
    struct peer_buffer payload;
};

static void answer_blocks(struct answer *answer, const struct peer_request *request,
                          const struct kvw_result *result, bool wrong_count)
{
    static uint8_t memory[ARENA];
    struct kvw_arena arena;
    struct kvw_blocks in;
    const char *why;

    kvw_arena_init(&arena, memory, sizeof memory);
    if (kvw_blocks_decode(&in, request->metadata, request->header.metadata_bytes, &arena, &why))
        abort();
    struct kvw_blocks_reply reply = {.result = *result,
                                     .block_count = in.block_count + (wrong_count ? 1 : 0),
                                     .matched = in.block_count,
                                     .lease = in.lease_ms ? 99 : 0,
                                     .device_ns = 1234};
    answer->metadata_bytes = kvw_blocks_reply_encode(answer->metadata, ROOM, &reply);
    if (result->status != KVARN_OK)
        return;
    for (uint32_t i = 0; i < in.block_count; i++) {
        uint8_t row[KVW_PUT_ROW_BYTES];
        if (request->header.op == KVW_EXPORT) {
            struct kvw_put_row put = {.kind = KVARN_BLOCK_TILE,
                                      .tokens = PEER_GROUP,
                                      .bytes = i == 1 ? 0 : PEER_TILE_BYTES,
                                      .digest = 40 + i};
            kvw_put_row_store(row, &put);
            peer_append(&answer->payload, row, KVW_PUT_ROW_BYTES);
        } else if (request->header.op != KVW_ATTEND) {
            struct kvw_block_status status = {.status = i == 2 ? KVARN_EXISTS : KVARN_OK,
                                              .kind = KVARN_BLOCK_TILE,
                                              .digest = 40 + i};
            kvw_block_status_store(row, &status);
            peer_append(&answer->payload, row, KVW_BLOCK_STATUS_BYTES);
        }
    }
    if (request->header.op == KVW_EXPORT)
        for (uint32_t i = 0; i < in.block_count; i++)
            append_pattern(&answer->payload, i, i == 1 ? 0 : PEER_TILE_BYTES);
    if (request->header.op == KVW_DECOMPRESS) {
        size_t bytes =
            (size_t)in.block_count * PEER_BLOCK_ROWS_BYTES / PEER_LAYERS * in.layer_count;
        append_pattern(&answer->payload, 1, bytes);
        append_pattern(&answer->payload, 2, bytes);
    }
    if (request->header.op == KVW_ATTEND) {
        size_t heads = (size_t)in.query.q_tokens * in.query.q_heads;
        append_pattern(&answer->payload, 3,
                       heads * PEER_DIM * kvarn_dtype_bytes((kvarn_dtype)in.query.out_dtype));
        append_pattern(&answer->payload, 4, heads * 4);
    }
}

static void answer_sequences(struct answer *answer, const struct peer_request *request,
                             const struct kvw_result *result, bool wrong_count)
{
    static uint8_t memory[ARENA];
    struct kvw_arena arena;
    struct kvw_sequences in;
    const char *why;
    uint32_t rows, q_tokens = 0;

    kvw_arena_init(&arena, memory, sizeof memory);
    if (kvw_sequences_decode(&in, request->metadata, request->header.metadata_bytes, &arena, &why))
        abort();
    rows = request->header.op == KVW_SEQ_OPEN   ? 1
           : request->header.op == KVW_SEQ_FORK ? in.fork_count
                                                : in.sequence_count;
    struct kvw_sequences_reply reply = {
        .result = *result, .sequence_count = rows + (wrong_count ? 1 : 0), .device_ns = 77};
    answer->metadata_bytes = kvw_sequences_reply_encode(answer->metadata, ROOM, &reply);
    if (result->status != KVARN_OK)
        return;
    for (uint32_t i = 0; i < rows; i++) {
        struct kvw_seq_status status = {
            .sequence = 500 + i, .committed = 1000 + i, .blocks = 3, .status = KVARN_OK};
        uint8_t row[KVW_SEQ_STATUS_BYTES];
        kvw_seq_status_store(row, &status);
        peer_append(&answer->payload, row, sizeof row);
    }
    if (request->header.op == KVW_SEQ_ATTEND) {
        for (uint32_t i = 0; i < in.sequence_count; i++) {
            struct kvw_seq_row row;
            kvw_seq_row_load(&row, request->payload.bytes + i * KVW_SEQ_ROW_BYTES);
            q_tokens += row.q_tokens;
        }
        append_pattern(&answer->payload, 3, (size_t)q_tokens * in.query.q_heads * PEER_DIM * 4);
        append_pattern(&answer->payload, 4, (size_t)q_tokens * in.query.q_heads * 4);
    }
}

static void answer_control(struct answer *answer, const struct peer *peer,
                           const struct kvw_result *result)
{
    const struct peer_request *request = &peer->request;
    static uint8_t memory[ARENA];
    struct kvw_arena arena;
    const char *why;

    kvw_arena_init(&arena, memory, sizeof memory);
    switch (request->header.op) {
    case KVW_PING: {
        struct kvw_ping in = {0};
        if (kvw_ping_decode(&in, request->metadata, request->header.metadata_bytes, &arena, &why))
            abort();
        struct kvw_ping_reply reply = {.result = *result,
                                       .echo = in.echo + (peer->fault == PEER_WRONG_ECHO)};
        answer->metadata_bytes = kvw_ping_reply_encode(answer->metadata, ROOM, &reply);
        break;
    }
    case KVW_OPEN_SPACE: {
        struct kvw_open_space_reply reply = {.result = *result,
                                             .space = PEER_SPACE,
                                             .fingerprint = {1, 2, 3},
                                             .group = PEER_GROUP,
                                             .sink_tokens = 128,
                                             .record_bytes = 250,
                                             .tile_block_bytes = PEER_TILE_BYTES,
                                             .exact_block_bytes = PEER_EXACT_BYTES};
        answer->metadata_bytes = kvw_open_space_reply_encode(answer->metadata, ROOM, &reply);
        break;
    }
    case KVW_STATS: {
        struct kvw_metric metrics[] = {{"kvarn_a", 1.5}, {"kvarn_b", 2.5}};
        struct kvw_stats_reply reply = {.result = *result, .count = 2, .metrics = metrics};
        answer->metadata_bytes = kvw_stats_reply_encode(answer->metadata, ROOM, &reply);
        break;
    }
    case KVW_LIST: {
        struct kvw_space_info spaces[] = {
            {.space = PEER_SPACE, .model = "m", .preset = "p", .layers = 2, .tile_blocks = 5}};
        struct kvw_list_reply reply = {.result = *result, .count = 1, .spaces = spaces};
        answer->metadata_bytes = kvw_list_reply_encode(answer->metadata, ROOM, &reply);
        break;
    }
    default:
        answer->metadata_bytes = kvw_result_encode(answer->metadata, ROOM, result);
    }
}

static void answer_hello(struct answer *answer, enum peer_fault fault)
{
    struct kvw_hello_reply reply = {.result = {.text = ""},
                                    .version = fault == PEER_WRONG_VERSION ? 9 : 1,
                                    .features = KVW_FEATURE_SEQUENCES,
                                    .server = "fake 1",
                                    .backend = "cpu/none",
                                    .tenant = "uid",
                                    .payload_max_bytes =
                                        fault == PEER_NO_BOUNDS ? 0 : PEER_PAYLOAD_MAX_BYTES,
                                    .in_flight_max = PEER_IN_FLIGHT_MAX};

    if (fault == PEER_REFUSES)
        reply.result = (struct kvw_result){.status = KVARN_DENIED, .text = "not you"};
    answer->metadata_bytes = kvw_hello_reply_encode(answer->metadata, ROOM, &reply);
}

static void answer_request(struct peer *peer)
{
    struct peer_request *request = &peer->request;
    struct answer *answer = must(calloc(1, sizeof *answer));
    bool hello = request->header.op == KVW_HELLO;
    enum peer_fault fault = hello ? peer->hello_fault : peer->fault;
    struct kvw_result result = {.text = ""};
    size_t before = peer->out.count;

    peer->requests++;
    peer->payload_sum = peer_checksum(request->payload.bytes, request->payload.count);
    if (fault == PEER_REFUSES)
        result = (struct kvw_result){.status = KVARN_RETRY, .text = "busy", .retry_after_us = 5};
    if (hello)
        answer_hello(answer, fault);
    else if (request->header.op >= KVW_SEQ_OPEN && request->header.op <= KVW_SEQ_RELEASE)
        answer_sequences(answer, request, &result, fault == PEER_WRONG_COUNT);
    else if ((request->header.op >= KVW_LOOKUP && request->header.op <= KVW_VERIFY &&
              request->header.op != KVW_RELEASE) ||
             request->header.op == KVW_PERSIST)
        answer_blocks(answer, request, &result, fault == PEER_WRONG_COUNT);
    else
        answer_control(answer, peer, &result);

    struct kvw_header header = {.version = 1,
                                .op = request->header.op,
                                .flags = KVW_FLAG_REPLY,
                                .request_id = request->header.request_id,
                                .metadata_bytes = (uint32_t)answer->metadata_bytes,
                                .payload_bytes = answer->payload.count};
    if (fault == PEER_FAREWELL) {
        result =
            (struct kvw_result){.status = KVARN_RETRY, .text = "full house", .retry_after_us = 5};
        answer->metadata_bytes = kvw_result_encode(answer->metadata, ROOM, &result);
        header.metadata_bytes = (uint32_t)answer->metadata_bytes;
        header.payload_bytes = 0;
        header.request_id = 0;
    }
    if (fault == PEER_WRONG_ID)
        header.request_id += 1024;
    if (fault == PEER_WRONG_OP)
        header.op = header.op == KVW_PING ? KVW_STATS : KVW_PING;
    if (fault == PEER_NOT_A_REPLY)
        header.flags = 0;
    if (fault == PEER_UNKNOWN_FLAG)
        header.flags |= 0x8000;
    if (fault == PEER_BAD_METADATA)
        memset(answer->metadata, 0xff, answer->metadata_bytes);
    if (fault == PEER_PAYLOAD_SHORT && header.payload_bytes > 0)
        header.payload_bytes--;
    if (fault == PEER_PAYLOAD_LONG) {
        peer_append(&answer->payload, NULL, 1);
        header.payload_bytes++;
    }
    if (fault != PEER_SILENT)
        peer_frame(&peer->out, &header, answer->metadata, answer->payload.bytes);
    if (fault == PEER_OVERSIZE) /* announced only; the bytes never come */
        memset(peer->out.bytes + before + 24, 0x7f, 7);
    if (fault == PEER_BAD_MAGIC)
        peer->out.bytes[before] ^= 1;
    if (fault == PEER_CUT) {
        peer->out.count = before + (peer->out.count - before) / 2;
        peer->ends = true;
    }
    free(answer->payload.bytes);
    free(answer);
}

void peer_feed(struct peer *peer, const uint8_t *in, size_t count)
{
    for (;;) {
        size_t taken = 0;
        kvarn_status status = KVARN_OK;
        const char *why = "";

        switch (kvw_reader_feed(&peer->reader, in, count, &taken, &status, &why)) {
        case KVW_NEED_MORE:
            return;
        case KVW_HEADER:
            peer->request.header = peer->reader.header;
            peer->request.metadata = peer->metadata;
            peer->request.payload.count = 0;
            break;
        case KVW_PAYLOAD:
            peer_append(&peer->request.payload, in, taken);
            break;
        case KVW_FRAME_END:
            answer_request(peer);
            break;
        case KVW_BROKEN:
            fprintf(stderr, "peer: the client broke the protocol: %s\n", why);
            abort();
        }
        in += taken;
        count -= taken;
    }
}
