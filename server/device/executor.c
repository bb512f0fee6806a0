/* Waves: entries become items until the item table or the memory for parts is full, then all units
 * of the wave are done by the team, then the entries' results are written. */
#include "server/device/executor.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "server/core/clock.h"
#include "server/core/limits.h"
#include "server/device/exec.h"
#include "server/device/team.h"

enum {
    ITEMS_MAX = 8192,
    ALONE_NS = 20000 /* less than this is done before a helper would be awake */
};

/* ---- waves ---- */

static void keep_fault(struct kvd_executor *executor, const struct kvd_exec_item *item,
                       uint32_t unit, kvarn_status status, const struct kvd_fault *fault)
{
    struct kvd_exec_item *lead = &executor->items[item->lead];

    pthread_mutex_lock(&executor->lock);
    if (item->order + unit < lead->fault_order) {
        lead->fault_order = item->order + unit;
        lead->status = status;
        lead->fault = *fault;
    }
    pthread_mutex_unlock(&executor->lock);
}

static void run_unit(void *context, uint32_t thread, uint64_t unit)
{
    struct kvd_executor *executor = context;
    uint32_t at = executor->cursors[thread];
    struct kvd_fault fault = {0};

    /* a thread's units only go up within a wave */
    while (unit >= executor->items[at].first_unit + executor->items[at].units)
        at++;
    executor->cursors[thread] = at;
    struct kvd_exec_item *item = &executor->items[at];
    uint32_t own = (uint32_t)(unit - item->first_unit);
    kvarn_status status =
        executor->op->run(executor, &executor->threads[thread], item, own, &fault);
    if (status != KVARN_OK)
        keep_fault(executor, item, own, status, &fault);
    if (executor->options.progress != NULL)
        atomic_fetch_add_explicit(executor->options.progress, 1, memory_order_relaxed);
}

static void run_wave(struct kvd_executor *executor)
{
    memset(executor->cursors, 0, kvd_team_threads(executor->team) * sizeof(executor->cursors[0]));
    if (executor->ns <= ALONE_NS)
        for (uint64_t unit = 0; unit < executor->units; unit++)
            run_unit(executor, 0, unit);
    else
        kvd_team_run(executor->team, executor->units, run_unit, executor);
    for (uint32_t i = 0; i < executor->item_count; i++)
        if (executor->items[i].lead == i)
            executor->op->finish(&executor->items[i]);
    executor->item_count = 0;
    executor->units = executor->ns = executor->parts_used = executor->spans_used = 0;
}

/* NO_SPACE: the wave is full. */
static kvarn_status plan_item(struct kvd_executor *executor, struct kvd_taken *job,
                              const union kvd_exec_entry *entry, void *result, uint32_t index,
                              uint32_t *lead)
{
    uint32_t at = executor->item_count;

    if (at == ITEMS_MAX)
        return KVARN_NO_SPACE;
    if (*lead > at)
        *lead = at;
    struct kvd_exec_item *item = &executor->items[at];
    *item = (struct kvd_exec_item){.job = &job->copy,
                                   .job_at = (const uint8_t *)job->shared,
                                   .entry = *entry,
                                   .result = result,
                                   .first_unit = executor->units,
                                   .lead = *lead,
                                   .fault_order = UINT64_MAX,
                                   .status = KVARN_OK};
    kvarn_status status = executor->op->plan(executor, item, index);
    if (status == KVARN_OK) {
        executor->item_count++;
        executor->units += item->units;
        executor->ns += item->units * item->ns;
        job->planned_ns += item->units * item->ns;
    }
    return status;
}

