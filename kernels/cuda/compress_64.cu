/* Compress for head dimension 64. */
#include "kernels/cuda/compress.cuh"

KVK_CUDA_COMPRESS(64, 64)
KVK_CUDA_COMPRESS(64, 128)
