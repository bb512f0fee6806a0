/* ATTEND: entries become sequences, or several where one has many query rows; sequences that one
 * kernel can do are planned and launched together. Where their partial results do not fit the
 * memory for them, the sequences are halved into two launches.
 *
 * Tables: spans | faults | pieces */
#include "server/device/cuda_exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attend_plan.h"

enum {
    SEQUENCES_MAX = 4096, /* of a wave */
    KINDS_MAX = 64,
    /* Of a sequence: the same for an entry wherever it runs, so that `deterministic` holds. Rows
     * share nothing but the spans of their kv head, which stay in the L2. */
    ROWS_MAX = 1024,
    PARTS_BYTES = 128 << 20,
    JOINS_MAX = 1 << 18,
    WAVE_SPANS = KVD_CUDA_TABLE_BYTES / 2 / sizeof(struct kvk_cuda_span)
};

_Static_assert(WAVE_SPANS >= 0u + KVD_BOUNDS_SPANS_MAX, "any one entry fits");
_Static_assert(KVD_Q_TOKENS_MAX <= 0u + SEQUENCES_MAX, "likewise, a token at a time");

struct kind {
    struct kvk_shape shape;
    uint32_t kv_heads, q_heads, q_dtype, out_dtype, deterministic;
};

struct sequence {
    struct kvk_cuda_sequence of;
    const struct kvk_cuda_span *spans; /* on our side */
    struct kvd_attend *result;         /* in staging */
    uint32_t kind, layer, token;       /* token: of the entry, its first */
};

struct kvd_cuda_attends {
    struct kvd_job_span *copy; /* [KVD_BOUNDS_SPANS_MAX] of an entry, checked */
    kvd_cu_address parts, joins;
    /* the wave */
    struct sequence sequences[SEQUENCES_MAX];
    struct kind kinds[KINDS_MAX];
    uint32_t sequence_count, kind_count;
    uint64_t span_count;
    uint64_t uploaded; /* bytes of the tables that the GPU has */
    bool busy, ran;    /* the GPU may still read the pieces; it was given some */
    /* of one kind, as the planner wants them */
    struct kvk_cuda_sequence chosen[SEQUENCES_MAX];
    const struct kvk_cuda_span *chosen_spans[SEQUENCES_MAX];
    uint32_t numbers[SEQUENCES_MAX]; /* in the wave */
};

static struct kvk_cuda_span *span_table(const struct kvd_cuda_executor *executor)
{
    return (struct kvk_cuda_span *)(void *)executor->tables.host;
}

/* Offsets in the tables of a wave that is collected. */
static uint64_t faults_at(const struct kvd_cuda_attends *attends)
{
    return attends->span_count * sizeof(struct kvk_cuda_span);
}

static uint64_t pieces_at(const struct kvd_cuda_attends *attends)
{
    uint64_t at = faults_at(attends) + attends->sequence_count * sizeof(uint64_t);

    return (at + 15) / 16 * 16;
}

/* ---- running ---- */

static void refuse(struct kvd_attend *result, kvarn_status status)
{
    result->status = status;
    result->fault = (struct kvd_fault){0};
}

/* Of an entry of several sequences the first fault stands. */
static void finish(const struct kvd_cuda_executor *executor, uint32_t number)
{
    const struct sequence *sequence = &executor->attends->sequences[number];
    uint64_t fault;

    memcpy(&fault, executor->tables.host + faults_at(executor->attends) + number * sizeof(fault),
           sizeof(fault));
    if (fault == KVK_CUDA_NO_FAULT || sequence->result->status != KVARN_OK)
        return;
    sequence->result->status = KVARN_NON_FINITE;
    sequence->result->fault =
        (struct kvd_fault){.tensor = 'q',
                           .layer = sequence->layer,
                           .head = KVK_CUDA_FAULT_CELL(fault),
                           .token = sequence->token + KVK_CUDA_FAULT_TOKEN(fault),
                           .channel = KVK_CUDA_FAULT_CHANNEL(fault)};
}

static bool launch(struct kvd_cuda_executor *executor, const struct kind *kind,
                   const struct kvk_attend_plan *plan)
{
    const struct kvk_cuda_attend args = {
        .shape = kind->shape,
        .kv_heads = kind->kv_heads,
        .q_heads = kind->q_heads,
        .q_dtype = kind->q_dtype,
        .out_dtype = kind->out_dtype,
        .blocks = plan->blocks,
        .piece_count = plan->pieces,
        .pieces = executor->tables.address + pieces_at(executor->attends),
        .parts = executor->attends->parts,
        .joins = executor->attends->joins,
        .faults = executor->tables.address + faults_at(executor->attends)};

    struct kvk_cuda_launch how = {
        .grid = plan->blocks, .block = plan->threads, .shared_bytes = plan->shared_bytes};

    snprintf(how.image, sizeof(how.image), "%s", plan->image);
    snprintf(how.name, sizeof(how.name), "%s", plan->kernel);
    return kvd_kernels_launch(executor->kernels, &how, &args);
}

