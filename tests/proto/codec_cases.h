/* One full example of every message, and a table that treats all messages alike.
 *
 * Used by the codec's tests and by nothing else. Every field of an example is set, each to its own
 * value, so that a field that is lost or taken for another shows. */
#ifndef TESTS_CODEC_CASES_H
#define TESTS_CODEC_CASES_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/codec_internal.h"

#define KVW_UNION_MEMBER(name) struct kvw_##name name;
union codec_any {
    KVW_MESSAGES(KVW_UNION_MEMBER)
};
#undef KVW_UNION_MEMBER

struct codec_case {
    const char *name;
    size_t size; /* of the struct */
    void (*fill)(union codec_any *out);
    kvarn_status (*decode)(union codec_any *out, const uint8_t *in, size_t count,
                           struct kvw_arena *arena, const char **why);
    size_t (*encode)(uint8_t *out, size_t room, const union codec_any *in);
    const ProtobufCMessageDescriptor *(*descriptor)(void);
    const size_t *texts; /* offsets of the struct's strings, ended by SIZE_MAX */
};

/* The case at index 0, 1, ...; NULL past the last. */
const struct codec_case *codec_case_at(size_t index);

const struct codec_case *codec_case_named(const char *name);

/* Bytes written, at most 10. */
size_t codec_put_varint(uint8_t *out, uint64_t value);

/* Decodes into a struct that was zeroed, with an arena of KVW_ARENA_BYTES. The result lives until
 * the next call. */
kvarn_status codec_case_decode(const struct codec_case *test, union codec_any *out,
                               const uint8_t *in, size_t count);

/* Fails the test unless both hold the same values, texts and lists included. */
void codec_case_assert_equal(const struct codec_case *test, const union codec_any *a,
                             const union codec_any *b);

#endif
