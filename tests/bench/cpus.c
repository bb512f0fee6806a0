/* Which CPUs a benchmark runs on; see cpus.h. */
#include "tests/bench/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static cpu_set_t all;
static int known;

static void keep_to(const cpu_set_t *cpus)
{
    if (sched_setaffinity(0, sizeof *cpus, cpus) == 0)
        return;
    perror("bench: sched_setaffinity");
    exit(1);
}

void bench_cpus_one(void)
{
    cpu_set_t one;
    size_t cpu = 0;

    if (!known && sched_getaffinity(0, sizeof all, &all) != 0) {
        perror("bench: sched_getaffinity");
        exit(1);
    }
    known = 1;
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    keep_to(&one);
}

void bench_cpus_all(void)
{
    if (known)
        keep_to(&all);
}
