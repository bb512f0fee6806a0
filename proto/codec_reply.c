/* Replies: metadata of the answers, both ways.
 *
 * Lists (metrics, spaces) are encoded element by element: protobuf says that messages joined end to
 * end are one merged message, so an element packed as a message of its own appends to the list, and
 * no array of protobuf structs is ever built. */
#include <string.h>

#include "kvarn.pb-c.h"
#include "proto/codec_internal.h"

#define HELLO_REPLY_FIELDS(N, T)                                                                   \
    N(version) N(features) T(server) T(backend) N(payload_max_bytes) N(in_flight_max) T(tenant)

kvarn_status kvw_hello_reply_decode(struct kvw_hello_reply *out, const uint8_t *in, size_t count,
                                    struct kvw_arena *arena, const char **why)
{
    const Kvarn__HelloReply *m =
        kvw_codec_unpack(&kvarn__hello_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    HELLO_REPLY_FIELDS(KVW_TAKE_N, KVW_TAKE_T)
    return KVARN_OK;
}

size_t kvw_hello_reply_encode(uint8_t *out, size_t room, const struct kvw_hello_reply *in)
{
    Kvarn__HelloReply m = KVARN__HELLO_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];
    bool fits = true;

    KVW_PUT_RESULT(&in->result)
    HELLO_REPLY_FIELDS(KVW_PUT_N, KVW_PUT_T)
    return fits ? kvw_codec_pack(out, room, &m.base) : 0;
}

kvarn_status kvw_ping_reply_decode(struct kvw_ping_reply *out, const uint8_t *in, size_t count,
                                   struct kvw_arena *arena, const char **why)
{
    const Kvarn__PingReply *m =
        kvw_codec_unpack(&kvarn__ping_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    out->echo = m->echo;
    return KVARN_OK;
}

size_t kvw_ping_reply_encode(uint8_t *out, size_t room, const struct kvw_ping_reply *in)
{
    Kvarn__PingReply m = KVARN__PING_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];

    KVW_PUT_RESULT(&in->result)
    KVW_PUT_N(echo)
    return kvw_codec_pack(out, room, &m.base);
}

/* clang-format off */
#define OPEN_SPACE_REPLY_FIELDS(N)                                                                 \
    N(space) N(epoch) N(group) N(sink_tokens)                                                      \
    N(record_bytes) N(tile_block_bytes) N(exact_block_bytes)
/* clang-format on */

kvarn_status kvw_open_space_reply_decode(struct kvw_open_space_reply *out, const uint8_t *in,
                                         size_t count, struct kvw_arena *arena, const char **why)
{
    const Kvarn__OpenSpaceReply *m =
        kvw_codec_unpack(&kvarn__open_space_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    OPEN_SPACE_REPLY_FIELDS(KVW_TAKE_N)
    if (!kvw_bytes32_take(out->fingerprint, m->has_fingerprint, &m->fingerprint)) {
        *why = "a fingerprint that is not 32 bytes long";
        return KVARN_BAD_FRAME;
    }
    return KVARN_OK;
}

/* protobuf-c's structs have no const; packing only reads. */
static ProtobufCBinaryData fingerprint_of(const uint8_t fingerprint[KVARN_FINGERPRINT_BYTES])
{
    ProtobufCBinaryData data = {KVARN_FINGERPRINT_BYTES, (uint8_t *)(uintptr_t)fingerprint};

    return data;
}

size_t kvw_open_space_reply_encode(uint8_t *out, size_t room, const struct kvw_open_space_reply *in)
{
    Kvarn__OpenSpaceReply m = KVARN__OPEN_SPACE_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];

    KVW_PUT_RESULT(&in->result)
    OPEN_SPACE_REPLY_FIELDS(KVW_PUT_N)
    m.has_fingerprint = 1;
    m.fingerprint = fingerprint_of(in->fingerprint);
    return kvw_codec_pack(out, room, &m.base);
}

/* clang-format off */
#define BLOCKS_REPLY_FIELDS(N)                                                                     \
    N(block_count) N(matched) N(lease) N(lease_ms) N(device_ns) N(cursor) N(total)
/* clang-format on */

kvarn_status kvw_blocks_reply_decode(struct kvw_blocks_reply *out, const uint8_t *in, size_t count,
                                     struct kvw_arena *arena, const char **why)
{
    const Kvarn__BlocksReply *m =
        kvw_codec_unpack(&kvarn__blocks_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    BLOCKS_REPLY_FIELDS(KVW_TAKE_N)
    return KVARN_OK;
}

size_t kvw_blocks_reply_encode(uint8_t *out, size_t room, const struct kvw_blocks_reply *in)
{
    Kvarn__BlocksReply m = KVARN__BLOCKS_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];

    KVW_PUT_RESULT(&in->result)
    BLOCKS_REPLY_FIELDS(KVW_PUT_N)
    return kvw_codec_pack(out, room, &m.base);
}

kvarn_status kvw_sequences_reply_decode(struct kvw_sequences_reply *out, const uint8_t *in,
                                        size_t count, struct kvw_arena *arena, const char **why)
{
    const Kvarn__SequencesReply *m =
        kvw_codec_unpack(&kvarn__sequences_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    out->sequence_count = m->sequence_count;
    out->device_ns = m->device_ns;
    return KVARN_OK;
}

size_t kvw_sequences_reply_encode(uint8_t *out, size_t room, const struct kvw_sequences_reply *in)
{
    Kvarn__SequencesReply m = KVARN__SEQUENCES_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];

    KVW_PUT_RESULT(&in->result)
    KVW_PUT_N(sequence_count)
    KVW_PUT_N(device_ns)
    return kvw_codec_pack(out, room, &m.base);
}

static const char no_room[] = "metadata needs more memory than a decode may use";

