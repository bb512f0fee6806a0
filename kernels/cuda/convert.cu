/* Cells between device order and canonical bytes, and their digests: digest, export, import.
 *
 * A group of 128 threads takes a cell at a time. A record goes through an image in shared memory
 * (order.cuh), on its way out by a bulk copy that runs while the last one is digested; exact rows
 * are the same in both orders and need neither. Import looks at the very words that it digests and
 * writes: the source may be memory that somebody can still change. */
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/cells.cuh"
#include "kernels/cuda/digest.cuh"
#include "kernels/cuda/order.cuh"

namespace
{

constexpr uint32_t THREADS = KVK_CUDA_CONVERT_THREADS;

enum way { DIGEST, EXPORT, IMPORT };

/* What a group shares, beside a record as it lies in the slot and one in canonical order. */
struct shared_part {
    uint32_t parts[2][digest::WARPS]; /* of even and odd cells */
    uint64_t there;                   /* the record */
};

static_assert(sizeof(struct shared_part) <= KVK_CUDA_CONVERT_PARTS, "room that the launch gives");

struct group {
    uint32_t number, u; /* of the group in the thread block, of the thread in the group */
    struct shared_part *shared;
    uint32_t *image;
    uint8_t *record;
    const uint32_t *tables;
};

__device__ __forceinline__ void meet(const struct group &group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(group.number + 1), "n"(THREADS) : "memory");
}

