/* Down: blocks to disk, entries cleared, segments made and dropped. See tier.h. */
#include <assert.h>
#include <string.h>

#include "server/core/log.h"
#include "server/rpc/tier_move.h"
#include "server/store/disk_index.h"

enum { WALK_STEP = 512, PAUSE_NS = 1000000000 };

/* ---- a block */

/* Is the block that the move began with still there? A descriptor may have been given to another
 * one meanwhile: then nothing is concluded from what the copy found. */
static struct kvd_block *still_there(const struct kvd_move *move)
{
    struct kvd_block *block = kvd_block_at(&move->tier->service->blocks, move->block_id);

    if (!block || block->state != KVD_BLOCK_READY || !block->indexed || block->space->reset ||
        block->corrupt || block->offset != move->block_offset ||
        block->digest != move->entry.digest ||
        memcmp(&block->key, &move->entry.key, sizeof block->key) != 0)
        return NULL;
    return block;
}

static void give_up(struct kvd_move *move, kvarn_status status)
{
    struct kvd_block *block = still_there(move);

    if (status == KVARN_RETRY || status == KVARN_GPU_LOST) {
        if (block)
            block->demoted = false; /* nothing is wrong with it */
    } else {
        move->tier->failed++;
    }
    kvd_disk_abandon(move->tier->disk, move->record);
    kvd_move_end(move, status);
}

static void say_failed(const struct kvd_move *move, const char *what, int failed)
{
    kvd_log(KVD_LOG_ERROR, "disk_failed", kvd_text("at", what),
            kvd_number("segment", (int64_t)move->segment->header.number),
            kvd_text("error", strerror(failed)));
}

/* An entry that may or may not be on the medium: its slot is not used again. */
static void spoil(struct kvd_move *move, int failed)
{
    struct kvd_disk *disk = move->tier->disk;

    say_failed(move, "entry", failed);
    move->tier->failed++;
    if (kvd_disk_publish(disk, move->record) == KVARN_OK)
        kvd_disk_condemn(disk, move->record);
    kvd_move_end(move, KVARN_INTERNAL);
}

static void published(struct kvd_move *move, int failed)
{
    kvarn_status status;

    if (failed) {
        spoil(move, failed);
        return;
    }
    status = kvd_disk_publish(move->tier->disk, move->record);
    if (status == KVARN_OK && move->cancelled) {
        kvd_disk_remove(move->tier->disk, move->record);
        status = KVARN_NOT_FOUND;
    }
    move->tier->stored += status == KVARN_OK;
    /* EXISTS: another move was faster with the same key; who waits looks again */
    kvd_move_end(move, status == KVARN_EXISTS ? (kvarn_status)KVD_TODO : status);
}

static void entry_written(struct kvd_move *move, int failed)
{
    if (failed)
        spoil(move, failed);
    else
        kvd_move_sync(move, published);
}

static void payload_synced(struct kvd_move *move, int failed)
{
    if (failed) {
        say_failed(move, "sync", failed);
        give_up(move, KVARN_INTERNAL);
        return;
    }
    move->entry.sequence = move->record->entry.sequence;
    move->record->entry = move->entry;
    kvd_move_write_entry(move, entry_written);
}

static void payload_written(struct kvd_move *move, int failed)
{
    if (failed) {
        say_failed(move, "write", failed);
        give_up(move, KVARN_INTERNAL);
        return;
    }
    kvd_move_sync(move, payload_synced);
}

static void sealed(struct kvd_move *move, int failed)
{
    if (failed)
        give_up(move, KVARN_RETRY);
    else
        kvd_move_write(move, payload_written);
}

static void copied_down(struct kvd_move *move, int failed)
{
    struct kvd_block *block = still_there(move);

    (void)failed;
    if (move->checked == KVARN_OK) {
        if (move->segment->header.sealed)
            kvd_move_seal(move, sealed);
        else
            kvd_move_write(move, payload_written);
        return;
    }
    if (move->checked == KVARN_CORRUPT && block) {
        move->tier->service->integrity_failures++;
        kvd_block_condemn(&move->tier->service->blocks, block);
    }
    /* what is gone by now was not wrong */
    give_up(move, move->checked == KVARN_CORRUPT && !block ? KVARN_RETRY : move->checked);
}

bool kvd_tier_cancel(struct kvd_disk_tier *tier, uint32_t space, const kvarn_key *key)
{
    bool any = false;

    for (uint32_t i = 0; i < KVD_MOVES_MAX; i++) {
        struct kvd_move *move = &tier->moves[i];

        if (!move->used || !move->record || move->record->state != KVD_DISK_FILLING ||
            move->segment->space != space || move->cancelled ||
            (key && memcmp(key, &move->entry.key, sizeof *key) != 0))
            continue;
        move->cancelled = any = true;
    }
    return any;
}

