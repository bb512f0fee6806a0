/* SEQ_OPEN: a sequence over the longest stored run of the given prefix keys. */
#include "server/rpc/tier.h"
#include "server/rpc/turns.h"
#include "server/rpc/work.h"

#include <string.h>

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_turns_begin(work, metadata, 0, 0, true, true);

    if (status == KVARN_OK)
        kvd_work_need(work, KVW_SEQ_STATUS_BYTES);
    return status;
}

/* Blocks of the longest run; gives their number. */
static uint32_t find_run(struct kvd_work *work, struct kvd_block **run)
{
    struct kvd_service *service = kvd_work_service(work);
    uint32_t count = work->args.sequences.key_count;
    uint32_t most = (uint32_t)KVD_SEQUENCE_TOKENS_MAX / work->space->shape.group;

    for (uint32_t i = 0; i < count && i < most; i++) {
        kvarn_key key;

        memcpy(key.bytes, work->request.payload + (size_t)i * KVARN_KEY_BYTES, sizeof key.bytes);
        run[i] = kvd_block_find(&service->blocks, work->space, &key);
        if (!run[i]) {
            work->space->misses += count - i;
            return i;
        }
        work->space->hits++;
    }
    return count < most ? count : most;
}

/* What follows the run may be on disk: who opens the sequence again finds it. */
static void fetch_rest(struct kvd_work *work, uint32_t first)
{
    for (uint32_t i = first; i < work->args.sequences.key_count; i++) {
        kvarn_key key;

        memcpy(key.bytes, work->request.payload + (size_t)i * KVARN_KEY_BYTES, sizeof key.bytes);
        if (kvd_tier_fetch(kvd_work_service(work), work->space, &key) == KVARN_NOT_FOUND)
            return;
    }
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvd_block **blocks =
        kvd_work_memory(work, work->args.sequences.key_count, sizeof(struct kvd_block *));
    struct kvd_sequence *sequence;
    uint32_t count;
    kvarn_status status;

    work->reply_table = kvd_work_staging(work, KVW_SEQ_STATUS_BYTES);
    work->turns = kvd_work_memory(work, 1, sizeof *work->turns);
    if (!blocks || !work->turns || !work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
        return;
    }
    count = find_run(work, blocks);
    status = kvd_sequence_new(&service->sequences, work->request.conn_id, work->space, blocks,
                              count, &sequence);
    if (status != KVARN_OK) {
        kvd_work_refuse(work, status, "%u sequences are open, no more are given %s; release some",
                        service->sequences.count, status == KVARN_QUOTA ? "to this tenant" : "now");
        return;
    }
    fetch_rest(work, count); /* the run is held by now */
    work->turn_count = 1;
    work->turns[0].sequence = sequence;
    work->turns[0].answer.sequence = sequence->id;
    work->turns[0].answer.blocks = count;
    kvd_turns_table(work, 0, 1);
    kvd_work_iov(work, work->reply_table, KVW_SEQ_STATUS_BYTES);
    kvd_turns_send(work, 1);
}

static void undo(struct kvd_work *work)
{
    kvd_turns_give(work, 0);
}

const struct kvd_operation kvd_operation_seq_open = {begin, run, false, undo};
