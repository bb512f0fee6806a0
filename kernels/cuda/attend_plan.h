/* Cuts a batch of attend calls into pieces for a persistent grid (host side).
 *
 * Every thread block gets about the same number of bytes; cuts ignore the borders of sequences and
 * heads, so that rows may have several pieces, in different blocks, which are joined at the end of
 * the same launch. `deterministic` cuts each sequence by its own spans alone: its results are then
 * the same bits in any batch whose kernel is the same. No function here allocates. */
#ifndef KVK_CUDA_ATTEND_PLAN_H
#define KVK_CUDA_ATTEND_PLAN_H

#include <stdbool.h>

#include "kernels/cuda/args.h"

struct kvk_attend_batch {
    struct kvk_shape shape;
    uint32_t kv_heads, q_heads; /* q_heads / kv_heads at most KVARN_MAX_GQA */
    uint32_t count;
    const struct kvk_cuda_sequence *sequences; /* [count] */
    const struct kvk_cuda_span *const *spans;  /* [count]: host copies of each one's spans */
    uint32_t processors;                       /* of the device */
    bool deterministic;
};

struct kvk_attend_plan {
    char image[24], kernel[48];             /* entry of kvk_cuda_images[], kernel in it */
    uint32_t blocks, threads, shared_bytes; /* of the launch; shared_bytes must be allowed first */
    uint32_t pieces;                        /* kvk_cuda_attend.piece_count */
    uint32_t joins;                         /* counters */
    size_t part_bytes;                      /* of kvk_cuda_attend.parts */
};

/* Query rows of a kv head that the kernel works on at a time, when no sequence of the batch has
 * more than `rows` of them. Batches with the same answer have the same kernel. */
uint32_t kvk_attend_rows(uint32_t rows);

/* What the launch needs and, unless pieces is NULL, the pieces themselves: plan->pieces of them, as
 * a call with NULL on the same batch has told. INVALID_SHAPE when heads or shape do not fit. */
kvarn_status kvk_attend_plan(const struct kvk_attend_batch *batch, struct kvk_attend_plan *plan,
                             struct kvk_cuda_piece *pieces);

#endif
