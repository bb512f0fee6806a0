/* A sequence: an ordered list of blocks, of which the last ones are the tail.
 *
 * Block i covers tokens [i * group, (i + 1) * group). The first committed / group blocks are full
 * and may be shared. The rest are EXACT slots of this sequence alone: rows are written there first,
 * at a position at or after the committed length and without holes (position <= written[layer]).
 * Writing sets written[layer] to the end of the written rows: rows beyond belonged to another
 * continuation. A write over rows that its layers had starts a new continuation: what the other
 * layers have from there on belonged to the old one and does not count any more, or a commit could
 * mix the two. Only a write that repeats the last one (its answer was lost) changes nothing for the
 * others. Fork copies tail slots; a partial block is never shared.
 *
 * One request at a time works on a sequence. A request enters the queues of all its sequences at
 * once, in arrival order, and may begin when it stands at the head of each; so per-sequence order
 * is arrival order and there is no deadlock. A sequence that is given up while requests wait for it
 * is doomed: it ends when the last of them leaves. Memory: one array of block pointers and one of
 * lengths per sequence, grown by malloc; of all together bounded, because blocks may be shared by
 * any number of sequences and the pool's size bounds nothing. Loop thread only. */
#ifndef KVD_SEQUENCE_H
#define KVD_SEQUENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/core/limits.h"

struct kvd_block;
struct kvd_blocks;
struct kvd_space;
struct kvd_sequence;

/* A request's place in the queue of one sequence; memory of the request. */
struct kvd_seq_wait {
    struct kvd_seq_wait *next;
    struct kvd_sequence *sequence; /* NULL = not in a queue */
    void *owner;
};

struct kvd_seq_write {
    uint32_t layer_begin, layer_count, position, tokens;
};

struct kvd_sequence {
    uint64_t id, conn;
    struct kvd_space *space;
    struct kvd_block **blocks; /* [block_count], room for block_room */
    uint32_t block_count, block_room;
    uint32_t committed;
    uint32_t *written;           /* [layers of the shard] */
    struct kvd_seq_write latest; /* tokens = 0: none yet */
    struct kvd_seq_wait *first, *last;
    uint32_t next_free;            /* slot + 1 */
    uint32_t own_next, own_before; /* slot + 1, in the list of its connection; 0 = none */
    bool used, doomed;
};

struct kvd_sequences {
    struct kvd_blocks *blocks;
    struct kvd_sequence *slots; /* [max] */
    uint32_t max, count, high, free, generation;
    uint32_t owned[KVD_OWNER_LISTS]; /* slot + 1 of the first; by connection number */
    uint64_t bytes;                  /* of all lists; at most KVD_SEQUENCES_BYTES_MAX */
};

/* INTERNAL without memory. */
kvarn_status kvd_sequences_open(struct kvd_sequences *sequences, struct kvd_blocks *blocks,
                                uint32_t max, uint32_t generation);
void kvd_sequences_close(struct kvd_sequences *sequences);

/* Over `count` full READY blocks, of which it takes references. RETRY when a bound is reached or
 * without memory, QUOTA when it is a bound of the tenant. */
kvarn_status kvd_sequence_new(struct kvd_sequences *sequences, uint64_t conn,
                              struct kvd_space *space, struct kvd_block *const *prefix,
                              uint32_t count, struct kvd_sequence **sequence);
/* NOT_FOUND: absent, of another connection or space. STALE: it was this connection's and is gone.
 */
kvarn_status kvd_sequence_find(struct kvd_sequences *sequences, uint64_t conn,
                               const struct kvd_space *space, uint64_t id,
                               struct kvd_sequence **sequence);
/* Now, or when the last request leaves its queue. */
void kvd_sequence_give(struct kvd_sequences *sequences, struct kvd_sequence *sequence);
/* All of a space that was reset. */
void kvd_sequences_space_gone(struct kvd_sequences *sequences, const struct kvd_space *space);
void kvd_sequences_conn_gone(struct kvd_sequences *sequences, uint64_t conn);

/* ---- queue. enter: false when this owner stands in it already (it is always the last then). */
bool kvd_sequence_enter(struct kvd_sequence *sequence, struct kvd_seq_wait *wait, void *owner);
static inline bool kvd_seq_wait_first(const struct kvd_seq_wait *wait)
{
    return wait->sequence && wait->sequence->first == wait;
}
/* Leaves from any place. Gives the owner that came to the head by it, or NULL. */
void *kvd_sequence_leave(struct kvd_sequences *sequences, struct kvd_seq_wait *wait);

/* ---- rows. position and tokens are checked against committed, written and the bounds; on
 * INVALID_SHAPE or TOO_LARGE text says why. */
kvarn_status kvd_sequence_check_write(const struct kvd_sequence *sequence, uint32_t layer_begin,
                                      uint32_t layer_count, uint64_t position, uint32_t tokens,
                                      char *text, size_t room);
/* Tail slots for tokens up to `end`. NO_SPACE, TOO_LARGE, RETRY; slots taken so far stay. */
kvarn_status kvd_sequence_reserve(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                                  uint32_t end);
/* After the write: ok = the rows are there; else rows from `position` on are not to be trusted. */
void kvd_sequence_wrote(struct kvd_sequence *sequence, const struct kvd_seq_write *write, bool ok);

/* ---- commit */
kvarn_status kvd_sequence_check_commit(const struct kvd_sequence *sequence, uint32_t tokens,
                                       char *text, size_t room);
/* Block `at` becomes `block`, whose reference the sequence takes over; the old one is released. */
void kvd_sequence_replace(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                          uint32_t at, struct kvd_block *block);
/* Tokens count; tail slots that hold no rows are given back. */
void kvd_sequence_advance(struct kvd_sequences *sequences, struct kvd_sequence *sequence,
                          uint32_t tokens);

/* ---- fork: a child with the same full blocks and fresh tail slots; the caller copies
 * blocks[committed / group ..] before anything else works on either. */
kvarn_status kvd_sequence_fork(struct kvd_sequences *sequences, struct kvd_sequence *parent,
                               struct kvd_sequence **child);

static inline uint32_t kvd_sequence_blocks_for(uint32_t tokens, uint32_t group)
{
    return (tokens + group - 1) / group;
}

#endif
