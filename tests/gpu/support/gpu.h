/* A GPU for checks and benchmarks, over the driver's table: memory, copies, kernels by name, times.
 *
 * Whatever fails ends the program with one line on stderr: exit code 77 when there is no GPU to use
 * or the build has no kernels (skipped), 1 for everything else. Device memory is poisoned when it
 * is made: every fp16, bf16 and fp32 in it is a NaN. */
#ifndef GPU_SUPPORT_GPU_H
#define GPU_SUPPORT_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/launch.h"
#include "server/device/cuda_driver.h"

enum { GPU_SKIPPED = 77, GPU_MAX_IMAGES = 64, GPU_MAX_KERNELS = 256, GPU_MAX_REPLAYS = 256 };

struct gpu_kernel {
    char name[64];
    kvd_cu_kernel kernel;
    kvd_cu_function function;
    uint32_t shared_bytes; /* dynamic, opted in to so far */
};

struct gpu {
    struct kvd_cuda_driver cu;
    kvd_cu_device device;
    kvd_cu_context context;
    kvd_cu_stream stream;
    kvd_cu_event begin, end;
    char name[96];
    uint32_t multiprocessors;
    size_t l2_bytes;
    kvd_cu_library libraries[GPU_MAX_IMAGES];
    struct gpu_kernel kernels[GPU_MAX_KERNELS];
    uint32_t library_count, kernel_count;
};

/* The first device that is visible. */
void gpu_open(struct gpu *gpu);
void gpu_close(struct gpu *gpu);

/* Ends the program unless result is a success. */
void gpu_must(const struct gpu *gpu, kvd_cu_result result, const char *what);
/* Ends the program with a line of its own. */
_Noreturn void gpu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* bytes > 0; aligned to 256 bytes. */
uint64_t gpu_alloc(struct gpu *gpu, size_t bytes);
void gpu_free(struct gpu *gpu, uint64_t at); /* 0 is fine */
void gpu_poison(struct gpu *gpu, uint64_t at, size_t bytes);

/* Copies are ordered after the launches so far and done on return. */
void gpu_write(struct gpu *gpu, uint64_t to, const void *from, size_t bytes);
void gpu_read(struct gpu *gpu, void *to, uint64_t from, size_t bytes);
/* gpu_alloc() and gpu_write(). */
uint64_t gpu_put(struct gpu *gpu, const void *from, size_t bytes);
/* Device memory of `bytes`, with from_bytes at `from` over and over in it. */
uint64_t gpu_put_repeated(struct gpu *gpu, size_t bytes, const void *from, size_t from_bytes);

/* The kernel of this name, from whichever image of the build has it. */
struct gpu_kernel *gpu_kernel(struct gpu *gpu, const char *name);
bool gpu_has_kernel(struct gpu *gpu, const char *name);
/* Queues it; args is the struct that it takes. */
void gpu_launch(struct gpu *gpu, const char *name, uint32_t grid, uint32_t block,
                uint32_t shared_bytes, const void *args);
/* The same as a plan of kernels/cuda/launch.h says; nothing for a grid of 0. */
void gpu_run(struct gpu *gpu, const struct kvk_cuda_launch *launch, const void *args);
/* Waits for everything queued. */
void gpu_wait(struct gpu *gpu);

/* Queues the work to be timed, on gpu->stream; round 0 .. rounds - 1 say which of the rotated
 * inputs to take. */
typedef void (*gpu_work)(struct gpu *gpu, void *context, uint32_t round);

struct gpu_time {
    double us;        /* one call of the work: the median over the replays */
    double low, high; /* 10th and 90th percentile */
};

/* Captures all rounds into one graph, replays it (3 times to warm up, then `replays` times, at most
 * GPU_MAX_REPLAYS) and times each replay with events. The launch of a graph costs some
 * microseconds, so short work wants some ten rounds. */
struct gpu_time gpu_time(struct gpu *gpu, gpu_work work, void *context, uint32_t rounds,
                         uint32_t replays);

/* How many copies of an input of `bytes` must take turns so that none is found in the L2 cache when
 * its turn comes again; at least 1, at most `most`. */
uint32_t gpu_rotations(const struct gpu *gpu, size_t bytes, uint32_t most);

/* Bytes read and written per second by the driver's own copy of 2 GiB on the device, in GB/s: the
 * ceiling that everything else is a share of. (What only reads may go a few percent beyond.) */
double gpu_copy_gbs(struct gpu *gpu);

#endif
