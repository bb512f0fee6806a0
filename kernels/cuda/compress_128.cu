/* Compress for head dimension 128. */
#include "kernels/cuda/compress.cuh"

KVK_CUDA_COMPRESS(128, 64)
KVK_CUDA_COMPRESS(128, 128)
