/* ATTEND: an item is one kv head and as many query tokens as make KVD_EXEC_ROWS rows; a unit is a
 * stretch of its context, cut at block borders. The last unit done joins the stretches in order.
 *
 * Where the context is cut depends on that sequence's spans, limit and window alone, never on the
 * batch or the number of threads: a sequence gives the same bits alone and among others. */
#include "server/device/exec.h"

#include <string.h>

enum {
    /* Of context per unit, until there are SPLITS_MAX of them. A unit costs about 4 us on top of
     * its tokens: 1.3 times the kernel's time at 1024 tokens, 1.05 at 4096 (4 query heads, K2V2).
     */
    SPLIT_TOKENS = 4096,
    SPLITS_MAX = 32,
    POSITION_END = 1 << 30 /* beyond every position */
};

static uint32_t tokens_per_item(const struct kvd_job *job, const struct kvd_attend *attend)
{
    /* `full` with a window: the kernel moves the window with the query token, so one at a time */
    if (attend->full && attend->window > 0)
        return 1;
    return KVD_EXEC_ROWS / (attend->q_heads / job->heads);
}

static uint32_t attend_items(const struct kvd_job *job, const union kvd_exec_entry *entry)
{
    const struct kvd_attend *attend = &entry->attend;

    if (!kvd_attend_is_sound(job, attend))
        return 0;
    uint32_t tokens = tokens_per_item(job, attend);
    return (attend->q_tokens + tokens - 1) / tokens * job->heads;
}

static void attend_begin(void *result, kvarn_status status)
{
    struct kvd_attend *attend = result;

    attend->status = status;
    attend->fault = (struct kvd_fault){0};
}

/* Copies the spans of an entry. */
static kvarn_status take_spans(struct kvd_executor *executor, struct kvd_exec_item *item)
{
    const struct kvd_attend *attend = &item->entry.attend;
    uint64_t bytes = (uint64_t)attend->span_count * sizeof(struct kvd_job_span);
    struct kvd_job_span *spans = kvd_exec_spans(executor, attend->span_count);
    if (spans == NULL)
        return KVARN_NO_SPACE;
    memcpy(spans, item->job_at + attend->spans_offset, bytes);
    item->query.spans = spans;
    return kvd_bounds_hold_spans(&executor->bounds, item->job, spans, attend->span_count)
               ? KVARN_OK
               : KVARN_INTERNAL;
}

/* Tokens of a span inside [first, end). */
static uint32_t seen_of(const struct kvd_job_span *span, uint32_t first, uint32_t end)
{
    uint32_t from = span->position > first ? span->position : first;
    uint32_t to = span->position + span->tokens < end ? span->position + span->tokens : end;

    return to > from ? to - from : 0;
}

/* What any query token sees, and into how many stretches it is cut. */
static void cut_context(struct kvd_exec_query *query, const struct kvd_attend *attend)
{
    uint32_t last = attend->full ? 0 : attend->q_tokens - 1;

    query->end = attend->limit + last;
    query->first =
        attend->window > 0 && attend->limit > attend->window ? attend->limit - attend->window : 0;
    query->visible = 0;
    for (uint32_t i = 0; i < attend->span_count; i++)
        query->visible += seen_of(&query->spans[i], query->first, query->end);
    uint64_t splits = (query->visible + SPLIT_TOKENS - 1) / SPLIT_TOKENS;
    splits = splits < 1 ? 1 : splits > SPLITS_MAX ? SPLITS_MAX : splits;
    query->per_split = (query->visible + splits - 1) / splits;
    query->splits = (uint32_t)splits;
}

static kvarn_status take_entry(struct kvd_executor *executor, struct kvd_exec_item *item)
{
    const struct kvd_attend *attend = &item->entry.attend;
    struct kvd_exec_query *query = &item->query;

    if (!kvd_bounds_hold_attend(&executor->bounds, item->job, attend))
        return KVARN_INTERNAL;
    query->q = kvd_exec_at(executor, attend->q, 0);
    query->out = kvd_exec_at(executor, attend->out, 0);
    query->lse = kvd_exec_at(executor, attend->lse, 0);
    kvarn_status status = take_spans(executor, item);
    if (status == KVARN_OK)
        cut_context(query, attend);
    return status;
}

static kvarn_status attend_plan(struct kvd_executor *executor, struct kvd_exec_item *item,
                                uint32_t index)
{
    const struct kvd_attend *attend = &item->entry.attend;
    const struct kvd_job *job = item->job;
    struct kvd_exec_query *query = &item->query;
    uint32_t tokens = tokens_per_item(job, attend);

    /* the other items of the entry look at the same memory and cut the same context */
    if (item->lead == kvd_exec_item_index(executor, item)) {
        kvarn_status status = take_entry(executor, item);
        if (status != KVARN_OK)
            return status;
    } else {
        *query = (item - 1)->query;
    }
    query->group_heads = attend->q_heads / job->heads;
    query->kv_head = index % job->heads;
    query->token = index / job->heads * tokens;
    query->tokens =
        attend->q_tokens - query->token < tokens ? attend->q_tokens - query->token : tokens;
    item->units = query->splits;
    item->left = query->splits;
    item->order = (uint64_t)index * SPLITS_MAX;
    uint64_t rows = (uint64_t)query->tokens * query->group_heads;
    item->ns = (query->per_split + 16) * (16 + rows * 4);
    query->parts = NULL;
    if (item->units > 1) {
        query->parts = kvd_exec_parts(executor, item->units * rows * (job->shape.dim + 1u));
        if (query->parts == NULL)
            return KVARN_NO_SPACE;
        query->part_lse = query->parts + item->units * rows * job->shape.dim;
    }
    return KVARN_OK;
}

