/* Tells a worker that is at a long job from one that hangs.
 *
 * While there is work, something about the worker is looked at a few times per stall time; when it
 * has not changed for a whole one, the worker hangs. So a hang is seen at most a quarter of the
 * time later than it is one. Loop thread. */
#ifndef KVD_STALL_H
#define KVD_STALL_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

struct uv_loop_s;
struct kvd_stall;

struct kvd_stall_options {
    struct uv_loop_s *loop;
    uint64_t stall_ms;
    bool (*busy)(void *context);      /* there is work */
    uint64_t (*moved)(void *context); /* a number that changes as the work goes on */
    void (*stalled)(void *context);
    void *context;
};

kvarn_status kvd_stall_open(struct kvd_stall **stall, const struct kvd_stall_options *options);
void kvd_stall_close(struct kvd_stall **stall);

/* There is work now. Watches until there is none any more. */
void kvd_stall_watch(struct kvd_stall *stall);
/* Whoever was watched is gone. */
void kvd_stall_rest(struct kvd_stall *stall);

#endif
