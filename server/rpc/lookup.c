/* LOOKUP: which keys are stored, and a lease on the longest run of them. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 0, KVARN_KEY_BYTES, true);

    if (status == KVARN_OK)
        kvd_work_need(work, (uint64_t)work->args.blocks.block_count * KVW_BLOCK_STATUS_BYTES);
    return status;
}

/* A lease over the first `run` blocks. */
static kvarn_status lease(struct kvd_work *work, struct kvw_blocks_reply *reply, uint32_t run)
{
    struct kvd_service *service = kvd_work_service(work);
    uint32_t ms = work->args.blocks.lease_ms;
    struct kvd_block **held = kvd_work_memory(work, run, sizeof(struct kvd_block *));
    kvarn_status status;

    if (ms > KVD_LEASE_MAX_MS)
        ms = KVD_LEASE_MAX_MS;
    if (!held)
        return kvd_work_fail(work, KVARN_RETRY, "no memory for a lease of %u blocks now", run);
    for (uint32_t i = 0; i < run; i++)
        held[i] = work->items[i].block;
    status =
        kvd_lease_new(&service->leases, work->request.conn_id, work->request.tenant,
                      kvd_service_now(service) + (uint64_t)ms * 1000000u, held, run, &reply->lease);
    if (status != KVARN_OK)
        return kvd_work_fail(work, status,
                             "%u leases over %llu blocks are held, no more are given %s; release "
                             "some or let them run out",
                             service->leases.count, (unsigned long long)service->leases.blocks_held,
                             status == KVARN_QUOTA ? "to this tenant" : "now");
    reply->lease_ms = ms;
    work->lease = reply->lease;
    return KVARN_OK;
}

static void run(struct kvd_work *work)
{
    uint32_t count = work->args.blocks.block_count;
    struct kvw_blocks_reply reply = {.block_count = count};

    work->reply_table = kvd_work_staging(work, (uint64_t)count * KVW_BLOCK_STATUS_BYTES);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!kvd_items_load(work))
        return;
    kvd_items_find(work);
    while (reply.matched < count && work->items[reply.matched].status == KVARN_OK)
        reply.matched++;
    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_item *item = &work->items[i];
        struct kvw_block_status row = {item->status, item->kind, item->digest, 0};

        kvw_block_status_store(work->reply_table + (size_t)i * KVW_BLOCK_STATUS_BYTES, &row);
    }
    if (work->args.blocks.lease_ms && reply.matched && lease(work, &reply, reply.matched)) {
        kvd_work_refuse_kept(work);
        return;
    }
    kvd_work_iov(work, work->reply_table, (uint64_t)count * KVW_BLOCK_STATUS_BYTES);
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

static void undo(struct kvd_work *work)
{
    if (work->lease)
        kvd_lease_release(&kvd_work_service(work)->leases, work->request.conn_id, work->lease);
}

const struct kvd_operation kvd_operation_lookup = {begin, run, false, undo};
