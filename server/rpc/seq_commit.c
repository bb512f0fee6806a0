/* SEQ_COMMIT: n more tokens of each sequence count; blocks that fill up are sealed.
 *
 * Two rounds. First the blocks outside the sink: each is compressed from its own EXACT slot into a
 * new TILE slot, under its key when it has one; a key that is stored already is used instead, one
 * that somebody is storing is waited for. These are copies, so a failure later leaves nothing to
 * undo. Then the sink's blocks, which become shared as they are, with no copy: they are named and
 * digested only for sequences that have succeeded so far, and published in the same step that
 * commits. Per sequence it is all or nothing. */
#include "server/rpc/turns.h"
#include "server/rpc/work.h"

#include <string.h>

/* A block that fills up. The item of the same number holds key, block and status. */
struct seal {
    uint32_t turn, at; /* block `at` of the turn's sequence */
    bool sink, keyed, named;
};

static void tiles_step(struct kvd_work *work);
static void sinks_step(struct kvd_work *work);

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    kvarn_status status = kvd_turns_begin(work, metadata, 1, KVW_SEQUENCES_MAX, true, true);

    if (status == KVARN_OK)
        kvd_work_need(work, (uint64_t)work->args.sequences.sequence_count * KVW_SEQ_STATUS_BYTES);
    return status;
}

static bool going(const struct kvd_turn *turn)
{
    return turn->sequence && turn->answer.status == KVARN_OK;
}

/* Gives the number of blocks that fill up, after the checks of this turn. */
static uint32_t check(struct kvd_work *work, struct kvd_turn *turn)
{
    uint32_t group = work->space->shape.group, full;
    char text[256] = "";
    kvarn_status status;

    if (!going(turn))
        return 0;
    if (turn->row.expected && turn->row.expected - 1 != turn->sequence->committed) {
        kvd_turn_fail(work, turn, KVARN_INVALID_SHAPE,
                      "committed is %u, the call expected %u; nothing was committed",
                      turn->sequence->committed, turn->row.expected - 1);
        return 0;
    }
    status = kvd_sequence_check_commit(turn->sequence, turn->row.tokens, text, sizeof text);
    if (status != KVARN_OK) {
        kvd_turn_fail(work, turn, status, "%s", text);
        return 0;
    }
    full =
        (turn->sequence->committed + turn->row.tokens) / group - turn->sequence->committed / group;
    if (turn->row.keys > full)
        kvd_turn_fail(work, turn, KVARN_INVALID_SHAPE,
                      "%u keys for %u blocks that fill up with %u more tokens after %u; give one "
                      "key per block that becomes full",
                      turn->row.keys, full, turn->row.tokens, turn->sequence->committed);
    return turn->answer.status == KVARN_OK ? full : 0;
}

static void add_seals(struct kvd_work *work, struct kvd_turn *turn)
{
    struct seal *seals = work->state;
    const uint8_t *keys =
        work->request.payload + (uint64_t)work->args.sequences.sequence_count * KVW_SEQ_ROW_BYTES;
    uint32_t group = work->space->shape.group;
    uint32_t first = turn->seals ? turn->sequence->committed / group : 0;

    turn->seal_first = work->item_count;
    for (uint32_t i = 0; i < turn->seals; i++) {
        struct seal *seal = &seals[work->item_count];
        struct kvd_item *item = &work->items[work->item_count++];

        seal->turn = (uint32_t)(turn - work->turns);
        seal->at = first + i;
        seal->sink = seal->at * group < work->space->sink_tokens;
        seal->keyed = i < turn->row.keys;
        item->entry = KVD_NO_ENTRY;
        item->status = KVD_TODO;
        item->kind = seal->sink ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE;
        if (seal->keyed)
            memcpy(item->key.bytes, keys + (turn->key_first + i) * KVARN_KEY_BYTES,
                   KVARN_KEY_BYTES);
    }
}

/* ---- the end: swap blocks, count tokens, answer */

static void commit(struct kvd_work *work, struct kvd_turn *turn)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct seal *seals = work->state;

    for (uint32_t i = turn->seal_first; i < turn->seal_first + turn->seals; i++) {
        struct kvd_item *item = &work->items[i];

        turn->answer.blocks++;
        if (!item->block)
            continue; /* a sink block that stays as it is */
        kvd_sequence_replace(&service->sequences, turn->sequence, seals[i].at, item->block);
        item->block = NULL; /* its reference is the sequence's now */
    }
    kvd_sequence_advance(&service->sequences, turn->sequence, turn->row.tokens);
}

