/* TILE cells -> K, V rows, bit for bit what decompress_ref.c defines.
 *
 * A team of warps (four, or two where a matrix has two strips) takes a tile at a time: every warp
 * some strips of K, then of V (decompress_rows.cuh). Bulk copies bring a tile's K while the last
 * one's V is at work, and the other way round.
 *
 * One thread block fills a multiprocessor. Its warps w, w + 4, w + 8, ... share a scheduler; they
 * begin strips together, so that the thousands of straight-line instructions of a strip are fetched
 * once for all of them: without that, one cycle in five waits for instructions. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/decompress_rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/tile.h"

namespace
{

/* What a team shares beside its record and the warps' rooms. */
struct state {
    uint64_t full[2], empty[2]; /* K, V: there; read, by all threads */
    struct kvk_cuda_block next; /* on its way: of the tile after the last named one */
    struct {
        uint64_t rows[2], stride, cell; /* rows of K, of V: 0 where not wanted */
    } tile[2];                          /* even, odd ones of this team */
    struct {
        uint32_t block, layer, head;
    } at, step; /* of `next`; from one tile of the team to the next */
    /* offsets in a record: kept here and not in registers, of which rows need all */
    uint32_t k_step, k_zero, k_token, v_codes, v_channel, v_step, v_zero, bytes;
};

static_assert(sizeof(struct state) <= KVK_CUDA_DECOMPRESS_STATE, "room that the launch gives");

/* This thread's view of shared memory. It is made anew for every strip from the thread's number,
 * which the compiler cannot see through, lest it keeps addresses in registers. */