/* Canonical bytes may lie at any address. */
__device__ __forceinline__ uint32_t load_word(const uint8_t *at, uint32_t i, bool aligned)
{
    if (aligned)
        return ((const uint32_t *)at)[i];
    at += 4 * (uint64_t)i;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

__device__ __forceinline__ void store_word(uint8_t *at, uint32_t i, uint32_t word, bool aligned)
{
    if (aligned) {
        ((uint32_t *)at)[i] = word;
        return;
    }
    at += 4 * (uint64_t)i;
    for (uint32_t byte = 0; byte < 4; byte++)
        at[byte] = (uint8_t)(word >> 8 * byte);
}

/* Bit 0, 1: whether the low, the high half is NaN or infinity. */
__device__ __forceinline__ uint32_t not_finite(uint32_t word, uint32_t dtype)
{
    const uint32_t exponent = dtype == KVARN_BF16 ? 0x7f80 : 0x7c00;

    return ((word & exponent) == exponent) | ((word >> 16 & exponent) == exponent ? 2 : 0);
}

__device__ void report(const struct kvk_cuda_blocks &args, const struct cell &cell, uint32_t tensor,
                       uint32_t token, uint32_t channel)
{
    if (args.faults != 0)
        atomicMin((unsigned long long *)args.faults + cell.index / (args.layer_count * args.heads),
                  (unsigned long long)KVK_CUDA_FAULT(cell.number, tensor, token, channel));
}

/* Names the half of canonical word i of a record that is not finite; codes are all fine. */
__device__ void check_record_word(const struct kvk_cuda_blocks &args, const struct cell &cell,
                                  const struct kvk_layout &at, uint32_t i, uint32_t word)
{
    const uint32_t bad = not_finite(word, KVARN_F16), tensor = 4 * i >= at.v_codes;
    size_t vector;
    bool per_token;

    if (bad == 0 || 4 * i < (tensor ? at.v_channel : at.k_step))
        return;
    if (tensor) {
        vector = 4 * i < at.v_step ? at.v_channel : 4 * i < at.v_zero ? at.v_step : at.v_zero;
        per_token = vector != at.v_channel;
    } else {
        vector = 4 * i < at.k_zero ? at.k_step : 4 * i < at.k_token ? at.k_zero : at.k_token;
        per_token = vector == at.k_token;
    }
    const uint32_t index = (uint32_t)(4 * i - vector) / 2 + (bad & 1 ? 0 : 1);

    report(args, cell, tensor, per_token ? index : 0, per_token ? 0 : index);
}

/* The same for word i of exact rows. */
__device__ void check_exact_word(const struct kvk_cuda_blocks &args, const struct cell &cell,
                                 uint32_t i, uint32_t word)
{
    const uint32_t dim = args.shape.dim, bad = not_finite(word, args.shape.dtype);

    if (bad == 0)
        return;
    const uint32_t element = 2 * i + (bad & 1 ? 0 : 1), row = element / dim;

    report(args, cell, row / args.shape.group, row % args.shape.group, element % dim);
}

/* Starts to bring the record of cell i, if there is one. One thread does it. */
__device__ __forceinline__ void bring_record(const struct kvk_cuda_blocks &args,
                                             const struct kvk_layout &at, const struct group &group,
                                             uint32_t i)
{
    if (i >= cell_count(args))
        return;
    const struct cell cell = cell_at(args, i);

    if (__ldg(&cell.block->kind) != KVARN_BLOCK_TILE)
        return;
    barrier_expect(&group.shared->there, (uint32_t)at.bytes);
    bulk_load(group.record, cell_in_slot(args, cell, (uint32_t)at.bytes), (uint32_t)at.bytes,
              &group.shared->there);
}

/* Both return this thread's share of the digest. `next`: the group's next cell. */
template <enum way WAY>
__device__ __forceinline__ uint32_t convert_record(const struct kvk_cuda_blocks &args,
                                                   const struct cell &cell,
                                                   const struct kvk_layout &at,
                                                   const struct group &group, uint32_t next,
                                                   uint32_t parity)
{
    const uint32_t count = (uint32_t)at.bytes / 4;
    uint8_t *record = cell_in_slot(args, cell, (uint32_t)at.bytes);
    uint8_t *outside = (uint8_t *)cell.block->k + (uint64_t)cell.number * at.bytes;
    const bool aligned = ((uint64_t)outside & 3) == 0;
    uint32_t sum = 0;

    if (WAY != IMPORT) {
        barrier_wait(&group.shared->there, parity);
        order::load_record(group.image, args.shape, at, group.record, group.u);
        meet(group);
        if (group.u == 0)
            bring_record(args, at, group, next);
    }
#pragma unroll 4
    for (uint32_t i = digest::first_word(count, group.u); i < count; i += THREADS) {
        uint32_t word;

        if (WAY == IMPORT) {
            word = load_word(outside, i, aligned);
            group.image[order::spread(i)] = word;
            check_record_word(args, cell, at, i, word);
        } else {
            word = group.image[order::spread(i)];
        }
        if (WAY == EXPORT)
            store_word(outside, i, word, aligned);
        sum = digest::add_word(group.tables, sum, word, i);
    }
    if (WAY == IMPORT) {
        meet(group);
        order::store_record(group.image, args.shape, at, record, group.u);
    }
    return sum;
}

template <enum way WAY>
__device__ __forceinline__ uint32_t convert_exact(const struct kvk_cuda_blocks &args,
                                                  const struct cell &cell,
                                                  const struct group &group)
{
    const uint32_t count = (uint32_t)args.shape.group * args.shape.dim; /* K and V, two a word */
    uint32_t *rows = (uint32_t *)cell_in_slot(args, cell, 4 * count);
    uint8_t *outside = (uint8_t *)cell.block->k + (uint64_t)cell.number * 4 * count;
    const bool aligned = ((uint64_t)outside & 3) == 0;
    uint32_t sum = 0;

#pragma unroll 8
    for (uint32_t i = digest::first_word(count, group.u); i < count; i += THREADS) {
        const uint32_t word = WAY == IMPORT ? load_word(outside, i, aligned) : rows[i];

        if (WAY == IMPORT) {
            rows[i] = word;
            check_exact_word(args, cell, i, word);
        }
        if (WAY == EXPORT)
            store_word(outside, i, word, aligned);
        sum = digest::add_word(group.tables, sum, word, i);
    }
    return sum;
}

template <enum way WAY> __device__ __forceinline__ void convert(const struct kvk_cuda_blocks &args)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const struct kvk_layout at =
        kvk_layout_of(args.shape.dim, args.shape.group, args.shape.bits_k, args.shape.bits_v);
    const uint32_t bytes = (uint32_t)at.bytes, number = threadIdx.x / THREADS;
    const uint32_t step = gridDim.x * (blockDim.x / THREADS);
    uint8_t *room = shared + KVK_CUDA_CONVERT_TABLES + number * KVK_CUDA_CONVERT_ROOM(bytes);
    const struct group group = {number,
                                threadIdx.x % THREADS,
                                (struct shared_part *)room,
                                (uint32_t *)(room + KVK_CUDA_CONVERT_PARTS),
                                room + KVK_CUDA_CONVERT_PARTS + bytes,
                                (const uint32_t *)shared};
    uint32_t *digests = (uint32_t *)args.digests;
    uint32_t i = blockIdx.x * (blockDim.x / THREADS) + number, parity = 0;

    if (group.u == 0) {
        barrier_init(&group.shared->there, 1);
        barrier_publish();
        if (WAY != IMPORT)
            bring_record(args, at, group, i);
    }
    digest::make_tables((uint32_t *)shared);
    __syncthreads();
    for (uint32_t odd = 0; i < cell_count(args); i += step, odd ^= 1) {
        const struct cell cell = cell_at(args, i);
        uint32_t sum;

        if (__ldg(&cell.block->kind) == KVARN_BLOCK_TILE) {
            sum = convert_record<WAY>(args, cell, at, group, i + step, parity);
            parity ^= 1;
        } else {
            if (WAY != IMPORT && group.u == 0)
                bring_record(args, at, group, i + step);
            sum = convert_exact<WAY>(args, cell, group);
        }
        digest::leave_part(group.tables, group.shared->parts[odd], sum);
        meet(group); /* nobody reads the image any more either */
        if (group.u < 32) {
            const uint32_t whole = digest::join(group.shared->parts[odd]);

            if (group.u == 0 && digests != nullptr)
                digests[i] = whole;
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(KVK_CUDA_CONVERT_MAX_GROUPS *KVK_CUDA_CONVERT_THREADS)
    kvk_cuda_digest(const __grid_constant__ struct kvk_cuda_blocks args)
{
    convert<DIGEST>(args);
}

extern "C" __global__ void __launch_bounds__(KVK_CUDA_CONVERT_MAX_GROUPS *KVK_CUDA_CONVERT_THREADS)
    kvk_cuda_export(const __grid_constant__ struct kvk_cuda_blocks args)
{
    convert<EXPORT>(args);
}

extern "C" __global__ void __launch_bounds__(KVK_CUDA_CONVERT_MAX_GROUPS *KVK_CUDA_CONVERT_THREADS)
    kvk_cuda_import(const __grid_constant__ struct kvk_cuda_blocks args)
{
    convert<IMPORT>(args);
}
