/* Attend at head dim 128. */
#include "kernels/cuda/attend_kernel.cuh"

KVK_ATTEND_DIM(128)
