/* SEQ_ATTEND: one layer of one step for many sequences: new rows are written to the tails, then
 * attended to together with everything before them.
 *
 * Two jobs in ring order, one crossing. A sequence whose rows are refused fails alone: what was
 * computed over its rows is zeroed before it leaves. */
#include "server/rpc/query.h"
#include "server/rpc/turns.h"
#include "server/rpc/work.h"

#include <string.h>

struct step {
    struct kvd_query query;
    uint64_t q_total, tokens_total; /* of all rows of the table */
    uint8_t *out, *lse;
};

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_turns_begin(work, metadata, 1, KVW_SEQUENCES_MAX, false, false);
    struct kvd_query query;

    if (status != KVARN_OK)
        return status;
    if (work->args.sequences.layer_begin >= work->space->layers)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "layer %u is outside the shard's %u",
                             work->args.sequences.layer_begin, work->space->layers);
    return kvd_query_resolve(work, &work->args.sequences.query, &query);
}

static void clear(struct kvd_work *work, const struct kvd_turn *turn)
{
    struct step *step = work->state;

    memset(step->out + turn->q_first * step->query.out_token_bytes, 0,
           turn->row.q_tokens * step->query.out_token_bytes);
    memset(step->lse + turn->q_first * step->query.lse_token_bytes, 0,
           turn->row.q_tokens * step->query.lse_token_bytes);
}

static void judge(struct kvd_work *work, struct kvd_turn *turn, const struct kvd_attend *entry)
{
    kvarn_status status = kvd_status_of(entry->status);
    struct kvd_fault fault = entry->fault;

    if (status == KVARN_NON_FINITE)
        kvd_turn_fail(work, turn, status,
                      "q holds NaN or infinity at query token %u, head %u, channel %u", fault.token,
                      fault.head, fault.channel);
    else if (status != KVARN_OK)
        kvd_turn_fail(work, turn, status, "%s", kvarn_status_text(status));
}

static void done(struct kvd_work *work)
{
    struct step *step = work->state;
    const struct kvd_attend *entries = work->job ? kvd_job_entries(work->job) : NULL;
    uint64_t bytes = (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES +
                     step->q_total * (step->query.out_token_bytes + step->query.lse_token_bytes);

    kvd_turns_wrote(work, work->args.sequences.layer_begin, 1);
    if (work->job_status != KVARN_OK) {
        kvd_work_refuse(work, work->job_status, "%s", kvarn_status_text(work->job_status));
        return;
    }
    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        if (entries && turn->answer.status == KVARN_OK && turn->attend != KVD_NO_ENTRY)
            judge(work, turn, &entries[turn->attend]);
        if (turn->answer.status != KVARN_OK)
            clear(work, turn);
    }
    kvd_turns_table(work, 0, work->turn_count);
    kvd_work_iov(work, work->reply_table, bytes);
    kvd_turns_send(work, work->turn_count);
}

static uint32_t context_of(const struct kvd_turn *turn)
{
    return turn->position + turn->row.tokens;
}

/* Query counts and quarantined blocks. */
static void check(struct kvd_work *work, struct kvd_turn *turn)
{
    uint32_t context = context_of(turn), group = work->space->shape.group;

    if (!turn->sequence || turn->answer.status != KVARN_OK)
        return;
    if (!turn->row.q_tokens || turn->row.q_tokens > KVD_Q_TOKENS_MAX ||
        (context && turn->row.q_tokens > context)) {
        kvd_turn_fail(work, turn, KVARN_INVALID_SHAPE,
                      "q_tokens = %u; must be 1 to %d and at most the %u tokens it can see",
                      turn->row.q_tokens, KVD_Q_TOKENS_MAX, context);
        return;
    }
    for (uint32_t b = 0; b < kvd_sequence_blocks_for(context, group); b++)
        if (turn->sequence->blocks[b]->corrupt)
            kvd_turn_fail(work, turn, KVARN_CORRUPT,
                          "block %u of it failed verification; release the sequence and compute "
                          "it again",
                          b);
}

/* Gives the number of spans. */
static uint32_t fill(struct kvd_work *work, struct kvd_turn *turn, struct kvd_attend *entry,
                     struct kvd_job_span *spans, uint64_t spans_at)
{
    struct step *step = work->state;
    uint32_t context = context_of(turn), group = work->space->shape.group;
    uint32_t first = kvd_query_first_block(&step->query, turn->row.q_tokens, context, group);
    const uint8_t *q = work->request.payload + kvd_turns_head_bytes(work);
    uint32_t count = 0;

    kvd_query_fill(&step->query, entry, turn->row.q_tokens, context);
    entry->q = kvd_work_place(work, q + turn->q_first * step->query.q_token_bytes);
    entry->out = kvd_work_place(work, step->out + turn->q_first * step->query.out_token_bytes);
    entry->lse = kvd_work_place(work, step->lse + turn->q_first * step->query.lse_token_bytes);
    entry->spans_offset = spans_at;
    for (uint32_t b = first; b < kvd_sequence_blocks_for(context, group); b++) {
        const struct kvd_block *block = turn->sequence->blocks[b];
        uint32_t left = context - b * group;

        spans[count++] = (struct kvd_job_span){kvd_block_place(block), block->kind, b * group,
                                               left < group ? left : group, 0};
    }
    entry->span_count = count;
    return count;
}

