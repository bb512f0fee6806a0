/* The worker process as the front keeps it: started, greeted, watched, started again.
 *
 *   STARTING --greeting--> READY --exit--> DOWN --delay--> STARTING ...
 *
 * The first start is waited for; later ones happen on the loop. The delay is none for the first end
 * and then grows while workers live short: to KVD_WORKER_DELAY_SERVED_MS after one that served, to
 * KVD_WORKER_DELAY_MAX_MS after one that never did. Loop thread. */
#ifndef KVD_PROCESS_H
#define KVD_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/device/gpu_pool.h"
#include "server/device/launch.h"
#include "server/device/link.h"

struct uv_loop_s;
struct kvd_process;

struct kvd_process_options {
    struct uv_loop_s *loop;
    const char *name;              /* of the device, for logs; outlives the process */
    struct kvd_launch launch;      /* copied, with its strings */
    struct kvd_gpu_pool *gpu_pool; /* of a GPU: filled by the first start, sent at later ones */
    void (*starts)(void *context); /* before each start: no worker touches shared memory */
    void (*ready)(void *context);  /* after each later start: it serves */
    void (*ended)(void *context);  /* after each end: nothing of the worker writes any more */
    void *context;
};

/* *why lives until the next call. UNSUPPORTED: no such device here, or no driver for it. */
kvarn_status kvd_process_open(struct kvd_process **process,
                              const struct kvd_process_options *options, const char **why);
/* Asks the worker to end, kills it after KVD_WORKER_STOP_MS; `ended` is not called. */
void kvd_process_close(struct kvd_process **process);

bool kvd_process_ready(const struct kvd_process *process);
/* Of the worker that greeted last. */
const struct kvd_link_hello *kvd_process_hello(const struct kvd_process *process);
/* About how long until there is a ready one; 0 when there is. */
uint32_t kvd_process_wait_ms(const struct kvd_process *process);
uint32_t kvd_process_restarts(const struct kvd_process *process);
/* For a worker that does what it must not; it ends and is started again as after any other end. */
void kvd_process_kill(struct kvd_process *process);

#endif
