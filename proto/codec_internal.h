/* Between the codec's own files: the pre-scan, unpacking into an arena, packing, field helpers.
 *
 * Only codec*.c and the codec's tests include this. A message's fields are written once, in a list
 * of macros N (scalar), T (text), and used for both directions, so that what is encoded and what is
 * decoded cannot drift apart. */
#ifndef KVW_CODEC_INTERNAL_H
#define KVW_CODEC_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/codec.h"

/* Bounds on metadata that protobuf-c may see. */
enum {
    KVW_DEPTH_MAX = 2,           /* a message and its sub-messages: the depth of the schema */
    KVW_REPEATED_MAX = 256,      /* elements of a repeated field */
    KVW_UNKNOWN_FIELDS_MAX = 64, /* fields this version does not know, in all */
};

/* Walks the bytes as protobuf-c would, without allocating. BAD_FRAME with *why (static text). */
kvarn_status kvw_codec_prescan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *in,
                               size_t count, const char **why);

/* The same walk for a message of which only the fields of this descriptor matter: they are copied
 * to `kept`, the others are skipped however many there are. No sub-messages in the descriptor. */
kvarn_status kvw_codec_pick(const ProtobufCMessageDescriptor *descriptor, const uint8_t *in,
                            size_t count, uint8_t *kept, size_t room, size_t *kept_count,
                            const char **why);

/* Well-formed UTF-8 (no overlong form, no surrogate) without NUL. */
bool kvw_text_valid(const uint8_t *text, size_t count);

/* Pre-scan, then unpack into the arena: the descriptor's struct, or NULL with *why set. */
void *kvw_codec_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *in,
                       size_t count, struct kvw_arena *arena, const char **why);

/* Bytes written; 0 when `room` or KVW_METADATA_MAX_BYTES is too small. */
size_t kvw_codec_pack(uint8_t *out, size_t room, const ProtobufCMessage *message);

/* Descriptor of message `name` of KVW_MESSAGES ("hello"); NULL for any other name. */
const ProtobufCMessageDescriptor *kvw_codec_descriptor(const char *name);

/* Sets *field for encoding; "" and NULL become absent. False when the peer would refuse the text.
 */
bool kvw_text_put(char **field, const char *text);

/* Copies a result's text so that the peer accepts it whatever it quotes: cut to KVW_TEXT_MAX_BYTES
 * at a character boundary; the whole becomes '?' for bytes over 127 when it is not UTF-8. */
void kvw_text_clean(char out[KVW_TEXT_MAX_BYTES + 1], const char *text);

/* Reads a 32-byte field into out (zeroes when absent). False for any other length. */
bool kvw_bytes32_take(uint8_t out[32], bool present, const ProtobufCBinaryData *data);

/* The three fields at the head of every reply. False with *why set for a status over 255. */
bool kvw_result_take(struct kvw_result *out, uint32_t status, const char *text,
                     uint32_t retry_after_us, const char **why);

#define KVW_TAKE_N(field) out->field = m->field;
#define KVW_TAKE_T(field) out->field = m->field != NULL ? m->field : "";
#define KVW_PUT_N(field)                                                                           \
    m.field = in->field;                                                                           \
    m.has_##field = in->field != 0;
#define KVW_PUT_T(field) fits = kvw_text_put(&m.field, in->field) && fits;

/* The result at the head of every reply (kvw_result_take() reads it). `clean` is the encoder's
 * buffer of KVW_TEXT_MAX_BYTES + 1. The status is always written: no reply is empty, and a size of
 * 0 always means that it did not fit. */
#define KVW_PUT_RESULT(from)                                                                       \
    m.has_status = 1;                                                                              \
    m.status = (uint32_t)(from)->status;                                                           \
    kvw_text_clean(clean, (from)->text);                                                           \
    m.text = clean[0] != '\0' ? clean : NULL;                                                      \
    m.retry_after_us = (from)->retry_after_us;                                                     \
    m.has_retry_after_us = m.retry_after_us != 0;

#endif
