/* EXACT cells -> K, V rows: a copy. A thread block takes K or V of a cell at a time. */
#include "kernels/cuda/cells.cuh"
#include "kernels/cuda/launch.h"

namespace
{

/* Rows of `bytes` each, dense at `from`, to rows `stride` bytes apart. T is what both allow. */
template <typename T>
__device__ __forceinline__ void copy_rows(uint8_t *to, uint64_t stride, const uint8_t *from,
                                          uint32_t rows, uint32_t bytes)
{
    const uint32_t pieces = bytes / sizeof(T);

#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < rows * pieces; i += KVK_CUDA_READ_THREADS)
        ((T *)(to + i / pieces * stride))[i % pieces] = ((const T *)from)[i];
}

} // namespace

extern "C" __global__ void __launch_bounds__(KVK_CUDA_READ_THREADS)
    kvk_cuda_read(const __grid_constant__ struct kvk_cuda_blocks args)
{
    const uint32_t row = 2u * args.shape.dim, matrix = args.shape.group * row;

    for (uint32_t i = blockIdx.x; i < 2 * cell_count(args); i += gridDim.x) {
        const struct cell cell = cell_at(args, i / 2);
        const struct kvk_cuda_block *block = cell.block;
        const uint64_t rows = i % 2 ? block->v : block->k, stride = block->token_stride_bytes;

        if (block->kind != KVARN_BLOCK_EXACT || rows == 0)
            continue;
        const uint8_t *from = cell_in_slot(args, cell, 2 * matrix) + i % 2 * matrix +
                              (uint64_t)block->first_token * row;
        uint8_t *to = (uint8_t *)rows + cell_in_rows(cell);

        if ((((uint64_t)to | stride) & 15) == 0)
            copy_rows<uint4>(to, stride, from, block->tokens, row);
        else if ((((uint64_t)to | stride) & 1) == 0)
            copy_rows<uint16_t>(to, stride, from, block->tokens, row);
        else
            copy_rows<uint8_t>(to, stride, from, block->tokens, row);
    }
}
