/* A decode run and what it is measured against. */
#ifndef DEMO_DECODE_H
#define DEMO_DECODE_H

#include "client/demo/demo.h"
#include "client/demo/measure.h"

enum { DEMO_METHODS = 3 }; /* kvarnd, then the baselines KIVI and RTN */

struct demo_decode {
    struct demo_worker *worker;
    uint64_t sequence;
    size_t first;     /* token of the first decoded position */
    float *exact;     /* attention over the uncompressed rows [position][layer][q head][dim] */
    float *got;       /* what kvarnd answered, same order */
    float *k, *v, *q; /* the capture in f32 */
    double *scratch;  /* [tokens] */
    double *latency;  /* [positions * layers] seconds of each ATTEND */
    struct demo_error attention[DEMO_METHODS]; /* kvarnd, then the baselines */
    double norm_mean[DEMO_METHODS], norm_p99[DEMO_METHODS];
    double decompress_seconds, ping_p50, ping_p99, commit_p50;
};

/* Floats in run->exact and run->got. */
size_t demo_answer_count(const struct demo_decode *run);

/* Fills run->exact, the attention errors and the errors of the keys' norms of all methods. k_back:
 * the keys as kvarnd gives them back, f32 in the capture's order. 0, or -1 without memory (said on
 * stderr). */
int demo_measure_errors(struct demo_decode *run, const float *k_back);

#endif
