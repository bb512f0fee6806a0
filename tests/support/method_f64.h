/* The method in double precision, for tests: log domain and five passes per iteration as published
 * (kernels/METHOD.md, section 2), not in the two-sweep form of the kernels. */
#ifndef KVARN_TEST_METHOD_F64_H
#define KVARN_TEST_METHOD_F64_H

#include "kernels/kernels.h"
#include "support/rng.h"

/* One matrix, rows = quantisation axis. Vectors are folded and not rounded. */
struct method_matrix {
    uint32_t rows, cols;
    uint8_t code[KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM];  /* [rows][cols] */
    double margin[KVARN_MAX_GROUP * KVARN_MAX_HEAD_DIM]; /* to the nearest boundary, in steps */
    double step[KVARN_MAX_HEAD_DIM], zero[KVARN_MAX_HEAD_DIM]; /* a, z or b, y: [rows] */
    double other[KVARN_MAX_HEAD_DIM];                          /* u or w: [cols] */
};

struct method_tile {
    struct method_matrix k, v;
};

/* k, v: [group][dim], un-rotated (K rotated when shape->k_rotated, V when shape->v_rotated). */
void method_compress(const struct kvk_shape *shape, const double *k, const double *v,
                     struct method_tile *tile);

/* Rounding errors that an implementation makes, as shares of what is rounded: of every element of
 * the rotated tile, of every deviation that is measured. Uniform, drawn from rng. */
struct method_noise {
    double element, measured;
    struct rng rng;
};

/* method_compress() with such errors: what a correct implementation of that precision may make of
 * the tile. */
void method_compress_near(const struct kvk_shape *shape, const double *k, const double *v,
                          struct method_noise *noise, struct method_tile *tile);

/* tile -> k, v [group][dim] un-rotated, with vectors rounded to fp16 when round is set. */
void method_reconstruct(const struct kvk_shape *shape, const struct method_tile *tile, int round,
                        double *k, double *v);

/* x * H for one row. */
void method_rotate(double *x, uint32_t dim);

double method_round_f16(double x);

#endif
