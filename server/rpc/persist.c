/* PERSIST: blocks that are to survive the daemon and the power. A block's answer is OK when its
 * bytes and its entry have been synced; from then on the disk's quota does not take it either: it
 * stays until DROP.
 *
 * An item is handed to the disk tier (entry 0) and comes back with its status, or as TODO when it
 * has to be looked at again. */
#include "server/rpc/items.h"
#include "server/rpc/tier.h"
#include "server/rpc/work.h"

enum { HANDED = 0 };

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVARN_KEY_BYTES, true);

    if (status != KVARN_OK)
        return status;
    if (!kvd_work_service(work)->tier)
        return kvd_work_fail(work, KVARN_UNSUPPORTED,
                             "this daemon has no disk; start it with --disk PATH:SIZE");
    kvd_work_need(work, (uint64_t)work->args.blocks.block_count * KVW_BLOCK_STATUS_BYTES);
    return KVARN_OK;
}

static void finish(struct kvd_work *work, kvarn_status rest)
{
    kvd_tier_detach(work);
    for (uint32_t i = 0; i < work->item_count; i++)
        if (work->items[i].status == KVD_TODO)
            work->items[i].status = (uint32_t)rest;
    kvd_items_finish(work);
}

static void step(struct kvd_work *work)
{
    bool waits = false;

    if (work->late || !work->request.conn) {
        finish(work, work->late ? KVARN_DEADLINE : KVARN_PEER_LOST);
        return;
    }
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        kvarn_status status;

        if (item->status == KVD_TODO && item->entry == KVD_NO_ENTRY) {
            status = kvd_tier_persist(work, i);
            if (status == KVARN_EXISTS)
                item->entry = HANDED;
            else if (status != KVARN_RETRY)
                item->status = (uint32_t)status;
        }
        waits = waits || item->status == KVD_TODO;
    }
    if (waits && kvd_work_wait(work, step, true) == KVARN_OK)
        return;
    finish(work, KVARN_RETRY);
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

        item->block = kvd_block_find(&service->blocks, work->space, &item->key);
        if (!item->block)
            continue;
        kvd_block_hold(&service->blocks, item->block);
        item->kind = item->block->kind;
        item->digest = item->block->digest;
    }
    step(work);
}

const struct kvd_operation kvd_operation_persist = {begin, run, false, NULL};
