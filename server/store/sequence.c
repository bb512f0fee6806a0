/* Bookkeeping of sequences. See sequence.h. */
#include "server/store/sequence.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/limits.h"
#include "server/store/block.h"
#include "server/store/counts.h"
#include "server/store/space.h"

kvarn_status kvd_sequences_open(struct kvd_sequences *sequences, struct kvd_blocks *blocks,
                                uint32_t max, uint32_t generation)
{
    memset(sequences, 0, sizeof *sequences);
    sequences->slots = calloc(max, sizeof *sequences->slots);
    sequences->blocks = blocks;
    sequences->max = max;
    sequences->generation = generation;
    return sequences->slots ? KVARN_OK : KVARN_INTERNAL;
}

/* ---- what a connection has, so that its end looks at nothing else */

static void own(struct kvd_sequences *sequences, struct kvd_sequence *sequence)
{
    uint32_t *first = &sequences->owned[sequence->conn % KVD_OWNER_LISTS];
    uint32_t slot = (uint32_t)(sequence - sequences->slots) + 1;

    sequence->own_before = 0;
    sequence->own_next = *first;
    if (*first)
        sequences->slots[*first - 1].own_before = slot;
    *first = slot;
}

static void disown(struct kvd_sequences *sequences, struct kvd_sequence *sequence)
{
    if (sequence->own_before)
        sequences->slots[sequence->own_before - 1].own_next = sequence->own_next;
    else
        sequences->owned[sequence->conn % KVD_OWNER_LISTS] = sequence->own_next;
    if (sequence->own_next)
        sequences->slots[sequence->own_next - 1].own_before = sequence->own_before;
}

static uint64_t written_bytes(const struct kvd_space *space)
{
    return space->layers * sizeof(uint32_t);
}

static bool count_in(struct kvd_sequences *sequences, const struct kvd_space *space)
{
    struct kvd_counts *counts = sequences->blocks->counts;

    return !counts || kvd_counts_take(counts, space->tenant, KVD_COUNTED_SEQUENCES, 1);
}

static void uncount(struct kvd_sequences *sequences, const struct kvd_space *space)
{
    if (sequences->blocks->counts)
        kvd_counts_give(sequences->blocks->counts, space->tenant, KVD_COUNTED_SEQUENCES, 1);
}

/* Gives the blocks back. The id and the connection stay on record until the slot is used again. */
static void end(struct kvd_sequences *sequences, struct kvd_sequence *sequence)
{
    for (uint32_t i = sequence->block_count; i-- > 0;) /* a chain's end is to go before its head */
        kvd_block_release(sequences->blocks, sequence->blocks[i]);
    free(sequence->blocks);
    free(sequence->written);
    sequences->bytes -=
        sequence->block_room * sizeof(struct kvd_block *) + written_bytes(sequence->space);
    sequence->blocks = NULL;
    sequence->written = NULL;
    sequence->block_count = sequence->block_room = 0;
    sequence->space->sequences--;
    uncount(sequences, sequence->space);
    sequence->space = NULL;
    sequence->used = sequence->doomed = false;
    disown(sequences, sequence);
    sequence->next_free = sequences->free;
    sequences->free = (uint32_t)(sequence - sequences->slots) + 1;
    sequences->count--;
}

void kvd_sequences_close(struct kvd_sequences *sequences)
{
    for (uint32_t i = 0; i < sequences->high; i++)
        if (sequences->slots[i].used)
            end(sequences, &sequences->slots[i]);
    free(sequences->slots);
    memset(sequences, 0, sizeof *sequences);
}

static kvarn_status grow(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                         uint32_t blocks)
{
    uint32_t room = sequence->block_room ? sequence->block_room : 8;
    struct kvd_block **grown;
    uint64_t more;

    if (blocks <= sequence->block_room)
        return KVARN_OK;
    while (room < blocks)
        room *= 2;
    more = (room - sequence->block_room) * sizeof(struct kvd_block *);
    if (sequences->bytes + more > KVD_SEQUENCES_BYTES_MAX)
        return KVARN_RETRY;
    grown = realloc(sequence->blocks, room * sizeof(struct kvd_block *));
    if (!grown)
        return KVARN_RETRY;
    sequence->blocks = grown;
    sequence->block_room = room;
    sequences->bytes += more;
    return KVARN_OK;
}

