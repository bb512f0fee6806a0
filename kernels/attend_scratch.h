/* The scratch of one attend call: bounded by the query rows, independent of the context.
 *
 * Per query row: q as given, q rotated, two accumulators (tiles in the rotated basis and in the
 * variant's column order, exact rows in the basis they came in), running maximum and sum. Per call:
 * the vectors and codes of one tile made ready once for all rows, and the working set of one group
 * of rows. */
#ifndef KVK_ATTEND_SCRATCH_H
#define KVK_ATTEND_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/types.h>

enum {
    KVK_ROWS = 8,          /* query rows worked on together */
    KVK_STEPS = 64,        /* code steps whose tables are kept at a time */
    KVK_STEP_BYTES = 64,   /* code vector of a step, and table of a step and row */
    KVK_CODE_BYTES = 16384 /* prepared codes: 4 bits, dim 256, group 128 */
};

struct kvk_attend_work {
    float step[KVARN_MAX_HEAD_DIM], zero[KVARN_MAX_HEAD_DIM], channel[KVARN_MAX_HEAD_DIM];
    float token[KVARN_MAX_GROUP], vstep[KVARN_MAX_GROUP], vzero[KVARN_MAX_GROUP];
    uint8_t k_codes[KVK_CODE_BYTES], v_codes[KVK_CODE_BYTES];
    uint8_t tables[KVK_ROWS * KVK_STEPS * KVK_STEP_BYTES];
    float x[KVK_ROWS][KVARN_MAX_HEAD_DIM];   /* folded q; then p */
    float sum[KVK_ROWS][KVARN_MAX_HEAD_DIM]; /* products with the codes */
};

static inline size_t kvk_attend_plan_bytes(size_t rows, size_t dim)
{
    size_t per_row = rows * (4 * dim + 2) * sizeof(float);

    return ((per_row + 63) / 64) * 64 + sizeof(struct kvk_attend_work);
}

#endif