template <uint32_t DIM> struct view {
    const struct kvk_cuda_blocks &args;
    uint32_t thread, lane, warp; /* of the thread block; of the warp; of the team */
    struct state *state;
    uint8_t *record, *room, *vectors;

    __device__ __forceinline__ static uint32_t team_warps(const struct kvk_cuda_blocks &args)
    {
        return KVK_CUDA_DECOMPRESS_TEAM(DIM, args.shape.group);
    }

    __device__ __forceinline__ view(const struct kvk_cuda_blocks &args, uint32_t number)
        : args(args), thread(number)
    {
        extern __shared__ __align__(128) uint8_t shared[];
        const uint32_t team_size = team_warps(args), warps = blockDim.x / 32;

        asm volatile("" : "+r"(thread));
        const uint32_t number_of_warp = thread / 32, team = number_of_warp / team_size;

        lane = thread % 32;
        warp = number_of_warp % team_size;
        state = (struct state *)(shared + team * KVK_CUDA_DECOMPRESS_STATE);
        uint8_t *rooms = shared + warps / team_size * KVK_CUDA_DECOMPRESS_STATE;
        room = rooms + number_of_warp * KVK_CUDA_DECOMPRESS_ROOM(DIM);
        vectors = room + KVK_CUDA_DECOMPRESS_ROWS(DIM);
        record = rooms + warps * KVK_CUDA_DECOMPRESS_ROOM(DIM) +
                 team * *(volatile uint32_t *)&state->bytes;
    }

    /* One thread of a team names tiles and loads them. */
    __device__ __forceinline__ bool leads() const
    {
        return warp == 0 && lane == 0;
    }

    __device__ __forceinline__ void fetch_next() const
    {
        const uint8_t *block =
            (const uint8_t *)((const struct kvk_cuda_block *)args.blocks + state->at.block);

        if (state->at.block >= args.count)
            return;
        for (uint32_t i = 0; i < sizeof(struct kvk_cuda_block); i += 16)
            async_copy16((uint8_t *)&state->next + i, block + i);
    }

    /* The first tile is cell `index`; the team goes on in steps of `step` cells. */
    __device__ __forceinline__ void open(uint32_t index, uint32_t step) const
    {
        const uint32_t cells = args.layer_count * args.heads;

        for (uint32_t i = 0; i < 2; i++) {
            barrier_init(state->full + i, 1);
            barrier_init(state->empty + i, 32 * team_warps(args));
        }
        barrier_publish();
        state->at = {index / cells, index % cells / args.heads, index % args.heads};
        state->step = {step / cells, step % cells / args.heads, step % args.heads};
        fetch_next();
    }

    /* Says what tile n is: nothing, beyond the last one and where the block is of another kind. */
    __device__ __forceinline__ void name_tile(uint32_t n) const
    {
        auto &tile = state->tile[n & 1];
        auto &at = state->at;
        const auto &block = state->next;

        async_copies_wait();
        tile.rows[0] = tile.rows[1] = 0;
        if (at.block < args.count && block.kind == KVARN_BLOCK_TILE) {
            const uint64_t from_first =
                at.layer * block.layer_stride_bytes + at.head * block.head_stride_bytes;
            const uint64_t number = (uint64_t)(args.layer_begin + at.layer) * args.heads + at.head;

            tile.rows[0] = block.k != 0 ? block.k + from_first : 0;
            tile.rows[1] = block.v != 0 ? block.v + from_first : 0;
            tile.stride = block.token_stride_bytes;
            tile.cell = block.slot + number * state->bytes;
        }
        at.head += state->step.head;
        at.layer += state->step.layer;
        at.block += state->step.block;
        if (at.head >= args.heads) {
            at.head -= args.heads;
            at.layer++;
        }
        if (at.layer >= args.layer_count) {
            at.layer -= args.layer_count;
            at.block++;
        }
        fetch_next();
    }

    /* Brings K or V of tile n, or says at once that it is there when there is nothing to bring. */
    __device__ __forceinline__ void load(uint32_t n, uint32_t tensor) const
    {
        const auto &tile = state->tile[n & 1];
        const uint32_t from = tensor ? state->v_codes : 0;
        const uint32_t bytes = (tensor ? state->bytes : state->v_codes) - from;

        if (tile.rows[tensor] == 0) {
            barrier_arrive(state->full + tensor);
            return;
        }
        barrier_expect(state->full + tensor, bytes);
        bulk_load(record + from, (const uint8_t *)tile.cell + from, bytes, state->full + tensor);
    }

    /* fp16 vectors over channels, four at a time, as the decoders read them. */
    __device__ __forceinline__ void expand(uint32_t tensor, float norm) const
    {
        float4 *to = (float4 *)vectors;

#pragma unroll
        for (uint32_t d = 4 * lane; d < DIM; d += 128) {
            if (tensor == 0) {
                const __half2 *a = (const __half2 *)(record + state->k_step + 2 * d);
                const __half2 *z = (const __half2 *)(record + state->k_zero + 2 * d);
                const float2 a0 = __half22float2(a[0]), a1 = __half22float2(a[1]);
                const float2 z0 = __half22float2(z[0]), z1 = __half22float2(z[1]);

                to[d / 2] = {a0.x, z0.x, a0.y, z0.y};
                to[d / 2 + 1] = {a1.x, z1.x, a1.y, z1.y};
            } else {
                const uint8_t *w = record + state->v_channel + 2 * kvk_device_vector(d, DIM);

                to[d / 4] = {__fmul_rn(half_at(w), norm), __fmul_rn(half_at(w + DIM / 4), norm),
                             __fmul_rn(half_at(w + DIM / 2), norm),
                             __fmul_rn(half_at(w + 3 * (DIM / 4)), norm)};
            }
        }
    }

    __device__ __forceinline__ void decode(float *x, uint32_t tensor, uint32_t token, uint32_t half,
                                           float norm) const
    {
        const uint32_t group = args.shape.group, of_token = 2 * kvk_device_vector(token, group);

        if (tensor == 0) {
            decode_k<DIM>(x, record, args.shape.bits_k, token, half, (const float2 *)vectors,
                          __fmul_rn(half_at(record + state->k_token + of_token), norm));
            return;
        }
        const float step = half_at(record + state->v_step + of_token);
        const float zero = half_at(record + state->v_zero + of_token);
        const uint8_t *codes = record + state->v_codes;

        if (args.shape.bits_v == 4)
            decode_v<DIM, 4>(x, codes, group, token, half, (const float *)vectors, step, zero);
        else
            decode_v<DIM, 2>(x, codes, group, token, half, (const float *)vectors, step, zero);
    }

    /* Strip `number` of K or V of tile n; after this warp's last one the record is free. Every lane
     * says so of its own reads: one that spoke for the warp after __syncwarp() would be as right,
     * but racecheck would not see it. */
    __device__ __forceinline__ void strip(uint32_t n, uint32_t tensor, uint32_t number, bool last,
                                          float *x) const
    {
        using mine = part<DIM>;
        const bool rotated = tensor ? args.shape.v_rotated : args.shape.k_rotated;
        const float orthonormal = DIM == 64 ? 0.125f : DIM == 128 ? 0.08838834764831845f : 0.0625f;
        const float norm = rotated ? 1.0f : orthonormal;
        const uint32_t half = lane / mine::tokens, first = number * mine::tokens;
        const auto &tile = state->tile[n & 1];

        expand(tensor, norm);
        __syncwarp();
        decode(x, tensor, first + lane % mine::tokens, half, norm);
        if (last)
            barrier_arrive(state->empty + tensor);
        __syncwarp(); /* nobody reads the vectors any more */
        if (!rotated)
            butterflies<DIM>(x, half);
        if (args.shape.dtype == KVARN_BF16)
            round_to<mine::channels, true>(room + lane * mine::pitch, x);
        else
            round_to<mine::channels, false>(room + lane * mine::pitch, x);
        const uint64_t stride = tile.stride, rows = tile.rows[tensor] + first * stride;
        __syncwarp();
        if (((rows | stride) & 15) == 0)
            store_aligned<DIM>((uint8_t *)rows, stride, room, lane);
        else
            store_unaligned<DIM>((uint8_t *)rows, stride, room, lane);
        __syncwarp(); /* the rows have left the room */
    }
};

