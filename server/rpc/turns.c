/* Steps of the sequence operations. See turns.h. */
#include "server/rpc/turns.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/rpc/work.h"

uint64_t kvd_turns_head_bytes(const struct kvd_work *work)
{
    const struct kvw_sequences *args = &work->args.sequences;

    return (uint64_t)args->sequence_count * KVW_SEQ_ROW_BYTES +
           (uint64_t)args->key_count * KVARN_KEY_BYTES;
}

kvarn_status kvd_turns_begin(struct kvd_work *work, const uint8_t *metadata, uint32_t least,
                             uint32_t most, bool keys, bool exact)
{
    struct kvw_sequences *args = &work->args.sequences;
    const struct kvw_header *header = &work->request.header;
    const char *why = "";
    kvarn_status status =
        kvw_sequences_decode(args, metadata, header->metadata_bytes, &work->arena, &why);
    uint64_t table;

    if (status != KVARN_OK)
        return kvd_work_fail(work, status, "metadata: %s", why);
    work->space =
        kvd_space_find(&kvd_work_service(work)->spaces, work->request.tenant, args->space);
    if (!work->space)
        return kvd_work_no_space(work, args->space);
    work->space->pins++;
    if (args->sequence_count < least || args->sequence_count > most)
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "sequence_count = %u; must be %u to %u",
                             args->sequence_count, least, most);
    if (args->key_count > (keys ? (uint32_t)KVW_BLOCKS_MAX : 0))
        return kvd_work_fail(work, KVARN_INVALID_SHAPE, "key_count = %u; must be at most %d",
                             args->key_count, keys ? KVW_BLOCKS_MAX : 0);
    table = kvd_turns_head_bytes(work);
    if (header->payload_bytes < table || (exact && header->payload_bytes != table))
        return kvd_work_fail(work, KVARN_INVALID_SHAPE,
                             "%u sequence rows and %u keys take %llu bytes, the payload has %llu",
                             args->sequence_count, args->key_count, (unsigned long long)table,
                             (unsigned long long)header->payload_bytes);
    return KVARN_OK;
}

void kvd_turn_fail(struct kvd_work *work, struct kvd_turn *turn, kvarn_status status,
                   const char *format, ...)
{
    char text[KVD_TEXT_MAX];
    va_list values;

    if (turn->answer.status != KVARN_OK)
        return;
    turn->answer.status = (uint32_t)status;
    if (work->request.status != KVARN_OK)
        return;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    kvd_work_fail(work, status, "sequence %u of the call: %.450s", (unsigned)(turn - work->turns),
                  text);
}

static void enter(struct kvd_work *work, struct kvd_turn *turn)
{
    struct kvd_service *service = kvd_work_service(work);
    kvarn_status status = kvd_sequence_find(&service->sequences, work->request.conn_id, work->space,
                                            turn->row.sequence, &turn->sequence);

    if (status != KVARN_OK) {
        kvd_turn_fail(work, turn, status, "%s",
                      status == KVARN_STALE ? "it was released before"
                                            : "no such sequence on this connection and space");
        return;
    }
    if (!kvd_sequence_enter(turn->sequence, &turn->wait, work))
        turn->answer.status = KVARN_INVALID_SHAPE; /* named twice; see resume */
}

/* Our turn in all queues. */
static void resume(struct kvd_work *work)
{
    void (*go)(struct kvd_work *) = work->then;

    if (!work->request.conn) {
        kvd_work_refuse(work, KVARN_PEER_LOST, "the client is gone");
        return;
    }
    if (work->late) {
        kvd_work_refuse(work, KVARN_DEADLINE,
                        "the deadline passed while another request worked on the same sequence");
        return;
    }
    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        if (!turn->sequence || !turn->sequence->doomed)
            continue;
        kvd_turn_fail(work, turn, KVARN_STALE, "it was released before");
        turn->sequence = NULL; /* the wait stays in its queue until the reply */
    }
    go(work);
}