static void plan_entry(struct kvd_executor *executor, struct kvd_taken *job, void *result)
{
    union kvd_exec_entry entry;
    memcpy(&entry, result, executor->op->entry_bytes);
    uint32_t items = executor->op->items(&job->copy, &entry), lead = UINT32_MAX;
    kvarn_status status = items > 0 ? KVARN_OK : KVARN_INTERNAL;

    executor->op->begin(result, KVARN_OK);
    for (uint32_t index = 0; index < items && status == KVARN_OK; index++) {
        status = plan_item(executor, job, &entry, result, index, &lead);
        if (status == KVARN_NO_SPACE) {
            run_wave(executor);
            lead = UINT32_MAX;
            status = plan_item(executor, job, &entry, result, index, &lead);
        }
    }
    /* What of it was planned before is done all the same; plan refuses at index 0 if at all. */
    if (status != KVARN_OK)
        executor->op->begin(result, KVARN_INTERNAL);
}

static void run_group(struct kvd_executor *executor, uint32_t count)
{
    uint64_t start = kvd_now_ns();
    double guessed = 1;

    for (uint32_t i = 0; i < count; i++) {
        struct kvd_taken *job = &executor->group[i];
        uint8_t *entries = (uint8_t *)(job->shared + 1);
        for (uint64_t entry = 0; entry < job->copy.count; entry++)
            plan_entry(executor, job, entries + entry * executor->op->entry_bytes);
        guessed += (double)job->planned_ns;
    }
    run_wave(executor);
    /* a job's share of the group's time, so that the sum over jobs is the time the device worked */
    double scale = (double)(kvd_now_ns() - start) / guessed;
    for (uint32_t i = 0; i < count; i++)
        executor->group[i].shared->device_ns =
            (uint64_t)(scale * (double)executor->group[i].planned_ns);
}

/* ---- jobs ---- */

static const struct kvd_exec_op *op_of(uint32_t op)
{
    switch (op) {
    case KVD_JOB_COMPRESS:
        return &kvd_exec_compress;
    case KVD_JOB_DECOMPRESS:
        return &kvd_exec_decompress;
    case KVD_JOB_WRITE_ROWS:
        return &kvd_exec_write;
    case KVD_JOB_ATTEND:
        return &kvd_exec_attend;
    case KVD_JOB_COPY:
        return &kvd_exec_copy;
    case KVD_JOB_DIGEST:
        return &kvd_exec_digest;
    default:
        return NULL;
    }
}

uint32_t kvd_executor_run(struct kvd_executor *executor, const uint64_t *jobs, uint32_t count,
                          kvarn_status *statuses)
{
    uint32_t group = 0, at = 0;

    for (; at < count && group < KVD_RING_ENTRIES; at++) {
        struct kvd_taken job;
        bool taken = kvd_job_take(&job, &executor->bounds,
                                  executor->options.regions[KVD_REGION_STAGING].base, jobs[at]);
        const struct kvd_exec_op *op = taken ? op_of(job.copy.op) : NULL;
        statuses[at] = op != NULL ? KVARN_OK : KVARN_INTERNAL;
        if (op == NULL)
            continue;
        if (group > 0 && op != executor->op)
            break;
        executor->op = op;
        executor->group[group++] = job;
    }
    if (group > 0)
        run_group(executor, group);
    return at;
}

/* ---- opening and closing ---- */

static size_t scratch_bytes_max(void)
{
    static const uint16_t dims[] = {64, 128, 256}, groups[] = {64, 128};
    size_t most = 0, bytes;

    for (int d = 0; d < 3; d++) {
        for (int g = 0; g < 2; g++) {
            struct kvk_shape shape = {.dim = dims[d],
                                      .group = groups[g],
                                      .bits_k = 4,
                                      .bits_v = 4,
                                      .dtype = KVARN_BF16,
                                      .balance = KVARN_BALANCE_SCALE_FREE,
                                      .iterations = KVARN_MAX_ITERATIONS};
            bytes = kvk_scratch_bytes(&shape);
            most = bytes > most ? bytes : most;
        }
        for (uint32_t tokens = 1; tokens <= KVD_EXEC_ROWS; tokens++) {
            bytes = kvk_attend_scratch_bytes(tokens, KVD_EXEC_ROWS / tokens, dims[d]);
            most = bytes > most ? bytes : most;
        }
    }
    return (most + 63) / 64 * 64;
}

