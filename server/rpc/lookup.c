/* LOOKUP: which keys are stored, and a lease on the longest run of them. For a rank of a group the
 * run is that of the whole group (agree.h). */
#include "server/rpc/items.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 0, KVARN_KEY_BYTES, true);

    const struct kvw_blocks *args = &work->args.blocks;

    if (status == KVARN_OK && args->group &&
        (!args->lease_ms || args->ranks < 1 || args->ranks > KVD_RANKS_MAX))
        return kvd_work_fail(
            work, KVARN_INVALID_SHAPE,
            "group %llu: lease_ms = %u, ranks = %u; a group has 1 to %d ranks, and "
            "its blocks are held for some time",
            (unsigned long long)args->group, args->lease_ms, args->ranks, KVD_RANKS_MAX);
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

static kvarn_status agree(struct kvd_work *work, struct kvw_blocks_reply *reply)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvw_blocks *args = &work->args.blocks;
    uint32_t ms = args->lease_ms < KVD_LEASE_MAX_MS ? args->lease_ms : (uint32_t)KVD_LEASE_MAX_MS;
    const struct kvd_agree_question question = {
        .space = work->space,
        .conn = work->request.conn_id,
        .group = args->group,
        .expires_ns = kvd_service_now(service) + (uint64_t)ms * 1000000u,
        .keys = work->request.payload,
        .count = args->block_count,
        .ranks = args->ranks,
        .room = kvd_work_memory(work, args->block_count, sizeof(struct kvd_block *))};
    kvarn_status status;

    if (!question.room)
        return kvd_work_fail(work, KVARN_RETRY, "no memory for a table of %u blocks now",
                             args->block_count);
    status = kvd_agree(&service->agreements, &service->spaces, &service->blocks, &service->leases,
                       &question, &reply->matched, &reply->lease);
    if (status != KVARN_OK)
        return kvd_work_fail(work, status, "group %llu: %s", (unsigned long long)args->group,
                             status == KVARN_INVALID_SHAPE
                                 ? "its other ranks asked for other keys, or are other shards; "
                                   "give every look-up a number of its own"
                             : status == KVARN_STALE         ? "this rank has had its answer"
                             : status == KVARN_LEASE_EXPIRED ? "what was held for this rank ran out"
                                                             : kvarn_status_text(status));
    reply->lease_ms = reply->lease ? ms : 0;
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
    if (work->args.blocks.group && agree(work, &reply)) {
        kvd_work_refuse_kept(work);
        return;
    }
    if (!work->args.blocks.group && work->args.blocks.lease_ms && reply.matched &&
        lease(work, &reply, reply.matched)) {
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
