/* Unpacking into an arena, packing into a buffer, texts: what all messages share.
 *
 * protobuf-c gets an allocator over the arena: a full arena makes it fail, it never reaches malloc,
 * and its frees do nothing because the owner drops the arena whole. */
#include "proto/codec.h"

#include <string.h>

#include "kvarn.pb-c.h"
#include "proto/codec_internal.h"

static void *arena_alloc(void *arena, size_t size)
{
    return kvw_arena_take(arena, size);
}

static void arena_free(void *arena, void *pointer)
{
    (void)arena;
    (void)pointer;
}

void *kvw_codec_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *in,
                       size_t count, struct kvw_arena *arena, const char **why)
{
    static const uint8_t nothing[1] = {0};
    ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
    ProtobufCMessage *message;

    *why = "";
    if (kvw_codec_prescan(descriptor, in, count, why) != KVARN_OK)
        return NULL;
    /* protobuf-c does arithmetic on the pointer even when there is nothing behind it. */
    message = protobuf_c_message_unpack(descriptor, &allocator, count, count > 0 ? in : nothing);
    if (message == NULL)
        *why = "metadata needs more memory than a decode may use";
    return message;
}

size_t kvw_codec_pack(uint8_t *out, size_t room, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);

    if (size > room || size > KVW_METADATA_MAX_BYTES)
        return 0;
    return protobuf_c_message_pack(message, out);
}

const ProtobufCMessageDescriptor *kvw_codec_descriptor(const char *name)
{
#define NAME_ROW(name) {#name, &kvarn__##name##__descriptor},
    static const struct {
        const char *name;
        const ProtobufCMessageDescriptor *descriptor;
    } rows[] = {KVW_MESSAGES(NAME_ROW)};
#undef NAME_ROW

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].descriptor;
    }
    return NULL;
}

bool kvw_text_put(char **field, const char *text)
{
    size_t count;

    *field = NULL;
    if (text == NULL || text[0] == '\0')
        return true;
    count = strnlen(text, KVW_TEXT_MAX_BYTES + 1);
    if (count > KVW_TEXT_MAX_BYTES || !kvw_text_valid((const uint8_t *)text, count))
        return false;
    /* protobuf-c's structs have no const; packing only reads. */
    *field = (char *)(uintptr_t)text;
    return true;
}

void kvw_text_clean(char out[KVW_TEXT_MAX_BYTES + 1], const char *text)
{
    size_t count = text != NULL ? strnlen(text, KVW_TEXT_MAX_BYTES + 1) : 0;

    if (count > KVW_TEXT_MAX_BYTES) {
        count = KVW_TEXT_MAX_BYTES;
        while (count > 0 && ((uint8_t)text[count] & 0xc0) == 0x80)
            count--;
    }
    if (count > 0)
        memcpy(out, text, count);
    out[count] = '\0';
    if (kvw_text_valid((const uint8_t *)out, count))
        return;
    for (size_t i = 0; i < count; i++) {
        if ((uint8_t)out[i] > 127)
            out[i] = '?';
    }
}

bool kvw_bytes32_take(uint8_t out[32], bool present, const ProtobufCBinaryData *data)
{
    memset(out, 0, 32);
    if (!present)
        return true;
    if (data->len != 32)
        return false;
    memcpy(out, data->data, 32);
    return true;
}

bool kvw_result_take(struct kvw_result *out, uint32_t status, const char *text,
                     uint32_t retry_after_us, const char **why)
{
    if (status > KVARN_STATUS_MAX) {
        *why = "a status over 255";
        return false;
    }
    *out = (struct kvw_result){(kvarn_status)status, text != NULL ? text : "", retry_after_us};
    return true;
}

/* protobuf-c would keep a copy of every field it does not know, and to this message the body of a
 * long reply is all unknown: so the three fields are picked out first. */
static kvarn_status result_unpack(struct kvw_result *out, const uint8_t *in, size_t count,
                                  struct kvw_arena *arena, const char **why)
{
    const Kvarn__ErrorReply *m =
        kvw_codec_unpack(&kvarn__error_reply__descriptor, in, count, arena, why);

    if (m == NULL || !kvw_result_take(out, m->status, m->text, m->retry_after_us, why))
        return KVARN_BAD_FRAME;
    return KVARN_OK;
}

kvarn_status kvw_result_decode(struct kvw_result *out, const uint8_t *in, size_t count,
                               struct kvw_arena *arena, const char **why)
{
    uint8_t kept[KVW_TEXT_MAX_BYTES + 64];
    size_t kept_count;
    kvarn_status status = kvw_codec_pick(&kvarn__error_reply__descriptor, in, count, kept,
                                         sizeof kept, &kept_count, why);

    return status == KVARN_OK ? result_unpack(out, kept, kept_count, arena, why) : status;
}

size_t kvw_result_encode(uint8_t *out, size_t room, const struct kvw_result *in)
{
    Kvarn__ErrorReply m = KVARN__ERROR_REPLY__INIT;
    char clean[KVW_TEXT_MAX_BYTES + 1];

    KVW_PUT_RESULT(in)
    return kvw_codec_pack(out, room, &m.base);
}
