/* Runs jobs on the CPU: checks every place against the mapped regions, cuts the entries into units
 * (a tile, some rows, a stretch of context), and has a team of threads do them.
 *
 * Results do not depend on the number of threads, nor on what else is in the batch: every unit is
 * computed alone and parts are joined in one order. So on this device `deterministic` always holds.
 * One thread calls; it is one of the team. Knows nothing of rings and processes. */
#ifndef KVD_EXECUTOR_H
#define KVD_EXECUTOR_H

#include <stdatomic.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "kernels/kernels.h"
#include "server/device/job.h"

struct kvd_executor;

struct kvd_executor_options {
    const struct kvk_table *table;
    uint32_t threads;           /* 0: as many as CPUs */
    _Atomic uint32_t *progress; /* counts units of work as they are done; NULL = nobody asks */
    struct {
        uint8_t *base;
        uint64_t bytes;
    } regions[KVD_REGIONS];
};

/* Starts the threads and takes all memory that any job will need. */
kvarn_status kvd_executor_open(struct kvd_executor **executor,
                               const struct kvd_executor_options *options);
void kvd_executor_close(struct kvd_executor **executor);

/* Runs the jobs at the first of these offsets of staging, together, as far as they are of one
 * operation; gives how many that were: at least 1, and the caller comes again for the rest.
 * statuses[i]: OK, the job's own fields say the rest; INTERNAL, there is no job. */
uint32_t kvd_executor_run(struct kvd_executor *executor, const uint64_t *jobs, uint32_t count,
                          kvarn_status *statuses);

uint32_t kvd_executor_threads(const struct kvd_executor *executor);

#endif
