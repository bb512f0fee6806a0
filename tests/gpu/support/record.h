/* How well a record stands for its rows: for checks of what compress makes on a GPU. */
#ifndef GPU_SUPPORT_RECORD_H
#define GPU_SUPPORT_RECORD_H

#include "kernels/kernels.h"

/* Sums of squares over K and over V of one tile. */
struct record_error {
    double k, v;
};

/* record (canonical) against rows [group, dim] of shape->dtype with these token strides. */
struct record_error record_error(const struct kvk_shape *shape, const uint8_t *record,
                                 const void *k, const void *v, size_t token_stride_bytes);
/* The squares of the rows themselves. */
struct record_error record_norm(const struct kvk_shape *shape, const void *k, const void *v,
                                size_t token_stride_bytes);
/* What a record changes systematically, as a share of what there is: root mean square over tokens
 * of how far K's norms are off, over channels of how far the product of V with itself as it is read
 * is off. Weighted with the squares of token or channel. */
struct record_error record_drift(const struct kvk_shape *shape, const uint8_t *record,
                                 const void *k, const void *v, size_t token_stride_bytes);
/* Error and drift of the reference's record of the same rows. */
struct record_error record_reference(const struct kvk_shape *shape, const void *k, const void *v,
                                     size_t token_stride_bytes, struct record_error *drift);

/* The same of matrices [group][dim], as rows are read and as they were; rotated, one side. */
double record_rows_error(const struct kvk_shape *shape, const double *read, const double *rows);
double record_rows_drift(const struct kvk_shape *shape, int is_v, const double *read,
                         const double *rows);
/* Rows of a side -> matrix [group][dim], rotated. */
void record_rows(const struct kvk_shape *shape, int is_v, const void *rows,
                 size_t token_stride_bytes, double *matrix);

#endif
