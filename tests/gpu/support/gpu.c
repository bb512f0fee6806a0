/* The device, its memory and its kernels; see gpu.h. */
#include "gpu/support/gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/images.h"

enum { POISON = 0xff };

_Noreturn void gpu_fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void gpu_must(const struct gpu *gpu, kvd_cu_result result, const char *what)
{
    char text[KVD_CUDA_TEXT_BYTES];

    if (result != KVD_CU_SUCCESS)
        gpu_fail("%s", kvd_cuda_explain(&gpu->cu, what, result, text));
}

static uint32_t attribute(struct gpu *gpu, enum kvd_cu_device_attribute which)
{
    int value = 0;

    gpu_must(gpu, gpu->cu.device_attribute(&value, which, gpu->device), "device attribute");
    return (uint32_t)value;
}

void gpu_open(struct gpu *gpu)
{
    char why[KVD_CUDA_TEXT_BYTES];

    *gpu = (struct gpu){.device = 0};
    if (kvd_cuda_driver_open(&gpu->cu, why) != KVD_CUDA_FOUND) {
        fprintf(stderr, "skipped: %s\n", why);
        exit(GPU_SKIPPED);
    }
    gpu_must(gpu, gpu->cu.device_get(&gpu->device, 0), "first device");
    gpu_must(gpu, gpu->cu.device_name(gpu->name, sizeof(gpu->name), gpu->device), "device name");
    gpu_must(gpu, gpu->cu.context_retain(&gpu->context, gpu->device), "context");
    gpu_must(gpu, gpu->cu.context_set(gpu->context), "context");
    gpu_must(gpu, gpu->cu.stream_create(&gpu->stream, KVD_CU_STREAM_NON_BLOCKING), "stream");
    gpu_must(gpu, gpu->cu.event_create(&gpu->begin, KVD_CU_EVENT_DEFAULT), "event");
    gpu_must(gpu, gpu->cu.event_create(&gpu->end, KVD_CU_EVENT_DEFAULT), "event");
    gpu->multiprocessors = attribute(gpu, KVD_CU_DEVICE_MULTIPROCESSORS);
    gpu->l2_bytes = attribute(gpu, KVD_CU_DEVICE_L2_BYTES);
}

void gpu_close(struct gpu *gpu)
{
    gpu_wait(gpu);
    for (uint32_t i = 0; i < gpu->library_count; i++)
        gpu_must(gpu, gpu->cu.library_unload(gpu->libraries[i]), "unload an image");
    gpu_must(gpu, gpu->cu.event_destroy(gpu->begin), "event");
    gpu_must(gpu, gpu->cu.event_destroy(gpu->end), "event");
    gpu_must(gpu, gpu->cu.stream_destroy(gpu->stream), "stream");
    gpu_must(gpu, gpu->cu.context_release(gpu->device), "context");
    kvd_cuda_driver_close(&gpu->cu);
}

/* ---- memory */

uint64_t gpu_alloc(struct gpu *gpu, size_t bytes)
{
    kvd_cu_address at = 0;

    gpu_must(gpu, gpu->cu.memory_alloc(&at, bytes), "device memory");
    if (getenv("KVARN_NO_POISON") == NULL)
        gpu_poison(gpu, at, bytes);
    return at;
}

void gpu_free(struct gpu *gpu, uint64_t at)
{
    gpu_wait(gpu);
    if (at != 0)
        gpu_must(gpu, gpu->cu.memory_free(at), "free device memory");
}

void gpu_poison(struct gpu *gpu, uint64_t at, size_t bytes)
{
    gpu_must(gpu, gpu->cu.set_bytes(at, POISON, bytes, gpu->stream), "poison");
}

void gpu_write(struct gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
    gpu_must(gpu, gpu->cu.copy_to_device(to, from, bytes, gpu->stream), "copy to the device");
    gpu_wait(gpu);
}

void gpu_read(struct gpu *gpu, void *to, uint64_t from, size_t bytes)
{
    gpu_must(gpu, gpu->cu.copy_to_host(to, from, bytes, gpu->stream), "copy from the device");
    gpu_wait(gpu);
}

uint64_t gpu_put(struct gpu *gpu, const void *from, size_t bytes)
{
    uint64_t at = gpu_alloc(gpu, bytes);

    gpu_write(gpu, at, from, bytes);
    return at;
}

