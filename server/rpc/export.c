/* EXPORT: bytes of blocks, straight out of the pool. Nothing is copied: the reply's iovecs point at
 * the slots, which are referenced until the last byte is sent. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

/* One iovec is the table's. */
enum { KVD_EXPORT_MAX = KVD_REPLY_IOVECS_MAX - 1 };

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVARN_KEY_BYTES, true);
    uint32_t count = work->args.blocks.block_count;

    if (status != KVARN_OK)
        return status;
    if (count > KVD_EXPORT_MAX)
        return kvd_work_fail(work, KVARN_TOO_LARGE,
                             "block_count = %u; one EXPORT gives at most %d blocks", count,
                             KVD_EXPORT_MAX);
    kvd_work_need(work, (uint64_t)count * KVW_PUT_ROW_BYTES);
    return KVARN_OK;
}

static void run(struct kvd_work *work)
{
    uint32_t count = work->args.blocks.block_count;
    uint8_t *pool = kvd_device_pool(kvd_work_service(work)->device);
    uint64_t total = (uint64_t)count * KVW_PUT_ROW_BYTES;
    uint64_t most = kvd_work_service(work)->options.payload_max_bytes;

    work->reply_table = kvd_work_staging(work, total);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!kvd_items_load(work))
        return;
    kvd_items_find(work);
    kvd_work_iov(work, work->reply_table, total);
    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_item *item = &work->items[i];
        struct kvw_put_row row = {.key = item->key};

        if (item->block) {
            row.kind = item->kind;
            row.tokens = work->space->shape.group;
            row.bytes = kvd_space_slot_bytes(work->space, item->kind);
            row.digest = item->digest;
            kvd_work_iov(work, pool + item->block->offset, row.bytes);
            total += row.bytes;
        }
        kvw_put_row_store(work->reply_table + (size_t)i * KVW_PUT_ROW_BYTES, &row);
    }
    if (total > most) {
        kvd_work_refuse(work, KVARN_TOO_LARGE,
                        "the blocks take %llu bytes, a reply has at most %llu; export fewer at "
                        "once",
                        (unsigned long long)total, (unsigned long long)most);
        return;
    }
    kvd_items_send(work, count);
}

const struct kvd_operation kvd_operation_export = {begin, run, false, NULL};
