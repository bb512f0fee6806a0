/* Steps of the operations on blocks. See items.h. */
#include "server/rpc/items.h"

#include <stdio.h>
#include <string.h>

#include "server/rpc/tier.h"
#include "server/rpc/work.h"
#include "server/store/index.h"
#include "server/store/pool.h"

enum { FOUND_AT_ONCE = 64 };

kvarn_status kvd_items_begin(struct kvd_work *work, const uint8_t *metadata, uint32_t least,
                             uint64_t row_bytes, bool exact)
{
    struct kvw_blocks *args = &work->args.blocks;
    const struct kvw_header *header = &work->request.header;
    const char *why = "";
    uint64_t table;
    kvarn_status status =
        kvw_blocks_decode(args, metadata, header->metadata_bytes, &work->arena, &why);

    if (status != KVARN_OK)
        return kvd_work_fail(work, status, "metadata: %s", why);
    work->space =
        kvd_space_find(&kvd_work_service(work)->spaces, work->request.tenant, args->space);
    if (!work->space && header->op == KVW_VERIFY && args->all && work->request.same_uid)
        work->space = kvd_space_find_any(&kvd_work_service(work)->spaces, args->space);
    if (!work->space)
        return kvd_work_no_space(work, args->space);
    work->space->pins++;
    if (args->block_count < least || args->block_count > KVW_BLOCKS_MAX)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "block_count = %u; must be %u to %d",
                             args->block_count, least, KVW_BLOCKS_MAX);
    table = args->block_count * row_bytes;
    if (header->payload_bytes < table || (exact && header->payload_bytes != table))
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "%u rows of %llu bytes are announced, the payload has %llu bytes",
                             args->block_count, (unsigned long long)row_bytes,
                             (unsigned long long)header->payload_bytes);
    return KVARN_OK;
}

bool kvd_items_load(struct kvd_work *work)
{
    uint32_t count = work->args.blocks.block_count;

    work->items = kvd_work_memory(work, count, sizeof *work->items);
    if (!work->items) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory for a table of %u blocks now", count);
        return false;
    }
    work->item_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct kvd_item *item = &work->items[i];

        memcpy(item->key.bytes, work->request.payload + (size_t)i * KVARN_KEY_BYTES,
               KVARN_KEY_BYTES);
        item->status = KVD_TODO;
        item->entry = KVD_NO_ENTRY;
    }
    return true;
}

void kvd_items_find(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvd_block *found[FOUND_AT_ONCE];

    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        uint32_t rest = work->item_count - i;
        struct kvd_block *block;

        if (i % FOUND_AT_ONCE == 0)
            kvd_block_find_many(&service->blocks, work->space, item->key.bytes, sizeof *item,
                                rest < FOUND_AT_ONCE ? rest : (uint32_t)FOUND_AT_ONCE, found);
        block = found[i % FOUND_AT_ONCE];
        if (!block) {
            item->status = KVARN_NOT_FOUND;
            work->space->misses++;
            continue;
        }
        kvd_block_hold(&service->blocks, block);
        work->space->hits++;
        item->block = block;
        item->kind = block->kind;
        item->digest = block->digest;
        item->status = KVARN_OK;
    }
    /* Only now: loading one may take the room of those that are not held. */
    for (uint32_t i = 0; service->tier && i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];

        if (item->status == KVARN_NOT_FOUND)
            item->status = (uint32_t)kvd_tier_fetch(service, work->space, &item->key);
    }
}

struct kvd_key_text kvd_key_text(const void *key)
{
    struct kvd_key_text out;
    const uint8_t *bytes = key;

    for (size_t i = 0; i < 8; i++)
        snprintf(out.text + 2 * i, 3, "%02x", bytes[i]);
    memcpy(out.text + 16, "...", 4);
    return out;
}

