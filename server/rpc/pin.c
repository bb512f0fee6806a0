/* PIN: blocks that stay until they are unpinned or dropped, whoever comes and goes. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVARN_KEY_BYTES, true);

    if (status == KVARN_OK)
        kvd_work_need(work, (uint64_t)work->args.blocks.block_count * KVW_BLOCK_STATUS_BYTES);
    return status;
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);

    work->reply_table =
        kvd_work_staging(work, (uint64_t)work->args.blocks.block_count * KVW_BLOCK_STATUS_BYTES);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!kvd_items_load(work))
        return;
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        struct kvd_block *block = kvd_block_find(&service->blocks, work->space, &item->key);

        item->status = KVARN_NOT_FOUND;
        if (!block)
            continue;
        item->kind = block->kind;
        item->digest = block->digest;
        item->status = KVARN_OK;
        if (work->args.blocks.unpin)
            kvd_block_unpin(&service->blocks, block);
        else
            item->status = (uint32_t)kvd_block_pin(&service->blocks, block);
        if (item->status == KVARN_QUOTA)
            kvd_work_fail(work, KVARN_QUOTA,
                          "block %u (key %s): this tenant may not pin more blocks; unpin some", i,
                          kvd_key_text(&item->key).text);
    }
    kvd_items_finish(work);
}

const struct kvd_operation kvd_operation_pin = {begin, run, false, NULL};
