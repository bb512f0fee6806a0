/* IMPORT: bytes that EXPORT gave -> blocks. When all of them are tiles, which the payload's length
 * tells, and the pool is mapped here, the slots are taken before the payload comes and its bytes
 * are read straight into them; the worker then only checks the digests. Otherwise they land in
 * staging and the worker copies them, checking on the way. A block whose digest does not match is
 * not kept. */
#include "server/rpc/items.h"
#include "server/rpc/work.h"
#include "server/store/pool.h"

#include <string.h>

/* Takes a slot for every block. When there are not enough, none: the blocks then find their room
 * one by one, after those that exist already are known. */
static void hold_slots(struct kvd_work *work, uint32_t count)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvd_space *space = work->space;
    const struct kvd_pool *pool = space->pool;
    uint64_t bytes = (uint64_t)count * space->tile_bytes;

    if (bytes > kvd_pool_capacity_bytes(pool) - kvd_pool_used_bytes(pool))
        return;
    work->held = kvd_work_memory(work, count, sizeof(struct kvd_block *));
    for (uint32_t i = 0; work->held && i < count; i++) {
        if (kvd_block_take(&service->blocks, work->space, KVARN_BLOCK_TILE, &work->held[i]) !=
            KVARN_OK) {
            kvd_work_release_held(work);
            return;
        }
        work->held_count = i + 1;
    }
}

/* Bytes of another model, preset or shard may have the right sizes and digests; only this tells
 * them apart. */
static kvarn_status check_origin(struct kvd_work *work)
{
    const struct kvw_origin *origin = &work->args.blocks.origin;
    const struct kvd_space *space = work->space;

    if (!origin->present)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "origin is missing: send the fingerprint and shard of the space that "
                             "exported the blocks");
    if (memcmp(origin->fingerprint, space->fingerprint, sizeof space->fingerprint) != 0)
        return kvd_work_fail(work, KVARN_FINGERPRINT_MISMATCH,
                             "the blocks are of fingerprint %s, this space is %s: import into a "
                             "space opened with the exporter's parameters",
                             kvd_key_text(origin->fingerprint).text,
                             kvd_key_text(space->fingerprint).text);
    if (origin->layer_begin != space->layer_begin || origin->layer_count != space->layers ||
        origin->head_begin != space->head_begin || origin->head_count != space->heads)
        return kvd_work_fail(work, KVARN_FINGERPRINT_MISMATCH,
                             "the blocks are of layers %u+%u, kv heads %u+%u; this space holds "
                             "layers %u+%u, kv heads %u+%u",
                             origin->layer_begin, origin->layer_count, origin->head_begin,
                             origin->head_count, space->layer_begin, space->layers,
                             space->head_begin, space->heads);
    return KVARN_OK;
}

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 1, KVW_PUT_ROW_BYTES, false);
    uint64_t count = work->args.blocks.block_count;

    if (status == KVARN_OK)
        status = check_origin(work);
    if (status != KVARN_OK)
        return status;
    kvd_work_need(work, count * KVW_BLOCK_STATUS_BYTES);
    kvd_work_need(work, kvd_job_size(count, sizeof(struct kvd_copy), 0));
    if (kvd_device_pool(kvd_work_device(work)) != NULL &&
        work->request.header.payload_bytes == count * (KVW_PUT_ROW_BYTES + work->space->tile_bytes))
        hold_slots(work, (uint32_t)count);
    return KVARN_OK;
}

/* Sizes must be right in every row: else nobody knows where the next block's bytes begin. */
static bool load(struct kvd_work *work)
{
    uint32_t count = work->args.blocks.block_count;
    const struct kvd_space *space = work->space;
    uint64_t at = (uint64_t)count * KVW_PUT_ROW_BYTES;
    uint64_t end = work->request.header.payload_bytes;

    work->items = kvd_work_memory(work, count, sizeof *work->items);
    if (!work->items) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory for a table of %u blocks now", count);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct kvd_item *item = &work->items[i];
        struct kvw_put_row row;

        kvw_put_row_load(&row, work->request.payload + (size_t)i * KVW_PUT_ROW_BYTES);
        if ((row.kind != KVARN_BLOCK_TILE && row.kind != KVARN_BLOCK_EXACT) ||
            row.tokens != space->shape.group ||
            row.bytes != kvd_space_slot_bytes(space, row.kind) || row.bytes > end - at) {
            kvd_work_refuse(work, KVARN_INVALID_SHAPE,
                            "block %u: kind %u, %u tokens, %llu bytes, of which the payload holds "
                            "%llu; this space has %u tokens and %llu (TILE) or %llu (EXACT) bytes",
                            i, row.kind, row.tokens, (unsigned long long)row.bytes,
                            (unsigned long long)(end - at), space->shape.group,
                            (unsigned long long)space->tile_bytes,
                            (unsigned long long)space->exact_bytes);
            return false;
        }
        *item = (struct kvd_item){.key = row.key,
                                  .kind = row.kind,
                                  .digest = row.digest,
                                  .status = KVD_TODO,
                                  .entry = KVD_NO_ENTRY,
                                  .source = at};
        at += row.bytes;
    }
    if (at != end) {
        kvd_work_refuse(work, KVARN_INVALID_SHAPE,
                        "%llu bytes follow the last block; the table announces %u blocks",
                        (unsigned long long)(end - at), count);
        return false;
    }
    work->item_count = count;
    return true;
}

static void fill(struct kvd_work *work, uint32_t i, void *at)
{
    struct kvd_copy *copy = at;
    const struct kvd_item *item = &work->items[i];

    copy->dst = kvd_block_place(item->block);
    /* The bytes stand in the slot already when it was held; DIGEST reads src alone. */
    copy->src =
        work->held_count ? copy->dst : kvd_work_place(work, work->request.payload + item->source);
    copy->bytes = kvd_space_slot_bytes(work->space, item->kind);
    copy->digest = item->digest;
    copy->check = KVD_CHECK_DIGEST | KVD_CHECK_FINITE; /* a right digest says nothing about NaN */
    copy->kind = item->kind;
}

static kvarn_status read(struct kvd_work *work, uint32_t i, const void *at, uint32_t *digest)
{
    struct kvd_copy copy;
    kvarn_status status;

    memcpy(&copy, at, sizeof copy);
    status = kvd_status_of(copy.status);
    if (status == KVARN_NON_FINITE)
        kvd_items_fault(work, i, &copy.fault);
    if (status == KVARN_CORRUPT)
        kvd_work_service(work)->integrity_failures++;
    *digest = copy.digest;
    return status;
}

static const struct kvd_fill copy_fill = {KVD_JOB_COPY, sizeof(struct kvd_copy), fill, read};
static const struct kvd_fill digest_fill = {KVD_JOB_DIGEST, sizeof(struct kvd_copy), fill, read};

static void run(struct kvd_work *work)
{
    const struct kvd_fill *how = work->held_count ? &digest_fill : &copy_fill;
    uint32_t count = work->args.blocks.block_count;

    work->reply_table = kvd_work_staging(work, (uint64_t)count * KVW_BLOCK_STATUS_BYTES);
    work->job = kvd_work_job(work, how->job_op, count, sizeof(struct kvd_copy), 0);
    if (!work->reply_table || !work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (load(work))
        kvd_items_store(work, how);
}

const struct kvd_operation kvd_operation_import = {begin, run, false, NULL};
