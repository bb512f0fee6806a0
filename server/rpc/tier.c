/* Opening, the tick, and what all moves share. See tier.h. */
#include "server/rpc/tier.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/log.h"
#include "server/rpc/tier_move.h"
#include "server/store/disk_epochs.h"

enum { LIMIT_SECONDS = 10, BURST_DIVISOR = 10 };

static char why_text[KVD_DISK_WHY_MAX];

/* ---- epochs */

static bool held(void *context, const struct kvd_epoch *row)
{
    const struct kvd_disk_tier *tier = context;

    return kvd_spaces_hold(&tier->service->spaces, row->base) ||
           kvd_disk_holds(tier->disk, row->tenant, row->base);
}

static int call_save(void *context)
{
    const struct kvd_move *move = context;

    return kvd_disk_epochs_save(&move->tier->saved, move->tier->dir.fd);
}

static void saved(struct kvd_move *move, int failed)
{
    move->tier->saving = false;
    if (failed)
        kvd_log(KVD_LOG_ERROR, "disk_failed", kvd_text("at", "epochs"),
                kvd_text("error", strerror(failed)));
    kvd_move_end(move, failed ? KVARN_INTERNAL : KVARN_OK);
}

kvarn_status kvd_tier_epochs(struct kvd_work *work)
{
    struct kvd_disk_tier *tier = kvd_work_service(work)->tier;
    struct kvd_move *move;

    if (!tier)
        return KVARN_OK;
    if (tier->saving) /* what is written now may be from before */
        return KVARN_RETRY;
    move = kvd_move_new(tier, KVD_MOVES_SPARE);
    if (!move)
        return KVARN_RETRY;
    tier->saving = true;
    tier->saved = tier->disk->epochs; /* a thread reads it while others change */
    move->owner = work;
    kvd_move_call(move, call_save, saved);
    return KVARN_EXISTS;
}

/* ---- opening */

kvarn_status kvd_tier_open(struct kvd_disk_tier **out, struct kvd_service *service,
                           const char **why)
{
    const struct kvd_service_options *options = &service->options;
    struct kvd_disk_tier *tier;
    kvarn_status status;

    *out = NULL;
    if (!options->disk_path)
        return KVARN_OK;
    *why = "no memory for the tables of the disk tier";
    tier = calloc(1, sizeof *tier);
    if (!tier)
        return KVARN_INTERNAL;
    tier->service = service;
    tier->files = options->disk_files;
    tier->bandwidth = options->disk_bandwidth;
    tier->dir = (struct kvd_disk_dir){-1, -1};
    tier->keys.folder = -1;
    tier->disk = kvd_disk_new(options->disk_bytes, service->spaces.secret);
    *out = tier;
    if (!tier->disk) {
        kvd_tier_close(out);
        return KVARN_INTERNAL;
    }
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++)
        tier->syncs[i] = (struct kvd_sync){.tier = tier, .segment = i};
    for (uint32_t i = 0; i < KVD_MOVES_MAX; i++)
        tier->moves[i].tier = tier;
    tier->ticked_ns = kvd_service_now(service);
    tier->up.bytes = tier->down.bytes = (int64_t)(tier->bandwidth / BURST_DIVISOR);
    *why = why_text;
    status = kvd_disk_dir_open(&tier->dir, options->disk_path, tier->disk, &tier->found, why_text);
    if (status == KVARN_OK)
        status = kvd_tier_open_keys(tier, why_text);
    if (status != KVARN_OK) {
        kvd_tier_close(out);
        return status;
    }
    tier->disk->epochs.held = held;
    tier->disk->epochs.context = tier;
    tier->disk->epochs.limit = options->epochs_max;
    kvd_spaces_keep_epochs(&service->spaces, &tier->disk->epochs, options->tenant_name,
                           options->context);
    kvd_log(tier->found.quarantined || tier->found.entries_damaged ? KVD_LOG_WARN : KVD_LOG_INFO,
            "disk_recovered", kvd_text("path", options->disk_path),
            kvd_number("segments", (int64_t)tier->found.segments),
            kvd_number("blocks", (int64_t)tier->found.blocks),
            kvd_number("quarantined", (int64_t)tier->found.quarantined),
            kvd_number("damaged", (int64_t)tier->found.entries_damaged));
    return KVARN_OK;
}

void kvd_tier_close(struct kvd_disk_tier **out)
{
    struct kvd_disk_tier *tier = *out;

    if (!tier)
        return;
    kvd_disk_keys_close(&tier->keys);
    if (tier->disk)
        kvd_disk_dir_close(&tier->dir, tier->disk);
    kvd_disk_free(&tier->disk);
    free(tier);
    *out = NULL;
}

