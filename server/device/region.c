/* Huge pages are asked for only where a region is large enough to hold some; the system gives them
 * to shared memory when /sys/kernel/mm/transparent_hugepage/shmem_enabled says "advise". */
#include "server/device/region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/core/limits.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static kvarn_status map_fd(struct kvd_memory *memory, int fd, uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (at == MAP_FAILED)
        return KVARN_INTERNAL;
    madvise(at, bytes, MADV_DONTDUMP);
    if (bytes >= 2 * KVD_CHUNK_ALIGN_BYTES)
        madvise(at, bytes, MADV_HUGEPAGE);
    *memory = (struct kvd_memory){.fd = fd, .base = at, .bytes = bytes};
    return KVARN_OK;
}

kvarn_status kvd_memory_open(struct kvd_memory *memory, const char *name, uint64_t bytes)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    *memory = (struct kvd_memory){.fd = -1};
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, flags);
    if (fd < 0)
        return KVARN_INTERNAL;
    if (bytes == 0 || bytes > INT64_MAX || ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, SEALS) != 0 || map_fd(memory, fd, bytes) != KVARN_OK) {
        close(fd);
        return KVARN_INTERNAL;
    }
    return KVARN_OK;
}

kvarn_status kvd_memory_attach(struct kvd_memory *memory, int fd, uint64_t bytes)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);

    *memory = (struct kvd_memory){.fd = -1};
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &stat) != 0 ||
        (uint64_t)stat.st_size != bytes)
        return KVARN_INTERNAL;
    return map_fd(memory, fd, bytes);
}

void kvd_memory_close(struct kvd_memory *memory)
{
    if (memory->base != NULL)
        munmap(memory->base, memory->bytes);
    if (memory->fd >= 0 && memory->base != NULL)
        close(memory->fd);
    *memory = (struct kvd_memory){.fd = -1};
}

void kvd_memory_zero(struct kvd_memory *memory, uint64_t offset, uint64_t bytes)
{
    assert(offset <= memory->bytes && bytes <= memory->bytes - offset);
    /* Falls back to writing zeros: the caller's promise is what counts, not how. */
    if (fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)bytes) != 0)
        memset(memory->base + offset, 0, bytes);
}
