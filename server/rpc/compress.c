/* COMPRESS: rows of whole blocks -> TILE or EXACT blocks under their keys. */
#include "server/rpc/items.h"
#include "server/rpc/tensor.h"
#include "server/rpc/work.h"

#include <string.h>

static kvarn_status resolve(struct kvd_work *work, struct kvd_tensor *tensor)
{
    const struct kvd_space *space = work->space;
    uint32_t count = work->args.blocks.block_count;
    uint64_t table = (uint64_t)count * KVW_PUT_ROW_BYTES;
    char text[KVD_TEXT_MAX] = "";
    kvarn_status status;

    *tensor = (struct kvd_tensor){.layers = space->layers,
                                  .blocks = count,
                                  .tokens = space->shape.group,
                                  .heads = space->heads,
                                  .row_bytes = kvd_space_row_bytes(space)};
    status = kvd_tensor_resolve(tensor, &work->args.blocks.layout,
                                work->request.header.payload_bytes - table, text, sizeof text);
    tensor->k += table;
    tensor->v += table;
    return status == KVARN_OK ? status : kvd_work_fail(work, status, "%s", text);
}

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVW_PUT_ROW_BYTES, false);
    uint64_t count = work->args.blocks.block_count;
    struct kvd_tensor tensor;

    if (status == KVARN_OK)
        status = resolve(work, &tensor);
    if (status != KVARN_OK)
        return status;
    kvd_work_need(work, count * KVW_BLOCK_STATUS_BYTES);
    kvd_work_need(work, kvd_job_size(count, sizeof(struct kvd_put), 0));
    return KVARN_OK;
}

/* The table of put rows; the shape of each is checked here, so that one bad row fails alone. */
static bool load(struct kvd_work *work)
{
    uint32_t count = work->args.blocks.block_count;

    work->items = kvd_work_memory(work, count, sizeof *work->items);
    if (!work->items) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory for a table of %u blocks now", count);
        return false;
    }
    work->item_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct kvd_item *item = &work->items[i];
        struct kvw_put_row row;

        kvw_put_row_load(&row, work->request.payload + (size_t)i * KVW_PUT_ROW_BYTES);
        item->key = row.key;
        item->kind = row.kind;
        item->entry = KVD_NO_ENTRY;
        item->status = KVD_TODO;
        if (row.kind != KVARN_BLOCK_TILE && row.kind != KVARN_BLOCK_EXACT) {
            item->status = KVARN_INVALID_SHAPE;
            kvd_work_fail(work, KVARN_INVALID_SHAPE,
                          "block %u: kind = %u; must be 1 (TILE) or 2 (EXACT)", i, row.kind);
        } else if (row.tokens != work->space->shape.group) {
            item->status = KVARN_INVALID_SHAPE;
            kvd_work_fail(work, KVARN_INVALID_SHAPE,
                          "block %u: tokens = %u; a block of this space has %u", i, row.tokens,
                          work->space->shape.group);
        }
    }
    return true;
}

static void fill(struct kvd_work *work, uint32_t i, void *at)
{
    struct kvd_put *put = at;
    struct kvd_item *item = &work->items[i];
    struct kvd_tensor tensor;

    resolve(work, &tensor); /* cheap, and keeps no state between steps */
    put->k = kvd_work_place(work, work->request.payload + tensor.k + i * tensor.block_stride);
    put->v = kvd_work_place(work, work->request.payload + tensor.v + i * tensor.block_stride);
    put->strides = tensor.strides;
    put->slot = kvd_block_place(item->block);
    put->kind = item->kind;
}

static kvarn_status read(struct kvd_work *work, uint32_t i, const void *at, uint32_t *digest)
{
    struct kvd_put put;
    kvarn_status status;

    memcpy(&put, at, sizeof put);
    status = kvd_status_of(put.status);
    if (status == KVARN_NON_FINITE)
        kvd_items_fault(work, i, &put.fault);
    *digest = put.digest;
    return status;
}

static const struct kvd_fill compress_fill = {KVD_JOB_COMPRESS, sizeof(struct kvd_put), fill, read};

static void run(struct kvd_work *work)
{
    uint32_t count = work->args.blocks.block_count;

    work->reply_table = kvd_work_staging(work, (uint64_t)count * KVW_BLOCK_STATUS_BYTES);
    work->job = kvd_work_job(work, KVD_JOB_COMPRESS, count, sizeof(struct kvd_put), 0);
    if (!work->reply_table || !work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (load(work))
        kvd_items_store(work, &compress_fill);
}

const struct kvd_operation kvd_operation_compress = {begin, run, false, NULL};
