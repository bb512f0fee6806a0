/* A bit per unit, for what is still to be told and for each job in flight. A job that is lost gives
 * its bits back: jobs are done in ring order, so all that came after it and may have used the part
 * was lost as well. */
#include "server/device/wipes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/limits.h"

enum { JOBS = 32, WORDS = KVD_POOL_CHUNKS_MAX / 64 };

struct wipe {
    struct kvd_wipes *wipes;
    struct kvd_job *job; /* in staging; NULL: not in flight */
    uint32_t entries;
    uint64_t units[WORDS];
};

struct kvd_wipes {
    struct kvd_wipes_options options;
    uint32_t count; /* units */
    bool pending;
    uint64_t units[WORDS]; /* to be told */
    struct wipe jobs[JOBS];
};

kvarn_status kvd_wipes_open(struct kvd_wipes **wipes, const struct kvd_wipes_options *options)
{
    struct kvd_wipes *made = calloc(1, sizeof(*made));

    *wipes = made;
    if (made == NULL)
        return KVARN_INTERNAL;
    made->options = *options;
    made->count = (uint32_t)(options->pool_bytes / options->unit_bytes);
    assert(made->count <= KVD_POOL_CHUNKS_MAX);
    for (int i = 0; i < JOBS; i++)
        made->jobs[i].wipes = made;
    return KVARN_OK;
}

void kvd_wipes_close(struct kvd_wipes **wipes)
{
    free(*wipes);
    *wipes = NULL;
}

void kvd_wipes_add(struct kvd_wipes *wipes, uint64_t offset, uint64_t bytes)
{
    uint64_t unit = wipes->options.unit_bytes;

    assert(offset % unit == 0 && bytes % unit == 0 && (offset + bytes) / unit <= wipes->count);
    for (uint64_t at = offset / unit; at < (offset + bytes) / unit; at++)
        wipes->units[at / 64] |= UINT64_C(1) << (at % 64);
    wipes->pending = true;
}

static bool has(const struct kvd_wipes *wipes, uint32_t at)
{
    return at < wipes->count && (wipes->units[at / 64] >> (at % 64) & 1) != 0;
}

/* The first run of units from *at on; 0 when there is none. */
static uint32_t next_run(const struct kvd_wipes *wipes, uint32_t *at)
{
    uint32_t run = 0;

    while (*at < wipes->count && !has(wipes, *at))
        ++*at;
    while (has(wipes, *at + run))
        run++;
    return run;
}

static void wipe_done(void *context, struct kvd_job *job, kvarn_status status)
{
    struct wipe *wipe = context;
    struct kvd_wipes *wipes = wipe->wipes;
    const struct kvd_zero *entries = (const struct kvd_zero *)(const void *)(wipe->job + 1);

    if (status == KVARN_OK && job->status != KVARN_OK)
        status = KVARN_INTERNAL;
    for (uint32_t i = 0; i < wipe->entries && status == KVARN_OK; i++)
        if (entries[i].status != KVARN_OK)
            status = KVARN_INTERNAL;
    kvd_staging_give(wipes->options.device, (uint8_t *)wipe->job);
    wipe->job = NULL;
    if (status == KVARN_OK)
        return;
    for (int i = 0; i < WORDS; i++)
        wipes->units[i] |= wipe->units[i];
    wipes->pending = true;
    if (status != KVARN_GPU_LOST)
        wipes->options.failed(wipes->options.device);
}

static void fill(const struct kvd_wipes *wipes, struct wipe *wipe, uint64_t bytes)
{
    struct kvd_job *job = wipe->job;
    struct kvd_zero *entries = (struct kvd_zero *)(void *)(job + 1);
    uint64_t unit = wipes->options.unit_bytes;
    uint32_t entry = 0;

    memset(job, 0, bytes);
    job->op = KVD_JOB_ZERO;
    job->count = wipe->entries;
    job->job_bytes = bytes;
    for (uint32_t at = 0, run; (run = next_run(wipes, &at)) > 0; at += run)
        entries[entry++] = (struct kvd_zero){.at = {.region = KVD_REGION_POOL, .offset = at * unit},
                                             .bytes = run * unit};
    memcpy(wipe->units, wipes->units, sizeof(wipe->units));
}

static struct wipe *idle(struct kvd_wipes *wipes)
{
    for (int i = 0; i < JOBS; i++)
        if (wipes->jobs[i].job == NULL)
            return &wipes->jobs[i];
    return NULL;
}

kvarn_status kvd_wipes_flush(struct kvd_wipes *wipes)
{
    struct wipe *wipe = idle(wipes);

    if (!wipes->pending)
        return KVARN_OK;
    if (wipe == NULL)
        return KVARN_RETRY;
    wipe->entries = 0;
    for (uint32_t at = 0, run; (run = next_run(wipes, &at)) > 0; at += run)
        wipe->entries++;
    uint64_t bytes = sizeof(struct kvd_job) + wipe->entries * sizeof(struct kvd_zero);
    wipe->job = (struct kvd_job *)(void *)kvd_staging_take(wipes->options.device, bytes);
    if (wipe->job == NULL)
        return KVARN_RETRY;
    fill(wipes, wipe, bytes);
    kvarn_status status = wipes->options.queue(wipes->options.device, wipe->job, wipe_done, wipe);
    if (status != KVARN_OK) {
        kvd_staging_give(wipes->options.device, (uint8_t *)wipe->job);
        wipe->job = NULL;
        return status;
    }
    memset(wipes->units, 0, sizeof(wipes->units));
    wipes->pending = false;
    return KVARN_OK;
}
