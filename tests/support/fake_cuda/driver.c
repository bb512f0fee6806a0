/* Start, devices, contexts, errors and injected faults of the stand-in driver. */
#include "support/fake_cuda/inside.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct kvd_cu_context_tag {
    kvd_cu_device device;
    uint32_t retained;
};

static struct fake_cuda_control without_file = {
    .devices = 1, .version = 13000, .capability = 90, .memory_bytes = UINT64_C(1) << 30};
struct fake_cuda_control *fake_control = &without_file;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool initialised;
static _Atomic kvd_cu_result broken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* contexts */
static struct kvd_cu_context_tag contexts[FAKE_CUDA_DEVICES];
/* initial-exec: LeakSanitizer falls over the dynamic model's blocks in a library loaded late */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct kvd_cu_context_tag *current;
static _Atomic int device_in_use = -1; /* a worker uses one */

void fake_die(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fputs("fake_cuda: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

static void find_control(void)
{
    const char *path = getenv("KVARN_FAKE_CUDA");

    if (path == NULL || path[0] == '\0')
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd < 0
                   ? MAP_FAILED
                   : mmap(NULL, sizeof(*fake_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        fake_die("KVARN_FAKE_CUDA: %s cannot be mapped", path);
    close(fd);
    fake_control = at;
}

/* ---- faults ---- */

/* Results after which a context is of no use any more. */
static bool is_sticky(kvd_cu_result result)
{
    switch (result) {
    case KVD_CU_ECC_UNCORRECTABLE:
    case KVD_CU_NVLINK_UNCORRECTABLE:
    case KVD_CU_CONTAINED:
    case KVD_CU_ILLEGAL_ADDRESS:
    case KVD_CU_LAUNCH_TIMEOUT:
    case KVD_CU_CONTEXT_IS_DESTROYED:
    case KVD_CU_ASSERT:
    case KVD_CU_HARDWARE_STACK_ERROR:
    case KVD_CU_ILLEGAL_INSTRUCTION:
    case KVD_CU_MISALIGNED_ADDRESS:
    case KVD_CU_INVALID_ADDRESS_SPACE:
    case KVD_CU_INVALID_PC:
    case KVD_CU_LAUNCH_FAILED:
    case KVD_CU_MPS_CLIENT_TERMINATED:
    case KVD_CU_UNKNOWN:
        return true;
    default:
        return false;
    }
}

void fake_break(kvd_cu_result result)
{
    kvd_cu_result none = KVD_CU_SUCCESS;

    if (!atomic_compare_exchange_strong(&broken, &none, result))
        return;
    atomic_fetch_add(&fake_control->broken, 1);
    fake_streams_wake();
}

kvd_cu_result fake_broken(void)
{
    return atomic_load(&broken);
}

static bool is_due(struct fake_cuda_fault *fault, const char *where, bool prefix)
{
    if (atomic_load_explicit(&fault->armed, memory_order_acquire) == 0 ||
        (prefix ? strncmp(where, fault->where, strlen(fault->where))
                : strcmp(where, fault->where)) != 0 ||
        (fault->device >= 0 && fault->device != atomic_load(&device_in_use)))
        return false;
    uint32_t visit = atomic_fetch_add(&fault->visits, 1);
    return visit >= fault->skip && visit - fault->skip < fault->times;
}

static kvd_cu_result fault_at(const char *where, bool prefix)
{
    for (uint32_t i = 0; i < FAKE_CUDA_FAULTS; i++)
        if (is_due(&fake_control->faults[i], where, prefix))
            return fake_control->faults[i].result;
    return KVD_CU_SUCCESS;
}

kvd_cu_result fake_kernel_fault(const char *kernel)
{
    return fault_at(kernel, true);
}

kvd_cu_result fake_enter(const char *function, enum fake_need need)
{
    pthread_once(&once, find_control);
    atomic_fetch_add_explicit(&fake_control->calls, 1, memory_order_relaxed);
    kvd_cu_result result = fault_at(function, false);
    if (is_sticky(result))
        fake_break(result);
    if (result == KVD_CU_SUCCESS)
        result = fake_broken();
    if (result == KVD_CU_SUCCESS && need != FAKE_NEEDS_NOTHING && !atomic_load(&initialised))
        result = KVD_CU_NOT_INITIALIZED;
    if (result == KVD_CU_SUCCESS && need == FAKE_NEEDS_CONTEXT && current == NULL)
        result = KVD_CU_INVALID_CONTEXT;
    return result;
}

kvd_cu_result fake_enter_allocation(const char *function)
{
    kvd_cu_result result = fake_enter(function, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    atomic_fetch_add_explicit(&fake_control->allocations, 1, memory_order_relaxed);
    return fault_at("allocation", false);
}

/* ---- start and errors ---- */

kvd_cu_result cuInit(unsigned flags)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_NOTHING);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (flags != 0)
        return KVD_CU_INVALID_VALUE;
    if (fake_control->devices == 0)
        return KVD_CU_NO_DEVICE;
    atomic_store(&initialised, true);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuDriverGetVersion(int *version)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_NOTHING);

    *version = (int)fake_control->version;
    return result;
}

static const struct {
    kvd_cu_result result;
    const char *name, *text;
} errors[] = {
    {KVD_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {KVD_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {KVD_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {KVD_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {KVD_CU_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is unavailable"},
    {KVD_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {KVD_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {KVD_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {KVD_CU_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {KVD_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {KVD_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {KVD_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {KVD_CU_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {KVD_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {KVD_CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

/* These two answer whatever state the driver is in. */
kvd_cu_result cuGetErrorName(kvd_cu_result result, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == result)
            *name = errors[i].name;
    return *name != NULL ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}

kvd_cu_result cuGetErrorString(kvd_cu_result result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == result)
            *text = errors[i].text;
    return *text != NULL ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}

/* ---- devices ---- */

static bool is_device(kvd_cu_device device)
{
    return device >= 0 && device < FAKE_CUDA_DEVICES && (uint32_t)device < fake_control->devices;
}

kvd_cu_result cuDeviceGetCount(int *count)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result == KVD_CU_SUCCESS)
        *count = (int)fake_control->devices;
    return result;
}

kvd_cu_result cuDeviceGet(kvd_cu_device *device, int ordinal)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    *device = ordinal;
    return is_device(ordinal) ? KVD_CU_SUCCESS : KVD_CU_INVALID_DEVICE;
}

kvd_cu_result cuDeviceGetName(char *name, int bytes, kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!is_device(device) || bytes <= 0)
        return KVD_CU_INVALID_VALUE;
    snprintf(name, (size_t)bytes, "Stand-in GPU %d", device);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuDeviceGetUuid_v2(struct kvd_cu_uuid *uuid, kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!is_device(device))
        return KVD_CU_INVALID_DEVICE;
    memset(uuid, 0xfa, sizeof(*uuid));
    uuid->bytes[15] = (uint8_t)device;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuDeviceGetAttribute(int *value, enum kvd_cu_device_attribute attribute,
                                   kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!is_device(device))
        return KVD_CU_INVALID_DEVICE;
    switch (attribute) {
    case KVD_CU_DEVICE_CLOCK_KHZ:
        *value = 1980000;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_MULTIPROCESSORS:
        *value = FAKE_MULTIPROCESSORS;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_L2_BYTES:
        *value = 60 << 20;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_CAPABILITY_MAJOR:
        *value = (int)fake_control->capability / 10;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_CAPABILITY_MINOR:
        *value = (int)fake_control->capability % 10;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_SHARED_BYTES_MULTIPROCESSOR:
        *value = 228 << 10;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_SHARED_BYTES_BLOCK:
        *value = 227 << 10;
        return KVD_CU_SUCCESS;
    case KVD_CU_DEVICE_HOST_REGISTER:
    case KVD_CU_DEVICE_VIRTUAL_MEMORY:
    case KVD_CU_DEVICE_EXPORT_FD:
        *value = 1;
        return KVD_CU_SUCCESS;
    default: /* the place on the bus among them */
        *value = 0;
        return KVD_CU_SUCCESS;
    }
}

/* ---- contexts ---- */

kvd_cu_result cuDevicePrimaryCtxRetain(kvd_cu_context *context, kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!is_device(device))
        return KVD_CU_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (contexts[device].retained++ == 0)
        atomic_fetch_add(&fake_control->contexts[device], 1);
    contexts[device].device = device;
    pthread_mutex_unlock(&lock);
    atomic_store(&device_in_use, device);
    *context = &contexts[device];
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuDevicePrimaryCtxRelease_v2(kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!is_device(device))
        return KVD_CU_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    bool retained = contexts[device].retained > 0;
    contexts[device].retained -= retained;
    pthread_mutex_unlock(&lock);
    return retained ? KVD_CU_SUCCESS : KVD_CU_INVALID_CONTEXT;
}

kvd_cu_result cuCtxSetCurrent(kvd_cu_context context)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result == KVD_CU_SUCCESS)
        current = context;
    return result;
}
