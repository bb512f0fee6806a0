/* How much each tenant has of what is counted, and the most it may have.
 *
 * Bytes are counted where they are given out (pool.h). Loop thread only. */
#ifndef KVD_COUNTS_H
#define KVD_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/limits.h"
#include "server/core/quota.h"

struct kvd_counts {
    uint32_t used[KVD_TENANTS_MAX][KVD_COUNTED_COUNT];
    uint32_t most[KVD_TENANTS_MAX][KVD_COUNTED_COUNT];
    uint64_t refusals; /* of takes, since the start */
};

void kvd_counts_init(struct kvd_counts *counts); /* no bounds */

/* All of them or none. */
bool kvd_counts_take(struct kvd_counts *counts, uint32_t tenant, enum kvd_counted counted,
                     uint32_t number);
void kvd_counts_give(struct kvd_counts *counts, uint32_t tenant, enum kvd_counted counted,
                     uint32_t number);

#endif
