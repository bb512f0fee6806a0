/* Fuzz target: the metadata codec. Byte 0 chooses the message, the rest is its metadata. What
 * decodes must encode, decode again and then encode to the same bytes; what does not must say why.
 * The result alone is read from the same bytes too. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proto/codec.h"

static uint8_t memory[KVW_ARENA_BYTES], first[KVW_METADATA_MAX_BYTES],
    second[KVW_METADATA_MAX_BYTES];

#define ROUND_TRIP(name)                                                                           \
    static void round_trip_##name(const uint8_t *in, size_t count)                                 \
    {                                                                                              \
        struct kvw_##name decoded;                                                                 \
        struct kvw_arena arena;                                                                    \
        const char *why = NULL;                                                                    \
        size_t size;                                                                               \
                                                                                                   \
        kvw_arena_init(&arena, memory, sizeof memory);                                             \
        if (kvw_##name##_decode(&decoded, in, count, &arena, &why) != KVARN_OK) {                  \
            FUZZ_CHECK(why != NULL && why[0] != '\0');                                             \
            return;                                                                                \
        }                                                                                          \
        size = kvw_##name##_encode(first, sizeof first, &decoded);                                 \
        if (size == 0) {                                                                           \
            /* only a list of spaces can grow: its elements get fields that were absent */         \
            FUZZ_CHECK(count > sizeof first / 2);                                                  \
            return;                                                                                \
        }                                                                                          \
        kvw_arena_init(&arena, memory, sizeof memory);                                             \
        FUZZ_CHECK(kvw_##name##_decode(&decoded, first, size, &arena, &why) == KVARN_OK);          \
        FUZZ_CHECK(kvw_##name##_encode(second, sizeof second, &decoded) == size);                  \
        FUZZ_CHECK(memcmp(first, second, size) == 0);                                              \
    }
KVW_MESSAGES(ROUND_TRIP)
ROUND_TRIP(result)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
#define ENTRY(name) round_trip_##name,
    static void (*const targets[])(const uint8_t *,
                                   size_t) = {KVW_MESSAGES(ENTRY) round_trip_result};
#undef ENTRY

    if (size == 0)
        return 0;
    targets[data[0] % (sizeof targets / sizeof targets[0])](data + 1, size - 1);
    round_trip_result(data + 1, size - 1);
    return 0;
}
