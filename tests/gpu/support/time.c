/* Times by graph replay, and the copy ceiling; see gpu.h. */
#include <stdio.h>

#include "bench/row.h"
#include "gpu/support/gpu.h"

enum { WARM_UP = 3, COPY_REPLAYS = 21 };

static kvd_cu_graph_exec capture(struct gpu *gpu, gpu_work work, void *context, uint32_t rounds)
{
    kvd_cu_graph graph = NULL;
    kvd_cu_graph_exec exec = NULL;

    gpu_must(gpu, gpu->cu.capture_begin(gpu->stream, KVD_CU_CAPTURE_THREAD_LOCAL), "capture");
    for (uint32_t round = 0; round < rounds; round++)
        work(gpu, context, round);
    gpu_must(gpu, gpu->cu.capture_end(gpu->stream, &graph), "end of capture");
    gpu_must(gpu, gpu->cu.graph_instantiate(&exec, graph, 0), "graph");
    gpu_must(gpu, gpu->cu.graph_destroy(graph), "graph");
    return exec;
}

static void begin_time(struct gpu *gpu)
{
    gpu_must(gpu, gpu->cu.event_record(gpu->begin, gpu->stream), "event");
}

/* Microseconds since begin_time(), on the device. */
static double end_time(struct gpu *gpu)
{
    float milliseconds = 0;

    gpu_must(gpu, gpu->cu.event_record(gpu->end, gpu->stream), "event");
    gpu_must(gpu, gpu->cu.event_synchronize(gpu->end), "timed work");
    gpu_must(gpu, gpu->cu.event_elapsed(&milliseconds, gpu->begin, gpu->end), "event");
    return 1e3 * (double)milliseconds;
}

static double replay(struct gpu *gpu, kvd_cu_graph_exec exec)
{
    begin_time(gpu);
    gpu_must(gpu, gpu->cu.graph_launch(exec, gpu->stream), "graph");
    return end_time(gpu);
}

struct gpu_time gpu_time(struct gpu *gpu, gpu_work work, void *context, uint32_t rounds,
                         uint32_t replays)
{
    double times[GPU_MAX_REPLAYS];
    kvd_cu_graph_exec exec;

    if (rounds == 0 || replays == 0 || replays > GPU_MAX_REPLAYS)
        gpu_fail("gpu_time: %u rounds, %u replays", rounds, replays);
    work(gpu, context, 0); /* loads the kernels and opts in to their memory outside the capture */
    gpu_wait(gpu);
    exec = capture(gpu, work, context, rounds);
    for (uint32_t i = 0; i < WARM_UP; i++)
        replay(gpu, exec);
    for (uint32_t i = 0; i < replays; i++)
        times[i] = replay(gpu, exec) / rounds;
    gpu_must(gpu, gpu->cu.graph_exec_destroy(exec), "graph");
    return (struct gpu_time){.us = bench_percentile(times, replays, 0.5),
                             .low = bench_percentile(times, replays, 0.1),
                             .high = bench_percentile(times, replays, 0.9)};
}

uint32_t gpu_rotations(const struct gpu *gpu, size_t bytes, uint32_t most)
{
    uint32_t count = 1;

    while (count < most && count * bytes < 3 * gpu->l2_bytes)
        count++;
    return count;
}

/* ---- the copy ceiling */

struct copy { /* what the kernels of copy.cu take */
    uint64_t to, from;
    uint64_t count;
};

static const struct copy_shape {
    const char *kernel;
    uint32_t blocks, threads; /* thread blocks a multiprocessor */
} copy_shapes[] = {
    {"gpu_copy_4", 2, 1024}, {"gpu_copy_4", 8, 256},  {"gpu_copy_8", 4, 256},
    {"gpu_copy_8", 16, 256}, {"gpu_copy_4", 64, 256},
};

struct copy_plan {
    struct copy copy;
    const struct copy_shape *shape; /* NULL: the driver's own copy */
};

static void copy_work(struct gpu *gpu, void *context, uint32_t round)
{
    const struct copy_plan *plan = context;
    const struct copy *copy = &plan->copy;

    (void)round;
    if (plan->shape == NULL)
        gpu_must(gpu, gpu->cu.copy_on_device(copy->to, copy->from, 16 * copy->count, gpu->stream),
                 "copy");
    else
        gpu_launch(gpu, plan->shape->kernel, plan->shape->blocks * gpu->multiprocessors,
                   plan->shape->threads, 0, copy);
}

/* The driver's copy as it is called, outside a graph: a copy inside one is another, slower path. */
static double driver_copy_us(struct gpu *gpu, struct copy_plan *plan)
{
    double times[COPY_REPLAYS];

    for (int i = -WARM_UP; i < COPY_REPLAYS; i++) {
        begin_time(gpu);
        copy_work(gpu, plan, 0);
        double us = end_time(gpu);
        if (i >= 0)
            times[i] = us;
    }
    return bench_percentile(times, COPY_REPLAYS, 0.5);
}

double gpu_copy_gbs(struct gpu *gpu)
{
    const size_t bytes = (size_t)2 << 30;
    struct copy_plan plan = {.copy = {.count = bytes / 16}};

    plan.copy.from = gpu_alloc(gpu, bytes);
    plan.copy.to = gpu_alloc(gpu, bytes);
    double best = driver_copy_us(gpu, &plan);
    fprintf(stderr, "copy by the driver: %.0f GB/s\n", 2e-3 * (double)bytes / best);
    for (size_t i = 0; i < sizeof(copy_shapes) / sizeof(copy_shapes[0]); i++) {
        plan.shape = &copy_shapes[i];
        double us = gpu_time(gpu, copy_work, &plan, 1, COPY_REPLAYS).us;
        fprintf(stderr, "copy by %s, %u blocks of %u: %.0f GB/s\n", plan.shape->kernel,
                plan.shape->blocks, plan.shape->threads, 2e-3 * (double)bytes / us);
        if (us < best)
            best = us;
    }
    gpu_free(gpu, plan.copy.from);
    gpu_free(gpu, plan.copy.to);
    return 2e-3 * (double)bytes / best;
}