kvarn_status kvw_stats_reply_decode(struct kvw_stats_reply *out, const uint8_t *in, size_t count,
                                    struct kvw_arena *arena, const char **why)
{
    const Kvarn__StatsReply *m =
        kvw_codec_unpack(&kvarn__stats_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    out->count = m->n_metrics;
    out->metrics = NULL;
    if (out->count == 0)
        return KVARN_OK;
    out->metrics = kvw_arena_take(arena, out->count * sizeof *out->metrics);
    if (out->metrics == NULL) {
        *why = no_room;
        return KVARN_BAD_FRAME;
    }
    for (size_t i = 0; i < out->count; i++) {
        out->metrics[i].name = m->metrics[i]->name != NULL ? m->metrics[i]->name : "";
        out->metrics[i].value = m->metrics[i]->value;
    }
    return KVARN_OK;
}

/* Appends one packed message at *used. False when it does not fit. */
static bool append(uint8_t *out, size_t room, size_t *used, const ProtobufCMessage *message)
{
    size_t added;

    if (room > KVW_METADATA_MAX_BYTES)
        room = KVW_METADATA_MAX_BYTES;
    added = kvw_codec_pack(out + *used, room - *used, message);
    *used += added;
    return added > 0;
}

size_t kvw_stats_reply_encode(uint8_t *out, size_t room, const struct kvw_stats_reply *in)
{
    Kvarn__StatsReply m = KVARN__STATS_REPLY__INIT, element = KVARN__STATS_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];
    size_t used = 0;

    KVW_PUT_RESULT(&in->result)
    if (in->count > KVW_METRICS_MAX || !append(out, room, &used, &m.base))
        return 0;
    for (size_t i = 0; i < in->count; i++) {
        Kvarn__Metric metric = KVARN__METRIC__INIT, *one = &metric;

        if (!kvw_text_put(&metric.name, in->metrics[i].name))
            return 0;
        metric.has_value = 1;
        metric.value = in->metrics[i].value;
        element.n_metrics = 1;
        element.metrics = &one;
        if (!append(out, room, &used, &element.base))
            return 0;
    }
    return used;
}

/* clang-format off */
#define SPACE_INFO_FIELDS(N, T)                                                                    \
    N(space) T(model) T(preset)                                                                    \
    N(layers) N(kv_heads) N(head_dim) N(dtype)                                                     \
    N(tile_blocks) N(exact_blocks) N(bytes) N(sequences)
/* clang-format on */

static bool take_space(struct kvw_space_info *out, const Kvarn__SpaceInfo *m)
{
    SPACE_INFO_FIELDS(KVW_TAKE_N, KVW_TAKE_T)
    return kvw_bytes32_take(out->fingerprint, m->has_fingerprint, &m->fingerprint);
}

kvarn_status kvw_list_reply_decode(struct kvw_list_reply *out, const uint8_t *in, size_t count,
                                   struct kvw_arena *arena, const char **why)
{
    const Kvarn__ListReply *m =
        kvw_codec_unpack(&kvarn__list_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    out->count = m->n_spaces;
    out->spaces = NULL;
    if (out->count == 0)
        return KVARN_OK;
    out->spaces = kvw_arena_take(arena, out->count * sizeof *out->spaces);
    if (out->spaces == NULL) {
        *why = no_room;
        return KVARN_BAD_FRAME;
    }
    for (size_t i = 0; i < out->count; i++) {
        if (!take_space(&out->spaces[i], m->spaces[i])) {
            *why = "a fingerprint that is not 32 bytes long";
            return KVARN_BAD_FRAME;
        }
    }
    return KVARN_OK;
}

/* A reply with this one element and nothing else. */
static bool append_space(uint8_t *out, size_t room, size_t *used, const struct kvw_space_info *in)
{
    Kvarn__ListReply element = KVARN__LIST_REPLY__INIT;
    Kvarn__SpaceInfo m = KVARN__SPACE_INFO__INIT, *one = &m;
    bool fits = true;

    SPACE_INFO_FIELDS(KVW_PUT_N, KVW_PUT_T)
    m.has_fingerprint = 1;
    m.fingerprint = fingerprint_of(in->fingerprint);
    element.n_spaces = 1;
    element.spaces = &one;
    return fits && append(out, room, used, &element.base);
}

size_t kvw_list_reply_encode(uint8_t *out, size_t room, const struct kvw_list_reply *in)
{
    Kvarn__ListReply m = KVARN__LIST_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];
    size_t used = 0;

    KVW_PUT_RESULT(&in->result)
    if (in->count > KVW_SPACES_MAX || !append(out, room, &used, &m.base))
        return 0;
    for (size_t i = 0; i < in->count; i++) {
        if (!append_space(out, room, &used, &in->spaces[i]))
            return 0;
    }
    return used;
}

#define EVENTS_REPLY_FIELDS(N) N(epoch) N(next) N(count) N(cursor)

kvarn_status kvw_events_reply_decode(struct kvw_events_reply *out, const uint8_t *in, size_t count,
                                     struct kvw_arena *arena, const char **why)
{
    const Kvarn__EventsReply *m =
        kvw_codec_unpack(&kvarn__events_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(&out->result, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    EVENTS_REPLY_FIELDS(KVW_TAKE_N)
    out->lost = m->lost != 0;
    return KVARN_OK;
}

size_t kvw_events_reply_encode(uint8_t *out, size_t room, const struct kvw_events_reply *in)
{
    Kvarn__EventsReply m = KVARN__EVENTS_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];

    KVW_PUT_RESULT(&in->result)
    EVENTS_REPLY_FIELDS(KVW_PUT_N)
    KVW_PUT_N(lost)
    return kvw_codec_pack(out, room, &m.base);
}
