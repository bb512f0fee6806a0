/* Decode attention over tiles and exact rows: the kernel, and the names of its variants.
 *
 * Persistent thread blocks, one an SM, walk lists of pieces (attend_plan.h); inside a block each
 * warp works through tiles of its own and keeps its own softmax until the piece ends. */
#ifndef KVK_CUDA_ATTEND_KERNEL_CUH
#define KVK_CUDA_ATTEND_KERNEL_CUH

#include "kernels/cuda/attend_join.cuh"
#include "kernels/cuda/attend_ring.cuh"

namespace attend
{

/* Soft cap and masks, when the piece has any. */
template <class V, int N>
__device__ __forceinline__ void restrict_logits(float (&s)[V::NT][N], const kvk_cuda_piece *piece,
                                                bool masked, uint64_t span_at, uint32_t skip,
                                                const state<V> &row)
{
    float cap = __ldg(&piece->of.soft_cap) * 1.4426950408889634f;

    if (cap > 0) {
#pragma unroll
        for (int j = 0; j < V::NT; j++)
#pragma unroll
            for (int i = 0; i < N; i++)
                s[j][i] = soften(s[j][i], cap);
    }
    if (masked) {
        uint4 span = __ldg((const uint4 *)span_at);
        uint32_t tokens = max(span.w & 0xffff, skip) - skip;
#pragma unroll
        for (int j = 0; j < V::NT; j++)
            hide(s[j], span.z + skip, tokens, row.first[j], row.end[j]);
    }
}

/* What a warp does with its next unit, already on its way; `u` is the one that follows into its
 * slots. */
template <class V> struct worker {
    const kvk_cuda_attend &a;
    shared<V> &mem;
    cursor ahead;
    unit following;
    uint32_t count; /* units done */
    state<V> row;

    __device__ __forceinline__ int stage() const
    {
        return V::STAGES == 1 ? 0 : count % V::STAGES;
    }

    __device__ __forceinline__ uint8_t *wait_k()
    {
        barrier_wait(shared_address(&mem.barrier[warp_id()][stage()][0]), count / V::STAGES & 1);
        return mem.k[warp_id()][stage()];
    }

    __device__ __forceinline__ uint8_t *wait_v()
    {
        barrier_wait(shared_address(&mem.barrier[warp_id()][stage()][1]), count / V::STAGES & 1);
        return mem.v[warp_id()][stage()];
    }

    /* Looks up the unit that follows, some time before its address is needed. */
    __device__ __forceinline__ void look_ahead()
    {
        following = take<V>(ahead, (const kvk_cuda_piece *)a.pieces);
    }

    /* K's slot is read, V's slot is read. */
    __device__ __forceinline__ void release_k()
    {
        __syncwarp();
        if (following.any)
            copy_k(following, mem, stage());
    }

    __device__ __forceinline__ void release_v()
    {
        __syncwarp();
        if (following.any)
            copy_v(following, mem, stage());
        count++;
    }

    __device__ __forceinline__ void start()
    {
        if (lane_id() == 0) {
            for (int i = 0; i < V::STAGES; i++) {
                barrier_init(shared_address(&mem.barrier[warp_id()][i][0]));
                barrier_init(shared_address(&mem.barrier[warp_id()][i][1]));
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
        open_piece<V>(ahead, (const kvk_cuda_piece *)a.pieces + blockIdx.x);
        for (int i = 0; i < V::STAGES; i++) {
            unit u = take<V>(ahead, (const kvk_cuda_piece *)a.pieces);
            if (u.any) {
                copy_k(u, mem, i);
                copy_v(u, mem, i);
            }
        }
        count = 0;
    }

    __device__ __forceinline__ void do_tile(const cursor &at)
    {
        float s[V::NT][V::G / 8];
        weighed<V> p;

        look_ahead();
        tile_logits<V>(s, wait_k(), mem, row);
        release_k();
        restrict_logits<V>(s, at.piece, __ldg(&at.piece->masked), span_of<V>(at), 0, row);
        const uint8_t *tile = wait_v();
        weigh<V>(p, s, tile, row);
        tile_values<V>(p, tile, row);
        release_v();
    }

    template <bool BF16> __device__ __forceinline__ void do_rows(const cursor &at)
    {
        float s[V::NT][2];

        look_ahead();
        exact_logits<V, BF16>(s, wait_k(), mem);
        release_k();
        restrict_logits<V>(s, at.piece, true, span_of<V>(at),
                           KVK_ATTEND_SPAN_ROWS * (at.index % V::STRETCHES), row);
        exact_values<V, BF16>(s, wait_v(), row);
        release_v();
    }

    /* Queries of the piece are in q; those of the next one, when this returns. */
    __device__ __forceinline__ void do_piece(cursor at, queries<V> &q)
    {
        prepare_queries(q, a, at.piece, mem);
        __syncthreads();
        start_rows(row, a, at.piece, mem);
        for (; at.index < at.stretches; at.index += V::WARPS) {
            if (a.shape.dtype == KVARN_BF16)
                do_rows<true>(at);
            else
                do_rows<false>(at);
        }
        if (at.stretches > 0 && !a.shape.v_rotated)
            rotate_sums(row);
        for (; at.index < at.units; at.index += V::WARPS)
            do_tile(at);
        if (at.next != 0)
            load_queries(q, a, (const kvk_cuda_piece *)a.pieces + at.next);
        finish_piece(a, at.piece, mem, row);
    }
};

template <class V> __device__ __forceinline__ void run(const kvk_cuda_attend &a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    worker<V> w = {a, *(shared<V> *)memory, {}, {}, 0, {}};
    const kvk_cuda_piece *pieces = (const kvk_cuda_piece *)a.pieces;
    queries<V> q;
    cursor at;

    static_assert(sizeof(shared<V>) <= KVK_ATTEND_SHARED(V::D, V::G, V::KB, V::VB, V::NT),
                  "the planner asks for what the kernel uses");
    load_queries(q, a, pieces + blockIdx.x);
    w.start();
    at.next = blockIdx.x;
    do {
        open_piece<V>(at, pieces + at.next);
        w.do_piece(at, q);
    } while (at.next != 0);
}

} // namespace attend

/* kvk_cuda_attend_<D>_<G>_k<KB>v<VB>_n<NT> */
#define KVK_ATTEND_KERNEL(D, G, KB, VB, NT)                                                        \
    extern "C" __global__ void __launch_bounds__(KVK_ATTEND_WARPS(D, G, KB, VB, NT) * 32, 1)       \
        kvk_cuda_attend_##D##_##G##_k##KB##v##VB##_n##NT(                                          \
            const __grid_constant__ kvk_cuda_attend a)                                             \
    {                                                                                              \
        attend::run<attend::variant<D, G, KB, VB, NT>>(a);                                         \
    }
#define KVK_ATTEND_PRESETS(D, G, NT)                                                               \
    KVK_ATTEND_KERNEL(D, G, 2, 2, NT)                                                              \
    KVK_ATTEND_KERNEL(D, G, 4, 2, NT)                                                              \
    KVK_ATTEND_KERNEL(D, G, 4, 4, NT)
#define KVK_ATTEND_DIM(D)                                                                          \
    KVK_ATTEND_PRESETS(D, 64, 1)                                                                   \
    KVK_ATTEND_PRESETS(D, 64, 2)                                                                   \
    KVK_ATTEND_PRESETS(D, 128, 1)                                                                  \
    KVK_ATTEND_PRESETS(D, 128, 2)

#endif
