/* What the CUDA kernels are called with: plain structs, one per kernel, passed by value.
 *
 * Included by host C, by the kernels and by the tests' stand-in driver. Addresses are device
 * addresses (or pinned host memory that the device maps) as 64-bit numbers. No kernel allocates,
 * synchronises with the host or keeps state between launches, so all of them can be captured into a
 * graph and ordered on any stream. Records and slots are in device order (kernels/tile.h). */
#ifndef KVK_CUDA_ARGS_H
#define KVK_CUDA_ARGS_H

#include <stdint.h>

#include "kernels/kernels.h"

/* ---- blocks: compress, write, read, decompress, digest, export, import ---- */

/* One block. A slot is [layer][head][cell]; a cell is a record in device order (kind TILE) or K,
 * then V rows [group, dim] (EXACT). */
struct kvk_cuda_block {
    uint64_t slot; /* cell of layer 0, head 0 */
    uint64_t k, v; /* rows: of the first layer, first token, head 0; export, import: k is the
                      address of cell `layer_begin`, head 0 in canonical order, v unused; digest:
                      unused. compress reads rows in whole aligned words of 4 bytes: up to 3 bytes
                      before the first element and after the last are read, and must be there */
    uint64_t layer_stride_bytes, token_stride_bytes, head_stride_bytes; /* of k and v rows */
    uint32_t kind;                /* kvarn_block_kind; kernels skip blocks of the other kind */
    uint32_t first_token, tokens; /* write, read: rows within the cell */
    uint32_t reserved;
};

/* Kernels over all cells [layer_begin, +layer_count) x heads of `count` blocks. */
struct kvk_cuda_blocks {
    struct kvk_shape shape;
    uint32_t layers, heads; /* of a slot */
    uint32_t layer_begin, layer_count;
    uint32_t count;
    float settle; /* compress: balancing ends when no scale moves by more than this share of itself;
                     0: after all iterations */
    uint64_t blocks; /* const struct kvk_cuda_block [count] */
    uint64_t faults; /* uint64_t [count], KVK_CUDA_NO_FAULT before the launch; the smallest stays */
    uint64_t digests; /* out: uint32_t [count][layer_count * heads], CRC-32C of each cell in
                         canonical order; 0 = not wanted */
};

/* A non-finite value. Numbers compare in the order (cell, tensor, token, channel): cell is
 * (layer - layer_begin) * heads + head; tensor 0 = k, 1 = v, 2 = q. */
#define KVK_CUDA_NO_FAULT UINT64_MAX
#define KVK_CUDA_FAULT(cell, tensor, token, channel)                                               \
    ((uint64_t)(cell) << 36 | (uint64_t)(tensor) << 34 | (uint64_t)(token) << 9 |                  \
     (uint64_t)(channel))
#define KVK_CUDA_FAULT_CELL(fault)    ((uint32_t)((fault) >> 36))
#define KVK_CUDA_FAULT_TENSOR(fault)  ((uint32_t)((fault) >> 34 & 3))
#define KVK_CUDA_FAULT_TOKEN(fault)   ((uint32_t)((fault) >> 9 & 0x1ffffff))
#define KVK_CUDA_FAULT_CHANNEL(fault) ((uint32_t)((fault)&0x1ff))

/* ---- attend ---- */

/* A run of tokens of one sequence in one layer. */
struct kvk_cuda_span {
    uint64_t cell;     /* of kv head 0; head h is h * cell bytes of the kind further on */
    uint32_t position; /* of its first token in the sequence */
    uint16_t tokens;   /* valid ones, from the cell's first on */
    uint16_t kind;     /* kvarn_block_kind */
};

/* The query rows of one sequence, all heads. */
struct kvk_cuda_sequence {
    uint64_t q; /* [q_tokens, q_heads, dim] of q_dtype, post-RoPE, un-rotated */
    uint64_t out,
        lse; /* [q_tokens, q_heads, dim] of out_dtype; f32 [q_tokens, q_heads], natural log */
    uint64_t q_token_stride_bytes, q_head_stride_bytes; /* out and lse are dense */
    uint64_t spans; /* const struct kvk_cuda_span [span_count], positions ascending, disjoint */
    uint32_t span_count;
    uint32_t q_tokens;
    uint32_t limit, window; /* query token j sees p < limit + j (full: p < limit) and, with window,
                               p >= limit + j - window, as kvk_attend */
    uint32_t full;
    float scale, soft_cap;
    uint32_t fault; /* index into faults */
};

/* Some tokens of some rows of one sequence and kv head: what a thread block does at a time. All it
 * needs stands in it, so that a block reads one piece, its spans, then tiles. Pieces are made by
 * attend_plan.h. Thread block b starts at piece b and goes on at `next` until that is 0. */
struct kvk_cuda_piece {
    struct kvk_cuda_sequence of;
    uint32_t sequence; /* its index in the batch */
    uint16_t kv_head;
    uint16_t row_begin; /* rows are query token * group_heads + head within the kv head */
    uint32_t span_begin, span_end; /* EXACT (the first `lead`), TILE, EXACT (the last `trail`) */
    uint32_t part, parts;          /* this piece's number among those of the same rows; how many */
    uint32_t join;                 /* index of the rows' counter, when parts > 1 */
    uint32_t part_first;           /* their partial results are those from part_first on */
    uint32_t next;
    uint8_t lead, trail;
    uint16_t turn;   /* the warp that takes the first unit */
    uint32_t masked; /* 0: every row sees every token of every tile, and tiles are whole */
    uint32_t units;  /* group / 16 stretches of each exact span, then the tiles */
};

struct kvk_cuda_attend {
    struct kvk_shape shape;
    uint32_t kv_heads, q_heads; /* of the shard; q_heads / kv_heads query heads a kv head */
    uint32_t q_dtype, out_dtype;
    uint32_t blocks, piece_count;
    uint64_t pieces; /* const struct kvk_cuda_piece [piece_count], 16-byte aligned */
    uint64_t parts;  /* scratch: partial results */
    uint64_t joins;  /* uint32_t [], 0 before the launch and 0 after it */
    uint64_t faults; /* uint64_t [], as above; cell = query head, token = query token */
};

#endif