kvarn_status kvd_sequence_new(struct kvd_sequences *sequences, uint64_t conn,
                              struct kvd_space *space, struct kvd_block *const *prefix,
                              uint32_t count, struct kvd_sequence **out)
{
    struct kvd_sequence *sequence;
    uint32_t slot = sequences->free ? sequences->free - 1 : sequences->high;

    *out = NULL;
    if (slot == sequences->max || sequences->bytes + written_bytes(space) > KVD_SEQUENCES_BYTES_MAX)
        return KVARN_RETRY;
    if (!count_in(sequences, space))
        return KVARN_QUOTA;
    sequence = &sequences->slots[slot];
    sequence->written = calloc(space->layers, sizeof *sequence->written);
    if (!sequence->written || grow(sequences, sequence, count ? count : 1) != KVARN_OK) {
        free(sequence->written);
        sequence->written = NULL;
        uncount(sequences, space);
        return KVARN_RETRY;
    }
    if (sequences->free)
        sequences->free = sequence->next_free;
    else
        sequences->high++;
    for (uint32_t i = 0; i < count; i++) {
        kvd_block_hold(sequences->blocks, prefix[i]);
        sequence->blocks[i] = prefix[i];
    }
    sequence->block_count = count;
    sequence->committed = count * space->shape.group;
    for (uint32_t i = 0; i < space->layers; i++)
        sequence->written[i] = sequence->committed;
    sequence->id = (uint64_t)++sequences->generation << 32 | (slot + 1);
    sequence->conn = conn;
    sequence->space = space;
    sequence->first = sequence->last = NULL;
    sequence->latest = (struct kvd_seq_write){0};
    sequence->used = true;
    sequence->doomed = false;
    own(sequences, sequence);
    space->sequences++;
    sequences->count++;
    sequences->bytes += written_bytes(space);
    *out = sequence;
    return KVARN_OK;
}

kvarn_status kvd_sequence_find(struct kvd_sequences *sequences, uint64_t conn,
                               const struct kvd_space *space, uint64_t id,
                               struct kvd_sequence **out)
{
    uint32_t slot = (uint32_t)id - 1;
    struct kvd_sequence *sequence;

    *out = NULL;
    if (slot >= sequences->high)
        return KVARN_NOT_FOUND;
    sequence = &sequences->slots[slot];
    if (sequence->conn != conn || (id >> 32) > (sequence->id >> 32))
        return KVARN_NOT_FOUND;
    if (sequence->id != id || !sequence->used || sequence->doomed)
        return KVARN_STALE;
    if (sequence->space != space)
        return KVARN_NOT_FOUND;
    *out = sequence;
    return KVARN_OK;
}

void kvd_sequence_give(struct kvd_sequences *sequences, struct kvd_sequence *sequence)
{
    if (sequence->first)
        sequence->doomed = true;
    else
        end(sequences, sequence);
}

void kvd_sequences_space_gone(struct kvd_sequences *sequences, const struct kvd_space *space)
{
    for (uint32_t i = 0; i < sequences->high; i++)
        if (sequences->slots[i].used && sequences->slots[i].space == space)
            kvd_sequence_give(sequences, &sequences->slots[i]);
}

void kvd_sequences_conn_gone(struct kvd_sequences *sequences, uint64_t conn)
{
    uint32_t next;

    for (uint32_t at = sequences->owned[conn % KVD_OWNER_LISTS]; at; at = next) {
        next = sequences->slots[at - 1].own_next;
        if (sequences->slots[at - 1].conn == conn)
            kvd_sequence_give(sequences, &sequences->slots[at - 1]);
    }
}

bool kvd_sequence_enter(struct kvd_sequence *sequence, struct kvd_seq_wait *wait, void *owner)
{
    if (sequence->last && sequence->last->owner == owner)
        return false;
    wait->next = NULL;
    wait->sequence = sequence;
    wait->owner = owner;
    if (sequence->last)
        sequence->last->next = wait;
    else
        sequence->first = wait;
    sequence->last = wait;
    return true;
}

void *kvd_sequence_leave(struct kvd_sequences *sequences, struct kvd_seq_wait *wait)
{
    struct kvd_sequence *sequence = wait->sequence;
    struct kvd_seq_wait *before = NULL;
    bool was_first;

    if (!sequence)
        return NULL;
    was_first = sequence->first == wait;
    for (struct kvd_seq_wait *at = sequence->first; at != wait; at = at->next)
        before = at;
    if (before)
        before->next = wait->next;
    else
        sequence->first = wait->next;
    if (sequence->last == wait)
        sequence->last = before;
    wait->sequence = NULL;
    if (!sequence->first) {
        if (sequence->doomed)
            end(sequences, sequence);
        return NULL;
    }
    return was_first ? sequence->first->owner : NULL;
}

