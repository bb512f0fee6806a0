/* See counts.h. */
#include "server/store/counts.h"

#include <assert.h>
#include <string.h>

void kvd_counts_init(struct kvd_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    memset(counts->most, 0xff, sizeof counts->most);
}

bool kvd_counts_take(struct kvd_counts *counts, uint32_t tenant, enum kvd_counted counted,
                     uint32_t number)
{
    uint32_t *used = &counts->used[tenant][counted], most = counts->most[tenant][counted];

    assert(tenant < KVD_TENANTS_MAX);
    if (number > most || *used > most - number) {
        counts->refusals++;
        return false;
    }
    *used += number;
    return true;
}

void kvd_counts_give(struct kvd_counts *counts, uint32_t tenant, enum kvd_counted counted,
                     uint32_t number)
{
    assert(counts->used[tenant][counted] >= number);
    counts->used[tenant][counted] -= number;
}
