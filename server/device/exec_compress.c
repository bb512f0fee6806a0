/* COMPRESS: a block's rows into its slot. A unit is one layer and head: a tile, or for an EXACT
 * block its K and V rows as they are, each with the digest of what it wrote. */
#include "server/device/exec.h"

static uint32_t compress_items(const struct kvd_job *job, const union kvd_exec_entry *entry)
{
    const struct kvd_put *put = &entry->put;

    return kvd_cell_bytes(&job->shape, put->kind) != 0;
}

static void compress_begin(void *result, kvarn_status status)
{
    struct kvd_put *put = result;

    put->status = status;
    put->digest = 0;
    put->fault = (struct kvd_fault){0};
}

static kvarn_status compress_plan(struct kvd_executor *executor, struct kvd_exec_item *item,
                                  uint32_t index)
{
    const struct kvd_put *put = &item->entry.put;
    const struct kvd_job *job = item->job;
    const uint32_t counts[3] = {job->layers, job->shape.group, job->heads};
    uint64_t row = kvd_row_bytes(&job->shape);

    (void)index;
    item->k = kvd_exec_rows(executor, put->k, &put->strides, counts, row);
    item->v = kvd_exec_rows(executor, put->v, &put->strides, counts, row);
    item->slot = kvd_exec_slot(executor, job, put->slot, put->kind);
    if (item->k == NULL || item->v == NULL || item->slot == NULL)
        return KVARN_INTERNAL;
    item->units = job->layers * job->heads;
    item->ns = row * job->shape.group / (put->kind == KVARN_BLOCK_TILE ? 1 : 8);
    return KVARN_OK;
}

static kvarn_status copy_exact(const struct kvd_job *job, const struct kvd_put *put,
                               const uint8_t *k, const uint8_t *v, uint8_t *cell,
                               struct kvk_fault *fault)
{
    const struct kvk_shape *shape = &job->shape;
    size_t row = kvd_row_bytes(shape);
    kvarn_status status = kvk_copy_rows(cell, row, k, put->strides.token, shape->group, shape->dim,
                                        shape->dtype, 'k', fault);

    if (status == KVARN_OK)
        status = kvk_copy_rows(cell + row * shape->group, row, v, put->strides.token, shape->group,
                               shape->dim, shape->dtype, 'v', fault);
    return status;
}

static kvarn_status compress_run(struct kvd_executor *executor,
                                 const struct kvd_exec_thread *thread, struct kvd_exec_item *item,
                                 uint32_t unit, struct kvd_fault *fault)
{
    const struct kvd_put *put = &item->entry.put;
    const struct kvd_job *job = item->job;
    uint32_t layer = unit / job->heads, head = unit % job->heads;
    uint64_t at = layer * put->strides.layer + head * put->strides.head;
    size_t cell_bytes = kvd_cell_bytes(&job->shape, put->kind);
    uint8_t *cell = item->slot + unit * cell_bytes;
    struct kvk_fault where = {0};
    kvarn_status status;

    if (put->kind == KVARN_BLOCK_TILE) {
        struct kvk_compress op = {.shape = job->shape,
                                  .k = item->k + at,
                                  .v = item->v + at,
                                  .k_token_stride_bytes = put->strides.token,
                                  .v_token_stride_bytes = put->strides.token,
                                  .record = cell,
                                  .scratch = thread->scratch};
        status = kvd_exec_table(executor)->compress(&op);
        where = op.fault;
    } else {
        status = copy_exact(job, put, item->k + at, item->v + at, cell, &where);
    }
    if (status == KVARN_OK)
        kvd_exec_join_digest(item, kvk_digest(0, cell, cell_bytes),
                             (item->units - 1 - unit) * cell_bytes);
    else
        *fault = (struct kvd_fault){.tensor = (uint32_t)where.tensor,
                                    .layer = layer,
                                    .head = head,
                                    .token = where.token,
                                    .channel = where.channel};
    return status;
}

static void compress_finish(const struct kvd_exec_item *lead)
{
    struct kvd_put *put = lead->result;

    put->status = lead->status;
    put->fault = lead->fault;
    put->digest = lead->status == KVARN_OK ? lead->digest : 0;
}

const struct kvd_exec_op kvd_exec_compress = {
    .entry_bytes = sizeof(struct kvd_put),
    .items = compress_items,
    .plan = compress_plan,
    .run = compress_run,
    .finish = compress_finish,
    .begin = compress_begin,
};
