/* Up: blocks from disk into their pool; and what takes them off the disk. See tier.h. */
#include <string.h>

#include "server/core/log.h"
#include "server/rpc/tier_move.h"
#include "server/store/disk_index.h"

static void give_up(struct kvd_move *move, kvarn_status status)
{
    kvd_block_release(&move->tier->service->blocks, move->block);
    kvd_disk_release(move->tier->disk, move->record);
    kvd_move_end(move, status);
}

/* The slot does not hold what was put there, or cannot be read. */
static void lost(struct kvd_move *move, const char *what)
{
    struct kvd_disk_tier *tier = move->tier;

    tier->failed++;
    tier->service->integrity_failures++;
    kvd_log(KVD_LOG_ERROR, "disk_block_lost",
            kvd_number("segment", (int64_t)move->segment->header.number),
            kvd_number("slot", move->record->slot), kvd_text("why", what));
    kvd_disk_condemn(tier->disk, move->record);
    give_up(move, KVARN_CORRUPT);
}

static void copied_up(struct kvd_move *move, int failed)
{
    struct kvd_disk_tier *tier = move->tier;

    (void)failed;
    if (move->checked == KVARN_CORRUPT) {
        lost(move, "its digest does not match");
        return;
    }
    if (move->checked != KVARN_OK) {
        give_up(move, move->checked);
        return;
    }
    if (move->record->state != KVD_DISK_READY) { /* dropped meanwhile */
        give_up(move, KVARN_NOT_FOUND);
        return;
    }
    move->block->demoted = true; /* that is where it comes from */
    kvd_block_publish(&tier->service->blocks, move->block, move->entry.digest);
    tier->loaded++;
    give_up(move, KVARN_OK);
}

static void copy_up(struct kvd_move *move)
{
    kvarn_status status = kvd_move_copy(move, move->block, true, copied_up);

    if (status != KVARN_OK)
        give_up(move, status);
}

static void unsealed(struct kvd_move *move, int failed)
{
    if (failed)
        lost(move, "its seal does not match");
    else
        copy_up(move);
}

static void loaded(struct kvd_move *move, int failed)
{
    if (failed)
        lost(move, strerror(failed));
    else if (move->segment->header.sealed)
        kvd_move_unseal(move, unsealed);
    else
        copy_up(move);
}

static kvarn_status load(struct kvd_disk_tier *tier, struct kvd_space *space, const kvarn_key *key,
                         struct kvd_disk_record *record)
{
    struct kvd_blocks *blocks = &tier->service->blocks;
    struct kvd_move *move = kvd_move_new(tier, 2 * KVD_MOVES_SPARE);
    kvarn_status status = KVARN_OK;

    if (!move)
        return KVARN_RETRY;
    if (record->segment->header.sealed) {
        const struct kvd_disk_secret *row =
            kvd_disk_keys_of(&tier->keys, record->segment->header.identity.tenant);

        /* BUSY: it is being erased, and the record with it */
        status = row && row->state == KVD_SECRET_READY ? KVARN_OK : KVARN_RETRY;
        if (status == KVARN_OK)
            memcpy(move->secret, row->key, sizeof move->secret);
    }
    if (status == KVARN_OK)
        status = kvd_move_staging(move, space, record->segment->header.kind);
    if (status == KVARN_OK) {
        status = kvd_block_claim(blocks, space, key, record->segment->header.kind, &move->block);
        if (status == KVARN_EXISTS)
            kvd_block_release(blocks, move->block);
    }
    if (status != KVARN_OK) {
        if (move->extent)
            kvd_staging_give(move->home->device, move->extent);
        kvd_seal_wipe(move->secret, sizeof move->secret);
        move->used = false;
        tier->move_count--;
        return status == KVARN_EXISTS ? KVARN_RETRY : status;
    }
    move->record = record;
    move->segment = record->segment;
    move->entry = record->entry;
    tier->up.bytes -= (int64_t)move->count;
    kvd_disk_hold(record);
    kvd_move_read(move, loaded);
    return KVARN_RETRY;
}

kvarn_status kvd_tier_fetch(struct kvd_service *service, struct kvd_space *space,
                            const kvarn_key *key)
{
    struct kvd_disk_tier *tier = service->tier;
    struct kvd_disk_record *record;
    const struct kvd_block *block;
    uint32_t number;

    if (!tier || !tier->disk->count)
        return KVARN_NOT_FOUND;
    number = kvd_tier_space(tier, space);
    record = number == KVD_DISK_SPACES_MAX ? NULL : kvd_disk_find(tier->disk, number, key);
    if (!record)
        return KVARN_NOT_FOUND;
    block = kvd_index_find(&space->index, key);
    if (block) /* on its way already, or there by now */
        return KVARN_RETRY;
    if (tier->up.bytes <= 0) {
        tier->starved = true;
        return KVARN_RETRY;
    }
    return load(tier, space, key, record);
}

bool kvd_tier_drop(struct kvd_service *service, struct kvd_space *space, const kvarn_key *key)
{
    struct kvd_disk_tier *tier = service->tier;
    uint32_t number = tier ? kvd_tier_space(tier, space) : KVD_DISK_SPACES_MAX;
    struct kvd_disk_record *record;

    if (number == KVD_DISK_SPACES_MAX)
        return false;
    record = kvd_disk_index_find(tier->disk, number, key);
    if (record)
        kvd_disk_remove(tier->disk, record);
    return kvd_tier_cancel(tier, number, key) || record != NULL;
}

void kvd_tier_forget(struct kvd_service *service, struct kvd_space *space, bool shards)
{
    struct kvd_disk_tier *tier = service->tier;
    uint32_t number = tier ? kvd_tier_space(tier, space) : KVD_DISK_SPACES_MAX;

    if (number == KVD_DISK_SPACES_MAX)
        return;
    kvd_disk_forget(tier->disk, number, shards);
    (void)kvd_tier_cancel(tier, number, NULL);
}
