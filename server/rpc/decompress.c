/* DECOMPRESS: blocks by key -> dense rows. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

#include <string.h>

/* Bytes of one block's K rows in one layer. */
static uint64_t plane(const struct kvd_work *work)
{
    return kvd_space_row_bytes(work->space) * work->space->heads * work->space->shape.group;
}

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVARN_KEY_BYTES, true);
    struct kvw_blocks *args = &work->args.blocks;
    uint64_t reply, most = kvd_work_service(work)->options.payload_max_bytes;

    if (status != KVARN_OK)
        return status;
    if (!args->layer_count && args->layer_begin < work->space->layers)
        args->layer_count = work->space->layers - args->layer_begin;
    if (!args->layer_count || (uint64_t)args->layer_begin + args->layer_count > work->space->layers)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "layers [%u, +%u) are outside the shard's %u", args->layer_begin,
                             args->layer_count, work->space->layers);
    /* plane <= 64 MiB, 1024 layers, 4096 blocks: below 2^59 */
    reply = (KVW_BLOCK_STATUS_BYTES + 2 * plane(work) * args->layer_count) * args->block_count;
    if (reply > most)
        return kvd_work_fail(work, KVARN_TOO_LARGE,
                             "the answer for %u blocks and %u layers takes %llu bytes, a reply has "
                             "at most %llu; ask for fewer blocks or layers at once",
                             args->block_count, args->layer_count, (unsigned long long)reply,
                             (unsigned long long)most);
    kvd_work_need(work, reply);
    kvd_work_need(work, kvd_job_size(args->block_count, sizeof(struct kvd_get), 0));
    return KVARN_OK;
}

/* Where the rows of block i stand in the reply, in the first layer; gives the way to the next one.
 */
static uint64_t rows_of(const struct kvd_work *work, uint32_t i, uint8_t **k, uint8_t **v)
{
    const struct kvw_blocks *args = &work->args.blocks;
    uint64_t layer_stride = plane(work) * args->block_count;

    *k = work->reply_table + (uint64_t)args->block_count * KVW_BLOCK_STATUS_BYTES + i * plane(work);
    *v = *k + layer_stride * args->layer_count;
    return layer_stride;
}

/* The rows of a block that is missing or failed read as zero, never as what the memory held. */
static void clear(struct kvd_work *work, uint32_t i)
{
    uint8_t *k, *v;
    uint64_t layer_stride = rows_of(work, i, &k, &v);

    for (uint32_t layer = 0; layer < work->args.blocks.layer_count; layer++) {
        memset(k + layer * layer_stride, 0, plane(work));
        memset(v + layer * layer_stride, 0, plane(work));
    }
}

static void done(struct kvd_work *work)
{
    const struct kvd_get *entries = kvd_job_entries(work->job);
    const struct kvw_blocks *args = &work->args.blocks;
    uint64_t rows = 2 * plane(work) * args->layer_count * args->block_count;

    if (work->job_status != KVARN_OK) {
        kvd_work_refuse(work, work->job_status, "%s", kvarn_status_text(work->job_status));
        return;
    }
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];

        if (item->entry == KVD_NO_ENTRY)
            continue;
        item->status = (uint32_t)kvd_status_of(entries[item->entry].status);
        if (item->status != KVARN_OK)
            clear(work, i);
    }
    kvd_work_iov(work, work->reply_table, work->item_count * (uint64_t)KVW_BLOCK_STATUS_BYTES);
    kvd_work_iov(work, work->reply_table + work->item_count * (uint64_t)KVW_BLOCK_STATUS_BYTES,
                 rows);
    kvd_items_table(work);
    kvd_items_send(work, work->item_count);
}

static uint32_t plan(struct kvd_work *work)
{
    struct kvd_get *entries = kvd_job_entries(work->job);
    uint64_t row = kvd_space_row_bytes(work->space);
    struct kvd_strides strides = {0, row * work->space->heads, row};
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        uint8_t *k, *v;

        if (item->status != KVARN_OK) {
            clear(work, i);
            continue;
        }
        strides.layer = rows_of(work, i, &k, &v);
        item->entry = (int32_t)count;
        entries[count++] = (struct kvd_get){.slot = kvd_block_place(item->block),
                                            .kind = item->kind,
                                            .k = kvd_work_place(work, k),
                                            .v = kvd_work_place(work, v),
                                            .strides = strides};
    }
    return count;
}

static void run(struct kvd_work *work)
{
    const struct kvw_blocks *args = &work->args.blocks;
    uint64_t rows = 2 * plane(work) * args->layer_count * args->block_count;

    work->reply_table =
        kvd_work_staging(work, (uint64_t)args->block_count * KVW_BLOCK_STATUS_BYTES + rows);
    work->job =
        kvd_work_job(work, KVD_JOB_DECOMPRESS, args->block_count, sizeof(struct kvd_get), 0);
    if (!work->reply_table || !work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!kvd_items_load(work))
        return;
    kvd_items_find(work);
    work->job->layer_begin = args->layer_begin;
    work->job->layer_count = args->layer_count;
    work->job->count = work->entry_count = plan(work);
    if (!work->entry_count) {
        work->job_status = KVARN_OK;
        done(work);
    } else if (!kvd_work_submit(work, work->job, done)) {
        kvd_work_refuse_unqueued(work);
    }
}

const struct kvd_operation kvd_operation_decompress = {begin, run, false, NULL};
