/* GPU benchmark programs: options, the copy ceiling, and rows in the form of tests/bench/row.h with
 * each result's share of the ceiling. */
#ifndef GPU_SUPPORT_BENCH_H
#define GPU_SUPPORT_BENCH_H

#include "gpu/support/gpu.h"

struct gpu_bench {
    struct gpu gpu;
    double copy_gbs; /* $KVARN_COPY_GBS, or measured */
    bool quick;      /* --quick: fewer replays, rows of the README only */
    uint32_t replays;
};

/* One result. Its row: value in microseconds, or in GB/s of `counted` bytes where that is set. */
struct gpu_result {
    const char *name;
    double us;
    double bytes;   /* read and written at least: the floor, of which the share is made */
    double counted; /* 0: the row is in microseconds */
    double reach;   /* in the row's unit; microseconds at most, GB/s at least; 0: none */
    /* name of the row of $KVARN_PEERS that stands beside it, or NULL: "torch cudnn fp16 B=16 Hq=32
     * Hkv=8 D=128 16k", "triton balancing alone, 576 matrices"; all of them are in microseconds */
    const char *peer;
};

/* Reads --quick and --help; opens the device. */
void gpu_bench_open(struct gpu_bench *bench, int argc, char **argv);
void gpu_bench_row(struct gpu_bench *bench, const struct gpu_result *result);
/* The program's exit code. A row that does not reach what it should says so itself. */
int gpu_bench_close(struct gpu_bench *bench);

#endif
