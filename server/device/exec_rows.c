/* WRITE_ROWS: new tokens of a sequence into its EXACT slot. A unit is one layer, all heads: for one
 * token that is a few rows, too little to share. */
#include "server/device/exec.h"

static uint32_t write_items(const struct kvd_job *job, const union kvd_exec_entry *entry)
{
    const struct kvd_write *write = &entry->write;

    return job->layer_count > 0 && write->tokens > 0 && write->first_token < job->shape.group &&
           write->tokens <= job->shape.group - write->first_token;
}

static void write_begin(void *result, kvarn_status status)
{
    struct kvd_write *write = result;

    write->status = status;
    write->fault = (struct kvd_fault){0};
}

static kvarn_status write_plan(struct kvd_executor *executor, struct kvd_exec_item *item,
                               uint32_t index)
{
    const struct kvd_write *write = &item->entry.write;
    const struct kvd_job *job = item->job;
    const uint32_t counts[3] = {job->layer_count, write->tokens, job->heads};
    uint64_t row = kvd_row_bytes(&job->shape);

    (void)index;
    item->k = kvd_exec_rows(executor, write->k, &write->strides, counts, row);
    item->v = kvd_exec_rows(executor, write->v, &write->strides, counts, row);
    item->slot = kvd_exec_slot(executor, job, write->slot, KVARN_BLOCK_EXACT);
    if (item->k == NULL || item->v == NULL || item->slot == NULL)
        return KVARN_INTERNAL;
    item->units = job->layer_count;
    item->ns = row * write->tokens * job->heads / 4;
    return KVARN_OK;
}

static kvarn_status write_run(struct kvd_executor *executor, const struct kvd_exec_thread *thread,
                              struct kvd_exec_item *item, uint32_t unit, struct kvd_fault *fault)
{
    const struct kvd_write *write = &item->entry.write;
    const struct kvd_job *job = item->job;
    const struct kvk_shape *shape = &job->shape;
    size_t row = kvd_row_bytes(shape), cell = 2 * row * shape->group;
    uint32_t layer = job->layer_begin + unit;

    (void)executor;
    (void)thread;
    for (uint32_t head = 0; head < job->heads; head++) {
        uint64_t from = unit * write->strides.layer + head * write->strides.head;
        uint8_t *to =
            item->slot + ((uint64_t)layer * job->heads + head) * cell + write->first_token * row;
        struct kvk_fault where = {0};
        kvarn_status status = kvk_copy_rows(to, row, item->k + from, write->strides.token,
                                            write->tokens, shape->dim, shape->dtype, 'k', &where);
        if (status == KVARN_OK)
            status =
                kvk_copy_rows(to + row * shape->group, row, item->v + from, write->strides.token,
                              write->tokens, shape->dim, shape->dtype, 'v', &where);
        if (status != KVARN_OK) {
            *fault = (struct kvd_fault){.tensor = (uint32_t)where.tensor,
                                        .layer = layer,
                                        .head = head,
                                        .token = where.token,
                                        .channel = where.channel};
            return status;
        }
    }
    return KVARN_OK;
}

static void write_finish(const struct kvd_exec_item *lead)
{
    struct kvd_write *write = lead->result;

    write->status = lead->status;
    write->fault = lead->fault;
}

const struct kvd_exec_op kvd_exec_write = {
    .entry_bytes = sizeof(struct kvd_write),
    .begin = write_begin,
    .items = write_items,
    .plan = write_plan,
    .run = write_run,
    .finish = write_finish,
};
