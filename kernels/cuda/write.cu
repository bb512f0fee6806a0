/* Rows -> EXACT cells: COMPRESS of exact blocks, and tail rows as they come. One thread block is K
 * or V of one cell; every 16 bytes are looked at on their way. */
#include "kernels/cuda/compress_plan.h"
#include "kernels/cuda/rows.cuh"

constexpr uint32_t kThreads = KVK_CUDA_WRITE_THREADS;

extern "C" __global__ void __launch_bounds__(kThreads)
    kvk_cuda_write(const __grid_constant__ kvk_cuda_blocks op)
{
    uint32_t cells = op.layer_count * op.heads, number = blockIdx.x / 2, is_v = blockIdx.x % 2;
    uint32_t index = number / cells, cell = number % cells;
    uint32_t layer = cell / op.heads, head = cell % op.heads;
    const kvk_cuda_block &block = reinterpret_cast<const kvk_cuda_block *>(op.blocks)[index];
    uint32_t chunks = op.shape.dim / 8, row_bytes = 2 * op.shape.dim;
    uint64_t matrix_bytes = static_cast<uint64_t>(op.shape.group) * row_bytes;
    const uint8_t *from = reinterpret_cast<const uint8_t *>((is_v ? block.v : block.k) +
                                                            layer * block.layer_stride_bytes +
                                                            head * block.head_stride_bytes);
    uint4 *to = reinterpret_cast<uint4 *>(
        block.slot +
        (static_cast<uint64_t>(op.layer_begin + layer) * op.heads + head) * 2 * matrix_bytes +
        is_v * matrix_bytes + static_cast<uint64_t>(block.first_token) * row_bytes);
    bool bf16 = op.shape.dtype == KVARN_BF16;

    if (block.kind != KVARN_BLOCK_EXACT)
        return;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < block.tokens * chunks; i += kThreads) {
        uint32_t token = i / chunks, chunk = i % chunks;
        uint4 x = load_row(from + token * block.token_stride_bytes + 16 * chunk);

        find_fault(x, bf16, KVK_CUDA_FAULT(cell, is_v, token, 8 * chunk),
                   op.faults + 8 * static_cast<uint64_t>(index));
        to[i] = x;
    }
}