/* No plan has more pieces: each has a span of its own, or none at all. */
static uint64_t pieces_at_most(const struct kvk_attend_batch *batch)
{
    uint64_t sum = 0, heads = batch->q_heads / batch->kv_heads;

    for (uint32_t i = 0; i < batch->count; i++) {
        const struct kvk_cuda_sequence *sequence = &batch->sequences[i];
        sum += (sequence->q_tokens * heads + 3) / 4 * (sequence->span_count + UINT64_C(1));
    }
    return sum * batch->kv_heads;
}

/* Writes the pieces into the tables. TOO_LARGE when they or the partial results have no room.
 * Counting them first costs as much as half of the writing, so it is done only where need be. */
static kvarn_status write_pieces(struct kvd_cuda_executor *executor,
                                 const struct kvk_attend_batch *batch, struct kvk_attend_plan *plan)
{
    uint64_t at = pieces_at(executor->attends);
    uint64_t room = (KVD_CUDA_TABLE_BYTES - at) / sizeof(struct kvk_cuda_piece);
    struct kvk_cuda_piece *pieces = (struct kvk_cuda_piece *)(void *)(executor->tables.host + at);
    kvarn_status status = KVARN_OK;

    if (pieces_at_most(batch) > room) {
        status = kvk_attend_plan(batch, plan, NULL);
        if (status == KVARN_OK && plan->pieces > room)
            status = KVARN_TOO_LARGE;
    }
    if (status == KVARN_OK)
        status = kvk_attend_plan(batch, plan, pieces);
    if (status == KVARN_OK && (plan->joins > JOINS_MAX || plan->part_bytes > PARTS_BYTES))
        status = KVARN_TOO_LARGE;
    return status;
}

/* Uploads what the GPU has not yet, and launches. */
static bool start(struct kvd_cuda_executor *executor, const struct kind *kind,
                  const struct kvk_attend_plan *plan)
{
    struct kvd_cuda_attends *attends = executor->attends;
    uint64_t at = pieces_at(attends), from = attends->uploaded < at ? attends->uploaded : at;

    attends->busy = attends->ran = true;
    attends->uploaded = at;
    return kvd_cuda_upload(executor, from, at + plan->pieces * sizeof(struct kvk_cuda_piece)) &&
           launch(executor, kind, plan);
}

/* Sequences [first, first + count) of the chosen ones. */
static bool run_some(struct kvd_cuda_executor *executor, const struct kind *kind, uint32_t first,
                     uint32_t count)
{
    struct kvd_cuda_attends *attends = executor->attends;
    const struct kvk_attend_batch batch = {.shape = kind->shape,
                                           .kv_heads = kind->kv_heads,
                                           .q_heads = kind->q_heads,
                                           .count = count,
                                           .sequences = attends->chosen + first,
                                           .spans = attends->chosen_spans + first,
                                           .processors = executor->gpu->multiprocessors,
                                           .deterministic = kind->deterministic != 0};
    struct kvk_attend_plan plan;

    if (attends->busy && !kvd_cuda_wait(executor))
        return false;
    attends->busy = false;
    kvarn_status status = write_pieces(executor, &batch, &plan);
    if (status == KVARN_OK)
        return start(executor, kind, &plan);
    if (status == KVARN_TOO_LARGE && count > 1)
        return run_some(executor, kind, first, count / 2) &&
               run_some(executor, kind, first + count / 2, count - count / 2);
    for (uint32_t i = first; i < first + count; i++)
        refuse(attends->sequences[attends->numbers[i]].result, status);
    return true;
}

static bool run_kind(struct kvd_cuda_executor *executor, uint32_t kind)
{
    struct kvd_cuda_attends *attends = executor->attends;
    uint32_t count = 0;

    for (uint32_t i = 0; i < attends->sequence_count; i++) {
        if (attends->sequences[i].kind != kind)
            continue;
        attends->chosen[count] = attends->sequences[i].of;
        attends->chosen_spans[count] = attends->sequences[i].spans;
        attends->numbers[count++] = i;
    }
    return run_some(executor, &attends->kinds[kind], 0, count);
}

