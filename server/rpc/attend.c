/* ATTEND: query rows of one layer over blocks named by key, as positions 0, 1, 2, ... */
#include "server/rpc/items.h"
#include "server/rpc/query.h"
#include "server/rpc/work.h"

static uint64_t spans_bytes(const struct kvd_work *work)
{
    return (uint64_t)work->args.blocks.block_count * sizeof(struct kvd_job_span);
}

static kvarn_status check(struct kvd_work *work, struct kvd_query *query)
{
    const struct kvw_blocks *args = &work->args.blocks;
    const struct kvd_space *space = work->space;
    uint32_t context = args->block_count * space->shape.group;
    uint32_t q_tokens = args->query.q_tokens;
    kvarn_status status = kvd_query_resolve(work, &args->query, query);
    uint64_t most = kvd_work_service(work)->options.payload_max_bytes, expected, reply;

    if (status != KVARN_OK)
        return status;
    if (args->layer_begin >= space->layers)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "layer %u is outside the shard's %u",
                             args->layer_begin, space->layers);
    if (!q_tokens || q_tokens > KVD_Q_TOKENS_MAX)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "q_tokens = %u; must be 1 to %d", q_tokens,
                             KVD_Q_TOKENS_MAX);
    if (context && q_tokens > context)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "q_tokens = %u is more than the %u tokens of the named blocks",
                             q_tokens, context);
    expected = (uint64_t)args->block_count * KVARN_KEY_BYTES + q_tokens * query->q_token_bytes;
    if (work->request.header.payload_bytes != expected)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "%u keys and [%u][%u][%u] query rows take %llu bytes, the payload has "
                             "%llu",
                             args->block_count, q_tokens, query->q_heads, space->shape.dim,
                             (unsigned long long)expected,
                             (unsigned long long)work->request.header.payload_bytes);
    reply = q_tokens * (query->out_token_bytes + query->lse_token_bytes);
    if (reply > most)
        return kvd_work_fail(work, KVARN_TOO_LARGE,
                             "the answer takes %llu bytes, a reply has at most %llu; send fewer "
                             "query tokens at once",
                             (unsigned long long)reply, (unsigned long long)most);
    return kvd_query_check_pairs(work, kvd_query_pairs(query, q_tokens, context));
}

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_items_begin(work, metadata, 0, KVARN_KEY_BYTES, false);
    struct kvd_query query;
    uint64_t q_tokens = work->args.blocks.query.q_tokens;

    if (status == KVARN_OK)
        status = check(work, &query);
    if (status != KVARN_OK)
        return status;
    kvd_work_need(work, q_tokens * (query.out_token_bytes + query.lse_token_bytes));
    kvd_work_need(work, kvd_job_size(1, sizeof(struct kvd_attend), spans_bytes(work)));
    return KVARN_OK;
}

static void done(struct kvd_work *work)
{
    const struct kvd_attend *entry = kvd_job_entries(work->job);
    struct kvw_blocks_reply reply = {.matched = work->item_count, .device_ns = work->device_ns};
    struct kvd_query query;
    uint64_t q_tokens = work->args.blocks.query.q_tokens;
    struct kvd_fault fault = entry->fault;
    kvarn_status status = work->job_status;

    if (status == KVARN_OK)
        status = kvd_status_of(entry->status);
    if (status == KVARN_NON_FINITE) {
        kvd_work_refuse(work, status,
                        "q holds NaN or infinity at query token %u, head %u, channel %u",
                        fault.token, fault.head, fault.channel);
        return;
    }
    if (status != KVARN_OK) {
        kvd_work_refuse(work, status, "%s", kvarn_status_text(status));
        return;
    }
    kvd_query_resolve(work, &work->args.blocks.query, &query);
    kvd_work_iov(work, work->reply_table,
                 q_tokens * (query.out_token_bytes + query.lse_token_bytes));
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

static void plan(struct kvd_work *work, const struct kvd_query *query)
{
    const struct kvw_blocks *args = &work->args.blocks;
    struct kvd_attend *entry = kvd_job_entries(work->job);
    struct kvd_job_span *spans = (struct kvd_job_span *)(void *)(entry + 1);
    uint32_t group = work->space->shape.group, q_tokens = args->query.q_tokens;
    uint32_t context = args->block_count * group;
    uint32_t first = kvd_query_first_block(query, q_tokens, context, group), count = 0;

    work->job->layer_begin = args->layer_begin;
    work->job->layer_count = 1;
    kvd_query_fill(query, entry, q_tokens, context);
    entry->q =
        kvd_work_place(work, work->request.payload + (uint64_t)args->block_count * KVARN_KEY_BYTES);
    entry->out = kvd_work_place(work, work->reply_table);
    entry->lse = kvd_work_place(work, work->reply_table + q_tokens * query->out_token_bytes);
    entry->spans_offset = kvd_job_size(1, sizeof *entry, 0);
    for (uint32_t i = first; i < work->item_count; i++)
        spans[count++] = (struct kvd_job_span){kvd_block_place(work->items[i].block),
                                               work->items[i].kind, i * group, group, 0};
    entry->span_count = count;
}

static void run(struct kvd_work *work)
{
    struct kvd_query query;
    uint64_t q_tokens = work->args.blocks.query.q_tokens;

    kvd_query_resolve(work, &work->args.blocks.query, &query);
    work->reply_table =
        kvd_work_staging(work, q_tokens * (query.out_token_bytes + query.lse_token_bytes));
    work->job = kvd_work_job(work, KVD_JOB_ATTEND, 1, sizeof(struct kvd_attend), spans_bytes(work));
    if (!work->reply_table || !work->job) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (!kvd_items_load(work))
        return;
    kvd_items_find(work);
    for (uint32_t i = 0; i < work->item_count; i++) {
        if (work->items[i].status == KVARN_OK)
            continue;
        kvd_work_refuse(work, KVARN_NOT_FOUND, "block %u (key %s) is not stored", i,
                        kvd_key_text(&work->items[i].key).text);
        return;
    }
    plan(work, &query);
    if (!kvd_work_submit(work, work->job, done))
        kvd_work_refuse_unqueued(work);
}

const struct kvd_operation kvd_operation_attend = {begin, run, false, NULL};
