/* Shared public types: element types, presets, keys, cache geometry.
 *
 * Plain data; no function here allocates. Compiles alone as C99 and as C++. */
#ifndef KVARN_TYPES_H
#define KVARN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVARN_KEY_BYTES = 32,
    KVARN_FINGERPRINT_BYTES = 32,
    KVARN_DEFAULT_ITERATIONS = 8,
    KVARN_MAX_ITERATIONS = 64,
    KVARN_SINK_TOKENS = 128, /* first tokens of a sequence, kept exact */
    KVARN_MAX_HEAD_DIM = 256,
    KVARN_MAX_GROUP = 128,
    KVARN_MAX_GQA = 64 /* query heads per kv head */
};

typedef enum kvarn_dtype { KVARN_F16 = 1, KVARN_BF16 = 2, KVARN_F32 = 3 } kvarn_dtype;

/* How the variance normalisation treats the data's scale.
 * PUBLIC is the published loop with its log floor of -0.3. SCALE_FREE first divides the matrix by
 * its smallest standard deviation (over all rows and columns) that is at least 1e-4 of the largest,
 * and multiplies that factor back into the vectors of the quantisation axis; no byte of storage
 * more. */
typedef enum kvarn_balance { KVARN_BALANCE_PUBLIC = 0, KVARN_BALANCE_SCALE_FREE = 1 } kvarn_balance;

/* How the range of one quantised row is chosen.
 * MINMAX spans the row from its least to its greatest value. TIGHT takes the middle part of that,
 * clamps what lies outside, and corrects the scales of the other axis from what a reader will see;
 * records are read in the same way. */
typedef enum kvarn_range { KVARN_RANGE_MINMAX = 0, KVARN_RANGE_TIGHT = 1 } kvarn_range;

typedef enum kvarn_block_kind {
    KVARN_BLOCK_TILE = 1, /* KVarN records in canonical order */
    KVARN_BLOCK_EXACT = 2 /* raw, un-rotated K and V rows in the space's dtype */
} kvarn_block_kind;

/* A preset: everything about the format that has a name of its own. */
typedef struct kvarn_preset {
    const char *name; /* "kvarn_k2v2_g128", "tight_k2v2_g128", ...; static string */
    uint8_t bits_k;   /* 2 or 4 */
    uint8_t bits_v;   /* 2 or 4 */
    uint16_t group;   /* tokens per tile: 64 or 128 */
    uint8_t balance;  /* kvarn_balance */
    uint8_t range;    /* kvarn_range */
} kvarn_preset;

/* Names a block by content: a chain hash of the tokens before it and in it. */
typedef struct kvarn_key {
    uint8_t bytes[KVARN_KEY_BYTES];
} kvarn_key;

/* Borrows name. NULL when there is no such preset. Static storage. */
const kvarn_preset *kvarn_preset_find(const char *name);

/* The preset at index 0, 1, ...; NULL past the last. */
const kvarn_preset *kvarn_preset_at(size_t index);

/* 2 for F16 and BF16, 4 for F32, 0 for anything else. */
size_t kvarn_dtype_bytes(kvarn_dtype dtype);

/* "f16", "bf16", "f32"; NULL for anything else. Static string. */
const char *kvarn_dtype_name(kvarn_dtype dtype);

/* Bytes of one tile (K and V of `group` tokens of one layer and kv head) in canonical order:
 * D*G*(bits_k+bits_v)/8 + 6*(D+G). 0 when head_dim is not 64, 128 or 256. */
size_t kvarn_record_bytes(const kvarn_preset *preset, uint32_t head_dim);

#ifdef __cplusplus
}
#endif
#endif
