/* Sequences: OPEN, APPEND, COMMIT, FORK, RELEASE, and ATTEND with new rows. */
#include "client/blocks.h"
#include "client/rows.h"

#include <stdlib.h>

/* ---- what all share */

static kvarn_status sequences_reply(struct kvarn_call *call, const struct kvc_reply *reply,
                                    const char **why)
{
    struct kvw_sequences_reply in;
    kvarn_status status =
        kvw_sequences_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    call->device_ns = in.device_ns;
    if (reply->payload_bytes > 0 && in.sequence_count != call->rows) {
        *why = "a reply with another number of sequences than its request";
        return KVARN_BAD_FRAME;
    }
    return KVARN_OK;
}

static kvarn_status sequences_finish(struct kvarn_call *call, const char **why)
{
    kvarn_seq_args *args = call->args;
    kvarn_seq *seqs = call->op == KVW_SEQ_FORK ? args->seqs + 1 : args->seqs; /* the children */
    bool gives_id = call->op == KVW_SEQ_OPEN || call->op == KVW_SEQ_FORK;

    (void)why;
    for (size_t i = 0; i < call->rows; i++) {
        struct kvw_seq_status row;
        if (!kvc_call_has_table(call)) {
            seqs[i].status = call->status;
            continue;
        }
        kvw_seq_status_load(&row, call->table + i * KVW_SEQ_STATUS_BYTES);
        seqs[i].status = (kvarn_status)row.status;
        seqs[i].committed = row.committed;
        seqs[i].blocks = row.blocks;
        if (gives_id)
            seqs[i].sequence = row.sequence;
    }
    return KVARN_OK;
}

/* The parts of a call on sequences that differ from one operation to the next. */
struct seq_shape {
    uint8_t op;
    size_t request_rows, reply_rows, spare; /* spare: bytes for packed rows */
};

static kvarn_status make(struct kvarn_client *client, const struct seq_shape *shape,
                         const struct kvw_sequences *meta, const kvarn_seq *seqs,
                         struct kvarn_call **call)
{
    size_t table = shape->request_rows * KVW_SEQ_ROW_BYTES;
    struct kvarn_call *made = kvc_call_new(shape->op, KVC_METADATA_ROOM + table + shape->spare,
                                           shape->reply_rows * KVW_SEQ_STATUS_BYTES);

    if (!made)
        return kvc_client_no_memory(client);
    kvc_call_set_metadata(made,
                          kvw_sequences_encode(kvc_call_metadata(made), KVC_METADATA_ROOM, meta));
    uint8_t *at = kvc_call_append(made, table);
    for (size_t i = 0; i < shape->request_rows; i++) {
        struct kvw_seq_row row = {
            .sequence = seqs[i].sequence,
            .position = seqs[i].position,
            .q_tokens = shape->op == KVW_SEQ_ATTEND ? seqs[i].q_tokens : 0,
            .tokens = seqs[i].tokens,
            .keys = shape->op == KVW_SEQ_COMMIT ? seqs[i].keys : 0,
            .expected = shape->op == KVW_SEQ_COMMIT ? seqs[i].expected : 0,
        };
        kvw_seq_row_store(at + i * KVW_SEQ_ROW_BYTES, &row);
    }
    made->rows = shape->reply_rows;
    made->on_reply = sequences_reply;
    made->on_finish = sequences_finish;
    kvc_call_add_place(made, made->table, made->table_bytes);
    *call = made;
    return KVARN_OK;
}

static kvarn_status check_seqs(struct kvarn_client *client, const char *name,
                               const kvarn_seq_args *args)
{
    if (args->count == 0 || !args->seqs)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: %s", name,
                               args->count == 0 ? "count is 0" : "seqs is NULL");
    if (args->count > KVW_SEQUENCES_MAX)
        return kvc_client_fail(client, KVARN_TOO_LARGE,
                               "%s: %zu sequences, at most %d in one call: split it", name,
                               args->count, KVW_SEQUENCES_MAX);
    return KVARN_OK;
}

/* New rows of all sequences, in order, on one token axis. */
static uint64_t tokens_of(const kvarn_seq_args *args)
{
    uint64_t tokens = 0;

    for (size_t i = 0; i < args->count; i++)
        tokens += args->seqs[i].tokens;
    return tokens;
}

static struct kvc_rows rows_of(const struct kvc_space *space, uint64_t layers, uint64_t tokens)
{
    return (struct kvc_rows){
        .layers = layers,
        .blocks = 1,
        .tokens = tokens,
        .heads = space->kv_heads,
        .row_bytes = (uint64_t)space->head_dim * kvarn_dtype_bytes(space->dtype),
    };
}

