/* The tests' side of the stand-in driver: its file, its faults, and the memory that a process
 * holds of it. */
#include "support/fake_cuda/fake_cuda.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fake_cuda_control *map(int fd)
{
    void *at =
        mmap(NULL, sizeof(struct fake_cuda_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

struct fake_cuda_control *fake_cuda_open(const char *path, uint64_t memory_bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0)
        return NULL;
    if (ftruncate(fd, sizeof(struct fake_cuda_control)) != 0) {
        close(fd);
        return NULL;
    }
    struct fake_cuda_control *made = map(fd);
    if (made == NULL)
        return NULL;
    made->devices = 1;
    made->version = 13000;
    made->capability = 90;
    made->memory_bytes = memory_bytes;
    return made;
}

struct fake_cuda_control *fake_cuda_attach(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);

    return fd < 0 ? NULL : map(fd);
}

void fake_cuda_close(struct fake_cuda_control **control)
{
    if (*control != NULL)
        munmap(*control, sizeof(**control));
    *control = NULL;
}

void fake_cuda_disarm(struct fake_cuda_control *control, uint32_t index)
{
    atomic_store_explicit(&control->faults[index].armed, 0, memory_order_release);
}

void fake_cuda_arm(struct fake_cuda_control *control, uint32_t index, const char *where,
                   uint32_t result, uint32_t skip, uint32_t times)
{
    struct fake_cuda_fault *fault = &control->faults[index];

    fake_cuda_disarm(control, index);
    snprintf(fault->where, sizeof(fault->where), "%s", where);
    fault->result = result;
    fault->device = -1;
    fault->skip = skip;
    fault->times = times;
    atomic_store(&fault->visits, 0);
    atomic_store_explicit(&fault->armed, 1, memory_order_release);
}

uint32_t fake_cuda_fired(const struct fake_cuda_control *control, uint32_t index)
{
    const struct fake_cuda_fault *fault = &control->faults[index];
    uint32_t visits = atomic_load(&fault->visits);
    uint32_t after = visits > fault->skip ? visits - fault->skip : 0;

    return after < fault->times ? after : fault->times;
}

/* ---- device memory that a process holds ---- */

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The numbers of its descriptors, ascending, at most room. */
static uint32_t held(pid_t holder, int *numbers, uint32_t room)
{
    char folder[64], path[400], target[128];
    uint32_t count = 0;
    struct dirent *entry;

    snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)holder);
    DIR *descriptors = opendir(folder);
    if (descriptors == NULL)
        return 0;
    while ((entry = readdir(descriptors)) != NULL && count < room) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        ssize_t bytes = readlink(path, target, sizeof(target) - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        if (strncmp(target, "/memfd:fake-cuda-memory", 23) == 0)
            numbers[count++] = (int)strtol(entry->d_name, NULL, 10);
    }
    closedir(descriptors);
    qsort(numbers, count, sizeof(numbers[0]), by_number);
    return count;
}

enum { HELD_MOST = 4096 };

uint32_t fake_cuda_held(pid_t holder)
{
    static int numbers[HELD_MOST];

    return held(holder, numbers, HELD_MOST);
}

int fake_cuda_borrow(pid_t holder, uint32_t index)
{
    static int numbers[HELD_MOST];
    char path[64];

    if (index >= held(holder, numbers, HELD_MOST))
        return -1;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)holder, numbers[index]);
    return open(path, O_RDWR | O_CLOEXEC);
}
