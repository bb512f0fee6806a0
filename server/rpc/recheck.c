/* A job's entries are of one space, so the walk goes space by space over the descriptors; how many
 * blocks each space has is counted first, and its walk ends with the last of them. A few jobs are
 * in flight at a time. No references are held (that would change who is evicted next): while the
 * check runs nothing is published, so a descriptor that is still READY with the same digest is the
 * same block.
 *
 * Memory that cannot be read any more would end one worker after the other. So a check that follows
 * one which ended its worker goes in small steps, and blocks whose step ends two workers in a row
 * are given up, slot and all: nobody reads or writes there again. A worker may also be killed for
 * what has nothing to do with the blocks, but hardly twice at the same step. Once it is known that
 * there is such memory, further steps are given up with the first worker that they end. */
#include "server/rpc/recheck.h"

#include <stdlib.h>
#include <string.h>

#include "server/core/log.h"
#include "server/rpc/work.h"

enum {
    BATCHES = 4,
    BATCH_BLOCKS = 1024,
    BATCH_BYTES = 256 << 20,
    CAREFUL_BLOCKS = 16, /* of the one batch in flight when the last check ended a worker */
    NO_BLOCK = -1
};

struct batch {
    struct kvd_recheck *recheck;
    struct kvd_job *job; /* in staging; NULL: not in flight */
    uint32_t count;
    struct {
        uint32_t id, digest;
    } blocks[BATCH_BLOCKS];
};

struct walk {
    uint32_t space; /* slot */
    uint32_t next;  /* id of the next descriptor */
    uint32_t seen;  /* blocks of this space */
};

struct kvd_recheck {
    struct kvd_service_device *home;
    bool active, over; /* over: the worker ended meanwhile, the next one begins anew */
    struct walk walk;
    uint32_t wanted[KVD_SPACES_MAX]; /* blocks to check, by space slot */
    uint32_t in_flight;
    bool careful;    /* the last check ended its worker */
    int64_t suspect; /* id of the first block of the careful step that did */
    bool proven;     /* blocks were given up since the last check that came to its end */
    uint64_t started_ns, checked, lost;
    struct batch batches[BATCHES];
};

kvarn_status kvd_recheck_open(struct kvd_recheck **recheck, struct kvd_service_device *home)
{
    struct kvd_recheck *made = calloc(1, sizeof *made);

    *recheck = made;
    if (!made)
        return KVARN_INTERNAL;
    made->home = home;
    made->suspect = NO_BLOCK;
    for (int i = 0; i < BATCHES; i++)
        made->batches[i].recheck = made;
    return KVARN_OK;
}

void kvd_recheck_close(struct kvd_recheck **recheck)
{
    free(*recheck);
    *recheck = NULL;
}

bool kvd_recheck_active(const struct kvd_recheck *recheck)
{
    return recheck->active;
}

static struct kvd_blocks *blocks_of(const struct kvd_recheck *recheck)
{
    return &recheck->home->service->blocks;
}

/* Is this a block of the device that has something to be checked? */
static bool counts(const struct kvd_recheck *recheck, const struct kvd_block *block)
{
    return block->state == KVD_BLOCK_READY && block->has_digest && !block->corrupt &&
           block->space->pool == recheck->home->pool;
}

static void count_all(struct kvd_recheck *recheck)
{
    const struct kvd_block *block;

    memset(recheck->wanted, 0, sizeof recheck->wanted);
    for (uint32_t id = 0; (block = kvd_block_at(blocks_of(recheck), id)) != NULL; id++)
        if (counts(recheck, block))
            recheck->wanted[block->space->slot]++;
}

/* Gives the space that the next blocks are of; NULL at the end. */
static const struct kvd_space *next_space(struct kvd_recheck *recheck)
{
    struct walk *walk = &recheck->walk;

    while (walk->space < KVD_SPACES_MAX && (walk->seen >= recheck->wanted[walk->space] ||
                                            !kvd_block_at(blocks_of(recheck), walk->next)))
        *walk = (struct walk){.space = walk->space + 1};
    return walk->space < KVD_SPACES_MAX ? &recheck->home->service->spaces.slots[walk->space] : NULL;
}

