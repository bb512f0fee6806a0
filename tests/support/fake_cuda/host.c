/* Plain device memory, pinned host memory, and host memory that was registered. A pinned address
 * means the same to host and device, as on every 64-bit system. */
#include "support/fake_cuda/inside.h"

#include <stdlib.h>
#include <sys/mman.h>

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static uint8_t *map(uint64_t bytes, int protection)
{
    void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

kvd_cu_result cuMemAlloc_v2(kvd_cu_address *address, size_t bytes)
{
    kvd_cu_result result = fake_enter_allocation(__func__);
    uint64_t room = whole_pages(bytes);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (bytes == 0)
        return KVD_CU_INVALID_VALUE;
    if (!fake_bytes_take(room))
        return KVD_CU_OUT_OF_MEMORY;
    uint8_t *public = map(room, PROT_NONE), *at = map(room, PROT_READ | PROT_WRITE);
    if (public == NULL || at == NULL ||
        !fake_area_add((uint64_t)(uintptr_t) public, at, room, FAKE_ALLOCATED))
        return KVD_CU_OUT_OF_MEMORY;
    *address = (uint64_t)(uintptr_t) public;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemFree_v2(kvd_cu_address address)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    uint8_t *at;

    if (result != KVD_CU_SUCCESS)
        return result;
    uint64_t bytes = fake_area_take(address, FAKE_ALLOCATED, &at);
    if (bytes == 0)
        return KVD_CU_INVALID_VALUE;
    fake_bytes_give(bytes);
    munmap(at, bytes);
    munmap((void *)(uintptr_t)address, bytes); /* NOLINT: a reservation of ours */
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    kvd_cu_result result = fake_enter_allocation(__func__);
    uint64_t room = whole_pages(bytes);

    (void)flags; /* portable, mapped, write-combined: all the same to us */
    if (result != KVD_CU_SUCCESS)
        return result;
    if (bytes == 0)
        return KVD_CU_INVALID_VALUE;
    *at = map(room, PROT_READ | PROT_WRITE);
    if (*at == NULL || !fake_area_add((uint64_t)(uintptr_t)*at, *at, room, FAKE_HOST))
        return KVD_CU_OUT_OF_MEMORY;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemFreeHost(void *at)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    uint8_t *mapped;

    if (result != KVD_CU_SUCCESS)
        return result;
    uint64_t bytes = fake_area_take((uint64_t)(uintptr_t)at, FAKE_HOST, &mapped);
    if (bytes == 0)
        return KVD_CU_INVALID_VALUE;
    munmap(mapped, bytes);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    kvd_cu_result result = fake_enter_allocation(__func__);
    uint64_t address = (uint64_t)(uintptr_t)at;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (bytes == 0 || (flags & KVD_CU_HOST_REGISTER_DEVICE_MAP) == 0)
        return KVD_CU_INVALID_VALUE;
    if (fake_at(address, 1) != NULL)
        return KVD_CU_HOST_MEMORY_ALREADY_REGISTERED;
    return fake_area_add(address, at, bytes, FAKE_REGISTERED) ? KVD_CU_SUCCESS
                                                              : KVD_CU_OUT_OF_MEMORY;
}

kvd_cu_result cuMemHostUnregister(void *at)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    uint8_t *mapped;

    if (result != KVD_CU_SUCCESS)
        return result;
    return fake_area_take((uint64_t)(uintptr_t)at, FAKE_REGISTERED, &mapped) != 0
               ? KVD_CU_SUCCESS
               : KVD_CU_HOST_MEMORY_NOT_REGISTERED;
}

kvd_cu_result cuMemHostGetDevicePointer_v2(kvd_cu_address *address, void *at, unsigned flags)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    *address = (uint64_t)(uintptr_t)at;
    return flags == 0 && fake_at(*address, 1) == at ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}
