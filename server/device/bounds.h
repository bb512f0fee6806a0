/* What a job says, held against the memory there is: does every byte lie in its region?
 *
 * Both executors use it. Jobs, entries and spans stand in memory that the other process may write;
 * they are copied first, and only the copies are looked at, here and later. */
#ifndef KVD_BOUNDS_H
#define KVD_BOUNDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "server/device/job.h"

enum {
    KVD_BOUNDS_SPANS_MAX = 1 << 17, /* of one sequence: KVD_SEQUENCE_TOKENS_MAX / 64 and a tail */
    KVD_BOUNDS_LAYERS_MAX = 4096,
    KVD_BOUNDS_HEADS_MAX = 4096
};

struct kvd_bounds {
    uint64_t bytes[KVD_REGIONS]; /* 0: no such region */
};

/* A job copied out of shared memory. */
struct kvd_taken {
    struct kvd_job copy;
    struct kvd_job *shared;
    uint64_t planned_ns; /* for the executor */
};

bool kvd_bounds_hold(const struct kvd_bounds *bounds, struct kvd_place place, uint64_t bytes);
/* Rows [layers][tokens][heads] of row_bytes each, at strides. */
bool kvd_bounds_hold_rows(const struct kvd_bounds *bounds, struct kvd_place place,
                          const struct kvd_strides *strides, const uint32_t counts[3],
                          uint64_t row_bytes);
/* A whole slot. */
bool kvd_bounds_hold_slot(const struct kvd_bounds *bounds, const struct kvd_job *job,
                          struct kvd_place place, uint32_t kind);
/* Positions ascend, and every slot is there. */
bool kvd_bounds_hold_spans(const struct kvd_bounds *bounds, const struct kvd_job *job,
                           const struct kvd_job_span *spans, uint32_t count);

/* 0: no such operation. */
size_t kvd_job_entry_bytes(uint32_t op);
bool kvd_job_shape_is_sound(const struct kvd_job *job);
/* Copies the job at this offset of staging and sets its status; false when it does not stand there
 * as a job must. */
bool kvd_job_take(struct kvd_taken *taken, const struct kvd_bounds *bounds, uint8_t *staging,
                  uint64_t offset);

/* ATTEND: counts and dtypes make sense and the copy of the spans has its place in the job. */
bool kvd_attend_is_sound(const struct kvd_job *job, const struct kvd_attend *attend);
/* Its rows lie in their regions. */
bool kvd_bounds_hold_attend(const struct kvd_bounds *bounds, const struct kvd_job *job,
                            const struct kvd_attend *attend);

/* Bytes of a K or V row, and of one layer and head of a slot; 0 for an unknown kind. */
static inline size_t kvd_row_bytes(const struct kvk_shape *shape)
{
    return (size_t)shape->dim * 2;
}

static inline size_t kvd_cell_bytes(const struct kvk_shape *shape, uint32_t kind)
{
    if (kind == KVARN_BLOCK_TILE)
        return kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    return kind == KVARN_BLOCK_EXACT ? 2 * (size_t)shape->group * kvd_row_bytes(shape) : 0;
}

#endif
