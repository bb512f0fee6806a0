/* Inside the CUDA executor: waves, and what an operation (cuda_exec_*.c) tells about itself.
 *
 * A wave is what the GPU is given at a time: one upload of tables, the launches, one download of
 * results. Entries that a kernel can do together are a batch: one launch, whatever jobs they come
 * from. Tables have one layout on both sides:
 *
 *      digests | faults | what kernels read
 *      <- downloaded ->
 *                <------- uploaded ------->
 */
#ifndef KVD_CUDA_EXEC_H
#define KVD_CUDA_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "kernels/cuda/args.h"
#include "server/core/limits.h"
#include "server/device/bounds.h"
#include "server/device/cuda_executor.h"

enum {
    KVD_CUDA_ENTRIES_MAX = 8192, /* of a wave */
    KVD_CUDA_BATCHES_MAX = 64,
    KVD_CUDA_TABLE_BYTES = 24 << 20, /* of each of two, on both sides, pinned here */
    KVD_CUDA_SLOT_ALIGN = 128        /* kernels/cuda/launch.h */
};

/* What entries have in common that run in one launch. */
struct kvd_cuda_kind {
    struct kvk_shape shape;
    uint32_t layers, heads, layer_begin, layer_count;
    uint32_t kind; /* kvarn_block_kind */
    uint32_t way;  /* of the operation's own */
};

struct kvd_cuda_entry {
    uint32_t job; /* in the group */
    uint32_t batch, index;
    void *result; /* in staging */
    struct kvk_cuda_block block;
    uint32_t digest, check; /* COPY, DIGEST: as asked */
};

struct kvd_cuda_batch {
    struct kvd_cuda_kind kind;
    uint32_t count;
    uint32_t first;   /* of its blocks, and of its faults, among the wave's */
    uint64_t digests; /* offset in the tables */
};

/* Operations on slots, cell by cell. */
struct kvd_cuda_op {
    bool has_digests;
    /* Sets the entry's status and clears its other results. */
    void (*begin)(void *result, kvarn_status status);
    /* Fills kind and the block from a copy of the entry, all of it checked. */
    kvarn_status (*plan)(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                         const void *copy, struct kvd_cuda_kind *kind,
                         struct kvd_cuda_entry *entry);
    /* Queues what is to be done with the batch; false: the GPU failed. */
    bool (*launch)(struct kvd_cuda_executor *executor, const struct kvd_cuda_batch *batch,
                   const struct kvk_cuda_blocks *args);
    void (*finish)(const struct kvd_cuda_entry *entry, const struct kvd_fault *fault,
                   uint32_t digest);
};

struct kvd_cuda_tables {
    uint8_t *host;
    uint64_t address; /* of the same bytes on the GPU */
};

struct kvd_cuda_attends; /* cuda_attend.h */

struct kvd_cuda_executor {
    struct kvd_gpu *gpu;
    struct kvd_kernels *kernels;
    struct kvd_cuda_regions regions;
    struct kvd_bounds bounds;
    _Atomic uint32_t *progress;
    struct kvd_cuda_tables tables;
    struct kvd_taken group[KVD_RING_ENTRIES]; /* jobs that run together */
    struct kvd_cuda_attends *attends;
    /* the wave of slots */
    const struct kvd_cuda_op *op;
    struct kvd_cuda_entry *entries; /* [KVD_CUDA_ENTRIES_MAX] */
    struct kvd_cuda_batch batches[KVD_CUDA_BATCHES_MAX];
    uint32_t entry_count, batch_count;
    uint64_t table_bytes; /* that it will need */
};

extern const struct kvd_cuda_op kvd_cuda_compress, kvd_cuda_decompress, kvd_cuda_write,
    kvd_cuda_copy, kvd_cuda_digest;

/* The address for the GPU; the place was checked. */
static inline uint64_t kvd_cuda_address(const struct kvd_cuda_executor *executor,
                                        struct kvd_place place)
{
    return place.offset + (place.region == KVD_REGION_POOL ? executor->regions.pool_address
                                                           : executor->regions.staging_address);
}

/* Where slots may begin: in the pool, at their alignment. */
static inline bool kvd_cuda_is_slot(struct kvd_place place)
{
    return place.region == KVD_REGION_POOL && place.offset % KVD_CUDA_SLOT_ALIGN == 0;
}

bool kvd_cuda_holds_slot(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                         struct kvd_place place, uint32_t kind);

/* Groups of jobs of one operation. False: the GPU failed. */
bool kvd_cuda_run_slots(struct kvd_cuda_executor *executor, const struct kvd_cuda_op *op,
                        uint32_t jobs);
bool kvd_cuda_run_attend(struct kvd_cuda_executor *executor, uint32_t jobs);
bool kvd_cuda_run_zero(struct kvd_cuda_executor *executor, uint32_t jobs);

bool kvd_cuda_tables_open(struct kvd_cuda_tables *tables, struct kvd_gpu *gpu);
void kvd_cuda_tables_close(struct kvd_cuda_tables *tables, struct kvd_gpu *gpu);
/* Copies [begin, end) of the tables to the GPU, and back. */
bool kvd_cuda_upload(struct kvd_cuda_executor *executor, const struct kvd_cuda_tables *tables,
                     uint64_t begin, uint64_t end);
bool kvd_cuda_download(struct kvd_cuda_executor *executor, const struct kvd_cuda_tables *tables,
                       uint64_t begin, uint64_t end);
/* Waits, and says that something was done. */
bool kvd_cuda_wait(struct kvd_cuda_executor *executor);

bool kvd_cuda_attends_open(struct kvd_cuda_executor *executor);
void kvd_cuda_attends_close(struct kvd_cuda_executor *executor);

#endif