void kvd_items_fault(struct kvd_work *work, uint32_t i, const struct kvd_fault *fault)
{
    kvd_work_fail(work, KVARN_NON_FINITE,
                  "block %u (key %s): tensor %s holds NaN or infinity at layer %u, kv head %u, "
                  "token %u, channel %u; nothing of this block was stored",
                  i, kvd_key_text(&work->items[i].key).text, fault->tensor == 'v' ? "v" : "k",
                  fault->layer, fault->head, fault->token, fault->channel);
}

static void name_failure(struct kvd_work *work, uint32_t i)
{
    const struct kvd_item *item = &work->items[i];
    struct kvd_key_text key = kvd_key_text(&item->key);

    switch (item->status) {
    case KVARN_NOT_FOUND:
        kvd_work_fail(work, KVARN_NOT_FOUND, "block %u (key %s) is not stored", i, key.text);
        break;
    case KVARN_NO_SPACE:
        kvd_work_fail(
            work, KVARN_NO_SPACE,
            "block %u (key %s): the pool of %llu bytes is full and nothing of this tenant "
            "can be evicted; release sequences or leases, or give a larger pool",
            i, key.text, (unsigned long long)kvd_pool_capacity_bytes(work->space->pool));
        break;
    case KVARN_QUOTA:
        kvd_work_fail(
            work, KVARN_QUOTA,
            "block %u (key %s): this tenant has %llu bytes of the pool and may not have "
            "more now, and nothing of it can be evicted; release sequences or leases, or "
            "give it a larger quota",
            i, key.text,
            (unsigned long long)kvd_pool_tenant_bytes(work->space->pool, work->space->tenant));
        break;
    case KVARN_RETRY:
        kvd_work_fail(work, KVARN_RETRY,
                      "block %u (key %s) cannot be had now (it is being loaded from disk, or the "
                      "device is busy); ask again",
                      i, key.text);
        break;
    case KVARN_CORRUPT:
        kvd_work_fail(work, KVARN_CORRUPT,
                      "block %u (key %s): the digest does not match its bytes; it is not kept", i,
                      key.text);
        break;
    case KVARN_DEADLINE:
        kvd_work_fail(work, KVARN_DEADLINE,
                      "block %u (key %s) is still being stored by another request", i, key.text);
        break;
    default:
        kvd_work_fail(work, (kvarn_status)item->status, "block %u (key %s): %s", i, key.text,
                      kvarn_status_text((kvarn_status)item->status));
    }
}

void kvd_items_send(struct kvd_work *work, uint32_t table_rows)
{
    struct kvw_blocks_reply reply = {.block_count = table_rows, .device_ns = work->device_ns};
    uint32_t failed = UINT32_MAX;

    for (uint32_t i = 0; i < work->item_count; i++) {
        if (work->items[i].status <= KVARN_EXISTS)
            reply.matched++;
        else if (failed == UINT32_MAX)
            failed = i;
    }
    if (failed != UINT32_MAX) {
        /* A fault may have put its text first; the status told is that of the first block. */
        if ((uint32_t)work->request.status != work->items[failed].status)
            work->request.status = KVARN_OK;
        name_failure(work, failed);
    }
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

void kvd_items_table(struct kvd_work *work)
{
    for (uint32_t i = 0; i < work->item_count; i++) {
        const struct kvd_item *item = &work->items[i];
        struct kvw_block_status row = {.status = item->status,
                                       .kind = item->status <= KVARN_EXISTS ? item->kind : 0,
                                       .digest = item->status <= KVARN_EXISTS ? item->digest : 0};

        kvw_block_status_store(work->reply_table + (size_t)i * KVW_BLOCK_STATUS_BYTES, &row);
    }
}

void kvd_items_finish(struct kvd_work *work)
{
    kvd_items_table(work);
    kvd_work_iov(work, work->reply_table, (uint64_t)work->item_count * KVW_BLOCK_STATUS_BYTES);
    kvd_items_send(work, work->item_count);
}

/* ---- storing */

static void store_step(struct kvd_work *work);

static void store_done(struct kvd_work *work)
{
    const struct kvd_fill *fill = work->state;
    struct kvd_blocks *blocks = &kvd_work_service(work)->blocks;
    const uint8_t *entries = kvd_job_entries(work->job);

    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        kvarn_status status = work->job_status;

        if (item->entry == KVD_NO_ENTRY)
            continue;
        if (status == KVARN_OK)
            status = fill->read(work, i, entries + (uint64_t)item->entry * fill->entry_bytes,
                                &item->digest);
        item->entry = KVD_NO_ENTRY;
        item->status = (uint32_t)status;
        if (status == KVARN_OK) {
            kvd_block_publish(blocks, item->block, item->digest);
            work->space->stored++;
            continue;
        }
        kvd_block_release(blocks, item->block);
        item->block = NULL;
    }
    store_step(work);
}