uint64_t gpu_put_repeated(struct gpu *gpu, size_t bytes, const void *from, size_t from_bytes)
{
    uint64_t at = gpu_alloc(gpu, bytes);
    size_t have = from_bytes < bytes ? from_bytes : bytes;

    gpu_write(gpu, at, from, have);
    while (have < bytes) { /* twice as much each time; have stays a multiple of from_bytes */
        size_t more = have < bytes - have ? have : bytes - have;

        gpu_must(gpu, gpu->cu.copy_on_device(at + have, at, more, gpu->stream), "copy");
        have += more;
    }
    gpu_wait(gpu);
    return at;
}

/* ---- kernels */

static void load_images(struct gpu *gpu)
{
    for (const struct kvk_cuda_image *image = kvk_cuda_images; image->name != NULL; image++) {
        if (gpu->library_count == GPU_MAX_IMAGES)
            gpu_fail("more than %d CUDA images", GPU_MAX_IMAGES);
        gpu_must(gpu,
                 gpu->cu.library_load(&gpu->libraries[gpu->library_count], image->begin, NULL, NULL,
                                      0, NULL, NULL, 0),
                 image->name);
        gpu->library_count++;
    }
}

static struct gpu_kernel *find(struct gpu *gpu, const char *name)
{
    struct gpu_kernel *entry;

    for (uint32_t i = 0; i < gpu->kernel_count; i++)
        if (strcmp(gpu->kernels[i].name, name) == 0)
            return &gpu->kernels[i];
    if (gpu->library_count == 0)
        load_images(gpu);
    if (gpu->kernel_count == GPU_MAX_KERNELS || strlen(name) >= sizeof(entry->name))
        gpu_fail("too many kernels, or too long a name: %s", name);
    entry = &gpu->kernels[gpu->kernel_count];
    *entry = (struct gpu_kernel){.kernel = NULL};
    for (uint32_t i = 0; i < gpu->library_count && entry->kernel == NULL; i++) {
        kvd_cu_result result = gpu->cu.library_kernel(&entry->kernel, gpu->libraries[i], name);

        if (result != KVD_CU_NOT_FOUND)
            gpu_must(gpu, result, name);
    }
    if (entry->kernel == NULL)
        return NULL;
    gpu_must(gpu, gpu->cu.kernel_function(&entry->function, entry->kernel), name);
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    gpu->kernel_count++;
    return entry;
}

bool gpu_has_kernel(struct gpu *gpu, const char *name)
{
    return find(gpu, name) != NULL;
}

struct gpu_kernel *gpu_kernel(struct gpu *gpu, const char *name)
{
    struct gpu_kernel *entry = find(gpu, name);

    if (entry == NULL && kvk_cuda_image_count == 0) {
        fprintf(stderr, "skipped: this build has no CUDA kernels\n");
        exit(GPU_SKIPPED);
    }
    if (entry == NULL)
        gpu_fail("no image has a kernel %s", name);
    return entry;
}

void gpu_launch(struct gpu *gpu, const char *name, uint32_t grid, uint32_t block,
                uint32_t shared_bytes, const void *args)
{
    struct gpu_kernel *entry = gpu_kernel(gpu, name);
    void *parameters[] = {
        (void *)(uintptr_t)args}; /* only read; the driver's type predates const */
    const struct kvd_cu_launch launch = {.grid = {grid, 1, 1},
                                         .block = {block, 1, 1},
                                         .shared_bytes = shared_bytes,
                                         .stream = gpu->stream};

    if (shared_bytes > entry->shared_bytes) {
        gpu_must(gpu,
                 gpu->cu.kernel_set_attribute(KVD_CU_FUNCTION_DYNAMIC_SHARED_BYTES,
                                              (int)shared_bytes, entry->kernel, gpu->device),
                 name);
        entry->shared_bytes = shared_bytes;
    }
    gpu_must(gpu, gpu->cu.launch(&launch, entry->function, parameters, NULL), name);
}

void gpu_run(struct gpu *gpu, const struct kvk_cuda_launch *launch, const void *args)
{
    if (launch->grid > 0)
        gpu_launch(gpu, launch->name, launch->grid, launch->block, launch->shared_bytes, args);
}

void gpu_wait(struct gpu *gpu)
{
    gpu_must(gpu, gpu->cu.stream_synchronize(gpu->stream), "work on the device");
}