static bool load(struct kvd_work *work, uint32_t extra)
{
    uint32_t count = work->args.sequences.sequence_count;
    uint64_t q_first = 0, row_first = 0, key_first = 0;

    work->turns = kvd_work_memory(work, count + extra, sizeof *work->turns);
    if (!work->turns) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory for a table of %u sequences now", count);
        return false;
    }
    work->turn_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        kvw_seq_row_load(&turn->row, work->request.payload + (size_t)i * KVW_SEQ_ROW_BYTES);
        turn->answer.sequence = turn->row.sequence;
        turn->attend = KVD_NO_ENTRY;
        turn->q_first = q_first;
        turn->row_first = row_first;
        turn->key_first = key_first;
        q_first += turn->row.q_tokens;
        row_first += turn->row.tokens;
        key_first += turn->row.keys;
    }
    return true;
}

void kvd_turns_run(struct kvd_work *work, uint32_t extra, void (*go)(struct kvd_work *work))
{
    bool first = true;
    kvarn_status status;

    if (!load(work, extra))
        return;
    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        enter(work, turn);
        if (turn->sequence && !turn->wait.sequence) {
            kvd_work_refuse(work, KVARN_INVALID_SHAPE,
                            "sequence %u of the call is named twice; name each once", i);
            return;
        }
        first = first && (!turn->sequence || kvd_seq_wait_first(&turn->wait));
    }
    work->then = go;
    if (first) {
        resume(work);
        return;
    }
    status = kvd_work_wait(work, resume, false);
    if (status != KVARN_OK)
        kvd_work_refuse(work, status, "too many requests wait for busy sequences");
}

/* ---- rows */

void kvd_turns_place(struct kvd_work *work, uint32_t layer_begin, uint32_t layer_count)
{
    struct kvd_sequences *sequences = &kvd_work_service(work)->sequences;

    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];
        struct kvd_sequence *sequence = turn->sequence;
        uint64_t position = turn->row.position;
        char text[256] = "";
        kvarn_status status;

        if (!sequence)
            continue;
        if (position == KVW_AT_END)
            position = sequence->committed;
        status = kvd_sequence_check_write(sequence, layer_begin, layer_count, position,
                                          turn->row.tokens, text, sizeof text);
        if (status != KVARN_OK) {
            kvd_turn_fail(work, turn, status, "%s", text);
            continue;
        }
        turn->position = (uint32_t)position;
        if (!turn->row.tokens)
            continue;
        status = kvd_sequence_reserve(sequences, sequence, turn->position + turn->row.tokens);
        if (status != KVARN_OK)
            kvd_turn_fail(work, turn, status,
                          "no slot for its tail (%s); release sequences or leases, or give a "
                          "larger pool",
                          kvarn_status_name(status));
    }
}

static bool writes(const struct kvd_turn *turn)
{
    return turn->sequence && turn->answer.status == KVARN_OK && turn->row.tokens;
}

/* Entries of one turn: one per block that its rows touch. */
static uint32_t pieces(const struct kvd_turn *turn, uint32_t group)
{
    uint32_t last = turn->position + turn->row.tokens - 1;

    return writes(turn) ? last / group - turn->position / group + 1 : 0;
}

static void fill(struct kvd_work *work, struct kvd_turn *turn, struct kvd_write *entries,
                 const uint8_t *k, const uint8_t *v, const struct kvd_strides *strides)
{
    uint32_t group = work->space->shape.group, done = 0;

    for (uint32_t i = 0; i < turn->entries; i++) {
        uint32_t at = turn->position + done, left = turn->row.tokens - done;
        uint32_t first = at % group, tokens = group - first < left ? group - first : left;
        uint64_t skip = (turn->row_first + done) * strides->token;

        entries[turn->entry_first + i] =
            (struct kvd_write){.k = kvd_work_place(work, k + skip),
                               .v = kvd_work_place(work, v + skip),
                               .strides = *strides,
                               .slot = kvd_block_place(turn->sequence->blocks[at / group]),
                               .first_token = first,
                               .tokens = tokens};
        done += tokens;
    }
}