static void finish(struct kvd_work *work)
{
    for (uint32_t i = 0; i < work->turn_count; i++)
        if (going(&work->turns[i]))
            commit(work, &work->turns[i]);
    kvd_turns_table(work, 0, work->turn_count);
    kvd_work_iov(work, work->reply_table, (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES);
    kvd_turns_send(work, work->turn_count);
}

static void fail_seal(struct kvd_work *work, uint32_t i, kvarn_status status)
{
    struct seal *seal = (struct seal *)work->state + i;

    work->items[i].status = (uint32_t)status;
    kvd_turn_fail(work, &work->turns[seal->turn], status,
                  "block %u could not be sealed: %s; nothing was committed", seal->at,
                  kvarn_status_text(status));
}

/* ---- first round */

static void tiles_done(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvd_put *entries = kvd_job_entries(work->job);

    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        kvarn_status status = work->job_status;

        if (item->entry == KVD_NO_ENTRY)
            continue;
        if (status == KVARN_OK)
            status = kvd_status_of(entries[item->entry].status);
        if (status == KVARN_OK) {
            item->status = KVARN_OK;
            kvd_block_publish(&service->blocks, item->block, entries[item->entry].digest);
            work->space->stored++;
        } else {
            kvd_block_release(&service->blocks, item->block);
            item->block = NULL;
            fail_seal(work, i, status);
        }
        item->entry = KVD_NO_ENTRY;
    }
    tiles_step(work);
}

static kvarn_status claim(struct kvd_work *work, uint32_t i)
{
    struct seal *seal = (struct seal *)work->state + i;
    struct kvd_blocks *blocks = &kvd_work_service(work)->blocks;
    struct kvd_item *item = &work->items[i];

    if (!seal->keyed)
        return kvd_block_take(blocks, work->space, KVARN_BLOCK_TILE, &item->block);
    return kvd_block_claim(blocks, work->space, &item->key, KVARN_BLOCK_TILE, &item->block);
}

static void put(struct kvd_work *work, uint32_t i, uint32_t entry)
{
    const struct seal *seal = (struct seal *)work->state + i;
    const struct kvd_block *tail = work->turns[seal->turn].sequence->blocks[seal->at];
    uint64_t row = kvd_space_row_bytes(work->space), group = work->space->shape.group;
    struct kvd_put *entries = kvd_job_entries(work->job);

    /* An EXACT slot is [layer][head][K [group, dim], V [group, dim]]. */
    entries[entry] = (struct kvd_put){
        .k = kvd_block_place(tail),
        .v = {KVD_REGION_POOL, 0, tail->offset + group * row},
        .strides = {2 * group * row * work->space->heads, row, 2 * group * row},
        .slot = kvd_block_place(work->items[i].block),
        .kind = KVARN_BLOCK_TILE,
    };
    work->items[i].entry = (int32_t)entry;
}

static void tiles_step(struct kvd_work *work)
{
    struct seal *seals = work->state;
    kvarn_status gone = work->late            ? KVARN_DEADLINE
                        : !work->request.conn ? KVARN_PEER_LOST
                                              : KVARN_OK;
    uint32_t entries = 0;
    bool busy = false;

    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_item *item = &work->items[i];
        kvarn_status status;

        if (item->status != KVD_TODO || seals[i].sink || !going(&work->turns[seals[i].turn]))
            continue;
        status = gone != KVARN_OK ? gone : claim(work, i);
        if (status == KVARN_OK) {
            put(work, i, entries++);
        } else if (status == KVARN_EXISTS) {
            item->status = KVARN_EXISTS;
            work->space->existed++;
        } else if (status == KVARN_RETRY) {
            busy = true;
        } else {
            fail_seal(work, i, status);
        }
    }
    if (entries) {
        work->job->count = entries;
        work->job->op = KVD_JOB_COMPRESS;
        work->job->status = 0;
        if (!kvd_work_submit(work, work->job, tiles_done))
            tiles_done(work);
        return;
    }
    if (busy && kvd_work_wait(work, tiles_step, true) == KVARN_OK)
        return;
    for (uint32_t i = 0; busy && i < work->item_count; i++)
        if (work->items[i].status == KVD_TODO && !seals[i].sink)
            fail_seal(work, i, KVARN_RETRY);
    sinks_step(work);
}

/* ---- second round */

