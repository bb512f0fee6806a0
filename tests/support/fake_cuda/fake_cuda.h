/* A CUDA driver without a GPU, for tests: libfake_cuda.so, loaded in place of libcuda.so.1 through
 * KVARN_CUDA_DRIVER.
 *
 * It has what the shipped worker calls and behaves as measured on the real one:
 *   - Device memory cannot be touched by the host: device addresses are reserved without access,
 *     the bytes stand elsewhere. Physical memory is a memfd, so it outlives the process as long as
 *     somebody holds an exported descriptor.
 *   - Work on a stream is done by a thread, in order, later than the call. Kernels are known by
 * name (kvk_cuda_compress..., kvk_cuda_attend..., see kernels/cuda/args.h); the scalar kernels do
 *     their work over the same structs. Images are not looked at.
 *   - A kernel or copy that reaches memory that is not mapped, or not aligned, breaks the context:
 *     from then on every call says so, until the process ends.
 *   - An attend launch whose pieces do not cover every row and token exactly once ends the process
 *     with a line on standard error: no result may come from it by luck.
 *
 * KVARN_FAKE_CUDA names a file made by fake_cuda_open, mapped by all processes: how many devices
 * there are, which faults happen, what happened so far. Without it: one device and no faults. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    FAKE_CUDA_FAULTS = 8,
    FAKE_CUDA_DEVICES = 4,
    FAKE_CUDA_WHERE_BYTES = 48,
    FAKE_CUDA_HANG = 0xffff, /* as a result: the kernel never ends */
    FAKE_CUDA_IDLE = 0xfffe, /* it ends well and has done nothing */
};

/* One fault. It happens at visits skip, skip + 1, ... skip + times - 1 (from 0) of `where`. */
struct fake_cuda_fault {
    /* a driver function ("cuMemCreate"), "allocation" (any function that takes memory of host or
     * device), or the beginning of a kernel's name ("kvk_cuda_" is any kernel) */
    char where[FAKE_CUDA_WHERE_BYTES];
    /* kvd_cu_results. A function returns it and does nothing else; a kernel ends with it when it
     * runs, not when it is launched. Results that break a context on the real driver do so here. */
    uint32_t result;
    int32_t device; /* -1: any */
    uint32_t skip, times;
    _Atomic uint32_t visits;
    _Atomic uint32_t armed; /* written last */
};

/* The file. Counts are over all processes since it was made. */
struct fake_cuda_control {
    uint32_t devices, version; /* version: major * 1000 + minor * 10 */
    uint32_t capability;       /* major * 10 + minor */
    uint32_t reserved;
    uint64_t memory_bytes;  /* of a device */
    _Atomic uint64_t calls; /* of driver functions */
    _Atomic uint64_t allocations;
    _Atomic uint64_t kernels;                     /* run to their end */
    _Atomic uint32_t contexts[FAKE_CUDA_DEVICES]; /* made */
    _Atomic uint32_t hanging;                     /* kernels that began not to end */
    _Atomic uint32_t broken;                      /* contexts that broke */
    struct fake_cuda_fault faults[FAKE_CUDA_FAULTS];
};

/* ---- for tests ---- */

/* Makes the file at path with one device of memory_bytes and no faults; NULL when it cannot. */
struct fake_cuda_control *fake_cuda_open(const char *path, uint64_t memory_bytes);
/* One that is there already. */
struct fake_cuda_control *fake_cuda_attach(const char *path);
void fake_cuda_close(struct fake_cuda_control **control);

/* Sets fault number `index`; it counts visits from now on. */
void fake_cuda_arm(struct fake_cuda_control *control, uint32_t index, const char *where,
                   uint32_t result, uint32_t skip, uint32_t times);
void fake_cuda_disarm(struct fake_cuda_control *control, uint32_t index);
/* How often it has happened. */
uint32_t fake_cuda_fired(const struct fake_cuda_control *control, uint32_t index);

/* Device memory whose descriptors a process holds: how many pieces, and the descriptor of one (of
 * the caller's own, to be closed), or -1. */
uint32_t fake_cuda_held(pid_t holder);
int fake_cuda_borrow(pid_t holder, uint32_t index);

#endif
