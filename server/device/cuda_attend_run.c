/* A wave of ATTEND: sequences of one kind are planned and launched together. Where their partial
 * results do not fit the memory for them, the sequences are halved into two launches. */
#include "server/device/cuda_attend.h"

#include <stdio.h>
#include <string.h>

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

/* Of an entry of several sequences the first fault stands. */
static void finish(const struct kvd_cuda_executor *executor, uint32_t number)
{
    const struct kvd_cuda_sequence *sequence = &executor->attends->sequences[number];
    uint64_t fault;

    memcpy(&fault,
           executor->attends->tables.host + faults_at(executor->attends) + number * sizeof(fault),
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

static bool launch(struct kvd_cuda_executor *executor, const struct kvd_cuda_attend_kind *kind,
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
        .pieces = executor->attends->tables.address + pieces_at(executor->attends),
        .parts = executor->attends->parts,
        .joins = executor->attends->joins,
        .faults = executor->attends->tables.address + faults_at(executor->attends)};

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
    struct kvk_cuda_piece *pieces =
        (struct kvk_cuda_piece *)(void *)(executor->attends->tables.host + at);
    kvarn_status status = KVARN_OK;

    if (pieces_at_most(batch) > room) {
        status = kvk_attend_plan(batch, plan, NULL);
        if (status == KVARN_OK && plan->pieces > room)
            status = KVARN_TOO_LARGE;
    }
    if (status == KVARN_OK)
        status = kvk_attend_plan(batch, plan, pieces);
    if (status == KVARN_OK &&
        (plan->joins > KVD_CUDA_JOINS_MAX || plan->part_bytes > KVD_CUDA_PARTS_BYTES))
        status = KVARN_TOO_LARGE;
    return status;
}

/* The pieces of the wave before are those of this one; what they are about has changed. */
static bool keep_pieces(struct kvd_cuda_attends *attends)
{
    const struct kvd_cuda_kept *kept = &attends->kept;
    struct kvk_cuda_piece *pieces =
        (struct kvk_cuda_piece *)(void *)(attends->tables.host + pieces_at(attends));

    if (!attends->same || attends->kind_count != 1 || attends->sequence_count != kept->sequences ||
        attends->span_count != kept->spans ||
        !kvd_cuda_attend_kind_same(&attends->kinds[0], &kept->kind))
        return false;
    for (uint32_t i = 0; i < kept->plan.pieces; i++)
        pieces[i].of = attends->sequences[pieces[i].sequence].of;
    return true;
}

static void remember(struct kvd_cuda_attends *attends, const struct kvk_attend_plan *plan)
{
    attends->kept = (struct kvd_cuda_kept){.valid = true,
                                           .kind = attends->kinds[0],
                                           .sequences = attends->sequence_count,
                                           .spans = attends->span_count,
                                           .plan = *plan};
}

/* Uploads what the GPU has not yet, and launches. */
static bool start(struct kvd_cuda_executor *executor, const struct kvd_cuda_attend_kind *kind,
                  const struct kvk_attend_plan *plan)
{
    struct kvd_cuda_attends *attends = executor->attends;
    uint64_t at = pieces_at(attends), from = attends->uploaded < at ? attends->uploaded : at;

    attends->busy = attends->ran = true;
    attends->uploaded = at;
    return kvd_cuda_upload(executor, &attends->tables, from,
                           at + plan->pieces * sizeof(struct kvk_cuda_piece)) &&
           launch(executor, kind, plan);
}

/* Sequences [first, first + count) of the chosen ones. */
static bool run_some(struct kvd_cuda_executor *executor, const struct kvd_cuda_attend_kind *kind,
                     uint32_t first, uint32_t count)
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
    if (status == KVARN_OK && count == attends->sequence_count)
        remember(attends, &plan);
    if (status == KVARN_OK)
        return start(executor, kind, &plan);
    if (status == KVARN_TOO_LARGE && count > 1)
        return run_some(executor, kind, first, count / 2) &&
               run_some(executor, kind, first + count / 2, count - count / 2);
    for (uint32_t i = first; i < first + count; i++)
        kvd_cuda_attend_answer(attends->sequences[attends->numbers[i]].result, status);
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

bool kvd_cuda_attends_run(struct kvd_cuda_executor *executor)
{
    struct kvd_cuda_attends *attends = executor->attends;
    uint64_t faults = faults_at(attends), end = pieces_at(attends);

    if (attends->sequence_count == 0)
        return true;
    memset(executor->attends->tables.host + faults, 0xff, end - faults); /* no fault */
    attends->uploaded = 0;
    attends->busy = attends->ran = false;
    if (keep_pieces(attends)) {
        if (!start(executor, &attends->kinds[0], &attends->kept.plan))
            return false;
    } else {
        attends->kept.valid = false;
        for (uint32_t kind = 0; kind < attends->kind_count; kind++)
            if (!run_kind(executor, kind))
                return false;
    }
    if (attends->ran) {
        if (!kvd_cuda_download(executor, &attends->tables, faults, end) || !kvd_cuda_wait(executor))
            return false;
        for (uint32_t i = 0; i < attends->sequence_count; i++)
            finish(executor, i);
    }
    attends->sequence_count = attends->kind_count = 0;
    attends->span_count = 0;
    attends->same = attends->kept.valid;
    return true;
}
