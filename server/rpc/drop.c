/* DROP: keys off the index and off the disk. Who reads a block keeps its bytes until it is done
 * with them.
 *
 * `all` drops every block of the space that is not pinned, in steps of one call each: the reply's
 * cursor says where the next one goes on. With the last step the disk forgets the space. */
#include "server/rpc/items.h"
#include "server/rpc/tier.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 0, KVARN_KEY_BYTES, true);

    if (status == KVARN_OK && !work->args.blocks.block_count == !work->args.blocks.all)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "block_count = %u; must be 1 to %d, or 0 with all",
                             work->args.blocks.block_count, KVW_BLOCKS_MAX);
    if (status == KVARN_OK)
        kvd_work_need(work, (uint64_t)work->args.blocks.block_count * KVW_BLOCK_STATUS_BYTES);
    return status;
}

static void run_all(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    uint32_t limit = work->args.blocks.limit, made = service->blocks.made;
    struct kvw_blocks_reply reply = {.total = made};
    uint64_t at = work->args.blocks.cursor, end;

    end = at + (limit && limit < KVD_WALK_STEP ? limit : (uint32_t)KVD_WALK_STEP);
    for (; at < end && at < made; at++) {
        struct kvd_block *block = kvd_block_at(&service->blocks, (uint32_t)at);

        if (block->state != KVD_BLOCK_READY || block->space != work->space || !block->indexed ||
            block->pinned)
            continue;
        kvd_block_drop(&service->blocks, block);
        service->blocks_dropped++;
        reply.matched++;
    }
    reply.cursor = at < made ? at : 0;
    if (!reply.cursor)
        kvd_tier_forget(service, work->space, false);
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);

    if (work->args.blocks.all) {
        run_all(work);
        return;
    }
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
