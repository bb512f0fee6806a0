/* Buckets by the position of the highest bit and the bits behind it. */
#include "client/ctl/histogram.h"

static unsigned bucket_of(uint64_t ns)
{
    const unsigned sub = 1u << CTL_HISTOGRAM_BITS;

    if (ns < sub)
        return (unsigned)ns;
    unsigned power = 63u - (unsigned)__builtin_clzll(ns) - CTL_HISTOGRAM_BITS;
    if (power >= CTL_HISTOGRAM_POWERS)
        return CTL_HISTOGRAM_BUCKETS - 1;
    return ((power + 1) << CTL_HISTOGRAM_BITS) + (unsigned)((ns >> power) - sub);
}

/* The largest value of a bucket. */
static uint64_t top_of(unsigned bucket)
{
    const unsigned sub = 1u << CTL_HISTOGRAM_BITS;

    if (bucket < sub)
        return bucket;
    unsigned power = (bucket >> CTL_HISTOGRAM_BITS) - 1;
    return ((uint64_t)(sub + (bucket & (sub - 1)) + 1) << power) - 1;
}

void ctl_histogram_add(struct ctl_histogram *histogram, uint64_t ns)
{
    if (histogram->count == 0 || ns < histogram->least)
        histogram->least = ns;
    if (ns > histogram->most)
        histogram->most = ns;
    histogram->count++;
    histogram->sum += ns;
    histogram->buckets[bucket_of(ns)]++;
}

uint64_t ctl_histogram_at(const struct ctl_histogram *histogram, double share)
{
    double wanted = share * (double)histogram->count;
    uint64_t seen = 0;

    for (unsigned i = 0; i < CTL_HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (histogram->buckets[i] > 0 && (double)seen >= wanted) {
            uint64_t top = top_of(i);
            return top < histogram->most ? top : histogram->most;
        }
    }
    return histogram->most;
}