bool kvd_turns_write(struct kvd_work *work, const uint8_t *k, const uint8_t *v,
                     const struct kvd_strides *strides, uint32_t layer_begin, uint32_t layer_count)
{
    uint32_t entries = 0;

    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];

        turn->entry_first = entries;
        turn->entries = pieces(turn, work->space->shape.group);
        entries += turn->entries;
    }
    work->second = NULL;
    if (!entries)
        return true;
    work->second = kvd_work_job(work, KVD_JOB_WRITE_ROWS, entries, sizeof(struct kvd_write), 0);
    if (!work->second) {
        kvd_work_refuse(work, KVARN_RETRY, "no staging memory now");
        return false;
    }
    work->second->layer_begin = layer_begin;
    work->second->layer_count = layer_count;
    for (uint32_t i = 0; i < work->turn_count; i++)
        fill(work, &work->turns[i], kvd_job_entries(work->second), k, v, strides);
    return true;
}

bool kvd_turns_submit(struct kvd_work *work, void (*then)(struct kvd_work *))
{
    work->rows_sent = kvd_work_submit(work, work->second, then);
    return work->rows_sent;
}

void kvd_turns_wrote(struct kvd_work *work, uint32_t layer_begin, uint32_t layer_count)
{
    const struct kvd_write *entries = work->second ? kvd_job_entries(work->second) : NULL;

    for (uint32_t i = 0; i < work->turn_count; i++) {
        struct kvd_turn *turn = &work->turns[i];
        kvarn_status status = work->job_status;

        if (!turn->entries || !entries)
            continue;
        for (uint32_t e = 0; e < turn->entries && status == KVARN_OK; e++) {
            struct kvd_write entry = entries[turn->entry_first + e];

            status = kvd_status_of(entry.status);
            if (status != KVARN_NON_FINITE)
                continue;
            kvd_turn_fail(work, turn, status,
                          "tensor %s holds NaN or infinity at layer %u, kv head %u, new token %u, "
                          "channel %u; its rows do not count",
                          entry.fault.tensor == 'v' ? "v" : "k", entry.fault.layer,
                          entry.fault.head,
                          entry.fault.token + (e ? work->space->shape.group * e -
                                                       turn->position % work->space->shape.group
                                                 : 0),
                          entry.fault.channel);
        }
        if (status != KVARN_OK)
            kvd_turn_fail(work, turn, status, "%s", kvarn_status_text(status));
        /* What was not queued wrote nothing, and the rows that stand there still count. */
        if (work->rows_sent)
            kvd_sequence_wrote(
                turn->sequence,
                &(struct kvd_seq_write){layer_begin, layer_count, turn->position, turn->row.tokens},
                status == KVARN_OK);
    }
}

void kvd_turns_give(struct kvd_work *work, uint32_t first)
{
    struct kvd_sequences *sequences = &kvd_work_service(work)->sequences;

    for (uint32_t i = first; i < work->turn_count; i++) {
        struct kvd_sequence *sequence;

        if (kvd_sequence_find(sequences, work->request.conn_id, work->space,
                              work->turns[i].answer.sequence, &sequence) == KVARN_OK)
            kvd_sequence_give(sequences, sequence);
    }
}

/* ---- answers */

void kvd_turns_table(struct kvd_work *work, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct kvd_turn *turn = &work->turns[first + i];

        if (turn->sequence)
            turn->answer.committed = turn->sequence->committed;
        kvw_seq_status_store(work->reply_table + (size_t)i * KVW_SEQ_STATUS_BYTES, &turn->answer);
    }
}

void kvd_turns_send(struct kvd_work *work, uint32_t table_rows)
{
    struct kvw_sequences_reply reply = {.result = kvd_work_result(work),
                                        .sequence_count = table_rows,
                                        .device_ns = work->device_ns};

    kvd_work_send(work, kvw_sequences_reply_encode(work->meta, sizeof work->meta, &reply));
}
