/* The scratch of one attend call: bounded by the query rows, independent of the context.
 *
 * Per query row: q as given, q rotated, two accumulators (tiles in the rotated basis and in the
 * variant's column order; exact rows in the basis they came in), running maximum and sum. Per call:
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
    KVK_CODE_BYTES = 16384 /* prepared codes of K or of V: 4 bits, dim 256, group 128 */
};

struct kvk_attend_work {
    /* one tile: vectors as floats, those of tokens and of V's channels in column order */
    float step[KVARN_MAX_HEAD_DIM], zero[KVARN_MAX_HEAD_DIM], channel[KVARN_MAX_HEAD_DIM];
    float token[KVARN_MAX_GROUP], v_step[KVARN_MAX_GROUP], v_zero[KVARN_MAX_GROUP];
    uint8_t k_codes[KVK_CODE_BYTES], v_codes[KVK_CODE_BYTES];
    /* one group of rows */
    float tables[KVK_ROWS * KVK_STEPS * 16];
    float x[KVK_ROWS][KVARN_MAX_HEAD_DIM];   /* what the codes are multiplied by */
    float sum[KVK_ROWS][KVARN_MAX_HEAD_DIM]; /* products with the codes; logits; p */
    /* column order: place in a product -> token or channel, and token -> place */
    int32_t token_at[KVARN_MAX_GROUP], channel_at[KVARN_MAX_HEAD_DIM];
    int32_t place_of[KVARN_MAX_HEAD_DIM];
    uint32_t bits_k, unused[15]; /* keeps what follows on a cache line */
};

/* What one query row carries from span to span; four arrays of dim floats follow in scratch. */
struct kvk_attend_row {
    float *q, *q_rotated;
    float *tile, *exact; /* sums of exp(s - m) times V */
    float m, l, shrink;  /* running maximum, sum of exp(s - m), factor of this step */
    uint32_t from, to;   /* visible tokens of the current span */
};

static inline size_t kvk_attend_plan_bytes(size_t rows, size_t dim)
{
    return sizeof(struct kvk_attend_work) +
           rows * (sizeof(struct kvk_attend_row) + 4 * dim * sizeof(float));
}

#endif