/* The next blocks of the walk, all of one space; NULL: there are none left. */
static const struct kvd_space *collect(struct kvd_recheck *recheck, struct batch *batch)
{
    struct walk *walk = &recheck->walk;
    const struct kvd_space *space;

    batch->count = 0;
    while (!batch->count && (space = next_space(recheck)) != NULL) {
        const struct kvd_block *block;
        uint64_t bytes = 0;

        while (batch->count < (recheck->careful ? CAREFUL_BLOCKS : BATCH_BLOCKS) &&
               bytes < BATCH_BYTES && walk->seen < recheck->wanted[walk->space] &&
               (block = kvd_block_at(blocks_of(recheck), walk->next)) != NULL) {
            walk->next++;
            if (!counts(recheck, block) || block->space != space)
                continue;
            walk->seen++;
            bytes += kvd_space_slot_bytes(space, block->kind);
            batch->blocks[batch->count].id = block->id;
            batch->blocks[batch->count++].digest = block->digest;
        }
    }
    return batch->count ? space : NULL;
}

static void fill(const struct kvd_recheck *recheck, struct batch *batch,
                 const struct kvd_space *space, uint64_t bytes)
{
    struct kvd_job *job = batch->job;
    struct kvd_copy *entries = kvd_job_entries(job);

    memset(job, 0, bytes);
    job->op = KVD_JOB_DIGEST;
    job->count = batch->count;
    job->shape = space->shape;
    job->layers = space->layers;
    job->heads = space->heads;
    job->layer_count = space->layers;
    job->job_bytes = bytes;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct kvd_block *block = kvd_block_at(blocks_of(recheck), batch->blocks[i].id);

        entries[i] = (struct kvd_copy){.src = kvd_block_place(block),
                                       .bytes = kvd_space_slot_bytes(space, block->kind),
                                       .kind = block->kind};
    }
}

static void batch_done(void *context, struct kvd_job *job, kvarn_status status);

/* False: no staging or no place in the ring now. */
static bool submit(struct kvd_recheck *recheck, struct batch *batch, const struct kvd_space *space)
{
    struct kvd_device *device = recheck->home->device;
    uint64_t bytes = kvd_job_size(batch->count, sizeof(struct kvd_copy), 0);

    batch->job = (struct kvd_job *)(void *)kvd_staging_take(device, bytes);
    if (!batch->job)
        return false;
    fill(recheck, batch, space, bytes);
    if (kvd_device_submit(device, batch->job, batch_done, batch) != KVARN_OK) {
        kvd_staging_give(device, (uint8_t *)batch->job);
        batch->job = NULL;
        return false;
    }
    recheck->in_flight++;
    return true;
}

static void end(struct kvd_recheck *recheck)
{
    struct kvd_service *service = recheck->home->service;

    recheck->active = false;
    recheck->careful = recheck->proven = false;
    recheck->suspect = NO_BLOCK;
    kvd_log(
        recheck->lost ? KVD_LOG_ERROR : KVD_LOG_INFO, "pool_verified",
        kvd_text("device", kvd_device_name(recheck->home->device)),
        kvd_number("blocks", (int64_t)recheck->checked), kvd_number("lost", (int64_t)recheck->lost),
        kvd_number("ms", (int64_t)((kvd_service_now(service) - recheck->started_ns) / 1000000u)));
}

static struct batch *idle_batch(struct kvd_recheck *recheck)
{
    for (int i = 0; i < (recheck->careful ? 1 : BATCHES); i++)
        if (!recheck->batches[i].job)
            return &recheck->batches[i];
    return NULL;
}

