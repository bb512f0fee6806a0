/* What the front asks of a device worker: plain structs in shared memory, offsets instead of
 * pointers.
 *
 * A job is a kvd_job, then `count` entries of its operation, then what the entries refer to
 * (spans), all in one extent of staging. The front fills it in, the worker runs it and writes the
 * fields marked out. The worker runs jobs in ring order; consecutive jobs of one operation may run
 * at the same time, so the front never puts two jobs that touch the same rows into the ring at once
 * (store/sequence.h guards that). */
#ifndef KVD_JOB_H
#define KVD_JOB_H

#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

#include "kernels/kernels.h"

enum kvd_region { KVD_REGION_STAGING = 0, KVD_REGION_POOL = 1, KVD_REGIONS = 2 };

/* A byte of shared memory. */
struct kvd_place {
    uint32_t region; /* kvd_region */
    uint32_t reserved;
    uint64_t offset;
};

enum kvd_job_op {
    KVD_JOB_COMPRESS =
        1, /* kvd_put entries: rows -> slot; seals too (the rows are an EXACT slot's) */
    KVD_JOB_DECOMPRESS, /* kvd_get entries: slot -> rows */
    KVD_JOB_WRITE_ROWS, /* kvd_write entries: rows -> part of an EXACT slot */
    KVD_JOB_ATTEND,     /* kvd_attend entries */
    KVD_JOB_COPY,       /* kvd_copy entries: bytes -> bytes, digest on the way */
    KVD_JOB_DIGEST,     /* kvd_copy entries: digest of src only */
    KVD_JOB_ZERO /* kvd_zero entries; CUDA workers only: a host pool's pages are given back */
};

/* Where a value stood that was refused. */
struct kvd_fault {
    uint32_t tensor; /* 'k', 'v', 'q'; 0 = none */
    uint32_t layer, head, token, channel;
};

struct kvd_job {
    uint32_t op;    /* kvd_job_op */
    uint32_t count; /* entries right after this struct */
    struct kvk_shape shape;
    uint32_t layers, heads; /* of the shard */
    uint32_t layer_begin, layer_count;
    uint32_t status;    /* out: kvarn_status of the whole job; entries have their own */
    uint64_t device_ns; /* out */
    uint64_t job_bytes; /* of struct, entries and spans */
};

/* Byte strides of K and V rows outside of slots. Channels are contiguous. */
struct kvd_strides {
    uint64_t layer, token, head;
};

/* COMPRESS: one block. A slot is [layer][head][record] (TILE) or [layer][head][K [G, dim], V [G,
 * dim]] (EXACT). */
struct kvd_put {
    struct kvd_place k, v; /* row of layer 0, the block's token 0, head 0 */
    struct kvd_strides strides;
    struct kvd_place slot;
    uint32_t kind;   /* kvarn_block_kind */
    uint32_t status; /* out */
    uint32_t digest; /* out: CRC-32C over the slot's bytes */
    uint32_t reserved;
    struct kvd_fault fault; /* out */
};

/* DECOMPRESS: one block, layers [layer_begin, +layer_count) of the job; k, v point at the first of
 * them. */
struct kvd_get {
    struct kvd_place slot;
    uint32_t kind;
    uint32_t status; /* out */
    struct kvd_place k, v;
    struct kvd_strides strides;
};

/* WRITE_ROWS: tokens of one sequence into one EXACT slot, layers [layer_begin, +layer_count). */
struct kvd_write {
    struct kvd_place k, v; /* of the first layer, token, head written */
    struct kvd_strides strides;
    struct kvd_place slot;
    uint32_t first_token, tokens; /* within the slot */
    uint32_t status;              /* out */
    uint32_t reserved;
    struct kvd_fault fault; /* out; token counts from this entry's first */
};

/* ATTEND: a run of tokens of one sequence, as kvk_span but with places. */
struct kvd_job_span {
    struct kvd_place slot;
    uint32_t kind, position, tokens, reserved;
};

/* ATTEND: the query rows of one sequence in layer `layer_begin`; all heads of the shard. */
struct kvd_attend {
    struct kvd_place q;   /* [q_tokens, q_heads, dim] of q_dtype */
    struct kvd_place out; /* [q_tokens, q_heads, dim] of out_dtype */
    struct kvd_place lse; /* f32 [q_tokens, q_heads] */
    uint32_t q_tokens,
        q_heads; /* q_heads of the shard; head h reads kv head h / (q_heads / heads) */
    uint32_t q_dtype, out_dtype;
    float scale, soft_cap;
    uint32_t limit, window; /* query token j sees positions < limit + j */
    uint32_t full;          /* 1: every query token sees positions < limit */
    uint32_t deterministic; /* the same bits alone and in a batch; always so on the CPU */
    uint64_t spans_offset;  /* from the start of the job: kvd_job_span [span_count] */
    uint32_t span_count;
    uint32_t status;        /* out */
    struct kvd_fault fault; /* out */
};

enum kvd_check {
    KVD_CHECK_DIGEST = 1, /* a digest other than `digest` gives CORRUPT */
    KVD_CHECK_FINITE = 2  /* the slot must hold finite numbers: else NON_FINITE, fault */
};

/* COPY, DIGEST. A slot in a CUDA pool is in device order; everywhere else it is canonical, so a
 * COPY between the two converts. The digest is that of the canonical bytes in every case. */
struct kvd_copy {
    struct kvd_place dst, src; /* dst is unspecified when status is not OK */
    uint64_t bytes;
    uint32_t digest; /* in with KVD_CHECK_DIGEST, out always */
    uint32_t check;  /* kvd_check */
    uint32_t status; /* out */
    /* kvarn_block_kind: a slot of the job's layers and heads; 0 = bytes as they are, not in a CUDA
     * pool and not with KVD_CHECK_FINITE */
    uint32_t kind;
    struct kvd_fault fault; /* out */
};

/* ZERO: a range of the pool. */
struct kvd_zero {
    struct kvd_place at;
    uint64_t bytes;
    uint32_t status; /* out */
    uint32_t reserved;
};

#endif
