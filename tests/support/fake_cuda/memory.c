/* Address ranges of the device, and what an address means.
 *
 * A device address is reserved in this process without access, so that host code that follows one
 * is caught; the bytes are mapped elsewhere, at the same distances. */
#include "support/fake_cuda/inside.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { AREAS = 256 };

struct granule {
    struct fake_physical *memory; /* NULL: not mapped */
    bool accessible;
};

/* Adjacent device addresses. RESERVED ones have a state per granule; others are all accessible. */
struct area {
    uint64_t base, bytes;
    uint8_t *at;   /* the byte of address `base` */
    uint32_t kind; /* 0: free */
    struct granule *granules;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct area areas[AREAS];

static void *reserve(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

/* ---- addresses ---- */

static struct area *area_of(uint64_t address)
{
    for (struct area *area = areas; area < areas + AREAS; area++)
        if (area->kind != 0 && address >= area->base && address - area->base < area->bytes)
            return area;
    return NULL;
}

/* With the lock held. */
static uint8_t *resolve(uint64_t address, uint64_t bytes)
{
    struct area *area = area_of(address);

    if (area == NULL || bytes > area->bytes - (address - area->base))
        return NULL;
    uint64_t from = address - area->base, end = from + (bytes > 0 ? bytes : 1);
    if (area->granules != NULL)
        for (uint64_t g = from / FAKE_GRANULE_BYTES; g * FAKE_GRANULE_BYTES < end; g++)
            if (!area->granules[g].accessible)
                return NULL;
    return area->at + from;
}

uint8_t *fake_at(uint64_t address, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    uint8_t *at = resolve(address, bytes);
    pthread_mutex_unlock(&lock);
    return at;
}

bool fake_area_add(uint64_t base, uint8_t *at, uint64_t bytes, uint32_t kind)
{
    struct area *area = areas;
    struct granule *granules = NULL;

    if (kind == FAKE_RESERVED &&
        (granules = calloc(bytes / FAKE_GRANULE_BYTES, sizeof(*granules))) == NULL)
        return false;
    pthread_mutex_lock(&lock);
    while (area < areas + AREAS && area->kind != 0)
        area++;
    if (area < areas + AREAS)
        *area = (struct area){
            .base = base, .at = at, .bytes = bytes, .kind = kind, .granules = granules};
    pthread_mutex_unlock(&lock);
    if (area == areas + AREAS)
        free(granules);
    return area < areas + AREAS;
}

uint64_t fake_area_take(uint64_t base, uint32_t kind, uint8_t **at)
{
    uint64_t bytes = 0;

    pthread_mutex_lock(&lock);
    struct area *area = area_of(base);
    if (area != NULL && area->kind == kind && area->base == base) {
        bytes = area->bytes;
        *at = area->at;
        free(area->granules);
        *area = (struct area){0};
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* ---- address ranges ---- */

kvd_cu_result cuMemAddressReserve(kvd_cu_address *address, size_t bytes, size_t alignment,
                                  kvd_cu_address wanted, unsigned long long flags)
{
    kvd_cu_result result = fake_enter_allocation(__func__);
    uint64_t room = bytes + FAKE_GRANULE_BYTES;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (!fake_is_granular(bytes) || alignment > FAKE_GRANULE_BYTES || wanted != 0 || flags != 0)
        return KVD_CU_INVALID_VALUE;
    /* both stay for the life of the process, so that no later mapping is taken for this one */
    uint8_t *public = reserve(room), *at = reserve(bytes);
    if (public == NULL || at == NULL)
        return KVD_CU_OUT_OF_MEMORY;
    uint64_t base = ((uint64_t)(uintptr_t) public + FAKE_GRANULE_BYTES - 1) / FAKE_GRANULE_BYTES *
                    FAKE_GRANULE_BYTES;
    if (!fake_area_add(base, at, bytes, FAKE_RESERVED))
        return KVD_CU_OUT_OF_MEMORY;
    *address = base;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuMemAddressFree(kvd_cu_address address, size_t bytes)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);
    uint8_t *at;

    if (result != KVD_CU_SUCCESS)
        return result;
    return fake_area_take(address, FAKE_RESERVED, &at) == bytes ? KVD_CU_SUCCESS
                                                                : KVD_CU_INVALID_VALUE;
}

/* Whole granules of a reserved area, all mapped or none; NULL: they are not. With the lock held. */
static struct granule *granules_in(uint64_t address, uint64_t bytes, bool mapped,
                                   struct area **area)
{
    *area = area_of(address);
    if (!fake_is_granular(bytes) || address % FAKE_GRANULE_BYTES != 0 || *area == NULL ||
        (*area)->granules == NULL || bytes > (*area)->bytes - (address - (*area)->base))
        return NULL;
    struct granule *first = (*area)->granules + (address - (*area)->base) / FAKE_GRANULE_BYTES;
    for (uint64_t i = 0; i < bytes / FAKE_GRANULE_BYTES; i++)
        if ((first[i].memory != NULL) != mapped)
            return NULL;
    return first;
}

kvd_cu_result cuMemMap(kvd_cu_address address, size_t bytes, size_t offset, kvd_cu_memory memory,
                       unsigned long long flags)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_physical *physical = (struct fake_physical *)(uintptr_t)memory;
    struct area *area;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (physical == NULL || physical->released || offset != 0 || bytes != physical->bytes ||
        flags != 0)
        return KVD_CU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct granule *granules = granules_in(address, bytes, false, &area);
    if (granules != NULL && mmap(area->at + (address - area->base), bytes, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_FIXED, physical->fd, 0) != MAP_FAILED) {
        for (uint64_t i = 0; i < bytes / FAKE_GRANULE_BYTES; i++)
            granules[i].memory = physical;
        physical->granules += bytes / FAKE_GRANULE_BYTES;
    } else {
        result = KVD_CU_INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

kvd_cu_result cuMemUnmap(kvd_cu_address address, size_t bytes)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct area *area;

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    struct granule *granules = granules_in(address, bytes, true, &area);
    if (granules != NULL)
        mmap(area->at + (address - area->base), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (uint64_t i = 0; granules != NULL && i < bytes / FAKE_GRANULE_BYTES; i++) {
        granules[i].memory->granules--;
        fake_physical_drop(granules[i].memory);
        granules[i] = (struct granule){0};
    }
    pthread_mutex_unlock(&lock);
    return granules != NULL ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}

kvd_cu_result cuMemSetAccess(kvd_cu_address address, size_t bytes,
                             const struct kvd_cu_access *access, size_t count)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct area *area;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (count != 1 || access->flags != KVD_CU_ACCESS_READ_WRITE ||
        access->location.type != KVD_CU_LOCATION_DEVICE)
        return KVD_CU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct granule *granules = granules_in(address, bytes, true, &area);
    for (uint64_t i = 0; granules != NULL && i < bytes / FAKE_GRANULE_BYTES; i++)
        granules[i].accessible = true;
    pthread_mutex_unlock(&lock);
    return granules != NULL ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}
