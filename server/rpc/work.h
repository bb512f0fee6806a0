/* What stands behind a kvd_request, and the steps that all operations share.
 *
 * A work lives in a fixed slot from kvd_request_new to kvd_request_done. Its memory: an arena
 * inside the slot (decoded metadata, arrays of small requests), calloc for arrays that do not fit,
 * and staging extents for what the worker touches. The extent that begin takes holds the payload
 * and the room for reply and jobs whose size is known by then; what is not known then is taken at
 * run and answered RETRY when there is none. Pointers never stand in shared memory.
 *
 * Waiting: a work that stands in a sequence queue, or waits for a key that another work is filling,
 * has a resume function. It is never called from inside another operation: kvd_service_pump runs
 * what is ready, one after the other. Internal to rpc. */
#ifndef KVD_WORK_H
#define KVD_WORK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/arena.h"
#include "proto/codec.h"
#include "proto/wire.h"
#include "server/core/limits.h"
#include "server/device/device.h"
#include "server/device/job.h"
#include "server/rpc/recheck.h"
#include "server/rpc/request.h"
#include "server/rpc/service.h"
#include "server/store/agree.h"
#include "server/store/block.h"
#include "server/store/counts.h"
#include "server/store/events.h"
#include "server/store/evict.h"
#include "server/store/lease.h"
#include "server/store/sequence.h"
#include "server/store/space.h"
#include "server/store/watermark.h"

enum {
    KVD_WORK_MEMORY = 16384,
    KVD_WORK_EXTENTS = 8,
    KVD_WORK_HEAPS = 8,
    KVD_OPS = 64,
    KVD_STATUSES = 65,
    KVD_NO_ENTRY = -1,
    KVD_POOL_LINGER_TICKS = 100, /* an empty chunk is wiped after about a second */
    /* How long a client is asked to wait. RETRY: staging or the ring is full for the moment;
     * without a worker it is the time until the next one. The others end when somebody gives
     * something back, or with this daemon. */
    KVD_RETRY_US = 1000,
    KVD_RECHECK_RETRY_US = 10000,
    KVD_NO_SPACE_RETRY_US = 100000,
    KVD_DRAINING_RETRY_US = 1000000,
};
#define KVD_TODO UINT32_MAX /* status of an item that is not decided yet */

/* One block of an operation on blocks. */
struct kvd_item {
    kvarn_key key;
    struct kvd_block *block; /* with a reference; given back in done */
    uint32_t kind, status, digest;
    int32_t entry;   /* in the job being run, or KVD_NO_ENTRY */
    uint64_t source; /* IMPORT: offset of its bytes in the payload */
};

/* One sequence of an operation on sequences. */
struct kvd_turn {
    struct kvw_seq_row row;
    struct kvw_seq_status answer;
    struct kvd_seq_wait wait;
    struct kvd_sequence *sequence;
    uint64_t q_first, row_first, key_first; /* where its rows and keys begin in the payload's */
    uint32_t position;                      /* of its first new row */
    uint32_t entry_first, entries;          /* in the WRITE_ROWS job */
    int32_t attend;                         /* its entry in the ATTEND job */
    uint32_t seal_first, seals;             /* SEQ_COMMIT: its items, blocks that fill up */
};

struct kvd_work {
    struct kvd_request request; /* first: the two are one */
    const struct kvd_operation *operation;
    struct kvw_arena arena;
    void *heaps[KVD_WORK_HEAPS];
    uint32_t heap_count, extent_count;
    uint8_t *extents[KVD_WORK_EXTENTS];
    struct kvd_space *space; /* pinned */
    uint64_t need;           /* bytes of reply and jobs that begin asked for */
    uint8_t *room;           /* what is left of them */
    uint64_t room_left;

