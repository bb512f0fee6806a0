/* What a space on some device holds and gives, kept by a test: after a fault it must be the same.
 */
#ifndef E2E_GPU_KNOWN_H
#define E2E_GPU_KNOWN_H

#include "tests/e2e/gpu_rig.h"

enum { GPU_KNOWN_ROWS = MODEL_LAYERS * MODEL_TOKENS * MODEL_ROW };

struct gpu_known {
    const struct model *model;
    kvarn_client *client;
    uint64_t space, sequence;
    uint16_t k[GPU_KNOWN_ROWS], v[GPU_KNOWN_ROWS]; /* of the first five blocks */
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
};

/* Four blocks by COMPRESS, then a sequence over them with rows of its own behind, in a fifth block
 * and in a tail; and what all of it gives, checked against attention in double. */
void gpu_known_fill(struct gpu_known *known, const struct gpu_rig *rig, const struct model *model,
                    const char *name, const char *device);

kvarn_status gpu_known_attend(struct gpu_known *known, float *out, float *lse);
kvarn_status gpu_known_decompress(struct gpu_known *known, size_t count, uint16_t *k, uint16_t *v);

/* Everything is as it was, and nothing was lost on the way to it. */
void gpu_known_unharmed(struct gpu_known *known);
/* Calls until the daemon is back; gives how often a call was lost with its worker. */
unsigned gpu_known_until_back(struct gpu_known *known);

#endif
