/* What the attend variants share: argument checks, query loading, the scratch plan.
 *
 * Internal to kernels/. The variants differ in arithmetic only: kvk_attend_ref works in double and
 * decodes every token; the others fold the record's vectors into q and p (METHOD.md, section 7)
 * and work in fp32. */
#ifndef KVK_ATTEND_H
#define KVK_ATTEND_H

#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"

kvarn_status kvk_attend_ref(struct kvk_attend *op);
kvarn_status kvk_attend_avx2(struct kvk_attend *op);
kvarn_status kvk_attend_avx512(struct kvk_attend *op);

/* What kvk_attend_avx512 chooses between: the second where the CPU has VNNI too. */
kvarn_status kvk_attend_avx512_tables(struct kvk_attend *op);
kvarn_status kvk_attend_avx512_vnni(struct kvk_attend *op);

/* INVALID_SHAPE when counts, element types or spans do not fit the contract. */
kvarn_status kvk_attend_check(const struct kvk_attend *op);

/* q -> dense [q_tokens * q_heads, dim] floats; NON_FINITE with fault at the first NaN or infinity.
 */
kvarn_status kvk_attend_load_q(struct kvk_attend *op, float *dst);

/* Half-open range of positions that query token j sees. */
struct kvk_range {
    uint64_t first, end;
};

static inline struct kvk_range kvk_attend_range(const struct kvk_attend *op, uint32_t token)
{
    struct kvk_range range;

    range.end = (uint64_t)op->limit + token;
    range.first = op->window > 0 && range.end > op->window ? range.end - op->window : 0;
    return range;
}

/* The part of a span inside a range, as token indices of the span: [*from, *to), maybe empty. */
static inline void kvk_attend_clip(const struct kvk_span *span, struct kvk_range range,
                                   uint32_t *from, uint32_t *to)
{
    uint64_t first = range.first > span->position ? range.first - span->position : 0;
    uint64_t end = range.end > span->position ? range.end - span->position : 0;

    *to = end < span->tokens ? (uint32_t)end : span->tokens;
    *from = first < *to ? (uint32_t)first : *to;
}

#endif