    union {
        struct kvw_hello hello;
        struct kvw_ping ping;
        struct kvw_open_space open_space;
        struct kvw_blocks blocks;
        struct kvw_release release;
        struct kvw_sequences sequences;
        struct kvw_stats stats;
        struct kvw_drain drain;
        struct kvw_events events;
    } args;
    /* IMPORT: blocks taken before their bytes came, so that these are read into the slots; those
     * that found no key go with the work */
    struct kvd_block **held; /* [held_count] */
    uint32_t held_count;
    struct kvd_item *items; /* [item_count] */
    uint32_t item_count;
    struct kvd_turn *turns; /* [turn_count] */
    uint32_t turn_count;
    void *state;          /* the operation's own, from kvd_work_memory */
    uint64_t lease;       /* LOOKUP: handed out by the reply; 0 = none */
    uint8_t *reply_table; /* staging */
    struct kvd_job *job, *second;
    bool rows_sent;       /* second was queued: its rows may be there */
    uint32_t entry_count; /* of job; what stands in the job itself is the worker's to write over */

    uint32_t jobs; /* in flight */
    kvarn_status job_status;
    uint64_t device_ns;
    void (*then)(struct kvd_work *work); /* when no job is in flight any more */

    void (*resume)(struct kvd_work *work);
    struct kvd_work *waiting_next, *waiting_prev, *ready_next;
    uint64_t wake_ns;             /* EVENTS: when to answer all the same */
    bool waiting, filling, ready; /* in which list */
    bool late;                    /* the deadline passed while waiting */
    bool replied;
    bool counted; /* in what its tenant has in flight */

    uint8_t memory[KVD_WORK_MEMORY];
    uint8_t meta[KVD_REPLY_META_MAX];
    struct iovec iov[KVD_REPLY_IOVECS_MAX];
};

struct kvd_operation {
    /* Decodes and validates what can be before the payload is there; calls kvd_work_need. */
    kvarn_status (*begin)(struct kvd_work *work, const uint8_t *metadata);
    /* Payload is there. Ends, now or later, with exactly one kvd_work_send or _refuse. */
    void (*run)(struct kvd_work *work);
    bool while_draining;
    /* In done, when the client will not see the answer: gives back what only the answer names.
     * NULL: nothing is handed out. */
    void (*undo)(struct kvd_work *work);
};

/* A device and the bookkeeping of its pool. */
struct kvd_service_device {
    struct kvd_service *service;
    struct kvd_device *device;
    struct kvd_pool *pool;
    struct kvd_recheck
        *recheck; /* after a restart of its worker: what is there is not served yet */
    uint64_t jobs_submitted, device_ns, blocks_lost;
};

struct kvd_service {
    struct kvd_service_options options;
    struct kvd_service_device devices[KVD_DEVICES_MAX];
    uint32_t device_count;
    struct kvd_evict evict;
    struct kvd_watermark watermark;
    struct kvd_counts counts;
    struct kvd_events events;
    uint32_t sweep_at, sweep_end; /* descriptors that may be of spaces that were reset */
    struct kvd_spaces spaces;
    struct kvd_blocks blocks;
    struct kvd_leases leases;
    struct kvd_agreements agreements;
    struct kvd_sequences sequences;
    struct kvd_disk_tier *tier; /* NULL: none */

    struct kvd_work *works; /* [options.requests_max] */
    struct kvd_work *free;
    uint32_t high, in_flight, in_flight_peak;
    struct kvd_work *waiting; /* all that wait, for the deadline scan */
    uint32_t parked;
    struct kvd_work *ready_first, *ready_last;
    bool pumping, settled, shortage, draining;
    void (*room)(void *context);
    void *room_context;

    uint64_t requests[KVD_OPS][KVD_STATUSES];
    uint64_t integrity_failures, digest_differences, blocks_dropped;
    char (*metric_names)[96]; /* [KVW_METRICS_MAX] */
};

static inline struct kvd_work *kvd_work_of(struct kvd_request *request)
{
    return (struct kvd_work *)(void *)request;
}
static inline struct kvd_service *kvd_work_service(const struct kvd_work *work)
{
    return work->request.service;
}

/* Where the work's space lives; without a space, the first device: only its staging is used then.
 */
static inline struct kvd_service_device *kvd_work_home(const struct kvd_work *work)
{
    return &kvd_work_service(work)->devices[work->space ? work->space->device : 0];
}
static inline struct kvd_device *kvd_work_device(const struct kvd_work *work)
{
    return kvd_work_home(work)->device;
}
uint64_t kvd_service_now(const struct kvd_service *service);
void kvd_service_pump(struct kvd_service *service);
/* A step of dropping what spaces that were reset hold. */
void kvd_service_sweep(struct kvd_service *service);

