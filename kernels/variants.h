/* Inside of kernels/: the functions that fill the tables in dispatch.c, and what they share.
 *
 * Every variant of compress and decompress computes what compress_ref.c and decompress_ref.c
 * define, bit for bit. Arguments are those of kernels.h; shapes have passed kvk_shape_check(). */
#ifndef KVK_VARIANTS_H
#define KVK_VARIANTS_H

#include "kernels/kernels.h"

kvarn_status kvk_compress_ref(struct kvk_compress *op);
kvarn_status kvk_compress_ref_fma(struct kvk_compress *op); /* same source, FMA as instruction */
kvarn_status kvk_compress_avx2(struct kvk_compress *op);
kvarn_status kvk_compress_avx512(struct kvk_compress *op);

kvarn_status kvk_decompress_ref(struct kvk_decompress *op);
kvarn_status kvk_decompress_avx2(struct kvk_decompress *op);
kvarn_status kvk_decompress_avx512(struct kvk_decompress *op);

/* rows.c: the first non-finite element in token order. OK (fault cleared) when there is none. */
kvarn_status kvk_rows_check(const void *src, size_t token_stride_bytes, uint32_t tokens,
                            uint32_t dim, kvarn_dtype dtype, char tensor, struct kvk_fault *fault);

/* selftest.c: whether the table agrees with the reference on fixed tiles; *why is static text. */
int kvk_selftest_passes(const struct kvk_table *table, const char **why);

#endif