/* The spans of one stretch: those whose first visible token falls into it. */
static size_t collect_spans(const struct kvd_executor *executor, const struct kvd_exec_item *item,
                            uint32_t split, struct kvk_span *to)
{
    const struct kvd_exec_query *query = &item->query;
    const struct kvd_job *job = item->job;
    size_t row = kvd_row_bytes(&job->shape), count = 0;
    uint64_t cell = (uint64_t)job->layer_begin * job->heads + query->kv_head;
    uint64_t tile_at = cell * kvd_cell_bytes(&job->shape, KVARN_BLOCK_TILE);
    uint64_t exact_at = cell * kvd_cell_bytes(&job->shape, KVARN_BLOCK_EXACT);
    uint64_t begin = split * query->per_split, end = begin + query->per_split, at = 0;

    for (uint32_t i = 0; i < item->entry.attend.span_count && at < end; i++) {
        const struct kvd_job_span *span = &query->spans[i];
        uint32_t seen = seen_of(span, query->first, query->end);
        at += seen;
        if (seen == 0 || at - seen < begin)
            continue;
        /* the whole slot was checked by take_spans */
        const uint8_t *data = kvd_exec_at(executor, span->slot, 0) +
                              (span->kind == KVARN_BLOCK_TILE ? tile_at : exact_at);
        uint32_t tokens = query->end - span->position;
        to[count++] = (struct kvk_span){.kind = span->kind,
                                        .position = span->position,
                                        .tokens = tokens < span->tokens ? tokens : span->tokens,
                                        .data = data,
                                        .v = data + row * job->shape.group,
                                        .token_stride_bytes = row};
    }
    return count;
}

static void store(const struct kvd_exec_item *item, const float *out, const float *lse)
{
    const struct kvd_attend *attend = &item->entry.attend;
    const struct kvd_exec_query *query = &item->query;
    kvarn_dtype dtype = (kvarn_dtype)attend->out_dtype;
    size_t row = item->job->shape.dim * kvarn_dtype_bytes(dtype), heads = query->group_heads;

    for (uint32_t token = 0; token < query->tokens; token++) {
        uint64_t at = (uint64_t)(query->token + token) * attend->q_heads + query->kv_head * heads;
        kvk_store_rows(query->out + at * row, dtype, out + token * heads * item->job->shape.dim,
                       heads * item->job->shape.dim);
        memcpy(query->lse + at * sizeof(float), lse + token * heads, heads * sizeof(float));
    }
}

static kvarn_status attend_run(struct kvd_executor *executor, const struct kvd_exec_thread *thread,
                               struct kvd_exec_item *item, uint32_t unit, struct kvd_fault *fault)
{
    const struct kvd_attend *attend = &item->entry.attend;
    const struct kvd_exec_query *query = &item->query;
    const struct kvd_job *job = item->job;
    size_t q_row = job->shape.dim * kvarn_dtype_bytes((kvarn_dtype)attend->q_dtype);
    size_t rows = (size_t)query->tokens * query->group_heads;
    bool parted = query->parts != NULL;
    bool all_alike = attend->full && attend->window == 0;
    struct kvk_attend op = {
        .shape = job->shape,
        .q = query->q + ((uint64_t)query->token * attend->q_heads +
                         (uint64_t)query->kv_head * query->group_heads) *
                            q_row,
        .q_dtype = (uint8_t)attend->q_dtype,
        .q_tokens = query->tokens,
        .q_heads = query->group_heads,
        .q_token_stride_bytes = attend->q_heads * q_row,
        .q_head_stride_bytes = q_row,
        .scale = attend->scale,
        .soft_cap = attend->soft_cap,
        /* the spans already end at the limit; one beyond them all lets every query token see all */
        .limit = all_alike ? POSITION_END : attend->limit + (attend->full ? 0 : query->token),
        .window = attend->window,
        .spans = thread->spans,
        .span_count = collect_spans(executor, item, unit, thread->spans),
        .out = parted ? query->parts + unit * rows * job->shape.dim : thread->out,
        .lse = parted ? query->part_lse + unit * rows : thread->lse,
        .scratch = thread->scratch};
    kvarn_status status = kvd_exec_table(executor)->attend(&op);

    if (status != KVARN_OK)
        *fault = (struct kvd_fault){.tensor = (uint32_t)op.fault.tensor,
                                    .layer = job->layer_begin,
                                    .head = query->kv_head * query->group_heads +
                                            op.fault.token % query->group_heads,
                                    .token = query->token + op.fault.token / query->group_heads,
                                    .channel = op.fault.channel};
    /* acquire and release: the last one reads what the others wrote */
    if (atomic_fetch_sub_explicit(&item->left, 1, memory_order_acq_rel) != 1)
        return status;
    if (parted)
        kvk_merge(thread->out, thread->lse, query->parts, query->part_lse, item->units, rows,
                  job->shape.dim);
    if (status == KVARN_OK)
        store(item, thread->out, thread->lse);
    return status;
}

static void attend_finish(const struct kvd_exec_item *lead)
{
    struct kvd_attend *attend = lead->result;

    /* an entry of many items may take several waves; the first fault stands */
    if (attend->status == KVARN_OK) {
        attend->status = lead->status;
        attend->fault = lead->fault;
    }
}

const struct kvd_exec_op kvd_exec_attend = {
    .entry_bytes = sizeof(struct kvd_attend),
    .begin = attend_begin,
    .items = attend_items,
    .plan = attend_plan,
    .run = attend_run,
    .finish = attend_finish,
};