static bool run_wave(struct kvd_cuda_executor *executor)
{
    struct kvd_cuda_attends *attends = executor->attends;
    uint64_t faults = faults_at(attends), end = pieces_at(attends);

    if (attends->sequence_count == 0)
        return true;
    memset(executor->tables.host + faults, 0xff, end - faults); /* no fault */
    attends->uploaded = 0;
    attends->busy = attends->ran = false;
    for (uint32_t kind = 0; kind < attends->kind_count; kind++)
        if (!run_kind(executor, kind))
            return false;
    if (attends->ran) {
        if (!kvd_cuda_download(executor, faults, end) || !kvd_cuda_wait(executor))
            return false;
        for (uint32_t i = 0; i < attends->sequence_count; i++)
            finish(executor, i);
    }
    attends->sequence_count = attends->kind_count = 0;
    attends->span_count = 0;
    return true;
}

/* ---- collecting ---- */

/* Its number; KINDS_MAX when there is no room for another. */
static uint32_t kind_of(struct kvd_cuda_attends *attends, const struct kind *kind)
{
    uint32_t i = 0;

    while (i < attends->kind_count && memcmp(&attends->kinds[i], kind, sizeof(*kind)) != 0)
        i++;
    if (i == attends->kind_count && i < KINDS_MAX)
        attends->kinds[attends->kind_count++] = *kind;
    return i;
}

/* Query tokens of a sequence at most. `full` with a window: every query token sees the same, and
 * the kernel would move the window, so one at a time. */
static uint32_t tokens_of(const struct kvd_attend *attend)
{
    uint32_t most = attend->full && attend->window > 0 ? 1 : ROWS_MAX / attend->q_heads;

    return most < 1 ? 1 : most;
}

static void add_spans(struct kvd_cuda_executor *executor, const struct kvd_job *job, uint32_t count)
{
    struct kvd_cuda_attends *attends = executor->attends;
    struct kvk_cuda_span *to = span_table(executor) + attends->span_count;
    uint64_t cell = (uint64_t)job->layer_begin * job->heads;
    const uint64_t before[2] = {cell * kvd_cell_bytes(&job->shape, KVARN_BLOCK_TILE),
                                cell * kvd_cell_bytes(&job->shape, KVARN_BLOCK_EXACT)};

    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_job_span *span = &attends->copy[i];
        to[i] = (struct kvk_cuda_span){.cell = kvd_cuda_address(executor, span->slot) +
                                               before[span->kind == KVARN_BLOCK_EXACT],
                                       .position = span->position,
                                       .tokens = (uint16_t)span->tokens,
                                       .kind = (uint16_t)span->kind};
    }
    attends->span_count += count;
}

static void add_sequence(struct kvd_cuda_executor *executor, const struct kvd_job *job,
                         const struct kvd_attend *attend, struct kvd_attend *result, uint32_t kind,
                         uint32_t token)
{
    struct kvd_cuda_attends *attends = executor->attends;
    uint64_t row = job->shape.dim * kvarn_dtype_bytes((kvarn_dtype)attend->q_dtype);
    uint64_t out_row = job->shape.dim * kvarn_dtype_bytes((kvarn_dtype)attend->out_dtype);
    uint64_t before = (uint64_t)token * attend->q_heads; /* rows */
    uint32_t tokens = tokens_of(attend), left = attend->q_tokens - token;
    uint64_t first_span = attends->span_count - attend->span_count; /* they were added last */

    attends->sequences[attends->sequence_count] = (struct sequence){
        .of = {.q = kvd_cuda_address(executor, attend->q) + before * row,
               .out = kvd_cuda_address(executor, attend->out) + before * out_row,
               .lse = kvd_cuda_address(executor, attend->lse) + before * sizeof(float),
               .q_token_stride_bytes = attend->q_heads * row,
               .q_head_stride_bytes = row,
               .spans = executor->tables.address + first_span * sizeof(struct kvk_cuda_span),
               .span_count = attend->span_count,
               .q_tokens = left < tokens ? left : tokens,
               .limit = attend->limit + (attend->full ? 0 : token),
               .window = attend->window,
               .full = attend->full,
               .scale = attend->scale,
               .soft_cap = attend->soft_cap,
               .fault = attends->sequence_count},
        .spans = span_table(executor) + first_span,
        .result = result,
        .kind = kind,
        .layer = job->layer_begin,
        .token = token};
    attends->sequence_count++;
}

static bool is_aligned(struct kvd_place place, uint64_t bytes)
{
    return place.offset % bytes == 0;
}

