/* The kernels of this build by name, loaded when first asked for: a worker that starts loads those
 * of its self-test, which keeps a restart short. */
#ifndef KVD_CUDA_KERNELS_H
#define KVD_CUDA_KERNELS_H

#include <stdbool.h>

#include "kernels/cuda/launch.h"
#include "server/device/cuda_gpu.h"

struct kvd_kernels;

/* False: the GPU's failure says why (no memory). */
bool kvd_kernels_open(struct kvd_kernels **kernels, struct kvd_gpu *gpu);
void kvd_kernels_close(struct kvd_kernels **kernels);

/* Queues it on the GPU's stream. args is copied. */
bool kvd_kernels_launch(struct kvd_kernels *kernels, const struct kvk_cuda_launch *launch,
                        const void *args);

#endif
