/* The clock of deadlines, delays and measurements. */
#ifndef KVD_CLOCK_H
#define KVD_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, read now. */
static inline uint64_t kvd_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
