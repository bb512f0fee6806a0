/* Log-linear histogram of nanoseconds: 64 buckets per power of two, so a percentile is at most 1.6
 * % off, in 20 KiB whatever the number of samples. */
#ifndef KVC_CTL_HISTOGRAM_H
#define KVC_CTL_HISTOGRAM_H

#include <stdint.h>

enum {
    CTL_HISTOGRAM_BITS = 6,
    CTL_HISTOGRAM_POWERS = 40, /* up to 2^45 ns, 9 hours */
    CTL_HISTOGRAM_BUCKETS = (CTL_HISTOGRAM_POWERS + 1) << CTL_HISTOGRAM_BITS
};

struct ctl_histogram {
    uint64_t count, sum, least, most;
    uint64_t buckets[CTL_HISTOGRAM_BUCKETS];
};

void ctl_histogram_add(struct ctl_histogram *histogram, uint64_t ns);
/* The value that a share of all samples does not exceed; share in 0..1. 0 without samples. */
uint64_t ctl_histogram_at(const struct ctl_histogram *histogram, double share);

#endif