void kvd_recheck_pump(struct kvd_recheck *recheck)
{
    struct batch *batch;

    while (recheck->active && !recheck->over && (batch = idle_batch(recheck)) != NULL) {
        struct walk before = recheck->walk;
        const struct kvd_space *space = collect(recheck, batch);

        if (!space) {
            if (!recheck->in_flight)
                end(recheck);
            return;
        }
        if (!submit(recheck, batch, space)) {
            recheck->walk = before;
            return;
        }
    }
}

static void lose(struct kvd_recheck *recheck, struct kvd_block *block)
{
    recheck->lost++;
    recheck->home->blocks_lost++;
    recheck->home->service->integrity_failures++;
    kvd_block_condemn(blocks_of(recheck), block);
}

/* A digest that could not be made counts as a wrong one: a block may be missing, never wrong. */
static void judge(struct kvd_recheck *recheck, const struct batch *batch, kvarn_status status)
{
    const struct kvd_copy *entries = kvd_job_entries(batch->job);

    for (uint32_t i = 0; i < batch->count; i++) {
        struct kvd_block *block = kvd_block_at(blocks_of(recheck), batch->blocks[i].id);
        struct kvd_copy entry;

        memcpy(&entry, &entries[i], sizeof entry);
        if (!counts(recheck, block) || block->digest != batch->blocks[i].digest)
            continue; /* dropped meanwhile */
        recheck->checked++;
        if (status == KVARN_OK && kvd_status_of(entry.status) == KVARN_OK &&
            entry.digest == batch->blocks[i].digest)
            continue;
        lose(recheck, block);
    }
}

/* What was in flight when a second worker ended. The slots are not used again. */
static void give_up(struct kvd_recheck *recheck, const struct batch *batch)
{
    uint64_t lost = recheck->lost;

    for (uint32_t i = 0; i < batch->count; i++) {
        struct kvd_block *block = kvd_block_at(blocks_of(recheck), batch->blocks[i].id);

        if (!counts(recheck, block) || block->digest != batch->blocks[i].digest)
            continue;
        kvd_block_hold(blocks_of(recheck), block); /* for ever */
        lose(recheck, block);
    }
    kvd_log(KVD_LOG_ERROR, "blocks_given_up",
            kvd_text("device", kvd_device_name(recheck->home->device)),
            kvd_number("blocks", (int64_t)(recheck->lost - lost)),
            kvd_text("why", "reading them ends the worker"));
}

/* Did the last worker end at this step too? */
static bool suspected(const struct kvd_recheck *recheck, const struct batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->blocks[i].id == recheck->suspect)
            return true;
    return false;
}

/* The worker ended at this batch. */
static void suspect(struct kvd_recheck *recheck, const struct batch *batch)
{
    if (recheck->careful && (recheck->proven || suspected(recheck, batch))) {
        give_up(recheck, batch);
        recheck->proven = true;
    } else if (recheck->careful && !recheck->over) {
        recheck->suspect = batch->blocks[0].id;
    }
    recheck->careful = recheck->over = true;
}

static void batch_done(void *context, struct kvd_job *job, kvarn_status status)
{
    struct batch *batch = context;
    struct kvd_recheck *recheck = batch->recheck;

    /* That a worker ended is known from the front's own side, never from what a job says. */
    if (status == KVARN_GPU_LOST)
        suspect(recheck, batch);
    else
        judge(recheck, batch, status == KVARN_OK ? kvd_status_of(job->status) : status);
    kvd_staging_give(recheck->home->device, (uint8_t *)batch->job);
    batch->job = NULL;
    recheck->in_flight--;
    kvd_recheck_pump(recheck);
}

void kvd_recheck_start(struct kvd_recheck *recheck)
{
    recheck->active = true;
    recheck->over = false;
    recheck->walk = (struct walk){0};
    recheck->started_ns = kvd_service_now(recheck->home->service);
    recheck->checked = recheck->lost = 0;
    count_all(recheck);
    kvd_recheck_pump(recheck);
}
