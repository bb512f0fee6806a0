/* RESET: the model's weights changed, nothing computed with the old ones may be found again.
 *
 * All spaces of the model in this tenant, of whichever shard, are stale at once, and the next
 * OPEN_SPACE gives a space of the next epoch. The old blocks are dropped step by step, with the
 * ticks; those that are being read stay until that is done. */
#include "server/rpc/items.h"
#include "server/rpc/tier.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    return kvd_items_begin(work, metadata, 0, KVARN_KEY_BYTES, true);
}

struct reset {
    uint64_t matched;
};

/* With a disk the answer waits until the new epoch stands there. item_count stays 0: the item holds
 * no block, it is where the disk tier puts the outcome. */
static void write_down(struct kvd_work *work)
{
    const struct reset *state = work->state;
    struct kvw_blocks_reply reply = {.matched = (uint32_t)state->matched};
    struct kvd_item *item = &work->items[0];
    kvarn_status status = KVARN_EXISTS;

    if (item->status == KVD_TODO && item->entry == KVD_NO_ENTRY)
        status = kvd_tier_epochs(work);
    if (status == KVARN_EXISTS)
        item->entry = 0;
    else if (status != KVARN_RETRY)
        item->status = (uint32_t)status;
    if (item->status == KVD_TODO && !work->late && work->request.conn &&
        kvd_work_wait(work, write_down, true) == KVARN_OK)
        return;
    kvd_tier_detach(work);
    if (item->status != KVARN_OK) {
        kvd_work_refuse(work, work->late ? KVARN_DEADLINE : KVARN_INTERNAL,
                        "the model was reset, but that does not stand on disk, so blocks of before "
                        "may be found again by the next daemon; reset it once more");
        return;
    }
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct reset *state = kvd_work_memory(work, 1, sizeof *state);
    uint64_t matched = 0;
    bool before[KVD_SPACES_MAX];

    work->items = kvd_work_memory(work, 1, sizeof *work->items);
    if (!state || !work->items) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
        return;
    }
    work->state = state;
    work->items[0] = (struct kvd_item){.status = KVD_TODO, .entry = KVD_NO_ENTRY};
    for (uint32_t i = 0; i < KVD_SPACES_MAX; i++)
        before[i] = service->spaces.slots[i].reset;
    if (kvd_space_reset(&service->spaces, work->space) != KVARN_OK) {
        kvd_work_refuse(work, KVARN_NO_SPACE,
                        "nothing was reset: %u models that were reset before still have open "
                        "spaces or blocks on disk, and no more can be kept account of; drop all "
                        "blocks of one of them and start the daemon again",
                        kvd_epochs_limit(service->spaces.epochs));
        return;
    }
    for (uint32_t i = 0; i < KVD_SPACES_MAX; i++) {
        const struct kvd_space *space = &service->spaces.slots[i];

        if (!space->used || !space->reset || before[i])
            continue;
        kvd_events_add(&service->events, space->tenant,
                       &(struct kvw_event_row){.space = space->handle, .type = KVW_EVENT_CLEARED});
        kvd_sequences_space_gone(&service->sequences, space);
        kvd_tier_forget(service, &service->spaces.slots[i], true);
        matched++;
    }
    service->sweep_end = service->blocks.made;
    service->sweep_at = 0;
    state->matched = matched;
    write_down(work);
}

const struct kvd_operation kvd_operation_reset = {begin, run, false, NULL};

void kvd_service_sweep(struct kvd_service *service)
{
    for (uint32_t looked = 0; looked < KVD_WALK_STEP && service->sweep_at < service->sweep_end;
         looked++) {
        struct kvd_block *block = kvd_block_at(&service->blocks, service->sweep_at++);

        if (block->state == KVD_BLOCK_READY && block->indexed && block->space->reset) {
            kvd_block_drop(&service->blocks, block);
            service->blocks_dropped++;
        }
    }
}
