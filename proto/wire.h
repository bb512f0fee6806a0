/* What stands on the wire besides protobuf: operations, features, and the raw tables at the head of
 * a payload. All integers little-endian; tables are copied out of and into payloads, never cast in
 * place. Tensors start right after the tables, with no padding. */
#ifndef KVW_WIRE_H
#define KVW_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

/* clang-format off */
/*
 * op           request payload                         reply payload
 * HELLO PING OPEN_SPACE RELEASE STATS LIST DRAIN ERASE
 *              -                                       -
 * LOOKUP       key[block_count]                        block_status[block_count]
 * COMPRESS     put_row[block_count], K rows, V rows    block_status[block_count]
 * DECOMPRESS   key[block_count]                        block_status[block_count], K rows, V rows
 *                                                      [layer][block*group+token][head][dim]
 * ATTEND       key[block_count],                       O [q_tokens][q_heads][dim] of out_dtype,
 *              q [q_tokens][q_heads][dim]              LSE f32 [q_tokens][q_heads]
 * EXPORT       key[block_count]                        put_row[block_count] (bytes = 0 when the
 *                                                      block is missing), block bytes
 * IMPORT       put_row[block_count], block bytes       block_status[block_count]
 * DROP VERIFY PERSIST PIN
 *              key[block_count]                        block_status[block_count]
 * RESET        -                                       -
 * EVENTS       -                                       event_row[count]
 * SEQ_OPEN     key[key_count]                          seq_status[1]
 * SEQ_APPEND   seq_row[count], K rows, V rows (layout; seq_status[count]
 *              a token axis over the new tokens of all
 *              sequences)
 * SEQ_ATTEND   seq_row[count], q rows of all           seq_status[count], O rows, LSE
 *              sequences, then new K rows, new V rows
 *              [tokens][head][dim]
 * SEQ_COMMIT   seq_row[count], key[key_count]          seq_status[count]
 * SEQ_FORK     seq_row[1]                              seq_status[fork_count]
 * SEQ_RELEASE  seq_row[count]                          seq_status[count]
 */
/* clang-format on */

enum {
    KVW_VERSION_MIN = 1,
    KVW_VERSION_MAX = 1,
};

enum kvw_op {
    KVW_HELLO = 1,
    KVW_PING = 2,
    KVW_OPEN_SPACE = 3,
    KVW_LOOKUP = 4,
    KVW_RELEASE = 5,
    KVW_COMPRESS = 6,
    KVW_DECOMPRESS = 7,
    KVW_ATTEND = 8,
    KVW_EXPORT = 9,
    KVW_IMPORT = 10,
    KVW_DROP = 11,
    KVW_VERIFY = 12,
    KVW_PIN = 13,
    KVW_RESET = 14,
    KVW_SEQ_OPEN = 16,
    KVW_SEQ_APPEND = 17,
    KVW_SEQ_ATTEND = 18,
    KVW_SEQ_COMMIT = 19,
    KVW_SEQ_FORK = 20,
    KVW_SEQ_RELEASE = 21,
    KVW_STATS = 32,
    KVW_LIST = 33,
    KVW_DRAIN = 34,
    KVW_EVENTS = 35,
    KVW_PERSIST = 40,
    KVW_ERASE = 41,
};

/* Bits of Hello.features. None is optional in version 1; unknown bits are ignored. */
enum kvw_feature {
    KVW_FEATURE_SEQUENCES = 1u << 0,
};

/* Bounds of the wire itself. The daemon's own bounds are in server/core/limits.h. */
enum {
    KVW_METADATA_MAX_BYTES = 65536,
    KVW_TEXT_MAX_BYTES = 512, /* status texts, names */
    KVW_BLOCKS_MAX = 4096,    /* rows of a block table */
    KVW_SEQUENCES_MAX = 4096, /* rows of a sequence table */
    KVW_EVENTS_MAX = 4096,    /* rows of an event table */
    KVW_METRICS_MAX = 256,
    KVW_SPACES_MAX = 256,
};