/* The warps of a scheduler. */
__device__ __forceinline__ void meet(uint32_t thread)
{
    asm volatile("bar.sync %0, %1;" ::"r"(thread / 32 % 4 + 1), "r"(blockDim.x / 4) : "memory");
}

/* K or V of tile n. */
template <uint32_t DIM>
__device__ __forceinline__ void take(const struct kvk_cuda_blocks &args, uint32_t thread,
                                     uint32_t n, uint32_t tensor, float *x)
{
    const uint32_t strips = args.shape.group / part<DIM>::tokens;
    const uint32_t team_warps = view<DIM>::team_warps(args);

    barrier_wait(view<DIM>(args, thread).state->full + tensor, n & 1);
#pragma unroll 1
    for (uint32_t i = 0; i < strips; i += team_warps) {
        const view<DIM> my(args, thread);
        const bool last = i + team_warps >= strips;

        meet(my.thread);
        if (my.state->tile[n & 1].rows[tensor] != 0)
            my.strip(n, tensor, i + my.warp, last, x);
        else if (last)
            barrier_arrive(my.state->empty + tensor);
    }
    const view<DIM> my(args, thread);
    if (my.leads()) {
        barrier_wait(my.state->empty + tensor, n & 1);
        if (tensor == 0)
            my.name_tile(n + 1);
        my.load(n + 1, tensor);
    }
}

template <uint32_t DIM>
__device__ __forceinline__ void decompress(const struct kvk_cuda_blocks &args)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t thread = threadIdx.x, cells = args.count * args.layer_count * args.heads;
    const uint32_t teams = blockDim.x / 32 / view<DIM>::team_warps(args);
    const uint32_t step = gridDim.x * teams, tiles = (cells - blockIdx.x + step - 1) / step;
    float x[part<DIM>::channels];

    if (thread < teams) {
        const struct kvk_layout at =
            kvk_layout_of(DIM, args.shape.group, args.shape.bits_k, args.shape.bits_v);
        struct state *state = (struct state *)(shared + thread * KVK_CUDA_DECOMPRESS_STATE);

        state->k_step = (uint32_t)at.k_step;
        state->k_zero = (uint32_t)at.k_zero;
        state->k_token = (uint32_t)at.k_token;
        state->v_codes = (uint32_t)at.v_codes;
        state->v_channel = (uint32_t)at.v_channel;
        state->v_step = (uint32_t)at.v_step;
        state->v_zero = (uint32_t)at.v_zero;
        state->bytes = (uint32_t)at.bytes;
    }
    __syncthreads();
    {
        const view<DIM> my(args, thread);

        if (my.leads()) {
            my.open(blockIdx.x + thread / 32 / view<DIM>::team_warps(args) * gridDim.x, step);
            my.name_tile(0);
        }
        __syncthreads();
        if (my.leads()) {
            my.load(0, 0);
            my.load(0, 1);
        }
    }
    /* as many for all teams, so that warps of a scheduler stay together; the last may be nothing */
#pragma unroll 1
    for (uint32_t n = 0; n < tiles; n++) {
#pragma unroll 1
        for (uint32_t tensor = 0; tensor < 2; tensor++)
            take<DIM>(args, thread, n, tensor, x);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(32 * KVK_CUDA_DECOMPRESS_MAX_WARPS(64), 1)
    kvk_cuda_decompress_64(const __grid_constant__ struct kvk_cuda_blocks args)
{
    decompress<64>(args);
}

extern "C" __global__ void __launch_bounds__(32 * KVK_CUDA_DECOMPRESS_MAX_WARPS(128), 1)
    kvk_cuda_decompress_128(const __grid_constant__ struct kvk_cuda_blocks args)
{
    decompress<128>(args);
}

extern "C" __global__ void __launch_bounds__(32 * KVK_CUDA_DECOMPRESS_MAX_WARPS(256), 1)
    kvk_cuda_decompress_256(const __grid_constant__ struct kvk_cuda_blocks args)
{
    decompress<256>(args);
}
