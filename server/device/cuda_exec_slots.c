/* COMPRESS, DECOMPRESS and WRITE_ROWS: rows into slots and out of them. */
#include "server/device/cuda_exec.h"

#include "kernels/cuda/compress_plan.h"

/* Rows of both tensors, at any addresses and strides. */
static kvarn_status plan_rows(const struct kvd_cuda_executor *executor, struct kvd_place k,
                              struct kvd_place v, const struct kvd_strides *strides,
                              const struct kvd_cuda_kind *kind, uint32_t tokens,
                              struct kvk_cuda_block *block)
{
    const uint32_t counts[3] = {kind->layer_count, tokens, kind->heads};
    uint64_t row = kvd_row_bytes(&kind->shape);

    if (!kvd_bounds_hold_rows(&executor->bounds, k, strides, counts, row) ||
        !kvd_bounds_hold_rows(&executor->bounds, v, strides, counts, row))
        return KVARN_INTERNAL;
    block->k = kvd_cuda_address(executor, k);
    block->v = kvd_cuda_address(executor, v);
    block->layer_stride_bytes = strides->layer;
    block->token_stride_bytes = strides->token;
    block->head_stride_bytes = strides->head;
    block->kind = kind->kind;
    block->tokens = tokens;
    return KVARN_OK;
}

static void set_kind(struct kvd_cuda_kind *kind, const struct kvd_job *job, uint32_t block_kind)
{
    kind->shape = job->shape;
    kind->layers = job->layers;
    kind->heads = job->heads;
    kind->layer_begin = job->layer_begin;
    kind->layer_count = job->layer_count;
    kind->kind = block_kind;
}

/* ---- COMPRESS ---- */

static void put_begin(void *result, kvarn_status status)
{
    struct kvd_put *put = result;

    put->status = status;
    put->digest = 0;
    put->fault = (struct kvd_fault){0};
}

static kvarn_status put_plan(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                             const void *copy, struct kvd_cuda_kind *kind,
                             struct kvd_cuda_entry *entry)
{
    const struct kvd_put *put = copy;

    if (!kvd_cuda_holds_slot(executor, job, put->slot, put->kind))
        return KVARN_INTERNAL;
    set_kind(kind, job, put->kind);
    kind->layer_begin = 0;
    kind->layer_count = job->layers;
    entry->block.slot = kvd_cuda_address(executor, put->slot);
    return plan_rows(executor, put->k, put->v, &put->strides, kind, job->shape.group,
                     &entry->block);
}

static bool put_launch(struct kvd_cuda_executor *executor, const struct kvd_cuda_batch *batch,
                       const struct kvk_cuda_blocks *args)
{
    struct kvk_cuda_launch launch;

    if (batch->kind.kind == KVARN_BLOCK_TILE)
        launch = kvk_cuda_compress_launch(args);
    else
        launch = kvk_cuda_write_launch(args);
    if (!kvd_kernels_launch(executor->kernels, &launch, args))
        return false;
    launch = kvk_cuda_digest_launch(args, executor->gpu->multiprocessors);
    return kvd_kernels_launch(executor->kernels, &launch, args);
}

static void put_finish(const struct kvd_cuda_entry *entry, const struct kvd_fault *fault,
                       uint32_t digest)
{
    struct kvd_put *put = entry->result;

    put->status = fault->tensor == 0 ? KVARN_OK : KVARN_NON_FINITE;
    put->fault = *fault;
    put->digest = fault->tensor == 0 ? digest : 0;
}

const struct kvd_cuda_op kvd_cuda_compress = {.has_digests = true,
                                              .begin = put_begin,
                                              .plan = put_plan,
                                              .launch = put_launch,
                                              .finish = put_finish};

/* ---- DECOMPRESS ---- */

static void get_begin(void *result, kvarn_status status)
{
    ((struct kvd_get *)result)->status = status;
}

static kvarn_status get_plan(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                             const void *copy, struct kvd_cuda_kind *kind,
                             struct kvd_cuda_entry *entry)
{
    const struct kvd_get *get = copy;

    if (!kvd_cuda_holds_slot(executor, job, get->slot, get->kind))
        return KVARN_INTERNAL;
    set_kind(kind, job, get->kind);
    entry->block.slot = kvd_cuda_address(executor, get->slot);
    return plan_rows(executor, get->k, get->v, &get->strides, kind, job->shape.group,
                     &entry->block);
}

static bool get_launch(struct kvd_cuda_executor *executor, const struct kvd_cuda_batch *batch,
                       const struct kvk_cuda_blocks *args)
{
    struct kvk_cuda_launch launch;

    if (batch->kind.kind == KVARN_BLOCK_TILE)
        launch = kvk_cuda_decompress_launch(args, executor->gpu->multiprocessors);
    else
        launch = kvk_cuda_read_launch(args, executor->gpu->multiprocessors);
    return kvd_kernels_launch(executor->kernels, &launch, args);
}

static void get_finish(const struct kvd_cuda_entry *entry, const struct kvd_fault *fault,
                       uint32_t digest)
{
    (void)fault;
    (void)digest;
    ((struct kvd_get *)entry->result)->status = KVARN_OK;
}

const struct kvd_cuda_op kvd_cuda_decompress = {
    .begin = get_begin, .plan = get_plan, .launch = get_launch, .finish = get_finish};

/* ---- WRITE_ROWS ---- */

static void write_begin(void *result, kvarn_status status)
{
    struct kvd_write *write = result;

    write->status = status;
    write->fault = (struct kvd_fault){0};
}

static kvarn_status write_plan(const struct kvd_cuda_executor *executor, const struct kvd_job *job,
                               const void *copy, struct kvd_cuda_kind *kind,
                               struct kvd_cuda_entry *entry)
{
    const struct kvd_write *write = copy;

    if (write->first_token >= job->shape.group ||
        write->tokens > job->shape.group - write->first_token ||
        !kvd_cuda_holds_slot(executor, job, write->slot, KVARN_BLOCK_EXACT))
        return KVARN_INTERNAL;
    set_kind(kind, job, KVARN_BLOCK_EXACT);
    entry->block.slot = kvd_cuda_address(executor, write->slot);
    entry->block.first_token = write->first_token;
    return plan_rows(executor, write->k, write->v, &write->strides, kind, write->tokens,
                     &entry->block);
}

static bool write_launch(struct kvd_cuda_executor *executor, const struct kvd_cuda_batch *batch,
                         const struct kvk_cuda_blocks *args)
{
    struct kvk_cuda_launch launch;

    (void)batch;
    launch = kvk_cuda_write_launch(args);
    return kvd_kernels_launch(executor->kernels, &launch, args);
}

static void write_finish(const struct kvd_cuda_entry *entry, const struct kvd_fault *fault,
                         uint32_t digest)
{
    struct kvd_write *write = entry->result;

    (void)digest;
    write->status = fault->tensor == 0 ? KVARN_OK : KVARN_NON_FINITE;
    write->fault = *fault;
}

const struct kvd_cuda_op kvd_cuda_write = {
    .begin = write_begin, .plan = write_plan, .launch = write_launch, .finish = write_finish};
