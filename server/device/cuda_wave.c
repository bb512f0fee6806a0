/* Waves of operations on slots: entries are collected until there is no room for another, then the
 * tables are laid out, batch by batch, and the GPU works through them. */
#include "server/device/cuda_exec.h"

#include <string.h>

#include "kernels/cuda/compress_plan.h"
#include "server/device/digest.h"

enum { TABLE_ALIGN = 16 };

/* Cells of a block that a batch is about. */
static uint64_t cells_of(const struct kvd_cuda_kind *kind)
{
    return (uint64_t)kind->layer_count * kind->heads;
}

/* Of one entry, with what alignment may cost. */
static uint64_t bytes_of(const struct kvd_cuda_op *op, const struct kvd_cuda_kind *kind)
{
    return (op->has_digests ? cells_of(kind) * sizeof(uint32_t) : 0) + sizeof(uint64_t) +
           sizeof(struct kvk_cuda_block);
}

/* ---- running ---- */

static void order_entries(struct kvd_cuda_executor *executor)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < executor->batch_count; i++) {
        executor->batches[i].first = first;
        first += executor->batches[i].count;
    }
}

static uint64_t place_digests(struct kvd_cuda_executor *executor)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < executor->batch_count && executor->op->has_digests; i++) {
        struct kvd_cuda_batch *batch = &executor->batches[i];
        batch->digests = at;
        at += batch->count * cells_of(&batch->kind) * sizeof(uint32_t);
    }
    return (at + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
}

static bool launch(struct kvd_cuda_executor *executor, uint64_t faults, uint64_t blocks)
{
    for (uint32_t i = 0; i < executor->batch_count; i++) {
        const struct kvd_cuda_batch *batch = &executor->batches[i];
        const struct kvk_cuda_blocks args = {
            .shape = batch->kind.shape,
            .layers = batch->kind.layers,
            .heads = batch->kind.heads,
            .layer_begin = batch->kind.layer_begin,
            .layer_count = batch->kind.layer_count,
            .count = batch->count,
            .settle = KVK_CUDA_SETTLE,
            .blocks =
                executor->tables.address + blocks + batch->first * sizeof(struct kvk_cuda_block),
            .faults = executor->tables.address + faults + batch->first * sizeof(uint64_t),
            .digests = executor->op->has_digests ? executor->tables.address + batch->digests : 0};
        if (!executor->op->launch(executor, batch, &args))
            return false;
    }
    return true;
}

static struct kvd_fault fault_of(const struct kvd_cuda_kind *kind, uint64_t fault)
{
    static const uint32_t tensors[4] = {'k', 'v', 'q', 0};

    if (fault == KVK_CUDA_NO_FAULT)
        return (struct kvd_fault){0};
    return (struct kvd_fault){.tensor = tensors[KVK_CUDA_FAULT_TENSOR(fault)],
                              .layer = kind->layer_begin + KVK_CUDA_FAULT_CELL(fault) / kind->heads,
                              .head = KVK_CUDA_FAULT_CELL(fault) % kind->heads,
                              .token = KVK_CUDA_FAULT_TOKEN(fault),
                              .channel = KVK_CUDA_FAULT_CHANNEL(fault)};
}

static void finish(struct kvd_cuda_executor *executor, uint64_t faults)
{
    const uint64_t *fault = (const uint64_t *)(const void *)(executor->tables.host + faults);
    const struct kvd_cuda_batch *joined = NULL;
    struct kvd_digest_joiner joiner;

    for (uint32_t i = 0; i < executor->entry_count; i++) {
        const struct kvd_cuda_entry *entry = &executor->entries[i];
        const struct kvd_cuda_batch *batch = &executor->batches[entry->batch];
        uint64_t cells = cells_of(&batch->kind);
        uint32_t digest = 0;
        if (executor->op->has_digests) {
            if (joined != batch)
                kvd_digest_joiner_init(&joiner,
                                       kvd_cell_bytes(&batch->kind.shape, batch->kind.kind));
            joined = batch;
            const void *digests =
                executor->tables.host + batch->digests + entry->index * cells * sizeof(uint32_t);
            digest = kvd_digest_join(&joiner, digests, cells);
        }
        const struct kvd_fault found = fault_of(&batch->kind, fault[batch->first + entry->index]);
        executor->op->finish(entry, &found, digest);
    }
}

