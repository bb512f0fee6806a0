/* A small made-up model for end-to-end tests: its space, its rows, its keys; the same bytes in
 * every process. */
#ifndef E2E_MODEL_H
#define E2E_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/client.h>

enum {
    MODEL_LAYERS = 2,
    MODEL_KV_HEADS = 2,
    MODEL_Q_HEADS = 4,
    MODEL_DIM = 64,
    MODEL_GROUP = 64,
    MODEL_BLOCKS = 6, /* two of them are the sink */
    MODEL_TOKENS = MODEL_BLOCKS * MODEL_GROUP,
    MODEL_ROW = MODEL_KV_HEADS * MODEL_DIM,
    MODEL_Q_ROW = MODEL_Q_HEADS * MODEL_DIM
};

struct model {
    uint16_t k[MODEL_LAYERS][MODEL_TOKENS][MODEL_KV_HEADS][MODEL_DIM]; /* f16 */
    uint16_t v[MODEL_LAYERS][MODEL_TOKENS][MODEL_KV_HEADS][MODEL_DIM];
    uint16_t q[MODEL_LAYERS][MODEL_TOKENS][MODEL_Q_HEADS][MODEL_DIM];
    kvarn_key keys[MODEL_BLOCKS];
    kvarn_block_kind kinds[MODEL_BLOCKS];
};

void model_fill(struct model *model, uint32_t seed);
kvarn_space_options model_space(const char *name);
kvarn_strides model_strides(void);

/* Connects, or fails the test with the client's sentence. */
kvarn_client *model_connect(const char *address);
/* Opens model_space(name), or fails the test. Gives the space handle. */
uint64_t model_open(kvarn_client *client, const char *name);
/* The same with another preset, and keys and queries as they come when k_rotated is set. */
uint64_t model_open_as(kvarn_client *client, const char *name, const char *preset, int k_rotated);
/* Fails the test with the client's sentence unless status is `want`. */
void model_expect(kvarn_client *client, kvarn_status status, kvarn_status want, const char *what);

/* COMPRESS of blocks [0, count). results may be NULL. */
kvarn_status model_put(kvarn_client *client, uint64_t space, const struct model *model,
                       size_t count, kvarn_block_result *results);

/* A sequence over the longest known prefix of the model's keys. Gives its id, *blocks the prefix.
 */
uint64_t model_sequence(kvarn_client *client, uint64_t space, const struct model *model,
                        size_t keys, uint32_t *blocks);
/* Appends rows [from, from + count) of all layers and commits them with the keys of blocks that
 * fill up. */
void model_extend(kvarn_client *client, uint64_t space, const struct model *model,
                  uint64_t sequence, size_t from, size_t count);
/* One layer of one decode step at `token`: writes its rows and attends. out [MODEL_Q_ROW]. */
kvarn_status model_attend(kvarn_client *client, uint64_t space, const struct model *model,
                          uint64_t sequence, uint32_t layer, size_t token, float *out, float *lse);

/* Attention in double over rows k, v [token][kv head][dim] f32 of `tokens` tokens. out
 * [MODEL_Q_ROW]. */
void model_attention(const float *k, const float *v, const uint16_t *q, size_t tokens, double *out);

float model_half(uint16_t half);

#endif