kvarn_status kvd_sequence_check_write(const struct kvd_sequence *sequence, uint32_t layer_begin,
                                      uint32_t layer_count, uint64_t position, uint32_t tokens,
                                      char *text, size_t room)
{
    uint32_t committed = sequence->committed;
    unsigned long long end = position + tokens, pending = end - committed;

    if (position < committed) {
        snprintf(text, room,
                 "position %llu lies below the committed length %u; committed rows cannot change",
                 (unsigned long long)position, committed);
        return KVARN_INVALID_SHAPE;
    }
    for (uint32_t layer = layer_begin; layer < layer_begin + layer_count; layer++) {
        if (position <= sequence->written[layer])
            continue;
        snprintf(text, room,
                 "position %llu leaves a hole: layer %u has rows up to %u; write those first",
                 (unsigned long long)position, layer, sequence->written[layer]);
        return KVARN_INVALID_SHAPE;
    }
    if (pending > KVD_PENDING_TOKENS_MAX) {
        snprintf(text, room,
                 "%llu tokens would be written and not committed; at most %d: commit in between",
                 pending, KVD_PENDING_TOKENS_MAX);
        return KVARN_TOO_LARGE;
    }
    if (end > KVD_SEQUENCE_TOKENS_MAX) {
        snprintf(text, room, "the sequence would have %llu tokens; at most %d", end,
                 KVD_SEQUENCE_TOKENS_MAX);
        return KVARN_TOO_LARGE;
    }
    return KVARN_OK;
}

kvarn_status kvd_sequence_reserve(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                                  uint32_t end_token)
{
    uint32_t blocks = kvd_sequence_blocks_for(end_token, sequence->space->shape.group);
    kvarn_status status = grow(sequences, sequence, blocks);

    while (status == KVARN_OK && sequence->block_count < blocks) {
        struct kvd_block *block;

        status = kvd_block_take(sequences->blocks, sequence->space, KVARN_BLOCK_EXACT, &block);
        if (status == KVARN_OK)
            sequence->blocks[sequence->block_count++] = block;
    }
    return status;
}

static void lower(struct kvd_sequence *sequence, uint32_t begin, uint32_t count, uint32_t position)
{
    for (uint32_t layer = begin; layer < begin + count; layer++)
        if (sequence->written[layer] > position)
            sequence->written[layer] = position;
}

void kvd_sequence_wrote(struct kvd_sequence *sequence, const struct kvd_seq_write *write, bool ok)
{
    const struct kvd_seq_write *last = &sequence->latest;
    uint32_t end_layer = write->layer_begin + write->layer_count;
    bool over = false;
    bool again = last->layer_begin == write->layer_begin &&
                 last->layer_count == write->layer_count && last->position == write->position &&
                 last->tokens == write->tokens;

    for (uint32_t layer = write->layer_begin; layer < end_layer; layer++)
        over = over || sequence->written[layer] > write->position;
    if (over && !again)
        lower(sequence, 0, sequence->space->layers, write->position);
    lower(sequence, write->layer_begin, write->layer_count, write->position);
    for (uint32_t layer = write->layer_begin; ok && layer < end_layer; layer++)
        sequence->written[layer] = write->position + write->tokens;
    sequence->latest = *write;
}

kvarn_status kvd_sequence_check_commit(const struct kvd_sequence *sequence, uint32_t tokens,
                                       char *text, size_t room)
{
    for (uint32_t layer = 0; layer < sequence->space->layers; layer++) {
        if (sequence->written[layer] - sequence->committed >= tokens)
            continue;
        snprintf(text, room,
                 "%u tokens cannot be committed: layer %u has only %u rows after the committed "
                 "length %u; append its rows first",
                 tokens, layer, sequence->written[layer] - sequence->committed,
                 sequence->committed);
        return KVARN_INVALID_SHAPE;
    }
    return KVARN_OK;
}

void kvd_sequence_replace(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                          uint32_t at, struct kvd_block *block)
{
    struct kvd_block *old = sequence->blocks[at];

    assert(at < sequence->block_count);
    sequence->blocks[at] = block;
    kvd_block_release(sequences->blocks, old);
}

void kvd_sequence_advance(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                          uint32_t tokens)
{
    uint32_t longest = 0, keep;

    sequence->committed += tokens;
    for (uint32_t layer = 0; layer < sequence->space->layers; layer++)
        if (sequence->written[layer] > longest)
            longest = sequence->written[layer];
    keep = kvd_sequence_blocks_for(longest, sequence->space->shape.group);
    while (sequence->block_count > keep)
        kvd_block_release(sequences->blocks, sequence->blocks[--sequence->block_count]);
}

kvarn_status kvd_sequence_fork(struct kvd_sequences *sequences, struct kvd_sequence *parent,
                               struct kvd_sequence **out)
{
    struct kvd_space *space = parent->space;
    uint32_t full = parent->committed / space->shape.group;
    struct kvd_sequence *child;
    kvarn_status status =
        kvd_sequence_new(sequences, parent->conn, space, parent->blocks, full, &child);

    *out = NULL;
    if (status != KVARN_OK)
        return status;
    status = kvd_sequence_reserve(sequences, child, parent->block_count * space->shape.group);
    if (status != KVARN_OK) {
        kvd_sequence_give(sequences, child);
        return status;
    }
    child->committed = parent->committed;
    child->latest = parent->latest;
    memcpy(child->written, parent->written, space->layers * sizeof *child->written);
    *out = child;
    return KVARN_OK;
}