/* COMPRESS, IMPORT, EXPORT: one block, 56 bytes. */
struct kvw_put_row {
    kvarn_key key;
    uint32_t kind;   /* kvarn_block_kind */
    uint32_t tokens; /* = group */
    uint64_t bytes;  /* IMPORT, EXPORT: of the block; COMPRESS: 0 */
    uint32_t digest; /* IMPORT, EXPORT: CRC-32C over the block's bytes; COMPRESS: 0 */
    uint32_t reserved;
};
enum { KVW_PUT_ROW_BYTES = 56 };

/* One block's answer, 16 bytes. */
struct kvw_block_status {
    uint32_t status; /* kvarn_status */
    uint32_t kind;   /* kvarn_block_kind, 0 when there is no block */
    uint32_t digest; /* CRC-32C over the block's bytes in canonical order */
    uint32_t reserved;
};
enum { KVW_BLOCK_STATUS_BYTES = 16 };

/* One sequence in a request, 32 bytes. */
struct kvw_seq_row {
    uint64_t sequence;
    uint64_t position; /* of the first new row; KVW_AT_END = the committed length */
    uint32_t q_tokens; /* SEQ_ATTEND */
    uint32_t tokens;   /* SEQ_APPEND, SEQ_ATTEND: new rows; SEQ_COMMIT: tokens to commit */
    uint32_t keys;     /* SEQ_COMMIT: how many of the keys after the table are this sequence's */
    /* SEQ_COMMIT: the committed length that the call builds on, plus 1; 0 = any. With another
     * length nothing is committed (INVALID_SHAPE), so that a call whose answer was lost can be
     * repeated. */
    uint32_t expected;
};
enum { KVW_SEQ_ROW_BYTES = 32 };
#define KVW_AT_END UINT64_MAX

/* One sequence's answer, 32 bytes. */
struct kvw_seq_status {
    uint64_t sequence;
    uint64_t committed; /* tokens that count */
    uint32_t status;    /* kvarn_status */
    uint32_t blocks;    /* SEQ_OPEN: prefix blocks found; SEQ_COMMIT: blocks sealed by this call */
    uint64_t reserved;
};
enum { KVW_SEQ_STATUS_BYTES = 32 };

/* What happened to a block, or to all of a space. */
enum kvw_event_type { KVW_EVENT_STORED = 1, KVW_EVENT_REMOVED = 2, KVW_EVENT_CLEARED = 3 };

/* One event, 56 bytes. */
struct kvw_event_row {
    uint64_t sequence; /* 0 in a snapshot */
    uint64_t space;
    kvarn_key key; /* CLEARED: zeroes */
    uint32_t type; /* kvw_event_type */
    uint32_t kind; /* kvarn_block_kind; CLEARED: 0 */
};
enum { KVW_EVENT_ROW_BYTES = 56 };

/* Copy one row out of or into a payload at any alignment. */
void kvw_put_row_load(struct kvw_put_row *row, const uint8_t *at);
void kvw_put_row_store(uint8_t *at, const struct kvw_put_row *row);
void kvw_block_status_load(struct kvw_block_status *row, const uint8_t *at);
void kvw_block_status_store(uint8_t *at, const struct kvw_block_status *row);
void kvw_seq_row_load(struct kvw_seq_row *row, const uint8_t *at);
void kvw_seq_row_store(uint8_t *at, const struct kvw_seq_row *row);
void kvw_seq_status_load(struct kvw_seq_status *row, const uint8_t *at);
void kvw_seq_status_store(uint8_t *at, const struct kvw_seq_status *row);
void kvw_event_row_load(struct kvw_event_row *row, const uint8_t *at);
void kvw_event_row_store(uint8_t *at, const struct kvw_event_row *row);

/* "COMPRESS"; NULL for a number that is no operation. Static string. */
const char *kvw_op_name(uint8_t op);

/* The newest version that both ranges hold. BAD_FRAME when the client's range is empty or starts at
 * 0, UNSUPPORTED when the ranges do not meet; *chosen is 0 then. */
kvarn_status kvw_negotiate(uint32_t client_min, uint32_t client_max, uint32_t server_min,
                           uint32_t server_max, uint32_t *chosen);

/* The text of that UNSUPPORTED: names both ranges. 128 bytes hold it always. */
void kvw_negotiate_text(char *out, size_t room, uint32_t client_min, uint32_t client_max,
                        uint32_t server_min, uint32_t server_max);

#endif
