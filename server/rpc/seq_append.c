/* SEQ_APPEND: rows of some layers into the tails. They count only after SEQ_COMMIT. */
#include "server/rpc/tensor.h"
#include "server/rpc/turns.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_turns_begin(work, metadata, 1, KVW_SEQUENCES_MAX, false, false);
    struct kvw_sequences *args = &work->args.sequences;

    if (status != KVARN_OK)
        return status;
    if (!args->layer_count && args->layer_begin < work->space->layers)
        args->layer_count = work->space->layers - args->layer_begin;
    if (!args->layer_count || (uint64_t)args->layer_begin + args->layer_count > work->space->layers)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "layers [%u, +%u) are outside the shard's %u", args->layer_begin,
                             args->layer_count, work->space->layers);
    kvd_work_need(work, (uint64_t)args->sequence_count * KVW_SEQ_STATUS_BYTES);
    return KVARN_OK;
}

static void done(struct kvd_work *work)
{
    const struct kvw_sequences *args = &work->args.sequences;

    kvd_turns_wrote(work, args->layer_begin, args->layer_count);
    kvd_turns_table(work, 0, work->turn_count);
    kvd_work_iov(work, work->reply_table, (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES);
    kvd_turns_send(work, work->turn_count);
}

static void go(struct kvd_work *work)
{
    const struct kvw_sequences *args = &work->args.sequences;
    const struct kvd_turn *last = &work->turns[work->turn_count - 1];
    uint64_t head = kvd_turns_head_bytes(work);
    struct kvd_tensor tensor = {.layers = args->layer_count,
                                .blocks = 1,
                                .tokens = last->row_first + last->row.tokens,
                                .heads = work->space->heads,
                                .row_bytes = kvd_space_row_bytes(work->space)};
    char text[KVD_TEXT_MAX] = "";
    const uint8_t *rows = work->request.payload + head;

    work->reply_table = kvd_work_staging(work, (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!tensor.tokens) {
        kvd_work_refuse(work, KVARN_INVALID_SHAPE, "the call appends no tokens at all");
        return;
    }
    if (kvd_tensor_resolve(&tensor, &args->layout, work->request.header.payload_bytes - head, text,
                           sizeof text) != KVARN_OK) {
        kvd_work_refuse(work, KVARN_INVALID_SHAPE, "%s", text);
        return;
    }
    kvd_turns_place(work, args->layer_begin, args->layer_count);
    if (!kvd_turns_write(work, rows + tensor.k, rows + tensor.v, &tensor.strides, args->layer_begin,
                         args->layer_count))
        return;
    work->job_status = KVARN_OK;
    if (!work->second || !kvd_turns_submit(work, done))
        done(work);
}

static void run(struct kvd_work *work)
{
    kvd_turns_run(work, 0, go);
}

const struct kvd_operation kvd_operation_seq_append = {begin, run, false, NULL};
