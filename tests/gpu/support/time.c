/* Times by graph replay, and the copy ceiling; see gpu.h. */
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

/* Outside a graph: inside one, a copy takes another path, at two thirds of the speed. */
double gpu_copy_gbs(struct gpu *gpu)
{
    const size_t bytes = (size_t)2 << 30;
    uint64_t from = gpu_alloc(gpu, bytes), to = gpu_alloc(gpu, bytes);
    double times[COPY_REPLAYS];

    for (int i = -WARM_UP; i < COPY_REPLAYS; i++) {
        begin_time(gpu);
        gpu_must(gpu, gpu->cu.copy_on_device(to, from, bytes, gpu->stream), "copy");
        double us = end_time(gpu);
        if (i >= 0)
            times[i] = us;
    }
    gpu_free(gpu, from);
    gpu_free(gpu, to);
    return 2e-3 * (double)bytes / bench_percentile(times, COPY_REPLAYS, 0.5);
}
