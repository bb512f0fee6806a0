/* COPY, DIGEST and ZERO. A slot in the pool is in device order, one in staging is canonical: a COPY
 * between the two converts, one inside the pool moves bytes. */
#include "server/device/cuda_exec.h"

enum way { WAY_IMPORT = 1, WAY_EXPORT, WAY_MOVE, WAY_DIGEST };

/* The digest is an input too, so it stays until finish. */
static void copy_begin(void *result, kvarn_status status)
{
    ((struct kvd_copy *)result)->status = status;
}

/* What it is about must be a slot, of its size. */
static bool set_kind(struct kvd_cuda_kind *kind, const struct kvd_job *job,
                     const struct kvd_copy *copy, uint32_t way)
{
    if (!kvd_job_shape_is_sound(job) ||
        copy->bytes != kvd_cell_bytes(&job->shape, copy->kind) * job->layers * job->heads ||
        copy->bytes == 0)
        return false;
    /* what stands in the pool was looked at when it came in */
    if ((copy->check & KVD_CHECK_FINITE) != 0 && way != WAY_IMPORT)
        return false;
    *kind = (struct kvd_cuda_kind){.shape = job->shape,
                                   .layers = job->layers,
                                   .heads = job->heads,
                                   .layer_count = job->layers,
                                   .kind = copy->kind,
                                   .way = way};
    return true;
}

static void set_entry(struct kvd_cuda_entry *entry, const struct kvd_copy *copy, uint64_t slot,
                      uint64_t other)
{
    entry->digest = copy->digest;
    entry->check = copy->check;
    entry->block = (struct kvk_cuda_block){.slot = slot, .k = other, .kind = copy->kind};
}

static kvarn_status copy_plan(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                              const void *from, struct kvd_cuda_kind *kind,
                              struct kvd_cuda_entry *entry)
{
    const struct kvd_copy *copy = from;
    bool out = copy->src.region == KVD_REGION_POOL, in = copy->dst.region == KVD_REGION_POOL;
    uint32_t way = in && out ? WAY_MOVE : in ? WAY_IMPORT : WAY_EXPORT;

    if (!(in || out) || !set_kind(kind, job, copy, way) ||
        !kvd_bounds_hold(&executor->bounds, copy->src, copy->bytes) ||
        !kvd_bounds_hold(&executor->bounds, copy->dst, copy->bytes) ||
        (out && copy->src.offset % KVD_CUDA_SLOT_ALIGN != 0) ||
        (in && copy->dst.offset % KVD_CUDA_SLOT_ALIGN != 0))
        return KVARN_INTERNAL;
    uint64_t src = kvd_cuda_address(executor, copy->src),
             dst = kvd_cuda_address(executor, copy->dst);
    if (in && out && src < dst + copy->bytes && dst < src + copy->bytes)
        return KVARN_INTERNAL;
    set_entry(entry, copy, in ? dst : src, in ? src : dst);
    return KVARN_OK;
}

static kvarn_status digest_plan(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                                const void *from, struct kvd_cuda_kind *kind,
                                struct kvd_cuda_entry *entry)
{
    const struct kvd_copy *copy = from;

    if (!set_kind(kind, job, copy, WAY_DIGEST) ||
        !kvd_cuda_holds_slot(executor, job, copy->src, copy->kind))
        return KVARN_INTERNAL;
    set_entry(entry, copy, kvd_cuda_address(executor, copy->src), 0);
    return KVARN_OK;
}

static bool move(struct kvd_cuda_executor *executor, const struct kvd_cuda_batch *batch)
{
    uint64_t bytes = kvd_cell_bytes(&batch->kind.shape, batch->kind.kind) * batch->kind.layers *
                     batch->kind.heads;

    for (uint32_t i = 0; i < executor->entry_count; i++) {
        const struct kvd_cuda_entry *entry = &executor->entries[i];
        if (&executor->batches[entry->batch] == batch &&
            !kvd_gpu_did(executor->gpu, "a copy in the pool",
                         executor->gpu->driver.copy_on_device(entry->block.slot, entry->block.k,
                                                              bytes, executor->gpu->stream)))
            return false;
    }
    return true;
}

static bool copy_launch(struct kvd_cuda_executor *executor, const struct kvd_cuda_batch *batch,
                        const struct kvk_cuda_blocks *args)
{
    uint32_t multiprocessors = executor->gpu->multiprocessors;
    struct kvk_cuda_launch launch;

    switch (batch->kind.way) {
    case WAY_IMPORT:
        launch = kvk_cuda_import_launch(args, multiprocessors);
        break;
    case WAY_EXPORT:
        launch = kvk_cuda_export_launch(args, multiprocessors);
        break;
    case WAY_MOVE:
        if (!move(executor, batch))
            return false;
        launch = kvk_cuda_digest_launch(args, multiprocessors); /* of what arrived */
        break;
    default:
        launch = kvk_cuda_digest_launch(args, multiprocessors);
        break;
    }
    return kvd_kernels_launch(executor->kernels, &launch, args);
}

static void copy_finish(const struct kvd_cuda_entry *entry, const struct kvd_fault *fault,
                        uint32_t digest)
{
    struct kvd_copy *copy = entry->result;
    bool wanted = (entry->check & KVD_CHECK_FINITE) != 0;

    copy->status = wanted && fault->tensor != 0 ? KVARN_NON_FINITE : KVARN_OK;
    /* before anything that was seen in the bytes: they are not the ones that were meant */
    if ((entry->check & KVD_CHECK_DIGEST) != 0 && entry->digest != digest)
        copy->status = KVARN_CORRUPT;
    copy->digest = digest;
    copy->fault = wanted ? *fault : (struct kvd_fault){0};
}

const struct kvd_cuda_op kvd_cuda_copy = {.has_digests = true,
                                          .begin = copy_begin,
                                          .plan = copy_plan,
                                          .launch = copy_launch,
                                          .finish = copy_finish};
const struct kvd_cuda_op kvd_cuda_digest = {.has_digests = true,
                                            .begin = copy_begin,
                                            .plan = digest_plan,
                                            .launch = copy_launch,
                                            .finish = copy_finish};

/* ---- ZERO ---- */

static bool zero(struct kvd_cuda_executor *executor, struct kvd_taken *job, struct kvd_zero *result)
{
    const struct kvd_zero asked = *result; /* copied: it stands in shared memory */
    bool sound = asked.at.region == KVD_REGION_POOL &&
                 kvd_bounds_hold(&executor->bounds, asked.at, asked.bytes);

    result->status = sound ? KVARN_OK : KVARN_INTERNAL;
    if (!sound || asked.bytes == 0)
        return true;
    job->planned_ns += asked.bytes;
    return kvd_gpu_did(executor->gpu, "zeros in the pool",
                       executor->gpu->driver.set_bytes(kvd_cuda_address(executor, asked.at), 0,
                                                       asked.bytes, executor->gpu->stream));
}

/* As many as the stream may hold at a time without making us wait unseen. */
bool kvd_cuda_run_zero(struct kvd_cuda_executor *executor, uint32_t jobs)
{
    enum { AT_ONCE = 256 };
    uint32_t queued = 0;

    for (uint32_t i = 0; i < jobs; i++) {
        struct kvd_taken *job = &executor->group[i];
        struct kvd_zero *entries = (struct kvd_zero *)(void *)(job->shared + 1);
        for (uint32_t entry = 0; entry < job->copy.count; entry++) {
            if (!zero(executor, job, &entries[entry]))
                return false;
            if (++queued % AT_ONCE == 0 && !kvd_cuda_wait(executor))
                return false;
        }
    }
    return kvd_cuda_wait(executor);
}
