/* Random attend calls with their float64 answer.
 *
 * A plan says what the call looks like; attend_case_make fills records, exact rows and queries
 * from a seed, and computes attention in double over the decoded tokens. attend_case_check runs one
 * variant between guard bytes and compares. */
#ifndef KVARN_TEST_ATTEND_CASE_H
#define KVARN_TEST_ATTEND_CASE_H

#include "kernels/kernels.h"
#include "support/rng.h"

struct attend_plan {
    uint32_t dim, group, bits_k, bits_v; /* 0: 128, 128, 2, 2 */
    uint8_t q_dtype, dtype;              /* 0: f32, f16 */
    uint32_t q_tokens, q_heads;          /* 0: 1, 1 */
    uint32_t sink, tiles, partial, tail; /* tokens, whole tiles, tokens of one more tile, tokens */
    uint32_t limit;                      /* 0: the last query token sees everything */
    uint32_t window;
    float scale, soft_cap; /* scale 0: 1/sqrt(dim) */
    double q_gain;         /* 0: 1; negative: q = 0 */
    int odd_strides, unaligned, k_rotated, v_rotated, zero_records;
};

struct attend_case {
    struct attend_plan plan;
    struct kvk_attend op; /* without out, lse, scratch */
    struct kvk_span *spans;
    void **memory; /* what the spans and q point into */
    size_t memory_count;
    double *out, *lse; /* expected */
    double spread;     /* largest scale * sum |q_d k_d| of any visible pair */
};

struct attend_error {
    double out, lse; /* largest relative row error, largest absolute error */
};

struct attend_case *attend_case_make(const struct attend_plan *plan, uint64_t seed);
void attend_case_free(struct attend_case *c);

/* Computes c->out and c->lse again, after a test has changed c->op. */
void attend_case_expect(struct attend_case *c);

/* Compares rows with the expected ones: NULL and the errors (the largest, added to *error), or a
 * text: NaN, infinity and empty rows at other places than expected. */
const char *attend_case_compare(const struct attend_case *c, const float *out, const float *lse,
                                struct attend_error *error);

/* Runs the variant. Returns NULL and the errors, or a text saying what is broken: a status other
 * than OK, guard bytes written, or NaN, infinity and empty rows at other places than expected. */
const char *attend_case_check(const struct attend_case *c,
                              kvarn_status (*attend)(struct kvk_attend *),
                              struct attend_error *error);

#endif
