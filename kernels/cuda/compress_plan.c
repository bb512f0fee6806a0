/* See compress_plan.h. One thread block a matrix: enough of them are resident that loads of one
 * hide behind the arithmetic of others. */
#include "kernels/cuda/compress_plan.h"

#include <stdio.h>

static uint32_t matrices(const struct kvk_cuda_blocks *args)
{
    return 2 * args->count * args->layer_count * args->heads;
}

struct kvk_cuda_launch kvk_cuda_compress_launch(const struct kvk_cuda_blocks *args)
{
    const struct kvk_shape *shape = &args->shape;
    uint32_t dim = shape->dim, group = shape->group;
    struct kvk_cuda_launch launch = {.grid = matrices(args),
                                     .block = 32 * KVK_CUDA_COMPRESS_WARPS(dim, group),
                                     .shared_bytes = KVK_CUDA_COMPRESS_SHARED(dim, group)};

    snprintf(launch.image, sizeof launch.image, "compress_%u", (unsigned)dim);
    snprintf(launch.name, sizeof launch.name, "kvk_cuda_compress_%u_%u%s", (unsigned)dim,
             (unsigned)group, shape->range == KVARN_RANGE_TIGHT ? "_tight" : "");
    return launch;
}

struct kvk_cuda_launch kvk_cuda_write_launch(const struct kvk_cuda_blocks *args)
{
    return (struct kvk_cuda_launch){.image = "write",
                                    .name = "kvk_cuda_write",
                                    .grid = matrices(args),
                                    .block = KVK_CUDA_WRITE_THREADS};
}
