#include "server/device/cuda_kernels.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/images.h"

enum {
    IMAGES_MAX = 64,
    KERNELS_MAX = 512, /* used by one worker; a power of two, and never more than half full */
    SHARED_BYTES_PLAIN = 48 << 10 /* more has to be asked for */
};

struct kernel {
    char name[sizeof(((struct kvk_cuda_launch *)0)->name)]; /* "" = free */
    kvd_cu_function function;
    kvd_cu_kernel kernel;
    uint32_t shared_bytes;
};

struct kvd_kernels {
    struct kvd_gpu *gpu;
    kvd_cu_library libraries[IMAGES_MAX]; /* NULL: not loaded */
    struct kernel kernels[KERNELS_MAX];
    uint32_t used;
};

/* A build without images has this one to offer. Every real driver refuses it, and says so; one that
 * stands in for it knows kernels by name alone. */
static const unsigned char nothing[64];

bool kvd_kernels_open(struct kvd_kernels **kernels, struct kvd_gpu *gpu)
{
    struct kvd_kernels *made = calloc(1, sizeof(*made));

    if (made == NULL || kvk_cuda_image_count > IMAGES_MAX) {
        free(made);
        return kvd_gpu_failed(gpu, KVD_LINK_NO_THREADS, "no memory for the table of kernels");
    }
    made->gpu = gpu;
    *kernels = made;
    return true;
}

void kvd_kernels_close(struct kvd_kernels **kernels)
{
    struct kvd_kernels *closing = *kernels;

    if (closing == NULL)
        return;
    for (uint32_t i = 0; i < IMAGES_MAX && !closing->gpu->lost; i++)
        if (closing->libraries[i] != NULL)
            closing->gpu->driver.library_unload(closing->libraries[i]);
    free(closing);
    *kernels = NULL;
}

/* IMAGES_MAX: there is none of that name. */
static uint32_t image_of(const char *name)
{
    if (kvk_cuda_image_count == 0)
        return 0;
    for (uint32_t i = 0; i < kvk_cuda_image_count; i++)
        if (strcmp(kvk_cuda_images[i].name, name) == 0)
            return i;
    return IMAGES_MAX;
}

static bool load(struct kvd_kernels *kernels, const struct kvk_cuda_launch *launch,
                 kvd_cu_kernel *kernel)
{
    struct kvd_gpu *gpu = kernels->gpu;
    uint32_t image = image_of(launch->image);
    bool empty = kvk_cuda_image_count == 0;

    if (image == IMAGES_MAX) {
        char why[KVD_CUDA_TEXT_BYTES];
        snprintf(why, sizeof(why), "this build has no image %s", launch->image);
        return kvd_gpu_failed(gpu, KVD_LINK_NO_KERNELS, why);
    }
    kvd_cu_library *library = &kernels->libraries[image];
    if (*library == NULL &&
        !kvd_gpu_did(gpu, empty ? "this build has no CUDA kernels" : launch->image,
                     gpu->driver.library_load(library,
                                              empty ? nothing : kvk_cuda_images[image].begin, NULL,
                                              NULL, 0, NULL, NULL, 0)))
        return false;
    return kvd_gpu_did(gpu, launch->name,
                       gpu->driver.library_kernel(kernel, *library, launch->name));
}

static struct kernel *place_of(struct kvd_kernels *kernels, const char *name)
{
    uint32_t hash = 2166136261u;

    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (;; hash++) {
        struct kernel *kernel = &kernels->kernels[hash % KERNELS_MAX];
        if (kernel->name[0] == '\0' || strcmp(kernel->name, name) == 0)
            return kernel;
    }
}

static struct kernel *kernel_of(struct kvd_kernels *kernels, const struct kvk_cuda_launch *launch)
{
    struct kvd_gpu *gpu = kernels->gpu;
    struct kernel *kernel = place_of(kernels, launch->name);

    if (kernel->name[0] == '\0') {
        if (kernels->used == KERNELS_MAX / 2) {
            kvd_gpu_failed(gpu, KVD_LINK_BAD_GPU, "more kernels than there can be");
            return NULL;
        }
        if (!load(kernels, launch, &kernel->kernel) ||
            !kvd_gpu_did(gpu, launch->name,
                         gpu->driver.kernel_function(&kernel->function, kernel->kernel)))
            return NULL;
        kernels->used++;
        kernel->shared_bytes = SHARED_BYTES_PLAIN;
        snprintf(kernel->name, sizeof(kernel->name), "%s", launch->name);
    }
    if (launch->shared_bytes > kernel->shared_bytes) {
        if (!kvd_gpu_did(gpu, launch->name,
                         gpu->driver.kernel_set_attribute(KVD_CU_FUNCTION_DYNAMIC_SHARED_BYTES,
                                                          (int)launch->shared_bytes, kernel->kernel,
                                                          gpu->device)))
            return NULL;
        kernel->shared_bytes = launch->shared_bytes;
    }
    return kernel;
}

bool kvd_kernels_launch(struct kvd_kernels *kernels, const struct kvk_cuda_launch *launch,
                        const void *args)
{
    struct kvd_gpu *gpu = kernels->gpu;

    if (launch->grid == 0)
        return true;
    const struct kernel *kernel = kernel_of(kernels, launch);
    if (kernel == NULL)
        return false;
    void *arguments[] = {(void *)(uintptr_t)args}; /* read, whatever the driver's type says */
    const struct kvd_cu_launch how = {.grid = {launch->grid, 1, 1},
                                      .block = {launch->block, 1, 1},
                                      .shared_bytes = launch->shared_bytes,
                                      .stream = gpu->stream};
    return kvd_gpu_did(gpu, launch->name,
                       gpu->driver.launch(&how, kernel->function, arguments, NULL));
}
