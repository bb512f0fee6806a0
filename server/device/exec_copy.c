/* COPY and DIGEST: bytes as they are, in pieces, each with its digest; the pieces' digests join to
 * the digest of the whole. */
#include "server/device/exec.h"

#include <string.h>

enum { PIECE_BYTES = 1 << 20 };

static uint32_t copy_items(const struct kvd_job *job, const union kvd_exec_entry *entry)
{
    (void)job;
    (void)entry;
    return 1;
}

/* The digest is an input too, so it stays until finish. */
static void copy_begin(void *result, kvarn_status status)
{
    ((struct kvd_copy *)result)->status = status;
}

static kvarn_status plan_pieces(struct kvd_executor *executor, struct kvd_exec_item *item)
{
    const struct kvd_copy *copy = &item->entry.copy;
    uint64_t pieces = copy->bytes / PIECE_BYTES + (copy->bytes % PIECE_BYTES != 0);

    item->k = kvd_exec_at(executor, copy->src, copy->bytes);
    if (item->k == NULL || pieces > UINT32_MAX)
        return KVARN_INTERNAL;
    item->units = (uint32_t)pieces;
    item->ns = (copy->bytes < PIECE_BYTES ? copy->bytes : PIECE_BYTES) / 8;
    return KVARN_OK;
}

static kvarn_status copy_plan(struct kvd_executor *executor, struct kvd_exec_item *item,
                              uint32_t index)
{
    const struct kvd_copy *copy = &item->entry.copy;
    kvarn_status status = plan_pieces(executor, item);

    (void)index;
    item->slot = kvd_exec_at(executor, copy->dst, copy->bytes);
    if (status != KVARN_OK || item->slot == NULL)
        return KVARN_INTERNAL;
    /* one byte of both would make the result depend on the order of the pieces */
    bool apart = item->slot >= item->k + copy->bytes || item->k >= item->slot + copy->bytes;
    return apart || copy->bytes == 0 ? KVARN_OK : KVARN_INTERNAL;
}

static kvarn_status digest_plan(struct kvd_executor *executor, struct kvd_exec_item *item,
                                uint32_t index)
{
    (void)index;
    return plan_pieces(executor, item);
}

/* The cells of a slot that begin in bytes [from, from + bytes) of the source, which is all there:
 * NaN and infinity are named by layer, head and token. */
static kvarn_status check_cells(const struct kvd_exec_item *item, uint64_t from, uint64_t bytes,
                                struct kvd_fault *fault)
{
    const struct kvd_job *job = item->job;
    const struct kvd_copy *copy = &item->entry.copy;
    uint64_t cell = kvd_cell_bytes(&job->shape, copy->kind);

    if (cell == 0 || copy->bytes % cell != 0 ||
        copy->bytes / cell != (uint64_t)job->layers * job->heads)
        return KVARN_INTERNAL;
    for (uint64_t i = (from + cell - 1) / cell; i * cell < from + bytes; i++) {
        struct kvk_fault at;
        kvarn_status status = kvk_cell_check(&job->shape, copy->kind, item->k + i * cell, &at);

        if (status == KVARN_OK)
            continue;
        if (status == KVARN_NON_FINITE)
            *fault = (struct kvd_fault){(uint32_t)at.tensor, (uint32_t)(i / job->heads),
                                        (uint32_t)(i % job->heads), at.token, at.channel};
        return status;
    }
    return KVARN_OK;
}

static kvarn_status piece_run(struct kvd_executor *executor, const struct kvd_exec_thread *thread,
                              struct kvd_exec_item *item, uint32_t unit, struct kvd_fault *fault)
{
    const struct kvd_copy *copy = &item->entry.copy;
    uint64_t from = (uint64_t)unit * PIECE_BYTES, left = copy->bytes - from;
    size_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;

    (void)executor;
    (void)thread;
    if (item->slot != NULL)
        memcpy(item->slot + from, item->k + from, bytes);
    /* of what arrived, not of what was sent */
    const uint8_t *written = item->slot != NULL ? item->slot : item->k;
    kvd_exec_join_digest(item, kvk_digest(0, written + from, bytes), left - bytes);
    return copy->check & KVD_CHECK_FINITE ? check_cells(item, from, bytes, fault) : KVARN_OK;
}

static void copy_finish(const struct kvd_exec_item *lead)
{
    const struct kvd_copy *asked = &lead->entry.copy;
    struct kvd_copy *copy = lead->result;

    copy->status = lead->status;
    /* before anything that was seen in the bytes: they are not the ones that were meant */
    if ((asked->check & KVD_CHECK_DIGEST) != 0 && asked->digest != lead->digest)
        copy->status = KVARN_CORRUPT;
    copy->digest = lead->digest;
    copy->fault = lead->fault;
}

const struct kvd_exec_op kvd_exec_copy = {
    .entry_bytes = sizeof(struct kvd_copy),
    .begin = copy_begin,
    .items = copy_items,
    .plan = copy_plan,
    .run = piece_run,
    .finish = copy_finish,
};

const struct kvd_exec_op kvd_exec_digest = {
    .entry_bytes = sizeof(struct kvd_copy),
    .begin = copy_begin,
    .items = copy_items,
    .plan = digest_plan,
    .run = piece_run,
    .finish = copy_finish,
};
