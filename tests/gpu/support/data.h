/* Fresh data for checks and benchmarks: rows as models make them, and records of such rows. */
#ifndef GPU_SUPPORT_DATA_H
#define GPU_SUPPORT_DATA_H

#include <stdint.h>

#include "kernels/kernels.h"

/* Another one in every run unless KVARN_SEED is set; printed. */
uint64_t data_seed(const char *program);

/* rows x dim values of dtype: normal times gain, with loud channels that have an offset and loud
 * tokens, as real keys have. */
void data_rows(void *to, kvarn_dtype dtype, size_t rows, uint32_t dim, double gain, uint64_t seed);
/* The same without loud ones: queries. */
void data_normal(void *to, kvarn_dtype dtype, size_t rows, uint32_t dim, double gain,
                 uint64_t seed);

/* This CPU's fastest kernels: the same bits as the reference. */
const struct kvk_table *data_table(void);

/* `count` records of such rows, made by this CPU's best compress; either may be NULL. */
void data_records(const struct kvk_shape *shape, size_t count, uint64_t seed, uint8_t *canonical,
                  uint8_t *device);

#endif
