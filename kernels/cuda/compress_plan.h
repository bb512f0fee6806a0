/* How to launch what makes cells from rows; see launch.h.
 *
 * Digests are not made here: queue kvk_cuda_digest_launch() behind either on the same stream. */
#ifndef KVK_CUDA_COMPRESS_PLAN_H
#define KVK_CUDA_COMPRESS_PLAN_H

#include "kernels/cuda/launch.h"

enum { KVK_CUDA_WRITE_THREADS = 128 };

/* A thread block makes one matrix, K or V of a cell. As few warps as registers allow: 64 registers
 * hold the matrix in each shape but the smallest. */
#define KVK_CUDA_COMPRESS_WARPS(dim, group)                                                        \
    ((dim) == 256 ? (group) / 16 : (dim) + (group) == 256 ? 4 : 2)

/* The matrix in fp16, weights of tokens and channels with their squares, and what warps tell each
 * other. */
#define KVK_CUDA_COMPRESS_SHARED(dim, group)                                                       \
    (2 * (dim) * (group) + 64 * ((group) / 8 + 4) + 6 * (dim) + 8 * 24 + 3 * 32)

/* kvk_cuda_blocks.settle of a service. On real keys and values balancing then takes the time of 2
 * to 4 of 8 iterations, and reconstruction is within 0.05 % of what all of them give (tests/bench/
 * NOTES.md). */
#define KVK_CUDA_SETTLE 0.1f

/* Rows [group, dim] at block.k, block.v -> TILE cells. Rows of an EXACT slot are such rows:
 * sealing. */
struct kvk_cuda_launch kvk_cuda_compress_launch(const struct kvk_cuda_blocks *args);

/* `tokens` rows at block.k, block.v -> EXACT cells, from row first_token on. A fault's token counts
 * from the first row given. */
struct kvk_cuda_launch kvk_cuda_write_launch(const struct kvk_cuda_blocks *args);

#endif
