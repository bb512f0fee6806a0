/* Staging and pool of a device, as the front sees them. */
#include "server/device/device_internal.h"

#include <assert.h>

uint8_t *kvd_staging_take(struct kvd_device *device, uint64_t bytes)
{
    uint64_t offset;

    return kvd_extents_take(device->extents, bytes, &offset) ? device->staging.base + offset : NULL;
}

void kvd_staging_give(struct kvd_device *device, uint8_t *extent)
{
    kvd_extents_give(device->extents, (uint64_t)(extent - device->staging.base));
}

uint64_t kvd_staging_free_bytes(const struct kvd_device *device)
{
    return kvd_extents_largest_bytes(device->extents);
}

uint64_t kvd_staging_capacity_bytes(const struct kvd_device *device)
{
    return device->staging.bytes;
}

struct kvd_place kvd_device_place(const struct kvd_device *device, const void *at)
{
    uintptr_t address = (uintptr_t)at;
    uintptr_t staging = (uintptr_t)device->staging.base, pool = (uintptr_t)device->pool.base;

    if (address >= staging && address - staging < device->staging.bytes)
        return (struct kvd_place){.region = KVD_REGION_STAGING, .offset = address - staging};
    assert(address >= pool && address - pool < device->pool.bytes);
    return (struct kvd_place){.region = KVD_REGION_POOL, .offset = address - pool};
}

uint64_t kvd_device_pool_bytes(const struct kvd_device *device)
{
    return device->gpu ? device->gpu_pool.chunks * device->gpu_pool.chunk_bytes
                       : device->pool.bytes;
}

uint64_t kvd_device_pool_unit_bytes(const struct kvd_device *device)
{
    return device->gpu_pool.chunk_bytes;
}

uint32_t kvd_device_pool_descriptors(const struct kvd_device *device)
{
    return device->gpu_pool.chunks;
}

uint8_t *kvd_device_pool(const struct kvd_device *device)
{
    return device->pool.base;
}

void kvd_device_pool_zero(struct kvd_device *device, uint64_t offset, uint64_t bytes)
{
    if (device->gpu) {
        kvd_wipes_add(device->wipes, offset, bytes);
        kvd_deferred_arm(device->flush);
    } else {
        kvd_memory_zero(&device->pool, offset, bytes);
    }
}
