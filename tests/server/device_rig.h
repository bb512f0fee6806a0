/* A device with its real worker process, for tests: making jobs, and what happens to the worker. */
#ifndef DEVICE_RIG_H
#define DEVICE_RIG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/core/loop.h"
#include "server/device/device.h"

enum { LAYERS = 3, HEADS = 2, DIM = 64, GROUP = 64, ROW = DIM * 2 };
enum { POOL_BYTES = 64 << 20, STAGING_BYTES = 32 << 20, TOKENS = GROUP };

struct device_rig {
    struct uv_loop_s *loop;
    struct kvd_device *device;
    unsigned fds_before, done, lost, refused;
};

unsigned device_open_fds(void);
pid_t device_worker_pid(void);
struct kvd_device_options device_options(uint32_t threads);
/* A worker of two threads; teardown asserts that nothing is left over. */
int device_setup(void **state);
int device_teardown(void **state);
/* Counts in the rig. */
void device_on_done(void *context, struct kvd_job *job, kvarn_status status);
struct kvd_job *device_job(struct device_rig *f, uint32_t op, uint32_t count, size_t entry_bytes,
                           size_t more);
void device_job_free(struct device_rig *f, struct kvd_job *job);
void device_submit(struct device_rig *f, struct kvd_job *job);
void device_run(struct device_rig *f, struct kvd_job *job);
uint64_t device_now_ms(void);
void device_run_until(struct device_rig *f, uint64_t until_ms);
/* With a worker of one thread and this stall time. */
void device_reopen(struct device_rig *f, uint32_t stall_ms);
/* For the group: the first loop of a process opens libuv's own signal pipe, which stays. */
int device_open_what_stays(void **state);

#endif
