/* A small seeded generator for tests (xorshift64*): same numbers on every machine.
 *
 * The seed comes from KVARN_SEED when set; tests print it, so that a failure can be repeated. */
#ifndef KVARN_TEST_RNG_H
#define KVARN_TEST_RNG_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_seed(uint64_t fallback)
{
    const char *text = getenv("KVARN_SEED");

    return text != NULL ? strtoull(text, NULL, 0) : fallback;
}

static inline struct rng rng_make(uint64_t seed)
{
    struct rng rng = {seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u};

    if (rng.state == 0)
        rng.state = 1;
    return rng;
}

static inline uint64_t rng_next(struct rng *rng)
{
    rng->state ^= rng->state >> 12;
    rng->state ^= rng->state << 25;
    rng->state ^= rng->state >> 27;
    return rng->state * 0x2545f4914f6cdd1du;
}

/* 0 .. bound - 1 */
static inline uint32_t rng_below(struct rng *rng, uint32_t bound)
{
    return (uint32_t)((rng_next(rng) >> 32) * bound >> 32);
}

/* [0, 1) */
static inline double rng_unit(struct rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

/* mean 0, deviation 1 (Box-Muller) */
static inline double rng_normal(struct rng *rng)
{
    double radius = sqrt(-2.0 * log(1.0 - rng_unit(rng)));

    return radius * cos(6.283185307179586 * rng_unit(rng));
}

#endif
