/* Compress for head dimension 256. */
#include "kernels/cuda/compress.cuh"

KVK_CUDA_COMPRESS(256, 64)
KVK_CUDA_COMPRESS(256, 128)
