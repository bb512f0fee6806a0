/* Compress: one thread block a matrix, K and V of a cell side by side in the grid. */
#ifndef KVK_CUDA_COMPRESS_CUH
#define KVK_CUDA_COMPRESS_CUH

#include "kernels/cuda/compress_codes.cuh"
#include "kernels/cuda/compress_load.cuh"

/* Which matrix a thread block makes. */
struct Matrix {
    const kvk_cuda_block *block;
    uint32_t index, cell; /* of the block; of the cells launched over */
    uint32_t layer, head; /* layer counted from layer_begin */
    bool is_v;
};

__device__ __forceinline__ Matrix matrix_of(const kvk_cuda_blocks &op)
{
    uint32_t cells = op.layer_count * op.heads, number = blockIdx.x / 2;
    Matrix m;

    m.is_v = blockIdx.x % 2;
    m.index = number / cells;
    m.cell = number % cells;
    m.layer = m.cell / op.heads;
    m.head = m.cell % op.heads;
    m.block = reinterpret_cast<const kvk_cuda_block *>(op.blocks) + m.index;
    return m;
}

__device__ __forceinline__ Rows rows_of(const kvk_cuda_blocks &op, const Matrix &m)
{
    const kvk_cuda_block &block = *m.block;
    Rows rows;
    uint64_t at = (m.is_v ? block.v : block.k) + m.layer * block.layer_stride_bytes +
                  m.head * block.head_stride_bytes;

    rows.at = reinterpret_cast<const uint8_t *>(at);
    rows.stride = block.token_stride_bytes;
    rows.vectors = ((at | block.token_stride_bytes) & 15) == 0;
    rows.rotate = !(m.is_v ? op.shape.v_rotated : op.shape.k_rotated);
    rows.fault = KVK_CUDA_FAULT(m.cell, m.is_v, 0, 0);
    rows.faults = op.faults + 8 * static_cast<uint64_t>(m.index);
    return rows;
}

template <uint32_t D, uint32_t G, bool Tight>
__device__ __forceinline__ void compress(const kvk_cuda_blocks &op)
{
    using P = Plan<D, G>;
    static_assert(sizeof(Shared<D, G>) == KVK_CUDA_COMPRESS_SHARED(D, G), "compress_plan.h");
    extern __shared__ uint4 memory[];
    Shared<D, G> &shared = *reinterpret_cast<Shared<D, G> *>(memory);
    Lane at = lane_of();
    Matrix m = matrix_of(op);
    Strip<D> strips[P::token_strips];
    TokenRows<P::token_rows> tokens;
    Rows rows = rows_of(op, m);
    float top;
    kvk_layout layout = kvk_layout_of(D, G, op.shape.bits_k, op.shape.bits_v);
    uint64_t cell = static_cast<uint64_t>(op.layer_begin + m.layer) * op.heads + m.head;
    uint8_t *record = reinterpret_cast<uint8_t *>(m.block->slot) + cell * layout.bytes;

    if (m.block->kind != KVARN_BLOCK_TILE)
        return;
    if (op.shape.dtype == KVARN_BF16) {
        if (!load_tile<D, G, true>(shared, tokens, top, rows, at))
            return;
    } else if (!load_tile<D, G, false>(shared, tokens, top, rows, at)) {
        return;
    }

    take_strips<D, G>(strips, shared, at);

    Balance<D, G> balance(shared, strips, at);

    balance.begin(tokens, top, op.shape.balance == KVARN_BALANCE_SCALE_FREE);

    Codes<D, G, Tight> codes = {shared, strips, balance.channels, at, layout, record, balance.gain};

    if (m.is_v) {
        balance.template run<false>(op.shape.iterations, op.settle);
        if (op.shape.bits_v == 2)
            codes.template v_record<2>(balance.token, balance.channel, top);
        else
            codes.template v_record<4>(balance.token, balance.channel, top);
    } else {
        balance.template run<true>(op.shape.iterations, op.settle);
        if (op.shape.bits_k == 2)
            codes.template k_record<2>(balance.token);
        else
            codes.template k_record<4>(balance.token);
    }
}

#ifndef KVK_COMPRESS_WARPS /* that an SM has registers for */
#define KVK_COMPRESS_WARPS 16
#endif

/* A kernel for each range policy: the sums of the tight one want registers that the other has not
 * to give. */
#define KVK_CUDA_COMPRESS_KERNEL(name, D, G, tight)                                                \
    extern "C" __global__ void __launch_bounds__(Plan<D, G>::threads,                              \
                                                 KVK_COMPRESS_WARPS / Plan<D, G>::warps)           \
        name(const __grid_constant__ kvk_cuda_blocks op)                                           \
    {                                                                                              \
        compress<D, G, tight>(op);                                                                 \
    }
#define KVK_CUDA_COMPRESS(D, G)                                                                    \
    KVK_CUDA_COMPRESS_KERNEL(kvk_cuda_compress_##D##_##G, D, G, false)                             \
    KVK_CUDA_COMPRESS_KERNEL(kvk_cuda_compress_##D##_##G##_tight, D, G, true)

#endif