static bool run_wave(struct kvd_cuda_executor *executor)
{
    uint32_t count = executor->entry_count;

    if (count == 0)
        return true;
    order_entries(executor);
    uint64_t faults = place_digests(executor);
    uint64_t after = faults + count * sizeof(uint64_t);
    uint64_t blocks = (after + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    memset(executor->tables.host + faults, 0xff, count * sizeof(uint64_t)); /* no fault */
    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_cuda_entry *entry = &executor->entries[i];
        uint64_t at = executor->batches[entry->batch].first + entry->index;
        memcpy(executor->tables.host + blocks + at * sizeof(entry->block), &entry->block,
               sizeof(entry->block));
    }
    if (!kvd_cuda_upload(executor, &executor->tables, faults,
                         blocks + count * sizeof(struct kvk_cuda_block)) ||
        !launch(executor, faults, blocks) ||
        !kvd_cuda_download(executor, &executor->tables, 0, after) || !kvd_cuda_wait(executor))
        return false;
    finish(executor, faults);
    executor->entry_count = executor->batch_count = 0;
    executor->table_bytes = 0;
    return true;
}

/* ---- collecting ---- */

static bool same_kind(const struct kvd_cuda_kind *a, const struct kvd_cuda_kind *b)
{
    return kvk_shape_same(&a->shape, &b->shape) && a->layers == b->layers && a->heads == b->heads &&
           a->layer_begin == b->layer_begin && a->layer_count == b->layer_count &&
           a->kind == b->kind && a->way == b->way;
}

/* The batch of that kind in the wave; NULL when there is no room for it. */
static struct kvd_cuda_batch *batch_of(struct kvd_cuda_executor *executor,
                                       const struct kvd_cuda_kind *kind)
{
    for (uint32_t i = executor->batch_count; i-- > 0;)
        if (same_kind(&executor->batches[i].kind, kind))
            return &executor->batches[i];
    if (executor->batch_count == KVD_CUDA_BATCHES_MAX)
        return NULL;
    executor->batches[executor->batch_count] = (struct kvd_cuda_batch){.kind = *kind};
    return &executor->batches[executor->batch_count++];
}

static bool add(struct kvd_cuda_executor *executor, const struct kvd_cuda_kind *kind,
                const struct kvd_cuda_entry *entry)
{
    uint64_t bytes = bytes_of(executor->op, kind);

    if (executor->entry_count == KVD_CUDA_ENTRIES_MAX ||
        bytes > KVD_CUDA_TABLE_BYTES - 2 * TABLE_ALIGN - executor->table_bytes)
        return false;
    struct kvd_cuda_batch *batch = batch_of(executor, kind);
    if (batch == NULL)
        return false;
    struct kvd_cuda_entry *added = &executor->entries[executor->entry_count++];
    *added = *entry;
    added->batch = (uint32_t)(batch - executor->batches);
    added->index = batch->count++;
    executor->table_bytes += bytes;
    return true;
}

static bool plan_entry(struct kvd_cuda_executor *executor, uint32_t number, uint8_t *result)
{
    struct kvd_taken *job = &executor->group[number];
    struct kvd_cuda_entry entry = {.job = number, .result = result};
    struct kvd_cuda_kind kind = {0};
    union {
        struct kvd_put put;
        struct kvd_get get;
        struct kvd_write write;
        struct kvd_copy copy;
    } copy;

    memcpy(&copy, result, kvd_job_entry_bytes(job->copy.op));
    kvarn_status status = executor->op->plan(executor, &job->copy, &copy, &kind, &entry);
    executor->op->begin(result, status);
    if (status != KVARN_OK)
        return true;
    job->planned_ns += cells_of(&kind) * kvd_cell_bytes(&kind.shape, kind.kind);
    if (bytes_of(executor->op, &kind) > KVD_CUDA_TABLE_BYTES - 2 * TABLE_ALIGN) {
        executor->op->begin(result, KVARN_INTERNAL);
        return true;
    }
    if (add(executor, &kind, &entry))
        return true;
    return run_wave(executor) && add(executor, &kind, &entry);
}

bool kvd_cuda_run_slots(struct kvd_cuda_executor *executor, const struct kvd_cuda_op *op,
                        uint32_t jobs)
{
    executor->op = op;
    executor->entry_count = executor->batch_count = 0;
    executor->table_bytes = 0;
    for (uint32_t i = 0; i < jobs; i++) {
        const struct kvd_job *job = &executor->group[i].copy;
        uint8_t *entries = (uint8_t *)(executor->group[i].shared + 1);
        for (uint64_t entry = 0; entry < job->count; entry++)
            if (!plan_entry(executor, i, entries + entry * kvd_job_entry_bytes(job->op)))
                return false;
    }
    return run_wave(executor);
}