/* Checks the entry and copies its spans. */
static kvarn_status take_entry(struct kvd_cuda_executor *executor, const struct kvd_taken *job,
                               const struct kvd_attend *attend)
{
    struct kvd_job_span *copy = executor->attends->copy;

    if (!kvd_attend_is_sound(&job->copy, attend) ||
        !kvd_bounds_hold_attend(&executor->bounds, &job->copy, attend))
        return KVARN_INTERNAL;
    memcpy(copy, (const uint8_t *)job->shared + attend->spans_offset,
           attend->span_count * sizeof(*copy));
    if (!kvd_bounds_hold_spans(&executor->bounds, &job->copy, copy, attend->span_count))
        return KVARN_INTERNAL;
    for (uint32_t i = 0; i < attend->span_count; i++)
        if (!kvd_cuda_is_slot(copy[i].slot))
            return KVARN_INTERNAL;
    if (!is_aligned(attend->q, kvarn_dtype_bytes((kvarn_dtype)attend->q_dtype)) ||
        !is_aligned(attend->out, kvarn_dtype_bytes((kvarn_dtype)attend->out_dtype)) ||
        !is_aligned(attend->lse, sizeof(float)))
        return KVARN_UNSUPPORTED;
    return KVARN_OK;
}

static bool has_room(struct kvd_cuda_attends *attends, const struct kvd_attend *attend,
                     const struct kind *kind, uint32_t *number)
{
    uint32_t tokens = tokens_of(attend);

    *number = KINDS_MAX;
    if ((attend->q_tokens + tokens - 1) / tokens > SEQUENCES_MAX - attends->sequence_count ||
        attend->span_count > WAVE_SPANS - attends->span_count)
        return false;
    *number = kind_of(attends, kind);
    return *number != KINDS_MAX;
}

static bool plan_entry(struct kvd_cuda_executor *executor, struct kvd_taken *job,
                       struct kvd_attend *result)
{
    struct kvd_cuda_attends *attends = executor->attends;
    const struct kvd_attend attend = *result; /* copied: it stands in shared memory */
    kvarn_status status = take_entry(executor, job, &attend);
    uint32_t number;
    struct kind kind;

    refuse(result, status);
    if (status != KVARN_OK)
        return true;
    memset(&kind, 0, sizeof(kind)); /* kinds are compared as bytes */
    kind.shape = job->copy.shape;
    kind.kv_heads = job->copy.heads;
    kind.q_heads = attend.q_heads;
    kind.q_dtype = attend.q_dtype;
    kind.out_dtype = attend.out_dtype;
    kind.deterministic = attend.deterministic != 0;
    if (!has_room(attends, &attend, &kind, &number) &&
        !(run_wave(executor) && has_room(attends, &attend, &kind, &number)))
        return false;
    add_spans(executor, &job->copy, attend.span_count);
    for (uint32_t token = 0; token < attend.q_tokens; token += tokens_of(&attend))
        add_sequence(executor, &job->copy, &attend, result, number, token);
    job->planned_ns += (uint64_t)attend.q_tokens * (attend.span_count + 1);
    return true;
}

bool kvd_cuda_run_attend(struct kvd_cuda_executor *executor, uint32_t jobs)
{
    for (uint32_t i = 0; i < jobs; i++) {
        struct kvd_taken *job = &executor->group[i];
        struct kvd_attend *entries = (struct kvd_attend *)(void *)(job->shared + 1);
        for (uint32_t entry = 0; entry < job->copy.count; entry++)
            if (!plan_entry(executor, job, &entries[entry]))
                return false;
    }
    return run_wave(executor);
}

/* ---- opening and closing ---- */

bool kvd_cuda_attends_open(struct kvd_cuda_executor *executor)
{
    struct kvd_gpu *gpu = executor->gpu;
    struct kvd_cuda_attends *attends = calloc(1, sizeof(*attends));

    executor->attends = attends;
    if (attends != NULL)
        attends->copy = malloc(KVD_BOUNDS_SPANS_MAX * sizeof(*attends->copy));
    if (attends == NULL || attends->copy == NULL)
        return kvd_gpu_failed(gpu, KVD_LINK_NO_THREADS, "no memory for the executor");
    return kvd_gpu_did(gpu, "memory for partial results",
                       gpu->driver.memory_alloc(&attends->parts, PARTS_BYTES)) &&
           kvd_gpu_did(gpu, "memory for counters",
                       gpu->driver.memory_alloc(&attends->joins, JOINS_MAX * sizeof(uint32_t))) &&
           kvd_gpu_did(gpu, "counters at zero",
                       gpu->driver.set_words(attends->joins, 0, JOINS_MAX, gpu->stream));
}

void kvd_cuda_attends_close(struct kvd_cuda_executor *executor)
{
    struct kvd_cuda_attends *attends = executor->attends;
    struct kvd_gpu *gpu = executor->gpu;

    if (attends == NULL)
        return;
    if (!gpu->lost) {
        if (attends->parts != 0)
            gpu->driver.memory_free(attends->parts);
        if (attends->joins != 0)
            gpu->driver.memory_free(attends->joins);
    }
    free(attends->copy);
    free(attends);
    executor->attends = NULL;
}
