/* Known-answer test of a GPU, run once at start: a tile and an exact block go through every kind of
 * job, in memory of their own, and are held against the scalar reference. */
#ifndef KVD_CUDA_SELFTEST_H
#define KVD_CUDA_SELFTEST_H

#include <stdbool.h>

#include "server/device/cuda_executor.h"

/* False: the GPU's failure says what is wrong. The executor has no regions afterwards. */
bool kvd_cuda_selftest(struct kvd_cuda_executor *executor, struct kvd_gpu *gpu);

#endif
