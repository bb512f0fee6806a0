/* VERIFY: digests of stored blocks, computed again. A block that does not match leaves the index at
 * once and is not served any more, not even to sequences that hold it.
 *
 * `all` walks the descriptors of the space in steps, so that neither the job nor the references
 * grow with the pool; its reply has no table. With a limit it ends after so many, and the reply's
 * cursor says where the next call goes on: that is the progress of a long scrub. The daemon's own
 * user may walk any tenant's space: nothing but counts leaves it. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

#include <string.h>

struct walk {
    uint64_t next, end; /* ids of the next descriptor and of the first that is not looked at */
    uint32_t fine, bad;
};

static uint32_t step_of(const struct kvd_work *work)
{
    return work->args.blocks.all ? KVD_VERIFY_STEP : work->args.blocks.block_count;
}

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 0, KVARN_KEY_BYTES, true);
    uint64_t count;

    if (status != KVARN_OK)
        return status;
    count = step_of(work);
    kvd_work_need(work, count * KVW_BLOCK_STATUS_BYTES);
    kvd_work_need(work, kvd_job_size(count, sizeof(struct kvd_copy), 0));
    return KVARN_OK;
}

static void plan(struct kvd_work *work)
{
    struct kvd_copy *entries = kvd_job_entries(work->job);

    work->entry_count = 0;
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];

        item->entry = KVD_NO_ENTRY;
        if (!item->block)
            continue;
        item->entry = (int32_t)work->entry_count++;
        entries[item->entry] =
            (struct kvd_copy){.src = kvd_block_place(item->block),
                              .bytes = kvd_space_slot_bytes(work->space, item->kind),
                              .digest = item->block->digest,
                              .check = KVD_CHECK_DIGEST,
                              .kind = item->kind};
    }
    work->job->count = work->entry_count;
}

/* Results of the job into the items; what does not match is put away. */
static void judge(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvd_copy *entries = kvd_job_entries(work->job);

    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        struct kvd_copy copy;

        if (item->entry == KVD_NO_ENTRY)
            continue;
        memcpy(&copy, &entries[item->entry], sizeof copy);
        item->status = (uint32_t)(work->job_status != KVARN_OK ? work->job_status
                                                               : kvd_status_of(copy.status));
        if (item->status == KVARN_OK && copy.digest != item->block->digest)
            item->status = KVARN_CORRUPT;
        if (item->status != KVARN_CORRUPT)
            continue;
        service->integrity_failures++;
        kvd_block_condemn(&service->blocks, item->block);
    }
}

static void keys_done(struct kvd_work *work)
{
    judge(work);
    kvd_items_finish(work);
}

static void run_keys(struct kvd_work *work)
{
    if (!kvd_items_load(work))
        return;
    kvd_items_find(work);
    plan(work);
    if (!work->entry_count)
        kvd_items_finish(work);
    else if (!kvd_work_submit(work, work->job, keys_done))
        kvd_work_refuse_unqueued(work);
}

static void walk_step(struct kvd_work *work);

static void walk_done(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct walk *walk = work->state;

    judge(work);
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];

        if (item->status == KVARN_OK) {
            walk->fine++;
        } else if (item->status == KVARN_CORRUPT && !walk->bad++) {
            kvd_work_fail(work, KVARN_CORRUPT,
                          "block with key %s: the digest does not match its bytes; it was removed",
                          kvd_key_text(&item->key).text);
        }
        kvd_block_release(&service->blocks, item->block);
        item->block = NULL;
    }
    work->item_count = 0;
    if (work->job_status != KVARN_OK)
        kvd_work_refuse(work, work->job_status, "%s", kvarn_status_text(work->job_status));
    else if (work->request.deadline_ns && kvd_service_now(service) >= work->request.deadline_ns)
        kvd_work_refuse(work, KVARN_DEADLINE, "the deadline passed after %u blocks",
                        walk->fine + walk->bad);
    else
        walk_step(work);
}

static void walk_step(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct walk *walk = work->state;
    struct kvw_blocks_reply reply = {.device_ns = work->device_ns};
    struct kvd_block *block;

    while (work->item_count < KVD_VERIFY_STEP && walk->next < walk->end &&
           walk->next < service->blocks.made) {
        block = kvd_block_at(&service->blocks, (uint32_t)walk->next++);
        if (block->state != KVD_BLOCK_READY || block->space != work->space || !block->indexed)
            continue;
        kvd_block_hold(&service->blocks, block);
        work->items[work->item_count++] = (struct kvd_item){
            .key = block->key, .block = block, .kind = block->kind, .status = KVD_TODO};
    }
    if (work->item_count && work->request.conn) {
        plan(work);
        if (!kvd_work_submit(work, work->job, walk_done))
            kvd_work_refuse_unqueued(work);
        return;
    }
    reply.matched = walk->fine;
    reply.total = service->blocks.made;
    reply.cursor = walk->next < reply.total ? walk->next : 0;
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

static void walk_from(struct kvd_work *work)
{
    struct walk *walk = work->state;

    walk->next = work->args.blocks.cursor;
    walk->end = work->args.blocks.limit ? walk->next + work->args.blocks.limit : UINT64_MAX;
    walk_step(work);
}

static void run(struct kvd_work *work)
{
    uint32_t count = step_of(work);

    work->reply_table = kvd_work_staging(work, (uint64_t)count * KVW_BLOCK_STATUS_BYTES);
    work->job = kvd_work_job(work, KVD_JOB_DIGEST, count, sizeof(struct kvd_copy), 0);
    if (!work->reply_table || !work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!work->args.blocks.all) {
        run_keys(work);
        return;
    }
    work->state = kvd_work_memory(work, 1, sizeof(struct walk));
    work->items = kvd_work_memory(work, count, sizeof *work->items);
    if (!work->state || !work->items)
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
    else
        walk_from(work);
}

const struct kvd_operation kvd_operation_verify = {begin, run, false, NULL};
