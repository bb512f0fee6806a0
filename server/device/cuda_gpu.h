/* A GPU as the worker holds it: driver, context, stream, and what went wrong first.
 *
 * An error of the driver is final: a context with a sticky error answers everything with it, and
 * any other one means that device and host no longer agree. So the first is kept, everything after
 * it is refused, and the worker ends; the front starts another. What the worker has is given back
 * unless the device is lost, which may never answer. */
#ifndef KVD_CUDA_GPU_H
#define KVD_CUDA_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "server/device/cuda_driver.h"
#include "server/device/link.h"

struct kvd_gpu {
    struct kvd_cuda_driver driver;
    kvd_cu_device device;
    kvd_cu_context context; /* NULL: not open */
    kvd_cu_stream stream;
    kvd_cu_event done;
    uint32_t multiprocessors;
    uint32_t capability; /* major * 10 + minor */
    uint32_t failure;    /* kvd_link_refusal; READY while all is well */
    bool lost;           /* by that failure: nothing of the driver is called any more */
    char why[KVD_CUDA_TEXT_BYTES];
};

/* False: failure and why say what is missing; close it all the same. */
bool kvd_gpu_open(struct kvd_gpu *gpu, uint32_t ordinal);
/* Fine on a zeroed struct. */
void kvd_gpu_close(struct kvd_gpu *gpu);

/* True when a call succeeded; else keeps the first failure, in words: "WHAT: CUDA_ERROR_...". */
bool kvd_gpu_did(struct kvd_gpu *gpu, const char *what, kvd_cu_result result);
/* Keeps a failure that is not the driver's. Gives false. */
bool kvd_gpu_failed(struct kvd_gpu *gpu, uint32_t refusal, const char *why);
/* Waits until the stream has done all it was given. A kernel that never ends is waited for: the
 * front sees that no progress is made. */
bool kvd_gpu_wait(struct kvd_gpu *gpu);

/* Before memory is given back that queued work may still use. Its outcome no longer matters. */
void kvd_gpu_settle(struct kvd_gpu *gpu);

#endif