/* ---- OPEN */

static kvarn_status plan_open(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_seq_args *args = args_;
    const struct seq_shape shape = {KVW_SEQ_OPEN, 0, 1, 0};

    if (!args->seqs)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "sequence_open: seqs is NULL");
    if (args->key_count > 0) {
        kvarn_status status =
            kvc_blocks_check(client, "sequence_open", args->keys, args->key_count);
        if (status != KVARN_OK)
            return status;
    }
    struct kvw_sequences meta = {
        .space = args->space, .sequence_count = 0, .key_count = (uint32_t)args->key_count};
    kvarn_status status = make(client, &shape, &meta, args->seqs, call);
    if (status == KVARN_OK)
        kvc_call_add_part(*call, args->keys, args->key_count * sizeof *args->keys);
    return status;
}

KVC_DEFINE_OPERATION(sequence_open, kvarn_seq_args, KVW_SEQ_OPEN, plan_open)

/* ---- APPEND */

static kvarn_status plan_append(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_seq_args *args = args_;
    struct seq_shape shape = {KVW_SEQ_APPEND, args->count, args->count, 0};
    struct kvc_rows_plan plan;

    kvarn_status status = check_seqs(client, "sequence_append", args);
    if (status != KVARN_OK)
        return status;
    const struct kvc_space *space = kvc_client_space(client, args->space);
    if (!space)
        return KVARN_NOT_FOUND;
    if (args->layer_begin >= space->layers || args->layer_count > space->layers - args->layer_begin)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "sequence_append: layers %u+%u, the space's shard has %u",
                               args->layer_begin, args->layer_count, space->layers);
    uint32_t layers = args->layer_count ? args->layer_count : space->layers - args->layer_begin;
    struct kvc_rows rows = rows_of(space, layers, tokens_of(args));
    if (rows.tokens == 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "sequence_append: no sequence has new tokens");
    status =
        kvc_rows_plan(client, "sequence_append", &rows, args->k, args->v, args->strides, &plan);
    if (status != KVARN_OK)
        return status;
    plan.layout.block_stride = 0; /* one token axis, no blocks */
    struct kvw_sequences meta = {
        .space = args->space,
        .sequence_count = (uint32_t)args->count,
        .layer_begin = args->layer_begin,
        .layer_count = layers,
        .layout = plan.layout,
    };
    status = make(client, &shape, &meta, args->seqs, call);
    for (uint32_t i = 0; status == KVARN_OK && i < plan.part_count; i++)
        kvc_call_add_part(*call, plan.parts[i].iov_base, plan.parts[i].iov_len);
    return status;
}

KVC_DEFINE_OPERATION(sequence_append, kvarn_seq_args, KVW_SEQ_APPEND, plan_append)

/* ---- ATTEND */

/* One layer's new rows. The wire has no layout here, so strided ones are packed into the call: a
 * decode step has one row per sequence. */
struct attend_plan {
    struct kvc_rows rows;
    uint64_t rows_bytes, q_bytes, out_bytes, lse_bytes;
    kvarn_strides strides; /* packed: of the caller's rows */
    bool packed;
};

static kvarn_status measure_attend(struct kvarn_client *client, const kvarn_seq_args *args,
                                   const struct kvc_space *space, const struct kvw_query *query,
                                   struct attend_plan *plan)
{
    uint64_t q_tokens = 0;

    for (size_t i = 0; i < args->count; i++)
        q_tokens += args->seqs[i].q_tokens;
    if (q_tokens == 0 || !args->q || !args->out)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "sequence_attend: %s",
                               q_tokens == 0 ? "no sequence has query tokens"
                               : args->q     ? "out is NULL"
                                             : "q is NULL");
    plan->rows = rows_of(space, 1, tokens_of(args));
    plan->packed = plan->rows.tokens > 0 && args->strides;
    if (!kvc_rows_bytes(&plan->rows, &plan->rows_bytes) ||
        (plan->packed && !kvc_rows_strides(&plan->rows, args->strides, &plan->strides)))
        plan->rows_bytes = UINT64_MAX / 4;
    if (plan->rows_bytes > client->session->peer.payload_max_bytes)
        return kvc_client_fail(client, KVARN_TOO_LARGE,
                               "sequence_attend: too many new rows for one call");
    if (plan->rows.tokens > 0 && (!args->k || !args->v))
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "sequence_attend: %s is NULL and there are new tokens",
                               args->k ? "v" : "k");
    return kvc_query_bytes(client, "sequence_attend", space, query, q_tokens, &plan->q_bytes,
                           &plan->out_bytes, &plan->lse_bytes);
}