static kvarn_status claim(struct kvd_move *move, const struct kvd_block *block)
{
    struct kvd_disk_tier *tier = move->tier;
    struct kvd_disk_segment *make;
    uint32_t space = kvd_tier_space(tier, block->space);
    kvarn_status status;

    if (space == KVD_DISK_SPACES_MAX)
        return KVARN_NO_SPACE;
    status = kvd_move_secret(move, space);
    if (status != KVARN_OK)
        return status;
    status = kvd_disk_claim(tier->disk, space, &block->key, block->kind, &move->record, &make);
    if (make)
        kvd_tier_make(tier, make);
    return status;
}

/* Under way already? */
static bool moving(const struct kvd_disk_tier *tier, const struct kvd_block *block)
{
    for (uint32_t i = 0; i < KVD_MOVES_MAX; i++) {
        const struct kvd_move *move = &tier->moves[i];

        if (move->used && move->job && !move->block && still_there(move) == block)
            return true;
    }
    return false;
}

kvarn_status kvd_tier_store(struct kvd_disk_tier *tier, struct kvd_block *block, bool persistent,
                            struct kvd_work *owner, uint32_t item)
{
    struct kvd_move *move;
    kvarn_status status = KVARN_RETRY;

    if (moving(tier, block))
        return KVARN_RETRY;
    move = kvd_move_new(tier, KVD_MOVES_SPARE);
    if (!move)
        return KVARN_RETRY;
    status = claim(move, block);
    if (status == KVARN_OK) {
        move->segment = move->record->segment;
        move->entry = (struct kvd_disk_entry){.state = KVD_ENTRY_BLOCK,
                                              .persistent = persistent,
                                              .key = block->key,
                                              .digest = block->digest};
        move->block_id = block->id;
        move->block_offset = block->offset;
        status = kvd_move_staging(move, block->space, block->kind);
        if (status == KVARN_OK)
            status = kvd_move_copy(move, block, false, copied_down);
        if (status != KVARN_OK)
            kvd_disk_abandon(tier->disk, move->record);
    }
    if (status != KVARN_OK) {
        if (move->extent)
            kvd_staging_give(move->home->device, move->extent);
        kvd_seal_wipe(move->secret, sizeof move->secret);
        move->used = false;
        tier->move_count--;
        tier->starved = true;
        return status;
    }
    block->demoted = true;
    move->owner = owner;
    move->item = item;
    move->background = !persistent;
    tier->background_count += move->background;
    tier->down.bytes -= (int64_t)move->count;
    return KVARN_OK;
}

/* ---- PERSIST */

static void kept(struct kvd_move *move, int failed)
{
    kvarn_status status = failed ? KVARN_INTERNAL : KVARN_OK;

    if (failed) {
        say_failed(move, "entry", failed);
        move->tier->failed++;
    } else if (move->record->state == KVD_DISK_READY) {
        kvd_disk_keep(move->record);
    } else { /* dropped meanwhile */
        status = KVARN_NOT_FOUND;
    }
    kvd_disk_release(move->tier->disk, move->record);
    kvd_move_end(move, status);
}

static void keep_written(struct kvd_move *move, int failed)
{
    if (failed)
        kept(move, failed);
    else
        kvd_move_sync(move, kept);
}

/* Its entry once more, with the mark. */
static kvarn_status keep(struct kvd_disk_tier *tier, struct kvd_disk_record *record,
                         struct kvd_work *work, uint32_t item)
{
    struct kvd_move *move;

    if (record->holds) /* read, or marked by another; soon over */
        return KVARN_RETRY;
    move = kvd_move_new(tier, KVD_MOVES_SPARE);
    if (!move)
        return KVARN_RETRY;
    move->record = record;
    move->segment = record->segment;
    move->entry = record->entry;
    move->entry.persistent = true;
    move->owner = work;
    move->item = item;
    kvd_disk_hold(record);
    kvd_move_write_entry(move, keep_written);
    return KVARN_EXISTS;
}

kvarn_status kvd_tier_persist(struct kvd_work *work, uint32_t item)
{
    struct kvd_disk_tier *tier = kvd_work_service(work)->tier;
    struct kvd_item *at = &work->items[item];
    uint32_t space = kvd_tier_space(tier, work->space);
    struct kvd_disk_record *record;
    kvarn_status status;

    if (space == KVD_DISK_SPACES_MAX)
        return KVARN_NO_SPACE;
    record = kvd_disk_find(tier->disk, space, &at->key);
    if (record) {
        at->kind = record->segment->header.kind;
        at->digest = record->entry.digest;
    }
    if (record && record->entry.persistent)
        return KVARN_OK;
    if (record)
        return keep(tier, record, work, item);
    if (!at->block)
        return KVARN_NOT_FOUND;
    status = kvd_tier_store(tier, at->block, true, work, item);
    return status == KVARN_OK ? KVARN_EXISTS : status;
}

