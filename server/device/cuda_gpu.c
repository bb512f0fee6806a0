#include "server/device/cuda_gpu.h"

#include <stdio.h>

#include "server/core/clock.h"

/* A job is mostly shorter than that; sleeping costs some 30 us more than looking. */
enum { LOOK_NS = 300000 };

static uint32_t refusal_of(kvd_cu_result result)
{
    switch (result) {
    case KVD_CU_OUT_OF_MEMORY:
        return KVD_LINK_NO_GPU_MEMORY;
    case KVD_CU_INVALID_IMAGE:
    case KVD_CU_NO_BINARY_FOR_GPU:
    case KVD_CU_NOT_FOUND:
        return KVD_LINK_NO_KERNELS;
    default:
        return KVD_LINK_BAD_GPU;
    }
}

/* The context is broken, or the device gone. */
static bool is_lost(kvd_cu_result result)
{
    switch (result) {
    case KVD_CU_DEVICE_UNAVAILABLE:
    case KVD_CU_ECC_UNCORRECTABLE:
    case KVD_CU_NVLINK_UNCORRECTABLE:
    case KVD_CU_CONTAINED:
        return true;
    case KVD_CU_LAUNCH_OUT_OF_RESOURCES:
    case KVD_CU_HOST_MEMORY_ALREADY_REGISTERED:
    case KVD_CU_HOST_MEMORY_NOT_REGISTERED:
    case KVD_CU_NOT_PERMITTED:
    case KVD_CU_NOT_SUPPORTED:
        return false;
    default:
        return result >= KVD_CU_ILLEGAL_ADDRESS;
    }
}

bool kvd_gpu_did(struct kvd_gpu *gpu, const char *what, kvd_cu_result result)
{
    if (result == KVD_CU_SUCCESS)
        return gpu->failure == KVD_LINK_READY;
    if (gpu->failure == KVD_LINK_READY) {
        gpu->failure = refusal_of(result);
        gpu->lost = is_lost(result);
        kvd_cuda_explain(&gpu->driver, what, result, gpu->why);
    }
    return false;
}

bool kvd_gpu_failed(struct kvd_gpu *gpu, uint32_t refusal, const char *why)
{
    if (gpu->failure == KVD_LINK_READY) {
        gpu->failure = refusal;
        snprintf(gpu->why, sizeof(gpu->why), "%s", why);
    }
    return false;
}

static bool open_driver(struct kvd_gpu *gpu, uint32_t ordinal)
{
    char why[KVD_CUDA_TEXT_BYTES];

    switch (kvd_cuda_driver_open(&gpu->driver, why)) {
    case KVD_CUDA_FOUND:
        break;
    case KVD_CUDA_OLD_DRIVER:
        return kvd_gpu_failed(gpu, KVD_LINK_OLD_DRIVER, why);
    case KVD_CUDA_NO_DEVICE:
        return kvd_gpu_failed(gpu, KVD_LINK_NO_DEVICE, why);
    default:
        return kvd_gpu_failed(gpu, KVD_LINK_NO_DRIVER, why);
    }
    if (ordinal < (uint32_t)gpu->driver.devices)
        return true;
    snprintf(why, sizeof(why), "there is no GPU %u; the driver offers %d", ordinal,
             gpu->driver.devices);
    return kvd_gpu_failed(gpu, KVD_LINK_NO_DEVICE, why);
}

static int attribute(struct kvd_gpu *gpu, enum kvd_cu_device_attribute which)
{
    int value = 0;

    kvd_gpu_did(gpu, "attributes of the GPU",
                gpu->driver.device_attribute(&value, which, gpu->device));
    return value;
}

static bool check_device(struct kvd_gpu *gpu)
{
    gpu->multiprocessors = (uint32_t)attribute(gpu, KVD_CU_DEVICE_MULTIPROCESSORS);
    gpu->capability = (uint32_t)(attribute(gpu, KVD_CU_DEVICE_CAPABILITY_MAJOR) * 10 +
                                 attribute(gpu, KVD_CU_DEVICE_CAPABILITY_MINOR));
    bool able = attribute(gpu, KVD_CU_DEVICE_VIRTUAL_MEMORY) != 0 &&
                attribute(gpu, KVD_CU_DEVICE_EXPORT_FD) != 0 &&
                attribute(gpu, KVD_CU_DEVICE_HOST_REGISTER) != 0;
    if (gpu->failure == KVD_LINK_READY && !able)
        return kvd_gpu_failed(gpu, KVD_LINK_BAD_GPU,
                              "this GPU cannot share memory by descriptors or map host memory");
    return gpu->failure == KVD_LINK_READY;
}

bool kvd_gpu_open(struct kvd_gpu *gpu, uint32_t ordinal)
{
    *gpu = (struct kvd_gpu){.context = NULL};
    return open_driver(gpu, ordinal) &&
           kvd_gpu_did(gpu, "the GPU", gpu->driver.device_get(&gpu->device, (int)ordinal)) &&
           check_device(gpu) &&
           kvd_gpu_did(gpu, "a context on the GPU",
                       gpu->driver.context_retain(&gpu->context, gpu->device)) &&
           kvd_gpu_did(gpu, "the context", gpu->driver.context_set(gpu->context)) &&
           kvd_gpu_did(gpu, "a stream",
                       gpu->driver.stream_create(&gpu->stream, KVD_CU_STREAM_NON_BLOCKING)) &&
           kvd_gpu_did(gpu, "an event",
                       gpu->driver.event_create(&gpu->done, KVD_CU_EVENT_BLOCKING_SYNC |
                                                                KVD_CU_EVENT_DISABLE_TIMING));
}

void kvd_gpu_close(struct kvd_gpu *gpu)
{
    if (gpu->lost)
        return;
    if (gpu->done != NULL)
        gpu->driver.event_destroy(gpu->done);
    if (gpu->stream != NULL)
        gpu->driver.stream_destroy(gpu->stream);
    if (gpu->context != NULL)
        gpu->driver.context_release(gpu->device);
    kvd_cuda_driver_close(&gpu->driver);
    gpu->context = NULL;
    gpu->stream = NULL;
    gpu->done = NULL;
}

bool kvd_gpu_wait(struct kvd_gpu *gpu)
{
    if (!kvd_gpu_did(gpu, "event", gpu->driver.event_record(gpu->done, gpu->stream)))
        return false;
    uint64_t until = kvd_now_ns() + LOOK_NS;
    kvd_cu_result result;
    do {
        result = gpu->driver.event_query(gpu->done);
    } while (result == KVD_CU_NOT_READY && kvd_now_ns() < until);
    if (result == KVD_CU_NOT_READY)
        result = gpu->driver.event_synchronize(gpu->done);
    return kvd_gpu_did(gpu, "work on the GPU", result);
}

void kvd_gpu_settle(struct kvd_gpu *gpu)
{
    if (!gpu->lost && gpu->stream != NULL)
        gpu->lost = is_lost(gpu->driver.stream_synchronize(gpu->stream));
}