static void sinks_done(struct kvd_work *work)
{
    struct kvd_blocks *blocks = &kvd_work_service(work)->blocks;
    struct seal *seals = work->state;
    const struct kvd_copy *entries = work->second ? kvd_job_entries(work->second) : NULL;

    for (uint32_t i = 0; i < work->item_count; i++) {
        kvarn_status status = work->job_status;

        if (!seals[i].named)
            continue;
        if (status == KVARN_OK && entries)
            status = kvd_status_of(entries[work->items[i].entry].status);
        if (status != KVARN_OK)
            fail_seal(work, i, status);
    }
    for (uint32_t i = 0; i < work->item_count; i++) {
        struct kvd_turn *turn = &work->turns[seals[i].turn];

        if (!seals[i].named)
            continue;
        if (entries && going(turn)) {
            kvd_block_publish(blocks, turn->sequence->blocks[seals[i].at],
                              entries[work->items[i].entry].digest);
            work->space->stored++;
        } else {
            kvd_block_unclaim(blocks, turn->sequence->blocks[seals[i].at]);
        }
    }
    finish(work);
}

/* Names the block of item i. A key that is being stored at this moment is left to who stores it:
 * our copy stays private. So it does when the stored block is not EXACT. */
static bool name(struct kvd_work *work, uint32_t i)
{
    struct kvd_blocks *blocks = &kvd_work_service(work)->blocks;
    struct seal *seal = (struct seal *)work->state + i;
    struct kvd_item *item = &work->items[i];
    struct kvd_block *block = work->turns[seal->turn].sequence->blocks[seal->at], *other;
    kvarn_status status = kvd_block_name(blocks, block, &item->key, &other);

    if (status == KVARN_EXISTS) {
        work->space->existed++;
        if (other->kind == KVARN_BLOCK_EXACT)
            item->block = other;
        else
            kvd_block_release(blocks, other);
    }
    seal->named = status == KVARN_OK;
    return seal->named;
}

static void sinks_step(struct kvd_work *work)
{
    struct seal *seals = work->state;
    uint32_t count = 0, at = 0;
    struct kvd_copy *entries;

    for (uint32_t i = 0; i < work->item_count; i++)
        if (seals[i].sink && seals[i].keyed && going(&work->turns[seals[i].turn]) && name(work, i))
            count++;
    work->job_status = KVARN_OK;
    if (!count) {
        finish(work);
        return;
    }
    work->second = kvd_work_job(work, KVD_JOB_DIGEST, count, sizeof *entries, 0);
    if (!work->second) {
        work->job_status = KVARN_RETRY;
        sinks_done(work);
        return;
    }
    entries = kvd_job_entries(work->second);
    for (uint32_t i = 0; i < work->item_count; i++) {
        if (!seals[i].named)
            continue;
        work->items[i].entry = (int32_t)at;
        entries[at++] = (struct kvd_copy){
            .src = kvd_block_place(work->turns[seals[i].turn].sequence->blocks[seals[i].at]),
            .bytes = work->space->exact_bytes,
            .kind = KVARN_BLOCK_EXACT};
    }
    if (!kvd_work_submit(work, work->second, sinks_done))
        sinks_done(work);
}

static void go(struct kvd_work *work)
{
    const struct kvd_turn *last = &work->turns[work->turn_count - 1];
    unsigned long long keys = last->key_first + last->row.keys;
    uint32_t seals = 0;

    work->reply_table = kvd_work_staging(work, (uint64_t)work->turn_count * KVW_SEQ_STATUS_BYTES);
    if (!work->reply_table) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return;
    }
    if (keys != work->args.sequences.key_count) {
        kvd_work_refuse(work, KVARN_INVALID_SHAPE,
                        "the rows announce %llu keys, the call carries %u", keys,
                        work->args.sequences.key_count);
        return;
    }
    for (uint32_t i = 0; i < work->turn_count; i++)
        seals += work->turns[i].seals = check(work, &work->turns[i]);
    work->state = kvd_work_memory(work, seals, sizeof(struct seal));
    work->items = kvd_work_memory(work, seals, sizeof *work->items);
    work->job =
        seals ? kvd_work_job(work, KVD_JOB_COMPRESS, seals, sizeof(struct kvd_put), 0) : NULL;
    if (!work->state || !work->items || (seals && !work->job)) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory to seal %u blocks now", seals);
        return;
    }
    for (uint32_t i = 0; i < work->turn_count; i++)
        add_seals(work, &work->turns[i]);
    tiles_step(work);
}

static void run(struct kvd_work *work)
{
    kvd_turns_run(work, 0, go);
}

const struct kvd_operation kvd_operation_seq_commit = {begin, run, false, NULL};
