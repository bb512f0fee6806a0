/* DROP: keys off the index and off the disk. Who reads a block keeps its bytes until it is done
 * with them. */
#include "server/rpc/items.h"
#include "server/rpc/tier.h"
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

        bool on_disk = kvd_tier_drop(service, work->space, &item->key);

        item->status = block || on_disk ? KVARN_OK : KVARN_NOT_FOUND;
        if (on_disk && !block)
            service->blocks_dropped++;
        if (!block)
            continue;
        item->kind = block->kind;
        item->digest = block->digest;
        kvd_block_drop(&service->blocks, block);
        service->blocks_dropped++;
    }
    kvd_items_finish(work);
}

const struct kvd_operation kvd_operation_drop = {begin, run, false, NULL};
