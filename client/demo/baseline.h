/* The two methods kvarnd is compared with, in their usual form: fp16 step and minimum per group,
 * asymmetric min/max, round to nearest even. Rows [token][head][dim] are replaced by what a reader
 * would get back.
 *
 * KIVI (arXiv 2402.02750, as the KVarN paper runs it, g = 128): K per channel over g consecutive
 * tokens, V per token over g consecutive channels. RTN: one step and minimum per token and head for
 * both. */
#ifndef DEMO_BASELINE_H
#define DEMO_BASELINE_H

#include <stddef.h>
#include <stdint.h>

enum demo_method { DEMO_KIVI, DEMO_RTN };

const char *demo_method_name(enum demo_method method);

/* Quantises tokens [first, first + count) of k and v in place; a last group of KIVI's keys
 * that is not full is quantised by itself, so that every method stores the same tokens. */
void demo_baseline_apply(enum demo_method method, float *k, float *v, size_t first, size_t count,
                         uint32_t heads, uint32_t dim, uint32_t bits_k, uint32_t bits_v);

/* Stored bytes per token and kv head, scales included. */
double demo_baseline_bytes(enum demo_method method, uint32_t dim, uint32_t bits_k, uint32_t bits_v);

#endif
