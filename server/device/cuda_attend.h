/* Inside ATTEND on a GPU: what is collected (cuda_exec_attend.c) and then run (cuda_attend_run.c).
 *
 * Its tables are its own: spans | faults | pieces. The plan of the last wave stays in them. A model
 * asks the same of every layer, of other slots and other queries, so mostly the pieces are already
 * there, and only what they are about is written anew. */
#ifndef KVD_CUDA_ATTEND_H
#define KVD_CUDA_ATTEND_H

#include "kernels/cuda/attend_plan.h"
#include "server/device/cuda_exec.h"

enum {
    KVD_CUDA_SEQUENCES_MAX = 4096, /* of a wave */
    KVD_CUDA_ATTEND_KINDS_MAX = 64,
    KVD_CUDA_PARTS_BYTES = 128 << 20,
    KVD_CUDA_JOINS_MAX = 1 << 18,
    KVD_CUDA_SPANS_MAX = KVD_CUDA_TABLE_BYTES / 2 / sizeof(struct kvk_cuda_span) /* of a wave */
};

/* What sequences have in common that run in one launch. */
struct kvd_cuda_attend_kind {
    struct kvk_shape shape;
    uint32_t kv_heads, q_heads, q_dtype, out_dtype, deterministic;
    uint32_t rows; /* deterministic: of the kernel, which others must not choose */
};

struct kvd_cuda_sequence {
    struct kvk_cuda_sequence of;
    const struct kvk_cuda_span *spans; /* on our side */
    struct kvd_attend *result;         /* in staging */
    uint32_t kind, layer, token;       /* token: of the entry, its first */
};

/* A plan that stands in the tables: of one kind, all sequences in one launch. */
struct kvd_cuda_kept {
    bool valid;
    struct kvd_cuda_attend_kind kind;
    uint32_t sequences;
    uint64_t spans;
    struct kvk_attend_plan plan;
};

struct kvd_cuda_attends {
    struct kvd_cuda_tables tables;
    struct kvd_job_span *copy; /* [KVD_BOUNDS_SPANS_MAX] of an entry */
    kvd_cu_address parts, joins;
    struct kvd_cuda_kept kept;
    /* the wave */
    struct kvd_cuda_sequence sequences[KVD_CUDA_SEQUENCES_MAX];
    struct kvd_cuda_attend_kind kinds[KVD_CUDA_ATTEND_KINDS_MAX];
    uint32_t sequence_count, kind_count;
    uint64_t span_count;
    bool same;         /* so far: as what is kept, but for addresses */
    uint64_t uploaded; /* bytes of the tables that the GPU has */
    bool busy, ran;    /* the GPU may still read the pieces; it was given some */
    /* of one kind, as the planner wants them */
    struct kvk_cuda_sequence chosen[KVD_CUDA_SEQUENCES_MAX];
    const struct kvk_cuda_span *chosen_spans[KVD_CUDA_SEQUENCES_MAX];
    uint32_t numbers[KVD_CUDA_SEQUENCES_MAX]; /* in the wave */
};

/* Runs what is collected, writes the results and begins a wave. False: the GPU failed. */
bool kvd_cuda_attends_run(struct kvd_cuda_executor *executor);

static inline bool kvd_cuda_attend_kind_same(const struct kvd_cuda_attend_kind *a,
                                             const struct kvd_cuda_attend_kind *b)
{
    return kvk_shape_same(&a->shape, &b->shape) && a->kv_heads == b->kv_heads &&
           a->q_heads == b->q_heads && a->q_dtype == b->q_dtype && a->out_dtype == b->out_dtype &&
           a->deterministic == b->deterministic && a->rows == b->rows;
}

static inline void kvd_cuda_attend_answer(struct kvd_attend *result, kvarn_status status)
{
    result->status = status;
    result->fault = (struct kvd_fault){0};
}

static inline struct kvk_cuda_span *kvd_cuda_span_table(const struct kvd_cuda_attends *attends)
{
    return (struct kvk_cuda_span *)(void *)attends->tables.host;
}

#endif
