/* SEQ_FORK: children that share the full blocks and get copies of the tail. All or none. */
#include "server/rpc/turns.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_turns_begin(work, metadata, 1, 1, false, true);
    uint32_t count = work->args.sequences.fork_count;

    if (status != KVARN_OK)
        return status;
    if (!count || count > KVW_SEQUENCES_MAX)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "fork_count = %u; must be 1 to %d", count,
                             KVW_SEQUENCES_MAX);
    kvd_work_need(work, (uint64_t)count * KVW_SEQ_STATUS_BYTES);
    return KVARN_OK;
}

static void give_children(struct kvd_work *work)
{
    kvd_turns_give(work, 1);
}

static void done(struct kvd_work *work)
{
    const struct kvd_copy *entries = work->job ? kvd_job_entries(work->job) : NULL;
    kvarn_status status = work->job_status;
    uint32_t count = work->turn_count - 1;

    for (uint32_t i = 0; work->job && status == KVARN_OK && i < work->entry_count; i++)
        status = kvd_status_of(entries[i].status);
    if (status != KVARN_OK) {
        give_children(work);
        kvd_work_refuse(work, status, "%s", kvarn_status_text(status));
        return;
    }
    kvd_turns_table(work, 1, count);
    kvd_work_iov(work, work->reply_table, (uint64_t)count * KVW_SEQ_STATUS_BYTES);
    kvd_turns_send(work, count);
}

/* Copies of the parent's tail slots into each child's. False: no staging. */
static bool plan(struct kvd_work *work)
{
    const struct kvd_sequence *parent = work->turns[0].sequence;
    uint32_t full = parent->committed / work->space->shape.group;
    uint32_t tails = parent->block_count - full, at = 0;
    uint32_t children = work->turn_count - 1;
    struct kvd_copy *entries;

    if (!tails)
        return true;
    work->entry_count = tails * children;
    work->job = kvd_work_job(work, KVD_JOB_COPY, work->entry_count, sizeof *entries, 0);
    if (!work->job)
        return false;
    entries = kvd_job_entries(work->job);
    for (uint32_t i = 1; i <= children; i++)
        for (uint32_t b = full; b < parent->block_count; b++)
            entries[at++] =
                (struct kvd_copy){.dst = kvd_block_place(work->turns[i].sequence->blocks[b]),
                                  .src = kvd_block_place(parent->blocks[b]),
                                  .bytes = work->space->exact_bytes,
                                  .kind = KVARN_BLOCK_EXACT};
    return true;
}

static void go(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvd_sequence *parent = work->turns[0].sequence;
    uint32_t count = work->args.sequences.fork_count;

    if (!parent) {
        kvd_work_refuse_kept(work);
        return;
    }
    for (uint32_t i = 1; i <= count; i++) {
        struct kvd_turn *turn = &work->turns[i];
        kvarn_status status = kvd_sequence_fork(&service->sequences, parent, &turn->sequence);

        if (status != KVARN_OK) {
            give_children(work);
            kvd_work_refuse(work, status, "child %u of %u got no slot for its tail (%s)", i, count,
                            kvarn_status_name(status));
            return;
        }
        work->turn_count = i + 1;
        turn->answer.sequence = turn->sequence->id;
        /* Busy until the copy is done, so that a connection that goes only dooms it. */
        kvd_sequence_enter(turn->sequence, &turn->wait, work);
    }
    work->reply_table = kvd_work_staging(work, (uint64_t)count * KVW_SEQ_STATUS_BYTES);
    work->job_status = KVARN_OK;
    if (!work->reply_table || !plan(work)) {
        give_children(work);
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!work->job || !kvd_work_submit(work, work->job, done))
        done(work);
}

static void run(struct kvd_work *work)
{
    kvd_turns_run(work, work->args.sequences.fork_count, go);
}

const struct kvd_operation kvd_operation_seq_fork = {begin, run, false, give_children};
