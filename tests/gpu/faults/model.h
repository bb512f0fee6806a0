/* What the drill stores and asks, and what must come back: rows of blocks bit for bit as the scalar
 * kernel decodes their records, attention as the scalar kernel computes it over them. */
#ifndef DRILL_MODEL_H
#define DRILL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/client.h>

#include "kernels/kernels.h"

enum { DRILL_BLOCKS = 16, DRILL_QUERIES = 6 };

struct drill_shape {
    struct kvk_shape record;
    uint32_t layers, heads, q_heads;
    const char *preset;
    char device[16]; /* where its space is to be: "cuda:0" */
};

struct drill_block {
    kvarn_key key;
    kvarn_block_kind kind;
    kvarn_block_result stored; /* kind and digest */
    uint8_t *bytes;            /* canonical */
    size_t byte_count;
    uint16_t *k, *v; /* what DECOMPRESS must give */
};

/* Attention of one token over all blocks in one layer. */
struct drill_query {
    uint32_t layer;
    uint16_t *q; /* [q_heads, dim] */
    float *out, *lse;
};

struct drill_model {
    struct drill_shape shape;
    kvarn_origin origin;
    struct drill_block blocks[DRILL_BLOCKS]; /* the first is EXACT */
    struct drill_query queries[DRILL_QUERIES];
};

/* Elements of K, or V, of one token in all layers; of one block. */
size_t drill_token_elements(const struct drill_shape *shape);
size_t drill_block_elements(const struct drill_shape *shape);

/* Random rows like a model's; the same for the same seed. */
void drill_fill(uint16_t *rows, size_t count, uint64_t seed);
kvarn_key drill_key(uint64_t number);

/* Opens the space; ends the process with the client's sentence when it cannot, as all below. */
uint64_t drill_open(kvarn_client *client, const struct drill_shape *shape);
/* Stores the blocks by COMPRESS, exports them, checks the reconstruction against the input, and
 * computes what must come back from now on. */
void drill_model_make(struct drill_model *model, kvarn_client *client, uint64_t space);
/* Stores them in another daemon by IMPORT. */
void drill_model_give(const struct drill_model *model, kvarn_client *client, uint64_t space);
void drill_model_free(struct drill_model *model);

/* Rows of a block's canonical bytes, by the scalar kernel: [layer][token][head][dim]. */
void drill_decode(const struct drill_shape *shape, kvarn_block_kind kind, const uint8_t *bytes,
                  uint16_t *k, uint16_t *v);
/* |got - want| / |want| of f16 rows, of f32 rows. */
double drill_distance(const uint16_t *got, const uint16_t *want, size_t count);
double drill_distance_f32(const float *got, const float *want, size_t count);

_Noreturn void drill_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void drill_must(kvarn_client *client, const char *what, kvarn_status status);

#endif
