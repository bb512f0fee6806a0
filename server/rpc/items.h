/* Block tables: decoding, finding, filling, answering; shared by the operations on blocks. */
#ifndef KVD_ITEMS_H
#define KVD_ITEMS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

struct kvd_work;
struct kvd_item;
struct kvd_fault;

/* Decodes kvw_blocks into work->args, pins the space and checks block_count (at least `least`) and
 * that the payload holds a table of row_bytes rows; exact: nothing else. */
kvarn_status kvd_items_begin(struct kvd_work *work, const uint8_t *metadata, uint32_t least,
                             uint64_t row_bytes, bool exact);

/* Reads the table of keys (row_bytes = KVARN_KEY_BYTES) into work->items. False without memory:
 * the work has been answered. */
bool kvd_items_load(struct kvd_work *work);

/* Finds every item's READY block and takes a reference, else NOT_FOUND: a block that failed
 * verification has left the index. RETRY: it stands on disk and is being loaded. Counts hits and
 * misses of the pool. */
void kvd_items_find(struct kvd_work *work);

/* First 8 bytes of a key in hexadecimal, for texts. */
struct kvd_key_text {
    char text[2 * 8 + 4];
};
struct kvd_key_text kvd_key_text(const void *key);

/* "K row holds NaN or infinity at layer 2, kv head 0, token 17, channel 3" for item i. */
void kvd_items_fault(struct kvd_work *work, uint32_t i, const struct kvd_fault *fault);

/* Writes the status table at work->reply_table and sends: status OK when every item is OK or
 * EXISTS, else the first other one with a text that names the block (if none stands there yet). */
void kvd_items_finish(struct kvd_work *work);
/* The two halves: the table alone, and the reply without touching table or iovecs. */
void kvd_items_table(struct kvd_work *work);
void kvd_items_send(struct kvd_work *work, uint32_t table_rows);

/* Stores blocks under keys: claims what is absent, runs a job for it, waits for keys that others
 * are filling, until every item is decided; then `finish`. */
struct kvd_fill {
    uint32_t job_op;
    uint64_t entry_bytes;
    void (*fill)(struct kvd_work *work, uint32_t item, void *entry);
    /* Status and digest of a done entry; names the fault in the work's text. */
    kvarn_status (*read)(struct kvd_work *work, uint32_t item, const void *entry, uint32_t *digest);
};
/* work->state points at the kvd_fill; work->job has room for item_count entries. */
void kvd_items_store(struct kvd_work *work, const struct kvd_fill *fill);

#endif
