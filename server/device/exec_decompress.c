/* DECOMPRESS: layers of a slot back to rows. A unit is one layer and head. */
#include "server/device/exec.h"

#include <string.h>

static uint32_t decompress_items(const struct kvd_job *job, const union kvd_exec_entry *entry)
{
    const struct kvd_get *get = &entry->get;

    return kvd_cell_bytes(&job->shape, get->kind) != 0 && job->layer_count > 0;
}

static void decompress_begin(void *result, kvarn_status status)
{
    ((struct kvd_get *)result)->status = status;
}

static kvarn_status decompress_plan(struct kvd_executor *executor, struct kvd_exec_item *item,
                                    uint32_t index)
{
    const struct kvd_get *get = &item->entry.get;
    const struct kvd_job *job = item->job;
    const uint32_t counts[3] = {job->layer_count, job->shape.group, job->heads};
    uint64_t row = kvd_row_bytes(&job->shape);

    (void)index;
    item->k = kvd_exec_rows(executor, get->k, &get->strides, counts, row);
    item->v = kvd_exec_rows(executor, get->v, &get->strides, counts, row);
    item->slot = kvd_exec_slot(executor, job, get->slot, get->kind);
    if (item->k == NULL || item->v == NULL || item->slot == NULL)
        return KVARN_INTERNAL;
    item->units = job->layer_count * job->heads;
    item->ns = row * job->shape.group / (get->kind == KVARN_BLOCK_TILE ? 2 : 8);
    return KVARN_OK;
}

static void copy_rows(uint8_t *to, uint64_t stride, const uint8_t *from, size_t row, uint32_t rows)
{
    if (stride == row) {
        memcpy(to, from, row * rows);
        return;
    }
    for (uint32_t i = 0; i < rows; i++)
        memcpy(to + i * stride, from + i * row, row);
}

static kvarn_status decompress_run(struct kvd_executor *executor,
                                   const struct kvd_exec_thread *thread, struct kvd_exec_item *item,
                                   uint32_t unit, struct kvd_fault *fault)
{
    const struct kvd_get *get = &item->entry.get;
    const struct kvd_job *job = item->job;
    uint32_t layer = unit / job->heads, head = unit % job->heads;
    uint64_t at = layer * get->strides.layer + head * get->strides.head;
    size_t row = kvd_row_bytes(&job->shape);
    const uint8_t *cell = item->slot + ((uint64_t)(job->layer_begin + layer) * job->heads + head) *
                                           kvd_cell_bytes(&job->shape, get->kind);

    (void)fault;
    if (get->kind == KVARN_BLOCK_EXACT) {
        copy_rows(item->k + at, get->strides.token, cell, row, job->shape.group);
        copy_rows(item->v + at, get->strides.token, cell + row * job->shape.group, row,
                  job->shape.group);
        return KVARN_OK;
    }
    struct kvk_decompress op = {.shape = job->shape,
                                .record = cell,
                                .k = item->k + at,
                                .v = item->v + at,
                                .k_token_stride_bytes = get->strides.token,
                                .v_token_stride_bytes = get->strides.token,
                                .scratch = thread->scratch};
    return kvd_exec_table(executor)->decompress(&op);
}

static void decompress_finish(const struct kvd_exec_item *lead)
{
    ((struct kvd_get *)lead->result)->status = lead->status;
}

const struct kvd_exec_op kvd_exec_decompress = {
    .entry_bytes = sizeof(struct kvd_get),
    .begin = decompress_begin,
    .items = decompress_items,
    .plan = decompress_plan,
    .run = decompress_run,
    .finish = decompress_finish,
};
