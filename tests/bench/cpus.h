/* Which CPUs a benchmark and the processes it starts run on.
 *
 * Between two CPUs of a virtual machine a wake-up costs 40 us and more, ten times a round trip
 * between two processes, and whether two processes share a CPU is the scheduler's whim: unpinned, a
 * bare socket measured 5 us in one run and 74 in the next. So latencies are measured with
 * everything on one CPU. */
#ifndef BENCH_CPUS_H
#define BENCH_CPUS_H

/* This process, and what it starts from now on, keep to one CPU. */
void bench_cpus_one(void);
/* All the CPUs there were at the first bench_cpus_one() again. */
void bench_cpus_all(void);

#endif