static void add_rows(struct kvarn_call *call, const kvarn_seq_args *args,
                     const struct attend_plan *plan)
{
    kvc_call_add_part(call, args->q, (size_t)plan->q_bytes);
    if (!plan->packed) {
        kvc_call_add_part(call, args->k, (size_t)plan->rows_bytes);
        kvc_call_add_part(call, args->v, (size_t)plan->rows_bytes);
        return;
    }
    uint8_t *k = kvc_call_spare(call, 2 * (size_t)plan->rows_bytes);
    kvc_rows_pack(&plan->rows, args->k, &plan->strides, k);
    kvc_rows_pack(&plan->rows, args->v, &plan->strides, k + plan->rows_bytes);
    kvc_call_add_part(call, k, 2 * (size_t)plan->rows_bytes);
}

static kvarn_status plan_attend(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_seq_args *args = args_;
    struct attend_plan plan = {0};
    struct kvw_sequences meta = {
        .space = args->space, .layer_begin = args->layer_begin, .layer_count = 1};

    kvarn_status status = check_seqs(client, "sequence_attend", args);
    if (status != KVARN_OK)
        return status;
    const struct kvc_space *space = kvc_client_space(client, args->space);
    if (!space)
        return KVARN_NOT_FOUND;
    if (args->layer_begin >= space->layers)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "sequence_attend: layer_begin is %u, the space's shard has %u",
                               args->layer_begin, space->layers);
    meta.sequence_count = (uint32_t)args->count;
    status = kvc_query_check(client, "sequence_attend", space, &args->query, &meta.query);
    if (status == KVARN_OK)
        status = measure_attend(client, args, space, &meta.query, &plan);
    if (status != KVARN_OK)
        return status;
    const struct seq_shape shape = {KVW_SEQ_ATTEND, args->count, args->count,
                                    plan.packed ? 2 * (size_t)plan.rows_bytes : 0};
    status = make(client, &shape, &meta, args->seqs, call);
    if (status != KVARN_OK)
        return status;
    add_rows(*call, args, &plan);
    kvc_call_add_place(*call, args->out, plan.out_bytes);
    kvc_call_add_place(*call, args->lse, plan.lse_bytes);
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(sequence_attend, kvarn_seq_args, KVW_SEQ_ATTEND, plan_attend)

/* ---- COMMIT, FORK, RELEASE */

static kvarn_status plan_commit(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_seq_args *args = args_;
    const struct seq_shape shape = {KVW_SEQ_COMMIT, args->count, args->count, 0};
    uint64_t keys = 0;

    kvarn_status status = check_seqs(client, "sequence_commit", args);
    if (status == KVARN_OK && args->key_count > 0)
        status = kvc_blocks_check(client, "sequence_commit", args->keys, args->key_count);
    if (status != KVARN_OK)
        return status;
    for (size_t i = 0; i < args->count; i++)
        keys += args->seqs[i].keys;
    if (keys != args->key_count)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "sequence_commit: the sequences claim %llu keys and key_count is "
                               "%zu",
                               (unsigned long long)keys, args->key_count);
    struct kvw_sequences meta = {
        .space = args->space,
        .sequence_count = (uint32_t)args->count,
        .key_count = (uint32_t)args->key_count,
    };
    status = make(client, &shape, &meta, args->seqs, call);
    if (status == KVARN_OK)
        kvc_call_add_part(*call, args->keys, args->key_count * sizeof *args->keys);
    return status;
}

KVC_DEFINE_OPERATION(sequence_commit, kvarn_seq_args, KVW_SEQ_COMMIT, plan_commit)

static kvarn_status plan_fork(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_seq_args *args = args_;
    const struct seq_shape shape = {KVW_SEQ_FORK, 1, args->count, 0};
    kvarn_status status = check_seqs(client, "sequence_fork", args);

    if (status != KVARN_OK)
        return status;
    struct kvw_sequences meta = {
        .space = args->space, .sequence_count = 1, .fork_count = (uint32_t)args->count};
    return make(client, &shape, &meta, args->seqs, call);
}

KVC_DEFINE_OPERATION(sequence_fork, kvarn_seq_args, KVW_SEQ_FORK, plan_fork)

static kvarn_status plan_release(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_seq_args *args = args_;
    const struct seq_shape shape = {KVW_SEQ_RELEASE, args->count, args->count, 0};
    kvarn_status status = check_seqs(client, "sequence_release", args);

    if (status != KVARN_OK)
        return status;
    struct kvw_sequences meta = {.space = args->space, .sequence_count = (uint32_t)args->count};
    return make(client, &shape, &meta, args->seqs, call);
}

KVC_DEFINE_OPERATION(sequence_release, kvarn_seq_args, KVW_SEQ_RELEASE, plan_release)