uint32_t kvd_tier_space(struct kvd_disk_tier *tier, const struct kvd_space *space)
{
    const struct kvd_service_options *options = &tier->service->options;
    struct kvd_disk_identity identity = {.layer_begin = space->layer_begin,
                                         .layers = space->layers,
                                         .head_begin = space->head_begin,
                                         .heads = space->heads,
                                         .slot_bytes = {space->tile_bytes, space->exact_bytes}};
    const char *name;

    if (tier->spaces[space->slot].handle == space->handle)
        return tier->spaces[space->slot].space;
    name = options->tenant_name(options->context, space->tenant);
    if (!name[0] || strlen(name) >= sizeof identity.tenant)
        return KVD_DISK_SPACES_MAX;
    memcpy(identity.tenant, name, strlen(name));
    memcpy(identity.fingerprint, space->fingerprint, sizeof identity.fingerprint);
    memcpy(identity.base, space->base, sizeof identity.base);
    tier->spaces[space->slot].handle = space->handle;
    tier->spaces[space->slot].space = kvd_disk_space(tier->disk, &identity);
    return tier->spaces[space->slot].space;
}

/* ---- moves */

struct kvd_move *kvd_move_new(struct kvd_disk_tier *tier, uint32_t spare)
{
    struct kvd_move *move = tier->moves;

    if (tier->move_count + spare >= KVD_MOVES_MAX) {
        tier->starved = true;
        return NULL;
    }
    while (move->used)
        move++;
    *move = (struct kvd_move){.tier = tier, .used = true, .checked = KVARN_INTERNAL};
    tier->move_count++;
    return move;
}

void kvd_move_end(struct kvd_move *move, kvarn_status status)
{
    struct kvd_disk_tier *tier = move->tier;

    if (move->extent)
        kvd_staging_give(move->home->device, move->extent);
    kvd_seal_wipe(move->secret, sizeof move->secret);
    if (move->owner) {
        move->owner->items[move->item].status = (uint32_t)status;
        move->owner->items[move->item].entry = KVD_NO_ENTRY;
    }
    if (move->background)
        tier->background_count--;
    move->used = false;
    tier->move_count--;
    tier->service->settled = true;
    kvd_tier_pump(tier);
    kvd_service_pump(tier->service);
}

void kvd_tier_detach(struct kvd_work *work)
{
    struct kvd_disk_tier *tier = kvd_work_service(work)->tier;

    for (uint32_t i = 0; tier && i < KVD_MOVES_MAX; i++)
        if (tier->moves[i].used && tier->moves[i].owner == work)
            tier->moves[i].owner = NULL;
}

/* ---- steps */

static void stepped(void *context, int failed)
{
    struct kvd_move *move = context;

    move->then(move, failed);
}

static void start(struct kvd_move *move, enum kvd_file_what what, uint8_t *bytes, uint64_t count,
                  uint64_t offset, kvd_move_step then)
{
    move->then = then;
    move->op = (struct kvd_file_op){.what = what,
                                    .fd = move->segment->fd,
                                    .bytes = bytes,
                                    .count = count,
                                    .offset = offset,
                                    .done = stepped,
                                    .context = move};
    kvd_files_start(move->tier->files, &move->op);
}

void kvd_move_read(struct kvd_move *move, kvd_move_step then)
{
    start(move, KVD_FILE_READ, move->bytes, move->count,
          kvd_disk_slot_offset(&move->segment->header, move->record->slot), then);
}

void kvd_move_write(struct kvd_move *move, kvd_move_step then)
{
    start(move, KVD_FILE_WRITE, move->bytes, move->count,
          kvd_disk_slot_offset(&move->segment->header, move->record->slot), then);
}

void kvd_move_write_entry(struct kvd_move *move, kvd_move_step then)
{
    kvd_disk_entry_store(move->page, &move->entry, move->segment->header.number,
                         move->record->slot);
    start(move, KVD_FILE_WRITE, move->page, sizeof move->page,
          kvd_disk_entry_offset(move->record->slot), then);
}

void kvd_move_call(struct kvd_move *move, int (*call)(void *move), kvd_move_step then)
{
    move->then = then;
    move->op =
        (struct kvd_file_op){.what = KVD_FILE_CALL, .call = call, .done = stepped, .context = move};
    kvd_files_start(move->tier->files, &move->op);
}

static void start_sync(struct kvd_sync *sync);

static void synced(void *context, int failed)
{
    struct kvd_sync *sync = context;
    struct kvd_move *move = sync->served, *next;

    sync->served = NULL;
    sync->running = false;
    if (sync->waiting)
        start_sync(sync);
    for (; move; move = next) {
        next = move->sync_next;
        move->then(move, failed);
    }
}

/* Who came after it began may have written too late for it, and waits for the next one. */
static void start_sync(struct kvd_sync *sync)
{
    struct kvd_disk_tier *tier = sync->tier;

    sync->served = sync->waiting;
    sync->waiting = NULL;
    sync->running = true;
    sync->op = (struct kvd_file_op){.what = KVD_FILE_SYNC,
                                    .fd = tier->disk->segments[sync->segment].fd,
                                    .done = synced,
                                    .context = sync};
    kvd_files_start(tier->files, &sync->op);
}