static void *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

#define OUT_BYTES ((size_t)KVD_EXEC_ROWS * KVARN_MAX_HEAD_DIM * sizeof(float))

static kvarn_status open_thread(struct kvd_exec_thread *thread, size_t scratch_bytes)
{
    thread->scratch = aligned_alloc(64, scratch_bytes);
    thread->out = aligned_alloc(64, OUT_BYTES);
    thread->lse = aligned_alloc(64, KVD_EXEC_ROWS * sizeof(float));
    thread->spans = reserve(KVD_BOUNDS_SPANS_MAX * sizeof(*thread->spans));
    return thread->scratch != NULL && thread->out != NULL && thread->lse != NULL &&
                   thread->spans != NULL
               ? KVARN_OK
               : KVARN_INTERNAL;
}

kvarn_status kvd_executor_open(struct kvd_executor **executor,
                               const struct kvd_executor_options *options)
{
    struct kvd_executor *made = calloc(1, sizeof(*made));
    uint32_t threads = options->threads != 0 ? options->threads : kvd_cpus_available();
    size_t scratch_bytes = scratch_bytes_max();

    if (made == NULL)
        return KVARN_INTERNAL;
    threads = threads < KVD_WORKER_THREADS_MAX ? threads : KVD_WORKER_THREADS_MAX;
    made->options = *options;
    made->options.threads = threads;
    for (int i = 0; i < KVD_REGIONS; i++)
        if (options->regions[i].base != NULL)
            made->bounds.bytes[i] = options->regions[i].bytes;
    pthread_mutex_init(&made->lock, NULL);
    made->threads = calloc(threads, sizeof(*made->threads));
    made->cursors = calloc(threads, sizeof(*made->cursors));
    made->items = calloc(ITEMS_MAX, sizeof(*made->items));
    made->parts = reserve(KVD_EXEC_PARTS_FLOATS * sizeof(*made->parts));
    made->spans = reserve(KVD_EXEC_WAVE_SPANS * sizeof(*made->spans));
    bool complete = made->threads != NULL && made->cursors != NULL && made->items != NULL &&
                    made->parts != NULL && made->spans != NULL;
    kvarn_status status = complete ? KVARN_OK : KVARN_INTERNAL;
    for (uint32_t i = 0; i < threads && status == KVARN_OK; i++)
        status = open_thread(&made->threads[i], scratch_bytes);
    if (status == KVARN_OK)
        status = kvd_team_open(&made->team, threads);
    if (status != KVARN_OK) {
        kvd_executor_close(&made);
        return status;
    }
    *executor = made;
    return KVARN_OK;
}

void kvd_executor_close(struct kvd_executor **executor)
{
    struct kvd_executor *closing = *executor;

    if (closing == NULL)
        return;
    kvd_team_close(&closing->team);
    for (uint32_t i = 0; closing->threads != NULL && i < closing->options.threads; i++) {
        struct kvd_exec_thread *thread = &closing->threads[i];
        free(thread->scratch);
        free(thread->out);
        free(thread->lse);
        if (thread->spans != NULL)
            munmap(thread->spans, KVD_BOUNDS_SPANS_MAX * sizeof(*thread->spans));
    }
    if (closing->parts != NULL)
        munmap(closing->parts, KVD_EXEC_PARTS_FLOATS * sizeof(float));
    if (closing->spans != NULL)
        munmap(closing->spans, KVD_EXEC_WAVE_SPANS * sizeof(*closing->spans));
    free(closing->threads);
    free(closing->cursors);
    free(closing->items);
    pthread_mutex_destroy(&closing->lock);
    free(closing);
    *executor = NULL;
}

uint32_t kvd_executor_threads(const struct kvd_executor *executor)
{
    return executor->options.threads;
}
