/* EXPORT: bytes of blocks. Out of a pool that is mapped here nothing is copied: the reply's iovecs
 * point at the slots, which are referenced until the last byte is sent. A GPU's worker first copies
 * the blocks to staging, in canonical order, and checks them on the way: one that does not match
 * its digest is not given out and not served any more. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

#include <string.h>

/* One iovec is the table's. */
enum { KVD_EXPORT_MAX = KVD_REPLY_IOVECS_MAX - 1 };

static bool mapped(const struct kvd_work *work)
{
    return kvd_device_pool(kvd_work_device(work)) != NULL;
}

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVARN_KEY_BYTES, true);
    uint64_t most = kvd_work_service(work)->options.payload_max_bytes;
    uint32_t count = work->args.blocks.block_count;

    if (status != KVARN_OK)
        return status;
    if (count > KVD_EXPORT_MAX)
        return kvd_work_fail(work, KVARN_TOO_LARGE,
                             "block_count = %u; one EXPORT gives at most %d blocks", count,
                             KVD_EXPORT_MAX);
    kvd_work_need(work, (uint64_t)count * KVW_PUT_ROW_BYTES);
    if (mapped(work))
        return KVARN_OK;
    kvd_work_need(work, kvd_job_size(count, sizeof(struct kvd_copy), 0));
    /* If all of them are tiles; what more there is to copy is taken when it is known. */
    if (count * work->space->tile_bytes <= most)
        kvd_work_need(work, count * work->space->tile_bytes);
    return KVARN_OK;
}

static void put_row(struct kvd_work *work, uint32_t i)
{
    const struct kvd_item *item = &work->items[i];
    struct kvw_put_row row = {.key = item->key};

    if (item->block) {
        row.kind = item->kind;
        row.tokens = work->space->shape.group;
        row.bytes = kvd_space_slot_bytes(work->space, item->kind);
        row.digest = item->digest;
    }
    kvw_put_row_store(work->reply_table + (size_t)i * KVW_PUT_ROW_BYTES, &row);
}

/* Rows and bytes of the blocks that there are; `copies`: where they stand, NULL = in the pool. */
static void send(struct kvd_work *work, uint8_t *copies)
{
    uint32_t count = work->item_count;
    uint8_t *pool = kvd_device_pool(kvd_work_device(work));

    kvd_work_iov(work, work->reply_table, (uint64_t)count * KVW_PUT_ROW_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_item *item = &work->items[i];

        put_row(work, i);
        if (item->block)
            kvd_work_iov(work, copies ? copies + item->source : pool + item->block->offset,
                         kvd_space_slot_bytes(work->space, item->kind));
    }
    kvd_items_send(work, count);
}

static void copied(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvd_copy *entries = kvd_job_entries(work->job);

    if (work->job_status != KVARN_OK) {
        kvd_work_refuse(work, work->job_status, "%s", kvarn_status_text(work->job_status));
        return;
    }
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        struct kvd_copy copy;

        if (item->entry == KVD_NO_ENTRY)
            continue;
        memcpy(&copy, &entries[item->entry], sizeof copy);
        item->status = (uint32_t)kvd_status_of(copy.status);
        if (item->status == KVARN_OK)
            continue;
        if (item->status == KVARN_CORRUPT) {
            service->integrity_failures++;
            kvd_block_condemn(&service->blocks, item->block);
        }
        kvd_block_release(&service->blocks, item->block);
        item->block = NULL;
    }
    send(work, work->state);
}

/* Has the blocks copied to staging; item->source says where in it. */
static void copy(struct kvd_work *work, uint64_t bytes)
{
    uint8_t *copies = kvd_work_staging(work, bytes);
    struct kvd_copy *entries;
    uint64_t at = 0;

    work->entry_count = 0;
    work->state = copies;
    work->job = kvd_work_job(work, KVD_JOB_COPY, work->item_count, sizeof(struct kvd_copy), 0);
    if (!copies || !work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    entries = kvd_job_entries(work->job);
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];

        if (!item->block)
            continue;
        item->entry = (int32_t)work->entry_count++;
        item->source = at;
        entries[item->entry] =
            (struct kvd_copy){.dst = kvd_work_place(work, copies + at),
                              .src = kvd_block_place(item->block),
                              .bytes = kvd_space_slot_bytes(work->space, item->kind),
                              .digest = item->digest,
                              .check = KVD_CHECK_DIGEST,
                              .kind = item->kind};
        at += entries[item->entry].bytes;
    }
    work->job->count = work->entry_count;
    if (!kvd_work_submit(work, work->job, copied))
        kvd_work_refuse_unqueued(work);
}

static void run(struct kvd_work *work)
{
    uint64_t table = (uint64_t)work->args.blocks.block_count * KVW_PUT_ROW_BYTES, bytes = 0;
    uint64_t most = kvd_work_service(work)->options.payload_max_bytes;

    work->reply_table = kvd_work_staging(work, table);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!kvd_items_load(work))
        return;
    kvd_items_find(work);
    for (uint32_t i = 0; i < work->item_count; i++)
        if (work->items[i].block)
            bytes += kvd_space_slot_bytes(work->space, work->items[i].kind);
    if (table + bytes > most)
        kvd_work_refuse(work, KVARN_TOO_LARGE,
                        "the blocks take %llu bytes, a reply has at most %llu; export fewer at "
                        "once",
                        (unsigned long long)table + bytes, (unsigned long long)most);
    else if (bytes == 0 || mapped(work))
        send(work, NULL);
    else
        copy(work, bytes);
}

const struct kvd_operation kvd_operation_export = {begin, run, false, NULL};