/* ---- the walk */

bool kvd_tier_demote(struct kvd_disk_tier *tier)
{
    struct kvd_service *service = tier->service;
    uint64_t now = kvd_service_now(service);

    if (tier->down.bytes <= 0 || tier->background_count >= KVD_MOVES_BACKGROUND ||
        now < tier->paused_until_ns)
        return false;
    for (uint32_t i = 0; i < WALK_STEP; i++) {
        struct kvd_block *block = kvd_block_at(&service->blocks, tier->cursor++);
        uint32_t space;
        kvarn_status status;

        if (!block) {
            tier->cursor = 0;
            return false;
        }
        if (block->state != KVD_BLOCK_READY || !block->indexed || block->space->reset ||
            !block->has_digest || block->corrupt || block->demoted)
            continue;
        space = kvd_tier_space(tier, block->space);
        if (space < KVD_DISK_SPACES_MAX && kvd_disk_index_find(tier->disk, space, &block->key)) {
            block->demoted = true;
            continue;
        }
        status = kvd_tier_store(tier, block, false, NULL, 0);
        if (status == KVARN_OK)
            return true;
        if (status == KVARN_TOO_LARGE) {
            block->demoted = true;
            continue;
        }
        tier->cursor--;
        if (status == KVARN_NO_SPACE)
            tier->paused_until_ns = now + PAUSE_NS;
        return false;
    }
    return false;
}

/* ---- what the tables ask for */

static void cleared(struct kvd_move *move, int failed)
{
    struct kvd_disk_tier *tier = move->tier;

    if (failed) { /* the old entry may still stand there */
        say_failed(move, "clear", failed);
        tier->failed++;
        move->record->entry.state = KVD_ENTRY_BAD;
    }
    kvd_disk_cleared(tier->disk, move->record);
    kvd_move_end(move, KVARN_OK);
}

static void clear_written(struct kvd_move *move, int failed)
{
    if (failed)
        cleared(move, failed);
    else
        kvd_move_sync(move, cleared);
}

static int call_make(void *context)
{
    struct kvd_move *move = context;

    return kvd_disk_dir_make(&move->tier->dir, move->segment);
}

static void made(struct kvd_move *move, int failed)
{
    if (failed)
        kvd_log(KVD_LOG_WARN, "disk_full",
                kvd_number("used", (int64_t)move->tier->disk->used_bytes),
                kvd_text("error", strerror(failed)));
    kvd_disk_made(move->tier->disk, move->segment, failed == 0);
    kvd_move_end(move, KVARN_OK);
}

void kvd_tier_make(struct kvd_disk_tier *tier, struct kvd_disk_segment *segment)
{
    struct kvd_move *move = kvd_move_new(tier, 0);

    assert(move); /* spares are kept */
    move->segment = segment;
    kvd_move_call(move, call_make, made);
}

static int call_drop(void *context)
{
    struct kvd_move *move = context;

    return kvd_disk_dir_drop(&move->tier->dir, move->segment);
}

static void dropped(struct kvd_move *move, int failed)
{
    if (failed) {
        say_failed(move, "unlink", failed);
        move->tier->disk->unseen = true;
    }
    kvd_disk_dropped(move->tier->disk, move->segment);
    kvd_move_end(move, KVARN_OK);
}

void kvd_tier_pump(struct kvd_disk_tier *tier)
{
    struct kvd_disk_record *record;
    struct kvd_disk_segment *segment;
    struct kvd_move *move;

    while (tier->move_count + KVD_MOVES_SPARE / 2 < KVD_MOVES_MAX &&
           (record = kvd_disk_clear_next(tier->disk)) != NULL) {
        move = kvd_move_new(tier, 0);
        move->record = record;
        move->segment = record->segment;
        move->entry = record->entry;
        kvd_move_write_entry(move, clear_written);
    }
    while (tier->move_count + KVD_MOVES_SPARE / 2 < KVD_MOVES_MAX &&
           (segment = kvd_disk_drop_next(tier->disk)) != NULL) {
        move = kvd_move_new(tier, 0);
        move->segment = segment;
        kvd_move_call(move, call_drop, dropped);
    }
    while (kvd_tier_demote(tier))
        ;
}
