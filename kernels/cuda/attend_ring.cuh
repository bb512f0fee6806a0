/* A warp's tiles on their way from global memory: who is next, and the slots they land in.
 *
 * A warp takes units turn, turn + WARPS, ... of each piece of its block: 16-row stretches of exact
 * spans first, then tiles. Copies run ahead of the piece being worked on, so that memory does not
 * wait while warps join their results. */
#ifndef KVK_CUDA_ATTEND_RING_CUH
#define KVK_CUDA_ATTEND_RING_CUH

#include "kernels/cuda/attend_shape.cuh"

namespace attend
{

/* A place in the warp's list. All lanes hold the same. */
struct cursor {
    const kvk_cuda_piece *piece;
    uint64_t spans;
    uint32_t index, stretches, units; /* of units; the first ones are stretches of exact rows */
    uint32_t lead, next;
};

template <class V>
__device__ __forceinline__ void open_piece(cursor &at, const kvk_cuda_piece *piece)
{
    int first = warp_id() - (int)__ldg(&piece->turn);

    at.piece = piece;
    at.spans = __ldg(&piece->of.spans) + sizeof(kvk_cuda_span) * __ldg(&piece->span_begin);
    at.units = __ldg(&piece->units);
    at.index = first < 0 ? first + V::WARPS : first;
    at.next = __ldg(&piece->next);
    at.lead = __ldg(&piece->lead);
    at.stretches = (at.lead + __ldg(&piece->trail)) * V::STRETCHES;
}

/* Where the span of the cursor's unit stands. */
template <class V> __device__ __forceinline__ uint64_t span_of(const cursor &at)
{
    uint32_t span = at.lead + at.index - at.stretches;

    if (at.index < at.stretches) {
        span = at.index / V::STRETCHES;
        if (span >= at.lead) /* behind the tiles */
            span += at.units - at.stretches;
    }
    return at.spans + sizeof(kvk_cuda_span) * span;
}

/* A unit that is to be copied. */
struct unit {
    uint64_t cell; /* of kv head 0 */
    uint32_t head, stretch, tokens;
    bool exact, any;
};

/* The cursor's unit, and the cursor one further on. */
template <class V> __device__ __forceinline__ unit take(cursor &at, const kvk_cuda_piece *pieces)
{
    unit u = {};

    while (at.index >= at.units) {
        if (at.next == 0)
            return u;
        open_piece<V>(at, pieces + at.next);
    }
    uint4 span = __ldg((const uint4 *)span_of<V>(at));
    u.cell = (uint64_t)span.y << 32 | span.x;
    u.tokens = span.w & 0xffff;
    u.head = __ldg(&at.piece->kv_head);
    u.stretch = at.index % V::STRETCHES;
    u.exact = at.index < at.stretches;
    u.any = true;
    at.index += V::WARPS;
    return u;
}

/* Up to 16 rows, each to a place of its own; beyond the last one that row again, so that there is
 * nothing in the slot that is not finite. */
template <class V>
__device__ __forceinline__ void copy_rows(const unit &u, uint32_t offset, void *slot,
                                          uint64_t *barrier)
{
    int lane = lane_id();
    uint32_t row = min(KVK_ATTEND_SPAN_ROWS * u.stretch + lane, u.tokens - 1);

    if (lane == 0)
        barrier_expect(shared_address(barrier), KVK_ATTEND_SPAN_ROWS * 2 * V::D);
    __syncwarp();
    if (lane < KVK_ATTEND_SPAN_ROWS)
        bulk_copy(shared_address(slot) + lane * V::EXACT_ROW,
                  u.cell + (uint64_t)u.head * 2 * V::EXACT_BYTES + offset + row * 2 * V::D,
                  2 * V::D, shared_address(barrier));
}

template <class V> __device__ __forceinline__ void copy_k(const unit &u, shared<V> &mem, int stage)
{
    int warp = warp_id();
    uint64_t *barrier = &mem.barrier[warp][stage][0];

    if (u.exact) {
        copy_rows<V>(u, 0, mem.k[warp][stage], barrier);
    } else if (lane_id() == 0) {
        barrier_expect(shared_address(barrier), V::K_BYTES);
        bulk_copy(shared_address(mem.k[warp][stage]),
                  u.cell + (uint64_t)u.head * (V::K_BYTES + V::V_BYTES), V::K_BYTES,
                  shared_address(barrier));
    }
}

template <class V> __device__ __forceinline__ void copy_v(const unit &u, shared<V> &mem, int stage)
{
    int warp = warp_id();
    uint64_t *barrier = &mem.barrier[warp][stage][1];

    if (u.exact) {
        copy_rows<V>(u, V::EXACT_BYTES, mem.v[warp][stage], barrier);
    } else if (lane_id() == 0) {
        barrier_expect(shared_address(barrier), V::V_BYTES);
        bulk_copy(shared_address(mem.v[warp][stage]),
                  u.cell + (uint64_t)u.head * (V::K_BYTES + V::V_BYTES) + V::K_BYTES, V::V_BYTES,
                  shared_address(barrier));
    }
}

} // namespace attend

#endif
