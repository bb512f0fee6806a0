/* How to launch a kernel: which image and kernel, how many threads, how much shared memory.
 *
 * Host C without CUDA headers, so that the worker, the tests and the tests' stand-in driver read
 * the same description. Every kernel takes one argument, its struct of args.h, by value. grid 0:
 * there is nothing to do, do not launch. More than 48 KiB of shared memory must be allowed for the
 * kernel first (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES).
 *
 * Below 2^31 cells a launch. Slots start at multiples of 128 bytes; rows and canonical cells lie
 * anywhere (fast when addresses and strides are multiples of 16). */
#ifndef KVK_CUDA_LAUNCH_H
#define KVK_CUDA_LAUNCH_H

#include <stdint.h>

#include "kernels/cuda/args.h"

enum {
    KVK_CUDA_SHARED_MAX = 227 * 1024, /* of one thread block, bytes */
    KVK_CUDA_DECOMPRESS_STATE = 224,  /* bytes; of a team */
    KVK_CUDA_READ_THREADS = 256,
    KVK_CUDA_CONVERT_MAX_GROUPS = 8, /* of a thread block, each with a cell */
    KVK_CUDA_CONVERT_THREADS = 128,  /* of a group */
    KVK_CUDA_CONVERT_TABLES = 32768, /* bytes; of a thread block */
    KVK_CUDA_CONVERT_PARTS = 128     /* bytes beside the record; of a group */
};

/* Decompress: warps of a thread block, always a multiple of four; of a team, as many as a matrix
 * has strips, four at most. */
#define KVK_CUDA_DECOMPRESS_MAX_WARPS(dim)   ((dim) == 64 ? 20 : 12)
#define KVK_CUDA_DECOMPRESS_TEAM(dim, group) ((dim) < 256 && (group) == 64 ? 2 : 4)
/* What a thread keeps in shared memory of its row, with a gap against conflicts; the rows of a
 * warp; and these with its vectors. */
#define KVK_CUDA_DECOMPRESS_PITCH(dim) (((dim) < 128 ? (dim) : 128) * 2 + 16)
#define KVK_CUDA_DECOMPRESS_ROWS(dim)  (32 * KVK_CUDA_DECOMPRESS_PITCH(dim) - 16)
#define KVK_CUDA_DECOMPRESS_ROOM(dim)  (KVK_CUDA_DECOMPRESS_ROWS(dim) + 8 * (dim))

/* What a group of convert has in shared memory: a record in both orders. */
#define KVK_CUDA_CONVERT_ROOM(record_bytes) (KVK_CUDA_CONVERT_PARTS + 2 * (record_bytes))

struct kvk_cuda_launch {
    char image[24]; /* entry of kvk_cuda_images[] */
    char name[64];  /* of the kernel in it */
    uint32_t grid, block, shared_bytes;
};

/* TILE cells -> rows; either of block.k, block.v may be 0. processors: multiprocessors of the
 * device. */
struct kvk_cuda_launch kvk_cuda_decompress_launch(const struct kvk_cuda_blocks *args,
                                                  uint32_t processors);

/* EXACT cells, rows [first_token, +tokens) -> rows at block.k, block.v, row first_token first;
 * either may be 0. */
struct kvk_cuda_launch kvk_cuda_read_launch(const struct kvk_cuda_blocks *args,
                                            uint32_t processors);

/* Both kinds. Digests of cells as they lie in slots. */
struct kvk_cuda_launch kvk_cuda_digest_launch(const struct kvk_cuda_blocks *args,
                                              uint32_t processors);

/* Both kinds. Cells -> canonical bytes at block.k, dense, with their digests. */
struct kvk_cuda_launch kvk_cuda_export_launch(const struct kvk_cuda_blocks *args,
                                              uint32_t processors);

/* Both kinds. Canonical bytes at block.k -> cells, with the digests of what was read and the first
 * non-finite value of each block in faults. */
struct kvk_cuda_launch kvk_cuda_import_launch(const struct kvk_cuda_blocks *args,
                                              uint32_t processors);

#endif