void kvd_move_sync(struct kvd_move *move, kvd_move_step then)
{
    struct kvd_sync *sync = &move->tier->syncs[move->segment->index];

    move->then = then;
    move->sync_next = sync->waiting;
    sync->waiting = move;
    if (!sync->running)
        start_sync(sync);
}

kvarn_status kvd_move_staging(struct kvd_move *move, const struct kvd_space *space, uint32_t kind)
{
    uint64_t job = (kvd_job_size(1, sizeof(struct kvd_copy), 0) + 63) & ~(uint64_t)63;

    move->home = &move->tier->service->devices[space->device];
    move->count = kvd_space_slot_bytes(space, kind);
    if (job + move->count > kvd_staging_capacity_bytes(move->home->device) / 2)
        return KVARN_TOO_LARGE;
    move->extent = kvd_staging_take(move->home->device, job + move->count);
    if (!move->extent) {
        move->tier->starved = true;
        return KVARN_RETRY;
    }
    move->job = (struct kvd_job *)(void *)move->extent;
    move->bytes = move->extent + job;
    return KVARN_OK;
}

static void copied(void *context, struct kvd_job *job, kvarn_status status)
{
    struct kvd_move *move = context;
    struct kvd_copy entry;

    memcpy(&entry, kvd_job_entries(job), sizeof entry);
    if (status == KVARN_OK)
        status = kvd_status_of(job->status);
    move->checked = status != KVARN_OK ? status : kvd_status_of(entry.status);
    move->then(move, 0);
}

kvarn_status kvd_move_copy(struct kvd_move *move, const struct kvd_block *block, bool up,
                           kvd_move_step then)
{
    const struct kvd_space *space = block->space;
    struct kvd_place pool = kvd_block_place(block);
    struct kvd_place staging = kvd_device_place(move->home->device, move->bytes);
    uint64_t bytes = kvd_job_size(1, sizeof(struct kvd_copy), 0);
    struct kvd_job *job = move->job;
    struct kvd_copy *entry = kvd_job_entries(job);
    kvarn_status status;

    memset(job, 0, bytes);
    job->op = KVD_JOB_COPY;
    job->count = 1;
    job->shape = space->shape;
    job->layers = space->layers;
    job->heads = space->heads;
    job->layer_count = space->layers;
    job->job_bytes = bytes;
    *entry = (struct kvd_copy){.dst = up ? pool : staging,
                               .src = up ? staging : pool,
                               .bytes = move->count,
                               .digest = move->entry.digest,
                               .check = KVD_CHECK_DIGEST,
                               .kind = block->kind};
    move->then = then;
    if (kvd_recheck_active(move->home->recheck))
        return KVARN_RETRY;
    status = kvd_device_submit(move->home->device, job, copied, move);
    if (status == KVARN_OK)
        move->home->jobs_submitted++;
    else
        move->tier->starved = true;
    return status;
}

/* ---- the tick */

static void refill(struct kvd_disk_tier *tier, struct kvd_bucket *bucket, uint64_t passed_ns)
{
    int64_t most = (int64_t)(tier->bandwidth / BURST_DIVISOR);
    uint64_t seconds = passed_ns / 1000000000u;
    int64_t more = seconds ? (int64_t)tier->bandwidth
                           : (int64_t)(tier->bandwidth * (passed_ns / 1000u) / 1000000u);

    bucket->bytes += more;
    if (bucket->bytes > most)
        bucket->bytes = most;
}

void kvd_tier_tick(struct kvd_disk_tier *tier)
{
    uint64_t now;

    if (!tier)
        return;
    now = kvd_service_now(tier->service);
    refill(tier, &tier->down, now - tier->ticked_ns);
    refill(tier, &tier->up, now - tier->ticked_ns);
    tier->ticked_ns = now;
    if (tier->disk->limit_bytes == tier->disk->capacity_bytes) {
        tier->limited_until_ns = now + LIMIT_SECONDS * 1000000000ull;
    } else if (now >= tier->limited_until_ns) { /* the file system may have room again */
        tier->disk->limit_bytes = tier->disk->capacity_bytes;
    }
    kvd_tier_pump(tier);
    if (tier->starved) {
        tier->starved = false;
        tier->service->settled = true;
    }
}

struct kvd_tier_figures kvd_tier_figures(const struct kvd_service *service)
{
    const struct kvd_disk_tier *tier = service->tier;
    struct kvd_tier_figures figures = {0};

    if (!tier)
        return figures;
    return (struct kvd_tier_figures){.capacity_bytes = tier->disk->capacity_bytes,
                                     .used_bytes = tier->disk->used_bytes,
                                     .blocks = tier->disk->count,
                                     .stored = tier->stored,
                                     .loaded = tier->loaded,
                                     .failed = tier->failed,
                                     .evictions = tier->disk->evictions,
                                     .quarantined = tier->found.quarantined,
                                     .damaged = tier->found.entries_damaged,
                                     .moves = tier->move_count};
}
