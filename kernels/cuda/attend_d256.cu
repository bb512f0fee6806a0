/* Attend at head dim 256. */
#include "kernels/cuda/attend_kernel.cuh"

KVK_ATTEND_DIM(256)
