/* The baseline of bench_attend: exact attention over an uncompressed fp32 cache, our own loop.
 *
 * The cache lies as suits the loop best: blocks of 128 tokens, K as [dim][128], V as [128][dim]
 * (dim = 128), read once for all query heads. Streaming softmax, AVX-512. */
#ifndef KVARN_BENCH_ATTEND_FP32_H
#define KVARN_BENCH_ATTEND_FP32_H

#include <stddef.h>

enum { FP32_BLOCK = 128, FP32_DIM = 128, FP32_HEADS = 8 };

/* q, out [heads][128]; k, v as above, `blocks` blocks. */
void attend_fp32(const float *k, const float *v, size_t blocks, const float *q, int heads,
                 float scale, float *out);

/* logits [count] -> exp(s - max) in place; returns their sum. count is a multiple of 16. */
float attend_fp32_softmax(float *s, size_t count, float scale);

#endif