/* Claims the key of item i: for the block that holds its bytes already, or for one that is taken
 * now. */
static kvarn_status claim(struct kvd_work *work, uint32_t i)
{
    struct kvd_blocks *blocks = &kvd_work_service(work)->blocks;
    struct kvd_item *item = &work->items[i];
    kvarn_status status;

    /* What stands on disk under this key is the first one, and comes back. */
    if (kvd_work_service(work)->tier && !kvd_index_find(&work->space->index, &item->key)) {
        status = kvd_tier_fetch(kvd_work_service(work), work->space, &item->key);
        if (status != KVARN_NOT_FOUND)
            return status;
    }
    if (!work->held_count)
        return kvd_block_claim(blocks, work->space, &item->key, item->kind, &item->block);
    status = kvd_block_name(blocks, work->held[i], &item->key, &item->block);
    if (status == KVARN_OK) {
        item->block = work->held[i];
        work->held[i] = NULL;
    }
    return status;
}

/* Claims what can be claimed; gives the number of entries, and whether keys are busy. */
static uint32_t claim_all(struct kvd_work *work, bool *busy)
{
    uint32_t entries = 0;

    *busy = false;
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        kvarn_status status;

        if (item->status != KVD_TODO)
            continue;
        status = claim(work, i);
        if (status == KVARN_RETRY) {
            *busy = true;
            continue;
        }
        if (status == KVARN_OK) {
            item->entry = (int32_t)entries++;
            continue;
        }
        item->status = (uint32_t)status;
        if (status != KVARN_EXISTS)
            continue;
        work->space->existed++;
        item->kind = item->block->kind;
        if (item->digest && item->digest != item->block->digest)
            kvd_work_service(work)->digest_differences++;
        item->digest = item->block->digest;
    }
    return entries;
}

static void give_up_rest(struct kvd_work *work, kvarn_status status)
{
    for (uint32_t i = 0; i < work->item_count; i++)
        if (work->items[i].status == KVD_TODO)
            work->items[i].status = (uint32_t)status;
}

static void store_step(struct kvd_work *work)
{
    const struct kvd_fill *fill = work->state;
    bool busy;
    uint32_t entries;

    if (work->late)
        give_up_rest(work, KVARN_DEADLINE);
    if (!work->request.conn)
        give_up_rest(work, KVARN_PEER_LOST);
    entries = claim_all(work, &busy);
    if (!entries) {
        if (busy && kvd_work_wait(work, store_step, true) == KVARN_OK)
            return;
        give_up_rest(work, KVARN_RETRY);
        kvd_items_finish(work);
        return;
    }
    work->job->count = entries;
    work->job->status = 0;
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        uint8_t *entry;

        if (item->entry == KVD_NO_ENTRY)
            continue;
        entry = (uint8_t *)kvd_job_entries(work->job) + (uint64_t)item->entry * fill->entry_bytes;
        memset(entry, 0, fill->entry_bytes);
        fill->fill(work, i, entry);
    }
    if (!kvd_work_submit(work, work->job, store_done))
        store_done(work); /* job_status says why it could not be queued */
}

void kvd_items_store(struct kvd_work *work, const struct kvd_fill *fill)
{
    work->state = (void *)(uintptr_t)fill;
    store_step(work);
}
