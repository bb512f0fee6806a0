/* Physical device memory: memfds, so that they outlive the process that made them. */
#include "support/fake_cuda/inside.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used; /* of the device, by this process */

bool fake_bytes_take(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    bool there = bytes <= fake_control->memory_bytes - used;
    used += there ? bytes : 0;
    pthread_mutex_unlock(&lock);
    return there;
}

void fake_bytes_give(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    used -= bytes;
    pthread_mutex_unlock(&lock);
}

kvd_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    *total = fake_control->memory_bytes;
    *free_bytes = fake_control->memory_bytes - used;
    pthread_mutex_unlock(&lock);
    return KVD_CU_SUCCESS;
}

bool fake_is_granular(uint64_t bytes)
{
    return bytes > 0 && bytes % FAKE_GRANULE_BYTES == 0;
}

kvd_cu_result cuMemGetAllocationGranularity(size_t *bytes,
                                            const struct kvd_cu_memory_properties *properties,
                                            uint32_t option)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result == KVD_CU_SUCCESS &&
        (properties->type != KVD_CU_ALLOCATION_PINNED || option > KVD_CU_GRANULARITY_RECOMMENDED))
        return KVD_CU_INVALID_VALUE;
    *bytes = FAKE_GRANULE_BYTES;
    return result;
}

static kvd_cu_result keep(int fd, uint64_t bytes, kvd_cu_memory *memory)
{
    struct fake_physical *made = calloc(1, sizeof(*made));

    if (made == NULL || fd < 0 || !fake_bytes_take(bytes)) {
        free(made);
        if (fd >= 0)
            close(fd);
        return KVD_CU_OUT_OF_MEMORY;
    }
    made->fd = fd;
    made->bytes = bytes;
    *memory = (kvd_cu_memory)(uintptr_t)made;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemCreate(kvd_cu_memory *memory, size_t bytes,
                          const struct kvd_cu_memory_properties *properties,
                          unsigned long long flags)
{
    kvd_cu_result result = fake_enter_allocation(__func__);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!fake_is_granular(bytes) || properties->type != KVD_CU_ALLOCATION_PINNED || flags != 0 ||
        properties->location.type != KVD_CU_LOCATION_DEVICE)
        return KVD_CU_INVALID_VALUE;
    int fd = memfd_create("fake-cuda-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, (off_t)bytes) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
        close(fd);
        fd = -1;
    }
    return keep(fd, bytes, memory);
}

void fake_physical_drop(struct fake_physical *memory)
{
    if (!memory->released || memory->granules > 0)
        return;
    close(memory->fd);
    fake_bytes_give(memory->bytes);
    free(memory);
}

kvd_cu_result cuMemRelease(kvd_cu_memory memory)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);
    struct fake_physical *physical = (struct fake_physical *)(uintptr_t)memory;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (physical == NULL || physical->released)
        return KVD_CU_INVALID_VALUE;
    physical->released = true;
    fake_physical_drop(physical);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemExportToShareableHandle(void *fd, kvd_cu_memory memory, uint32_t handle_type,
                                           unsigned long long flags)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);
    const struct fake_physical *physical = (const struct fake_physical *)(uintptr_t)memory;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (physical == NULL || handle_type != KVD_CU_HANDLE_FD || flags != 0)
        return KVD_CU_INVALID_VALUE;
    int copy = fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return KVD_CU_UNKNOWN;
    memcpy(fd, &copy, sizeof(copy));
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemImportFromShareableHandle(kvd_cu_memory *memory, void *fd, uint32_t handle_type)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    int given = (int)(intptr_t)fd;
    struct stat about;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (handle_type != KVD_CU_HANDLE_FD || fcntl(given, F_GET_SEALS) < 0 ||
        fstat(given, &about) != 0 || !fake_is_granular((uint64_t)about.st_size))
        return KVD_CU_INVALID_VALUE;
    return keep(fcntl(given, F_DUPFD_CLOEXEC, 3), (uint64_t)about.st_size, memory);
}
