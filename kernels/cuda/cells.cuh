/* Which cell a thread block works on, and where it lies. */
#ifndef KVK_CUDA_CELLS_CUH
#define KVK_CUDA_CELLS_CUH

#include "kernels/cuda/args.h"
#include "kernels/tile.h"

/* A cell of kvk_cuda_blocks: numbers count up heads first, then layers, then blocks. */
struct cell {
    const struct kvk_cuda_block *block;
    uint32_t index;               /* block * cells of a block + number in the block */
    uint32_t number, layer, head; /* layer from layer_begin */
};

static __device__ __forceinline__ uint32_t cell_count(const struct kvk_cuda_blocks &args)
{
    return args.count * args.layer_count * args.heads;
}

static __device__ __forceinline__ struct cell cell_at(const struct kvk_cuda_blocks &args,
                                                      uint32_t index)
{
    uint32_t cells = args.layer_count * args.heads, block = index / cells;
    struct cell cell;

    cell.block = (const struct kvk_cuda_block *)args.blocks + block;
    cell.index = index;
    cell.number = index - block * cells;
    cell.layer = cell.number / args.heads;
    cell.head = cell.number - cell.layer * args.heads;
    return cell;
}

/* The cell's bytes in its slot, `bytes` a cell. */
static __device__ __forceinline__ uint8_t *cell_in_slot(const struct kvk_cuda_blocks &args,
                                                        const struct cell &cell, uint32_t bytes)
{
    uint64_t at = (uint64_t)(args.layer_begin + cell.layer) * args.heads + cell.head;

    return (uint8_t *)__ldg(&cell.block->slot) + at * bytes;
}

/* How far the cell's rows are from the block's first. */
static __device__ __forceinline__ uint64_t cell_in_rows(const struct cell &cell)
{
    return cell.layer * __ldg(&cell.block->layer_stride_bytes) +
           cell.head * __ldg(&cell.block->head_stride_bytes);
}

#endif
