/* After a worker restart on a GPU: every block of that device is digested again before anything of
 * it is served.
 *
 * The memory outlived the worker, but what ended the worker may have written anywhere in it. A
 * block that does not match leaves the index and is not served any more, as with VERIFY. While the
 * check is under way jobs of requests are answered RETRY, so nothing changes in the pool; blocks
 * may go, none can come. Tail rows of sequences have no digest: a write that was in flight has
 * failed and its rows do not count, all others were complete. Loop thread only. Internal to rpc. */
#ifndef KVD_RECHECK_H
#define KVD_RECHECK_H

#include <stdbool.h>

#include <kvarn/status.h>

struct kvd_recheck;
struct kvd_service_device;

/* INTERNAL without memory. The device of home stays as long as this does. */
kvarn_status kvd_recheck_open(struct kvd_recheck **recheck, struct kvd_service_device *home);
void kvd_recheck_close(struct kvd_recheck **recheck);

/* The worker was started again and is ready. */
void kvd_recheck_start(struct kvd_recheck *recheck);
/* Now and then: goes on where there was no staging or no place in the ring. */
void kvd_recheck_pump(struct kvd_recheck *recheck);
bool kvd_recheck_active(const struct kvd_recheck *recheck);

#endif
