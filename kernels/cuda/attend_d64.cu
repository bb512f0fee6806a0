/* Attend at head dim 64. */
#include "kernels/cuda/attend_kernel.cuh"

KVK_ATTEND_DIM(64)
