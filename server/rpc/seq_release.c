/* SEQ_RELEASE: sequences are given back; shared blocks stay as long as others want them. */
#include "server/rpc/turns.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_turns_begin(work, metadata, 1, KVW_SEQUENCES_MAX, false, true);

    if (status == KVARN_OK)
        kvd_work_need(work, (uint64_t)work->args.sequences.sequence_count * KVW_SEQ_STATUS_BYTES);
    return status;
}

static void go(struct kvd_work *work)
{
    uint64_t bytes = (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES;

    work->reply_table = kvd_work_staging(work, bytes);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    kvd_turns_table(work, 0, work->turn_count);
    /* Doomed now, ended when this work leaves their queues. */
    for (uint32_t i = 0; i < work->turn_count; i++)
        if (work->turns[i].sequence)
            kvd_sequence_give(&kvd_work_service(work)->sequences, work->turns[i].sequence);
    kvd_work_iov(work, work->reply_table, bytes);
    kvd_turns_send(work, work->turn_count);
}

static void run(struct kvd_work *work)
{
    kvd_turns_run(work, 0, go);
}

const struct kvd_operation kvd_operation_seq_release = {begin, run, true, NULL};
