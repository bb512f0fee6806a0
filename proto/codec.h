/* Metadata bytes <-> plain structs. The only door to protobuf.
 *
 * Decoding pre-scans the bytes (field count, depth, wire types, ranges, text) before protobuf-c
 * sees them, and allocates from the caller's arena only: never malloc. Strings in decoded structs
 * point into the arena, are NUL-terminated, valid UTF-8 and never longer than KVW_TEXT_MAX_BYTES.
 * Absent fields are 0, "" or as noted. `in` may be NULL when count is 0.
 *
 * kvw_<message>_decode: BAD_FRAME with *why (static text) set; also when the arena is full.
 * kvw_<message>_encode: bytes written to out, at most `room`. 0 when it does not fit in `room` or
 * in KVW_METADATA_MAX_BYTES, or when the peer would refuse a text or a count; no encoding is empty.
 * A NULL text is "". The text of a result is cut and cleaned instead, so that an error always gets
 * through. */
#ifndef KVW_CODEC_H
#define KVW_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

#include "proto/arena.h"
#include "proto/wire.h"

/* An arena of this size holds the decoded form of any metadata. */
enum { KVW_ARENA_BYTES = 4 * KVW_METADATA_MAX_BYTES };

struct kvw_result { /* the head of every reply */
    kvarn_status status;
    const char *text; /* "" when there is nothing to say */
    uint32_t retry_after_us;
};

struct kvw_hello {
    uint32_t version_min, version_max;
    uint64_t features;
    const char *client;
};
struct kvw_hello_reply {
    struct kvw_result result;
    uint32_t version;
    uint64_t features;
    const char *server, *backend, *tenant;
    uint64_t payload_max_bytes;
    uint32_t in_flight_max;
};

struct kvw_ping {
    uint64_t echo;
};
struct kvw_ping_reply {
    struct kvw_result result;
    uint64_t echo;
};

struct kvw_open_space {
    const char *model, *revision, *adapter, *rope, *preset, *key_algorithm, *device;
    uint32_t layers, kv_heads, head_dim, dtype, iterations, sink_tokens;
    bool k_rotated, v_rotated;
    bool has_iterations, has_sink_tokens; /* false: the defaults were filled in */
    uint32_t layer_begin, layer_count, head_begin, head_count;
};
struct kvw_open_space_reply {
    struct kvw_result result;
    uint64_t space;
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint32_t epoch, group, sink_tokens;
    uint64_t record_bytes, tile_block_bytes, exact_block_bytes;
};

struct kvw_layout {
    bool present;
    uint64_t k_offset, v_offset, layer_stride, block_stride, token_stride, head_stride;
};
struct kvw_query {
    bool present;
    uint32_t q_heads, q_tokens, q_dtype, out_dtype, window;
    float scale, soft_cap; /* scale 0 = 1/sqrt(head_dim) */
    bool full, deterministic;
};
struct kvw_origin {
    bool present;
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint32_t layer_begin, layer_count, head_begin, head_count;
};
struct kvw_blocks {
    uint64_t space;
    uint32_t block_count, lease_ms, layer_begin, layer_count;
    bool all, unpin;
    uint32_t limit, ranks;
    uint64_t cursor, group;
    struct kvw_layout layout;
    struct kvw_query query;
    struct kvw_origin origin; /* IMPORT */
};
struct kvw_blocks_reply {
    struct kvw_result result;
    uint32_t block_count, matched;
    uint64_t lease;
    uint32_t lease_ms;
    uint64_t device_ns;
    uint64_t cursor, total;
};

struct kvw_release {
    uint64_t lease;
};

struct kvw_sequences {
    uint64_t space;
    uint32_t sequence_count, key_count, layer_begin, layer_count, fork_count;
    struct kvw_layout layout;
    struct kvw_query query;
};
struct kvw_sequences_reply {
    struct kvw_result result;
    uint32_t sequence_count;
    uint64_t device_ns;
};

struct kvw_stats {
    bool reset_peaks;
};
struct kvw_metric {
    const char *name;
    double value;
};
struct kvw_stats_reply {
    struct kvw_result result;
    size_t count;
    struct kvw_metric *metrics; /* [count], at most KVW_METRICS_MAX */
};

struct kvw_space_info {
    uint64_t space;
    const char *model, *preset;
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint32_t layers, kv_heads, head_dim, dtype;
    uint64_t tile_blocks, exact_blocks, bytes, sequences;
};
struct kvw_list_reply {
    struct kvw_result result;
    size_t count;
    struct kvw_space_info *spaces; /* [count], at most KVW_SPACES_MAX */
};

struct kvw_drain {
    uint32_t grace_ms;
};

struct kvw_events {
    uint64_t epoch, from;
    uint32_t limit, wait_ms;
    bool snapshot;
    uint64_t cursor;
};
struct kvw_events_reply {
    struct kvw_result result;
    uint64_t epoch, next;
    uint32_t count;
    bool lost;
    uint64_t cursor;
};

/* X(name) for every message above: kvw_<name>, kvw_<name>_decode, kvw_<name>_encode. LIST has no
 * fields and so no struct: its metadata is empty. */
/* clang-format off */
#define KVW_MESSAGES(X)                                                                            \
    X(hello) X(hello_reply)                                                                        \
    X(ping) X(ping_reply)                                                                          \
    X(open_space) X(open_space_reply)                                                              \
    X(blocks) X(blocks_reply)                                                                      \
    X(release)                                                                                     \
    X(sequences) X(sequences_reply)                                                                \
    X(stats) X(stats_reply)                                                                        \
    X(list_reply)                                                                                  \
    X(drain)                                                                                       \
    X(events) X(events_reply)
/* clang-format on */

#define KVW_DECLARE(name)                                                                          \
    kvarn_status kvw_##name##_decode(struct kvw_##name *out, const uint8_t *in, size_t count,      \
                                     struct kvw_arena *arena, const char **why);                   \
    size_t kvw_##name##_encode(uint8_t *out, size_t room, const struct kvw_##name *in);
KVW_MESSAGES(KVW_DECLARE)
#undef KVW_DECLARE

/* An error reply: only a result. Any reply decoder reads its first three fields; this one reads
 * them of any. */
kvarn_status kvw_result_decode(struct kvw_result *out, const uint8_t *in, size_t count,
                               struct kvw_arena *arena, const char **why);
size_t kvw_result_encode(uint8_t *out, size_t room, const struct kvw_result *in);

#endif