/* The ATTEND job; false: answered. */
static bool plan(struct kvd_work *work)
{
    uint32_t group = work->space->shape.group, entries = 0, at = 0;
    const struct kvd_query *query = &((struct step *)work->state)->query;
    uint64_t spans = 0, spans_at, pairs = 0;
    struct kvd_attend *entry;

    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        check(work, turn);
        if (!turn->sequence || turn->answer.status != KVARN_OK)
            continue;
        turn->attend = (int32_t)entries++;
        spans += kvd_sequence_blocks_for(context_of(turn), group);
        pairs += kvd_query_pairs(query, turn->row.q_tokens, context_of(turn));
    }
    if (pairs > KVD_ATTEND_PAIRS_MAX) {
        work->request.status = KVARN_OK; /* what failed in single rows does not matter now */
        kvd_query_check_pairs(work, pairs);
        kvd_work_refuse_kept(work);
        return false;
    }
    if (!entries)
        return true;
    work->job = kvd_work_job(work, KVD_JOB_ATTEND, entries, sizeof *entry,
                             spans * sizeof(struct kvd_job_span));
    if (!work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory for %llu spans now",
                        (unsigned long long)spans);
        return false;
    }
    work->job->layer_begin = work->args.sequences.layer_begin;
    work->job->layer_count = 1;
    entry = kvd_job_entries(work->job);
    spans_at = kvd_job_size(entries, sizeof *entry, 0);
    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        if (turn->attend == KVD_NO_ENTRY)
            continue;
        spans_at +=
            sizeof(struct kvd_job_span) *
            fill(work, turn, &entry[at++],
                 (struct kvd_job_span *)(void *)((uint8_t *)work->job + spans_at), spans_at);
    }
    return true;
}

/* Totals, payload length and staging of the reply; false: answered. */
static bool prepare(struct kvd_work *work)
{
    const struct kvd_turn *last = &work->turns[work->turn_count - 1];
    uint64_t row = kvd_space_row_bytes(work->space) * work->space->heads;
    uint64_t most = kvd_work_service(work)->options.payload_max_bytes, expected, reply;
    struct step *step = kvd_work_memory(work, 1, sizeof *step);

    work->state = step;
    if (!step) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
        return false;
    }
    kvd_query_resolve(work, &work->args.sequences.query, &step->query);
    step->q_total = last->q_first + last->row.q_tokens;
    step->tokens_total = last->row_first + last->row.tokens;
    /* Counts are below 2^44, a query token below 2^26 bytes: no overflow unless both are absurd. */
    if (__builtin_mul_overflow(step->q_total, step->query.q_token_bytes, &expected) ||
        step->q_total > most || step->tokens_total > most)
        expected = UINT64_MAX / 2;
    expected +=
        kvd_turns_head_bytes(work) + (step->tokens_total > most ? 0 : 2 * row * step->tokens_total);
    if (work->request.header.payload_bytes != expected) {
        kvd_work_refuse(work, KVARN_INVALID_SHAPE,
                        "the table announces %llu query and %llu new tokens, %llu bytes in all; "
                        "the payload has %llu",
                        (unsigned long long)step->q_total, (unsigned long long)step->tokens_total,
                        (unsigned long long)expected,
                        (unsigned long long)work->request.header.payload_bytes);
        return false;
    }
    reply = (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES +
            step->q_total * (step->query.out_token_bytes + step->query.lse_token_bytes);
    if (reply > most) {
        kvd_work_refuse(work, KVARN_TOO_LARGE,
                        "the answer takes %llu bytes, a reply has at most %llu; send fewer query "
                        "tokens or sequences at once",
                        (unsigned long long)reply, (unsigned long long)most);
        return false;
    }
    work->reply_table = kvd_work_staging(work, reply);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory for the answer now");
        return false;
    }
    step->out = work->reply_table + (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES;
    step->lse = step->out + step->q_total * step->query.out_token_bytes;
    return true;
}

static void go(struct kvd_work *work)
{
    uint32_t layer = work->args.sequences.layer_begin;
    struct kvd_strides strides = {0};
    struct step *step;
    const uint8_t *k;

    if (!prepare(work))
        return;
    step = work->state;
    strides.head = kvd_space_row_bytes(work->space);
    strides.token = strides.head * work->space->heads;
    k = work->request.payload + kvd_turns_head_bytes(work) +
        step->q_total * step->query.q_token_bytes;
    kvd_turns_place(work, layer, 1);
    if (!plan(work))
        return;
    if (!kvd_turns_write(work, k, k + step->tokens_total * strides.token, &strides, layer, 1))
        return;
    work->job_status = KVARN_OK;
    /* In ring order: the rows first. */
    if (work->second && !kvd_turns_submit(work, done)) {
        done(work);
        return;
    }
    if (!work->job || !kvd_work_submit(work, work->job, done)) {
        if (!work->jobs)
            done(work);
    }
}

static void run(struct kvd_work *work)
{
    kvd_turns_run(work, 0, go);
}

const struct kvd_operation kvd_operation_seq_attend = {begin, run, false, NULL};
