/* Tiles for the tests of compress and decompress: inputs of several kinds with odd strides, and
 * runs of any table between guard bytes. */
#ifndef KVARN_TEST_TILE_CASE_H
#define KVARN_TEST_TILE_CASE_H

#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "support/rng.h"

enum tile_kind {
    TILE_NORMAL,        /* unit normal */
    TILE_OUTLIERS,      /* loud channels with an offset, loud tokens, as real keys have */
    TILE_ZERO_TOKENS,   /* some tokens are all zero */
    TILE_ZERO_CHANNELS, /* some channels are all zero */
    TILE_CONSTANT,      /* one value everywhere */
    TILE_ZERO,
    TILE_SUBNORMAL, /* below the smallest normal number of the type */
    TILE_LARGE,     /* up to the largest number of the type */
    TILE_ONE,       /* all zero but one element */
    TILE_OFFSET,    /* channel means 30 times the deviation */
    TILE_KINDS
};

struct tile_plan {
    struct kvk_shape shape;
    enum tile_kind kind;
    double gain;
    size_t k_stride, v_stride; /* 0: dense */
    uint32_t unaligned;        /* bytes by which inputs, record and outputs are shifted */
};

struct tile_case {
    struct tile_plan plan;
    uint64_t seed;
    uint8_t *memory, *k, *v; /* rows as compress gets them */
    double *k64, *v64;       /* [group][dim], the same values */
    size_t record_bytes;
};

/* Everything a table makes of a case. */
struct tile_run {
    kvarn_status compress, decompress;
    struct kvk_fault fault;
    uint8_t *record, *k, *v; /* k, v dense */
    const char *damage;      /* NULL, or what was written outside the outputs */
    uint8_t *memory;
};

/* A plan with random shape, kind, gain, strides and alignment. */
struct tile_plan tile_plan_random(struct rng *rng);

struct tile_case *tile_case_make(const struct tile_plan *plan, uint64_t seed);
void tile_case_free(struct tile_case *c);
size_t tile_case_row(const struct tile_case *c); /* bytes of one dense row */

void tile_run_make(const struct tile_case *c, const struct kvk_table *table, struct tile_run *run);
void tile_run_free(struct tile_run *run);

/* "seed 12 D=128 G=64 K4V2 bf16 ..." in static memory: for failures. */
const char *tile_plan_text(const struct tile_plan *plan, uint64_t seed);

/* A seed that differs from run to run unless KVARN_SEED is set; printed. */
uint64_t tile_seed(const char *test);

#endif
