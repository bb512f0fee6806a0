/* See launch.h. Kernels run as many thread blocks as the device holds at once, each of which goes
 * through cells in steps of the grid, so that loads of the next cell hide behind the current one.
 */
#include "kernels/cuda/launch.h"

#include <stdio.h>
#include <string.h>

#include "kernels/tile.h"

enum { SHARED_OF_PROCESSOR = 228 * 1024, SHARED_RESERVED = 1024 };

static uint64_t cell_count(const struct kvk_cuda_blocks *args)
{
    return (uint64_t)args->count * args->layer_count * args->heads;
}

static uint32_t record_bytes(const struct kvk_shape *shape)
{
    return (uint32_t)kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
}

/* `blocks` thread blocks of work, at most `resident` of them on a processor by their registers. */
static struct kvk_cuda_launch describe(const char *image, const char *name, uint64_t blocks,
                                       uint32_t processors, uint32_t resident, uint32_t threads,
                                       uint32_t shared_bytes)
{
    struct kvk_cuda_launch launch = {.block = threads, .shared_bytes = shared_bytes};
    uint32_t fit = SHARED_OF_PROCESSOR / (shared_bytes + SHARED_RESERVED);
    uint64_t most = (uint64_t)processors * (fit < resident ? fit : resident);

    snprintf(launch.image, sizeof launch.image, "%s", image);
    snprintf(launch.name, sizeof launch.name, "%s", name);
    launch.grid = (uint32_t)(blocks < most ? blocks : most);
    return launch;
}

struct kvk_cuda_launch kvk_cuda_decompress_launch(const struct kvk_cuda_blocks *args,
                                                  uint32_t processors)
{
    const struct kvk_shape *shape = &args->shape;
    uint32_t dim = shape->dim, of_team = KVK_CUDA_DECOMPRESS_TEAM(dim, shape->group);
    uint32_t team =
        KVK_CUDA_DECOMPRESS_STATE + record_bytes(shape) + of_team * KVK_CUDA_DECOMPRESS_ROOM(dim);
    uint32_t four = 4 / of_team * team; /* teams of four warps, one on every scheduler */
    uint32_t warps = KVK_CUDA_SHARED_MAX / four * 4;
    char name[sizeof((struct kvk_cuda_launch *)0)->name];

    snprintf(name, sizeof name, "kvk_cuda_decompress_%u", (unsigned)dim);
    if (warps > KVK_CUDA_DECOMPRESS_MAX_WARPS(dim))
        warps = KVK_CUDA_DECOMPRESS_MAX_WARPS(dim);
    return describe("decompress", name, cell_count(args), processors, 1, 32 * warps,
                    warps / 4 * four);
}

struct kvk_cuda_launch kvk_cuda_read_launch(const struct kvk_cuda_blocks *args, uint32_t processors)
{
    /* a thread block copies K or V of a cell */
    return describe("read", "kvk_cuda_read", 2 * cell_count(args), processors, 8,
                    KVK_CUDA_READ_THREADS, 0);
}

/* Digest, export and import: groups of threads with a cell each, and one set of tables for all. Few
 * cells go to as many processors as there are. */
static struct kvk_cuda_launch describe_convert(const char *name, const struct kvk_cuda_blocks *args,
                                               uint32_t processors)
{
    uint64_t cells = cell_count(args), share = (cells + processors - 1) / processors;
    uint32_t room = KVK_CUDA_CONVERT_ROOM(record_bytes(&args->shape));
    uint32_t groups = (KVK_CUDA_SHARED_MAX - KVK_CUDA_CONVERT_TABLES) / room;

    if (groups > KVK_CUDA_CONVERT_MAX_GROUPS)
        groups = KVK_CUDA_CONVERT_MAX_GROUPS;
    if (groups > share)
        groups = share > 0 ? (uint32_t)share : 1;
    return describe("convert", name, (cells + groups - 1) / groups, processors, 1,
                    groups * KVK_CUDA_CONVERT_THREADS, KVK_CUDA_CONVERT_TABLES + groups * room);
}

struct kvk_cuda_launch kvk_cuda_digest_launch(const struct kvk_cuda_blocks *args,
                                              uint32_t processors)
{
    return describe_convert("kvk_cuda_digest", args, processors);
}

struct kvk_cuda_launch kvk_cuda_export_launch(const struct kvk_cuda_blocks *args,
                                              uint32_t processors)
{
    return describe_convert("kvk_cuda_export", args, processors);
}

struct kvk_cuda_launch kvk_cuda_import_launch(const struct kvk_cuda_blocks *args,
                                              uint32_t processors)
{
    return describe_convert("kvk_cuda_import", args, processors);
}
