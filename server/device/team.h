/* Threads that share one piece of work at a time: a number of units, each done once, in any order.
 *
 * The calling thread works too and does not wait for a helper that has not woken up; it waits only
 * for those that have taken a unit. */
#ifndef KVD_TEAM_H
#define KVD_TEAM_H

#include <stdint.h>

#include <kvarn/status.h>

struct kvd_team;

/* thread: 0 for the caller, 1 .. threads - 1 for helpers. */
typedef void (*kvd_team_unit)(void *context, uint32_t thread, uint64_t unit);

/* threads: the caller and threads - 1 helpers, at least 1. */
kvarn_status kvd_team_open(struct kvd_team **team, uint32_t threads);
void kvd_team_close(struct kvd_team **team);

/* Does units 0 .. units - 1. Always from one and the same thread. */
void kvd_team_run(struct kvd_team *team, uint64_t units, kvd_team_unit unit, void *context);

uint32_t kvd_team_threads(const struct kvd_team *team);

/* CPUs that this process may run on. */
uint32_t kvd_cpus_available(void);
/* A hint to the CPU inside a loop that waits for another thread. */
static inline void kvd_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
