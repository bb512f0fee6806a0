/* Requests: metadata of HELLO to DRAIN, both ways.
 *
 * Each message's fields stand once, in a list that makes its decoder and its encoder. One scalar of
 * every request is written even when it is 0, so that no encoding is empty and a size of 0 always
 * means that it did not fit. */
#include <string.h>

#include "kvarn.pb-c.h"
#include "proto/codec_internal.h"

#define HELLO_FIELDS(N, T) N(version_min) N(version_max) N(features) T(client)

kvarn_status kvw_hello_decode(struct kvw_hello *out, const uint8_t *in, size_t count,
                              struct kvw_arena *arena, const char **why)
{
    const Kvarn__Hello *m = kvw_codec_unpack(&kvarn__hello__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    HELLO_FIELDS(KVW_TAKE_N, KVW_TAKE_T)
    return KVARN_OK;
}

size_t kvw_hello_encode(uint8_t *out, size_t room, const struct kvw_hello *in)
{
    Kvarn__Hello m = KVARN__HELLO__INIT;
    bool fits = true;

    HELLO_FIELDS(KVW_PUT_N, KVW_PUT_T)
    m.has_version_min = 1;
    return fits ? kvw_codec_pack(out, room, &m.base) : 0;
}

kvarn_status kvw_ping_decode(struct kvw_ping *out, const uint8_t *in, size_t count,
                             struct kvw_arena *arena, const char **why)
{
    const Kvarn__Ping *m = kvw_codec_unpack(&kvarn__ping__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    out->echo = m->echo;
    return KVARN_OK;
}

size_t kvw_ping_encode(uint8_t *out, size_t room, const struct kvw_ping *in)
{
    Kvarn__Ping m = KVARN__PING__INIT;

    m.has_echo = 1;
    m.echo = in->echo;
    return kvw_codec_pack(out, room, &m.base);
}

/* clang-format off */
#define OPEN_SPACE_FIELDS(N, T)                                                                    \
    T(model) T(revision) T(adapter) T(rope)                                                        \
    N(layers) N(kv_heads) N(head_dim) N(dtype)                                                     \
    T(preset) T(key_algorithm) T(device)                                                                    \
    N(layer_begin) N(layer_count) N(head_begin) N(head_count)
/* clang-format on */

kvarn_status kvw_open_space_decode(struct kvw_open_space *out, const uint8_t *in, size_t count,
                                   struct kvw_arena *arena, const char **why)
{
    const Kvarn__OpenSpace *m =
        kvw_codec_unpack(&kvarn__open_space__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    OPEN_SPACE_FIELDS(KVW_TAKE_N, KVW_TAKE_T)
    out->k_rotated = m->k_rotated != 0;
    out->v_rotated = m->v_rotated != 0;
    out->has_iterations = m->has_iterations != 0;
    out->iterations = m->has_iterations ? m->iterations : KVARN_DEFAULT_ITERATIONS;
    out->has_sink_tokens = m->has_sink_tokens != 0;
    out->sink_tokens = m->has_sink_tokens ? m->sink_tokens : KVARN_SINK_TOKENS;
    return KVARN_OK;
}

size_t kvw_open_space_encode(uint8_t *out, size_t room, const struct kvw_open_space *in)
{
    Kvarn__OpenSpace m = KVARN__OPEN_SPACE__INIT;
    bool fits = true;

    OPEN_SPACE_FIELDS(KVW_PUT_N, KVW_PUT_T)
    m.has_layers = 1;
    m.has_k_rotated = in->k_rotated;
    m.k_rotated = in->k_rotated;
    m.has_v_rotated = in->v_rotated;
    m.v_rotated = in->v_rotated;
    m.has_iterations = in->has_iterations;
    m.iterations = in->iterations;
    m.has_sink_tokens = in->has_sink_tokens;
    m.sink_tokens = in->sink_tokens;
    return fits ? kvw_codec_pack(out, room, &m.base) : 0;
}

#define LAYOUT_FIELDS(N)                                                                           \
    N(k_offset) N(v_offset) N(layer_stride) N(block_stride) N(token_stride) N(head_stride)

static void take_layout(struct kvw_layout *out, const Kvarn__Layout *m)
{
    memset(out, 0, sizeof *out);
    if (m == NULL)
        return;
    out->present = true;
    LAYOUT_FIELDS(KVW_TAKE_N)
}

static Kvarn__Layout make_layout(const struct kvw_layout *in)
{
    Kvarn__Layout m = KVARN__LAYOUT__INIT;

    LAYOUT_FIELDS(KVW_PUT_N)
    return m;
}

#define QUERY_FIELDS(N) N(q_heads) N(q_tokens) N(q_dtype) N(out_dtype) N(window)

static void take_query(struct kvw_query *out, const Kvarn__Query *m)
{
    memset(out, 0, sizeof *out);
    if (m == NULL)
        return;
    out->present = true;
    QUERY_FIELDS(KVW_TAKE_N)
    out->scale = m->scale;
    out->soft_cap = m->soft_cap;
    out->full = m->full != 0;
    out->deterministic = m->deterministic != 0;
}

static Kvarn__Query make_query(const struct kvw_query *in)
{
    Kvarn__Query m = KVARN__QUERY__INIT;

    QUERY_FIELDS(KVW_PUT_N)
    KVW_PUT_N(scale)
    KVW_PUT_N(soft_cap)
    KVW_PUT_N(full)
    KVW_PUT_N(deterministic)
    return m;
}

#define ORIGIN_FIELDS(N) N(layer_begin) N(layer_count) N(head_begin) N(head_count)

static bool take_origin(struct kvw_origin *out, const Kvarn__Origin *m)
{
    memset(out, 0, sizeof *out);
    if (m == NULL)
        return true;
    out->present = true;
    ORIGIN_FIELDS(KVW_TAKE_N)
    return kvw_bytes32_take(out->fingerprint, m->has_fingerprint, &m->fingerprint);
}

static Kvarn__Origin make_origin(const struct kvw_origin *in)
{
    Kvarn__Origin m = KVARN__ORIGIN__INIT;

    ORIGIN_FIELDS(KVW_PUT_N)
    m.has_fingerprint = 1;
    m.fingerprint.len = KVARN_FINGERPRINT_BYTES;
    /* protobuf-c's structs have no const; packing only reads. */
    m.fingerprint.data = (uint8_t *)(uintptr_t)in->fingerprint;
    return m;
}

/* clang-format off */
#define BLOCKS_FIELDS(N)                                                                           \
    N(space) N(block_count) N(lease_ms) N(layer_begin) N(layer_count)                              \
    N(cursor) N(limit) N(group) N(ranks)
/* clang-format on */

kvarn_status kvw_blocks_decode(struct kvw_blocks *out, const uint8_t *in, size_t count,
                               struct kvw_arena *arena, const char **why)
{
    const Kvarn__Blocks *m = kvw_codec_unpack(&kvarn__blocks__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    BLOCKS_FIELDS(KVW_TAKE_N)
    out->all = m->all != 0;
    out->unpin = m->unpin != 0;
    take_layout(&out->layout, m->layout);
    take_query(&out->query, m->query);
    if (!take_origin(&out->origin, m->origin)) {
        *why = "a fingerprint that is not 32 bytes long";
        return KVARN_BAD_FRAME;
    }
    return KVARN_OK;
}

size_t kvw_blocks_encode(uint8_t *out, size_t room, const struct kvw_blocks *in)
{
    Kvarn__Blocks m = KVARN__BLOCKS__INIT;
    Kvarn__Layout layout = make_layout(&in->layout);
    Kvarn__Query query = make_query(&in->query);
    Kvarn__Origin origin = make_origin(&in->origin);

    BLOCKS_FIELDS(KVW_PUT_N)
    KVW_PUT_N(all)
    KVW_PUT_N(unpin)
    m.has_space = 1;
    m.layout = in->layout.present ? &layout : NULL;
    m.query = in->query.present ? &query : NULL;
    m.origin = in->origin.present ? &origin : NULL;
    return kvw_codec_pack(out, room, &m.base);
}

kvarn_status kvw_release_decode(struct kvw_release *out, const uint8_t *in, size_t count,
                                struct kvw_arena *arena, const char **why)
{
    const Kvarn__Release *m = kvw_codec_unpack(&kvarn__release__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    out->lease = m->lease;
    return KVARN_OK;
}

size_t kvw_release_encode(uint8_t *out, size_t room, const struct kvw_release *in)
{
    Kvarn__Release m = KVARN__RELEASE__INIT;

    m.has_lease = 1;
    m.lease = in->lease;
    return kvw_codec_pack(out, room, &m.base);
}

#define SEQUENCES_FIELDS(N)                                                                        \
    N(space) N(sequence_count) N(key_count) N(layer_begin) N(layer_count) N(fork_count)

kvarn_status kvw_sequences_decode(struct kvw_sequences *out, const uint8_t *in, size_t count,
                                  struct kvw_arena *arena, const char **why)
{
    const Kvarn__Sequences *m =
        kvw_codec_unpack(&kvarn__sequences__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    SEQUENCES_FIELDS(KVW_TAKE_N)
    take_layout(&out->layout, m->layout);
    take_query(&out->query, m->query);
    return KVARN_OK;
}

size_t kvw_sequences_encode(uint8_t *out, size_t room, const struct kvw_sequences *in)
{
    Kvarn__Sequences m = KVARN__SEQUENCES__INIT;
    Kvarn__Layout layout = make_layout(&in->layout);
    Kvarn__Query query = make_query(&in->query);

    SEQUENCES_FIELDS(KVW_PUT_N)
    m.has_space = 1;
    m.layout = in->layout.present ? &layout : NULL;
    m.query = in->query.present ? &query : NULL;
    return kvw_codec_pack(out, room, &m.base);
}

kvarn_status kvw_stats_decode(struct kvw_stats *out, const uint8_t *in, size_t count,
                              struct kvw_arena *arena, const char **why)
{
    const Kvarn__Stats *m = kvw_codec_unpack(&kvarn__stats__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    out->reset_peaks = m->reset_peaks != 0;
    return KVARN_OK;
}

size_t kvw_stats_encode(uint8_t *out, size_t room, const struct kvw_stats *in)
{
    Kvarn__Stats m = KVARN__STATS__INIT;

    m.has_reset_peaks = 1;
    m.reset_peaks = in->reset_peaks;
    return kvw_codec_pack(out, room, &m.base);
}

kvarn_status kvw_drain_decode(struct kvw_drain *out, const uint8_t *in, size_t count,
                              struct kvw_arena *arena, const char **why)
{
    const Kvarn__Drain *m = kvw_codec_unpack(&kvarn__drain__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    out->grace_ms = m->grace_ms;
    return KVARN_OK;
}

size_t kvw_drain_encode(uint8_t *out, size_t room, const struct kvw_drain *in)
{
    Kvarn__Drain m = KVARN__DRAIN__INIT;

    m.has_grace_ms = 1;
    m.grace_ms = in->grace_ms;
    return kvw_codec_pack(out, room, &m.base);
}

#define EVENTS_FIELDS(N) N(epoch) N(from) N(limit) N(wait_ms) N(cursor)

kvarn_status kvw_events_decode(struct kvw_events *out, const uint8_t *in, size_t count,
                               struct kvw_arena *arena, const char **why)
{
    const Kvarn__Events *m = kvw_codec_unpack(&kvarn__events__descriptor, in, count, arena, why);

    if (m == NULL)
        return KVARN_BAD_FRAME;
    EVENTS_FIELDS(KVW_TAKE_N)
    out->snapshot = m->snapshot != 0;
    return KVARN_OK;
}

size_t kvw_events_encode(uint8_t *out, size_t room, const struct kvw_events *in)
{
    Kvarn__Events m = KVARN__EVENTS__INIT;

    EVENTS_FIELDS(KVW_PUT_N)
    m.has_snapshot = 1;
    m.snapshot = in->snapshot;
    return kvw_codec_pack(out, room, &m.base);
}
