/* Sequence tables: decoding, queues, writing rows, answering; shared by the sequence operations. */
#ifndef KVD_TURNS_H
#define KVD_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

struct kvd_work;
struct kvd_turn;
struct kvd_strides;

/* Decodes kvw_sequences into work->args, pins the space, checks sequence_count (least .. most) and
 * key_count, and that the payload holds the table and the keys. exact: nothing else. */
kvarn_status kvd_turns_begin(struct kvd_work *work, const uint8_t *metadata, uint32_t least,
                             uint32_t most, bool keys, bool exact);

/* Reads the table into work->turns (with room for `extra` more), finds the sequences, enters their
 * queues and calls `go` when this work stands at the head of all of them: now or later. A row that
 * names nothing fails alone (its turn has no sequence and a status). */
void kvd_turns_run(struct kvd_work *work, uint32_t extra, void (*go)(struct kvd_work *work));

/* Fails a turn, and the request if it is the first: "sequence 3: ...". */
void kvd_turn_fail(struct kvd_work *work, struct kvd_turn *turn, kvarn_status status,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Bytes of the table and the keys at the head of the payload. */
uint64_t kvd_turns_head_bytes(const struct kvd_work *work);

/* ---- rows. Checks positions and reserves tail slots for the turns with tokens; then
 * turn->position holds the first new row. */
void kvd_turns_place(struct kvd_work *work, uint32_t layer_begin, uint32_t layer_count);
/* Builds the WRITE_ROWS job for them: work->second; NULL when there is nothing to write. k, v:
 * first rows in staging, token i of all turns at i * strides.token. False: answered (no staging).
 */
bool kvd_turns_write(struct kvd_work *work, const uint8_t *k, const uint8_t *v,
                     const struct kvd_strides *strides, uint32_t layer_begin, uint32_t layer_count);
/* Queues it. False: not queued; `then` is not called unless another job is in flight. */
bool kvd_turns_submit(struct kvd_work *work, void (*then)(struct kvd_work *));
/* After the job: statuses of its entries into the turns, lengths into the sequences. */
void kvd_turns_wrote(struct kvd_work *work, uint32_t layer_begin, uint32_t layer_count);

/* Gives back the sequences that turns [first ..] of the answer name, as far as they are there. */
void kvd_turns_give(struct kvd_work *work, uint32_t first);

/* Bytes of the answer table of `count` turns. Written at work->reply_table. */
void kvd_turns_table(struct kvd_work *work, uint32_t first, uint32_t count);
/* Sends with the iovecs that stand there; table_rows rows of the table. */
void kvd_turns_send(struct kvd_work *work, uint32_t table_rows);

#endif
