/* Inside the executor: what an operation (exec_*.c) tells it, and what it gives an operation.
 *
 * An entry of a job is one item, or several for ATTEND; an item is cut into units. `plan` checks an
 * entry and fills its items on the calling thread; `run` does a unit on any thread; `finish` writes
 * the entry's results when all units of the wave are done. Jobs, entries and spans are copied out
 * of shared memory first and only the copies are looked at: what was checked is what is used, even
 * when a job's own output was placed over it. */
#ifndef KVD_EXEC_H
#define KVD_EXEC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "kernels/kernels.h"
#include "server/core/limits.h"
#include "server/device/bounds.h"
#include "server/device/executor.h"
#include "server/device/job.h"
#include "server/device/team.h"

enum {
    KVD_EXEC_ROWS = KVARN_MAX_GQA,    /* query rows of one attend call of the kernel */
    KVD_EXEC_PARTS_FLOATS = 16 << 20, /* 64 MiB, touched only as far as it is used */
    KVD_EXEC_WAVE_SPANS = 1 << 20     /* 32 MiB, likewise */
};

/* What one thread works with; nothing of it is shared. */
struct kvd_exec_thread {
    void *scratch;          /* of the kernels, for every shape */
    float *out, *lse;       /* [KVD_EXEC_ROWS][KVARN_MAX_HEAD_DIM], [KVD_EXEC_ROWS] */
    struct kvk_span *spans; /* [KVD_BOUNDS_SPANS_MAX] */
};

/* One ATTEND item: query tokens [token, token + tokens) of one kv head, over `units` splits. */
struct kvd_exec_query {
    const struct kvd_job_span *spans; /* a copy */
    uint8_t *q, *out, *lse;           /* of the entry */
    float *parts, *part_lse;          /* [units][rows][dim], [units][rows]; NULL when units = 1 */
    uint32_t token, tokens, kv_head, group_heads;
    uint32_t first, end; /* positions of the context that any query token sees */
    uint64_t visible, per_split;
    uint32_t splits;
};

union kvd_exec_entry {
    struct kvd_put put;
    struct kvd_get get;
    struct kvd_write write;
    struct kvd_attend attend;
    struct kvd_copy copy;
};

struct kvd_exec_item {
    const struct kvd_job *job;  /* the copy */
    const uint8_t *job_at;      /* the job in staging, where an entry's spans are copied from */
    union kvd_exec_entry entry; /* the copy */
    void *result;               /* the entry in staging */
    uint64_t first_unit;        /* in the wave */
    uint32_t units;
    uint32_t lead;  /* the item that keeps the entry's outcome */
    uint64_t ns;    /* guess: of one unit */
    uint64_t order; /* of unit 0 within the entry: the first fault by this order is the one told */
    /* the entry's memory, checked */
    uint8_t *slot, *k, *v;
    struct kvd_exec_query query;
    /* written while units run */
    _Atomic uint32_t left;   /* ATTEND: units not done */
    _Atomic uint32_t digest; /* of the units done, joined */
    /* under the executor's lock */
    uint64_t fault_order; /* UINT64_MAX: none */
    kvarn_status status;
    struct kvd_fault fault;
};

struct kvd_exec_op {
    size_t entry_bytes;
    /* Sets the entry's status and clears its other results. */
    void (*begin)(void *result, kvarn_status status);
    /* Items that the entry needs; 0 = refused. */
    uint32_t (*items)(const struct kvd_job *job, const union kvd_exec_entry *entry);
    /* Fills item number `index` of the entry: units, ns, order and the memory. INTERNAL when a byte
     * of the entry lies outside of its region; NO_SPACE when the wave has no memory left for its
     * parts or spans, which never happens to the first item of a wave. */
    kvarn_status (*plan)(struct kvd_executor *executor, struct kvd_exec_item *item, uint32_t index);
    kvarn_status (*run)(struct kvd_executor *executor, const struct kvd_exec_thread *thread,
                        struct kvd_exec_item *item, uint32_t unit, struct kvd_fault *fault);
    /* status, fault and digest are those of all units of the entry in this wave. */
    void (*finish)(const struct kvd_exec_item *lead);
};

struct kvd_executor {
    struct kvd_executor_options options;
    struct kvd_bounds bounds;
    struct kvd_team *team;
    struct kvd_exec_thread *threads;
    uint32_t *cursors; /* [threads]: item of the thread's last unit in this wave */
    struct kvd_exec_item *items;
    struct kvd_taken group[KVD_RING_ENTRIES]; /* jobs that run together */
    float *parts;
    struct kvd_job_span *spans;
    /* the wave */
    const struct kvd_exec_op *op;
    uint32_t item_count;
    uint64_t units, ns, parts_used, spans_used;
    pthread_mutex_t lock; /* outcome fields of items */
};

extern const struct kvd_exec_op kvd_exec_compress, kvd_exec_decompress, kvd_exec_write,
    kvd_exec_attend, kvd_exec_copy, kvd_exec_digest;

const struct kvk_table *kvd_exec_table(const struct kvd_executor *executor);

/* Addresses, or NULL when a byte of the range lies outside of its region. */
uint8_t *kvd_exec_at(const struct kvd_executor *executor, struct kvd_place place, uint64_t bytes);
/* Rows [layers][tokens][heads] of row_bytes each, at strides. */
uint8_t *kvd_exec_rows(const struct kvd_executor *executor, struct kvd_place place,
                       const struct kvd_strides *strides, const uint32_t counts[3],
                       uint64_t row_bytes);
/* A whole slot. */
uint8_t *kvd_exec_slot(const struct kvd_executor *executor, const struct kvd_job *job,
                       struct kvd_place place, uint32_t kind);

/* Of an item in the wave. */
uint32_t kvd_exec_item_index(const struct kvd_executor *executor, const struct kvd_exec_item *item);

/* Memory of one wave for ATTEND; NULL when it is used up. */
float *kvd_exec_parts(struct kvd_executor *executor, uint64_t floats);
struct kvd_job_span *kvd_exec_spans(struct kvd_executor *executor, uint64_t count);

/* Joins the digest of one piece, `after` bytes before the end of the whole, into the whole's. */
void kvd_exec_join_digest(struct kvd_exec_item *item, uint32_t digest, uint64_t after);

#endif