/* ---- memory. Zeroed, NULL when there is none. */
void *kvd_work_memory(struct kvd_work *work, size_t count, size_t size);
/* Blocks of `held` that are still the work's own go back. */
void kvd_work_release_held(struct kvd_work *work);
/* In begin: bytes of staging, besides the payload, that the work will want; 64-byte rounding is
 * added per call. */
void kvd_work_need(struct kvd_work *work, uint64_t bytes);
/* At run: staging from what begin reserved, else a fresh extent. NULL = none now. */
uint8_t *kvd_work_staging(struct kvd_work *work, uint64_t bytes);

/* ---- answers */
/* Keeps status and text (the first failure wins) and gives status. */
kvarn_status kvd_work_fail(struct kvd_work *work, kvarn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The handle names no space of this tenant: NOT_FOUND, or STALE for one that was reset. */
kvarn_status kvd_work_no_space(struct kvd_work *work, uint64_t handle);
struct kvw_result kvd_work_result(const struct kvd_work *work);
/* Appends to the reply's payload. */
bool kvd_work_iov(struct kvd_work *work, void *base, uint64_t bytes);
/* request.reply_meta gets room for KVW_METADATA_MAX_BYTES, where work->meta is too small. False
 * without memory. */
bool kvd_work_long_meta(struct kvd_work *work);
/* Sends; meta_bytes is what the encoder gave (0 = did not fit: INTERNAL is sent). */
void kvd_work_send(struct kvd_work *work, size_t meta_bytes);
/* Sends an error reply without payload: with what kvd_work_fail kept, or with this. */
void kvd_work_refuse_kept(struct kvd_work *work);
void kvd_work_refuse(struct kvd_work *work, kvarn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* For a job that could not be queued: says why. */
void kvd_work_refuse_unqueued(struct kvd_work *work);

/* ---- jobs */
uint64_t kvd_job_size(uint64_t count, uint64_t entry_bytes, uint64_t tail_bytes);
/* A zeroed job with shape and shard of the work's space. NULL = no staging now. */
struct kvd_job *kvd_work_job(struct kvd_work *work, uint32_t op, uint32_t count,
                             uint64_t entry_bytes, uint64_t tail_bytes);
static inline void *kvd_job_entries(struct kvd_job *job)
{
    return job + 1;
}
/* `then` runs when the last job of the work is done; work->job_status is OK or why they failed. A
 * job that cannot be queued counts as done with RETRY. Gives false when nothing was queued and no
 * other job is in flight (then is not called). */
bool kvd_work_submit(struct kvd_work *work, struct kvd_job *job, void (*then)(struct kvd_work *));
/* Status as written by the worker; a number outside the list is INTERNAL. */
kvarn_status kvd_status_of(uint32_t raw);
struct kvd_place kvd_work_place(const struct kvd_work *work, const void *at);
static inline struct kvd_place kvd_block_place(const struct kvd_block *block)
{
    return (struct kvd_place){KVD_REGION_POOL, 0, block->offset};
}

/* ---- waiting */
/* RETRY when too many wait. filling: until a claimed block settles; else until a queue moves. */
kvarn_status kvd_work_wait(struct kvd_work *work, void (*resume)(struct kvd_work *), bool filling);
void kvd_work_ready(struct kvd_work *work);
/* Leaves all sequence queues and makes ready who may go on. */
void kvd_work_leave(struct kvd_work *work);

/* ---- operations */
extern const struct kvd_operation kvd_operation_hello, kvd_operation_ping, kvd_operation_open_space,
    kvd_operation_lookup, kvd_operation_release, kvd_operation_compress, kvd_operation_decompress,
    kvd_operation_attend, kvd_operation_export, kvd_operation_import, kvd_operation_drop,
    kvd_operation_verify, kvd_operation_pin, kvd_operation_reset, kvd_operation_events,
    kvd_operation_seq_open, kvd_operation_seq_append, kvd_operation_seq_attend,
    kvd_operation_seq_commit, kvd_operation_seq_fork, kvd_operation_seq_release,
    kvd_operation_stats, kvd_operation_list, kvd_operation_drain, kvd_operation_persist,
    kvd_operation_erase;

#endif
