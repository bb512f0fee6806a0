/* ATTEND: entries become sequences of the kernels, or several where one has many query rows. */
#include "server/device/cuda_attend.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* Of a sequence: the same for an entry wherever it runs, so that `deterministic` holds. Rows
     * share nothing but the spans of their kv head, which stay in the L2. */
    ROWS_MAX = 1024
};

_Static_assert(KVD_CUDA_SPANS_MAX >= 0u + KVD_BOUNDS_SPANS_MAX, "any one entry fits");
_Static_assert(KVD_Q_TOKENS_MAX <= 0u + KVD_CUDA_SEQUENCES_MAX, "likewise, a token at a time");

/* Its number; KVD_CUDA_ATTEND_KINDS_MAX when there is no room for another. */
static uint32_t kind_of(struct kvd_cuda_attends *attends, const struct kvd_cuda_attend_kind *kind)
{
    uint32_t i = 0;

    while (i < attends->kind_count && !kvd_cuda_attend_kind_same(&attends->kinds[i], kind))
        i++;
    if (i == attends->kind_count && i < KVD_CUDA_ATTEND_KINDS_MAX)
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
    struct kvk_cuda_span *to = kvd_cuda_span_table(attends) + attends->span_count;
    uint64_t cell = (uint64_t)job->layer_begin * job->heads;
    const uint64_t before[2] = {cell * kvd_cell_bytes(&job->shape, KVARN_BLOCK_TILE),
                                cell * kvd_cell_bytes(&job->shape, KVARN_BLOCK_EXACT)};

    bool same = attends->span_count + count <= attends->kept.spans;

    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_job_span *span = &attends->copy[i];
        same = same && to[i].position == span->position && to[i].tokens == span->tokens &&
               to[i].kind == span->kind;
        to[i] = (struct kvk_cuda_span){.cell = kvd_cuda_address(executor, span->slot) +
                                               before[span->kind == KVARN_BLOCK_EXACT],
                                       .position = span->position,
                                       .tokens = (uint16_t)span->tokens,
                                       .kind = (uint16_t)span->kind};
    }
    attends->same = attends->same && same;
    attends->span_count += count;
}

/* Over the same spans, both are cut into the same pieces. */
static bool cuts_alike(const struct kvk_cuda_sequence *a, const struct kvk_cuda_sequence *b)
{
    return a->span_count == b->span_count && a->q_tokens == b->q_tokens && a->limit == b->limit &&
           a->window == b->window && a->full == b->full;
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

    struct kvd_cuda_sequence *sequence = &attends->sequences[attends->sequence_count];
    const struct kvk_cuda_sequence old = sequence->of;

    *sequence = (struct kvd_cuda_sequence){
        .of = {.q = kvd_cuda_address(executor, attend->q) + before * row,
               .out = kvd_cuda_address(executor, attend->out) + before * out_row,
               .lse = kvd_cuda_address(executor, attend->lse) + before * sizeof(float),
               .q_token_stride_bytes = attend->q_heads * row,
               .q_head_stride_bytes = row,
               .spans = attends->tables.address + first_span * sizeof(struct kvk_cuda_span),
               .span_count = attend->span_count,
               .q_tokens = left < tokens ? left : tokens,
               .limit = attend->limit + (attend->full ? 0 : token),
               .window = attend->window,
               .full = attend->full,
               .scale = attend->scale,
               .soft_cap = attend->soft_cap,
               .fault = attends->sequence_count},
        .spans = kvd_cuda_span_table(attends) + first_span,
        .result = result,
        .kind = kind,
        .layer = job->layer_begin,
        .token = token};
    attends->same = attends->same && attends->sequence_count < attends->kept.sequences &&
                    cuts_alike(&old, &sequence->of);
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
                     const struct kvd_cuda_attend_kind *kind, uint32_t *number)
{
    uint32_t tokens = tokens_of(attend);

    *number = KVD_CUDA_ATTEND_KINDS_MAX;
    if ((attend->q_tokens + tokens - 1) / tokens >
            KVD_CUDA_SEQUENCES_MAX - attends->sequence_count ||
        attend->span_count > KVD_CUDA_SPANS_MAX - attends->span_count)
        return false;
    *number = kind_of(attends, kind);
    return *number != KVD_CUDA_ATTEND_KINDS_MAX;
}

static bool plan_entry(struct kvd_cuda_executor *executor, struct kvd_taken *job,
                       struct kvd_attend *result)
{
    struct kvd_cuda_attends *attends = executor->attends;
    const struct kvd_attend attend = *result; /* copied: it stands in shared memory */
    kvarn_status status = take_entry(executor, job, &attend);
    uint32_t number;
    struct kvd_cuda_attend_kind kind = {0};

    kvd_cuda_attend_answer(result, status);
    if (status != KVARN_OK)
        return true;
    kind.shape = job->copy.shape;
    kind.kv_heads = job->copy.heads;
    kind.q_heads = attend.q_heads;
    kind.q_dtype = attend.q_dtype;
    kind.out_dtype = attend.out_dtype;
    kind.deterministic = attend.deterministic != 0;
    if (kind.deterministic != 0)
        kind.rows = kvk_attend_rows(attend.q_tokens * (attend.q_heads / job->copy.heads));
    if (!has_room(attends, &attend, &kind, &number) &&
        !(kvd_cuda_attends_run(executor) && has_room(attends, &attend, &kind, &number)))
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
    return kvd_cuda_attends_run(executor);
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
    return kvd_cuda_tables_open(&attends->tables, gpu) &&
           kvd_gpu_did(gpu, "memory for partial results",
                       gpu->driver.memory_alloc(&attends->parts, KVD_CUDA_PARTS_BYTES)) &&
           kvd_gpu_did(
               gpu, "memory for counters",
               gpu->driver.memory_alloc(&attends->joins, KVD_CUDA_JOINS_MAX * sizeof(uint32_t))) &&
           kvd_gpu_did(gpu, "counters at zero",
                       gpu->driver.set_words(attends->joins, 0, KVD_CUDA_JOINS_MAX, gpu->stream));
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
    kvd_cuda_tables_close(&attends->tables, gpu);
    free(attends->copy);
    free(attends);
    executor->attends = NULL;
}
