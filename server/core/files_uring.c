/* Submission and completion rings as the kernel lays them out. See files_uring.h. */
#include "server/core/files_uring.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/core/files.h"

enum { PIECE_BYTES = 1 << 30 }; /* of one read or write; its length has 32 bits */

static int setup(uint32_t entries, struct io_uring_params *params)
{
    return (int)syscall(__NR_io_uring_setup, entries, params);
}

static int enter(const struct kvd_uring *ring, uint32_t submit, uint32_t least)
{
    int got;

    do
        got = (int)syscall(__NR_io_uring_enter, ring->fd, submit, least,
                           least ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

static int enroll(const struct kvd_uring *ring, uint32_t what, void *argument, uint32_t count)
{
    return (int)syscall(__NR_io_uring_register, ring->fd, what, argument, count);
}

static uint32_t load(const uint32_t *at)
{
    return atomic_load_explicit((const _Atomic uint32_t *)at, memory_order_acquire);
}

static void store(uint32_t *at, uint32_t value)
{
    atomic_store_explicit((_Atomic uint32_t *)at, value, memory_order_release);
}

static bool map(struct kvd_uring *ring, const struct io_uring_params *params)
{
    uint64_t sq = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    uint64_t cq = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    uint8_t *base;
    void *entries;

    if (!(params->features & IORING_FEAT_SINGLE_MMAP))
        return false;
    ring->rings_bytes = sq > cq ? sq : cq;
    ring->entries_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
    base = mmap(NULL, ring->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                ring->fd, IORING_OFF_SQ_RING);
    if (base == MAP_FAILED)
        return false;
    ring->rings = base;
    entries = mmap(NULL, ring->entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                   ring->fd, IORING_OFF_SQES);
    if (entries == MAP_FAILED)
        return false;
    ring->entries = entries;
    ring->sq_tail = (uint32_t *)(void *)(base + params->sq_off.tail);
    ring->sq_array = (uint32_t *)(void *)(base + params->sq_off.array);
    ring->sq_mask = *(uint32_t *)(void *)(base + params->sq_off.ring_mask);
    ring->cq_head = (uint32_t *)(void *)(base + params->cq_off.head);
    ring->cq_tail = (uint32_t *)(void *)(base + params->cq_off.tail);
    ring->cq_mask = *(uint32_t *)(void *)(base + params->cq_off.ring_mask);
    ring->results = (struct io_uring_cqe *)(void *)(base + params->cq_off.cqes);
    return true;
}

bool kvd_uring_open(struct kvd_uring *ring, int eventfd)
{
    struct io_uring_params params = {0};

    memset(ring, 0, sizeof *ring);
    ring->fd = setup(KVD_URING_ENTRIES, &params);
    if (ring->fd < 0)
        return false;
    /* plain READ and WRITE came with 5.6, as did this feature */
    if (map(ring, &params) && (params.features & IORING_FEAT_RW_CUR_POS) &&
        enroll(ring, IORING_REGISTER_EVENTFD, &eventfd, 1) == 0)
        return true;
    kvd_uring_close(ring);
    return false;
}

void kvd_uring_close(struct kvd_uring *ring)
{
    if (ring->entries)
        munmap(ring->entries, ring->entries_bytes);
    if (ring->rings)
        munmap(ring->rings, ring->rings_bytes);
    close(ring->fd);
    memset(ring, 0, sizeof *ring);
    ring->fd = -1;
}

bool kvd_uring_start(struct kvd_uring *ring, struct kvd_file_op *op)
{
    uint64_t left = op->count - op->moved;
    uint32_t tail = *ring->sq_tail, at = tail & ring->sq_mask;
    struct io_uring_sqe *entry = &ring->entries[at];

    if (ring->in_flight == KVD_URING_ENTRIES)
        return false;
    memset(entry, 0, sizeof *entry);
    entry->fd = op->fd;
    entry->user_data = (uint64_t)(uintptr_t)op;
    if (op->what == KVD_FILE_SYNC) {
        entry->opcode = IORING_OP_FSYNC;
        entry->fsync_flags = IORING_FSYNC_DATASYNC;
    } else {
        entry->opcode = op->what == KVD_FILE_READ ? IORING_OP_READ : IORING_OP_WRITE;
        entry->addr = (uint64_t)(uintptr_t)(op->bytes + op->moved);
        entry->len = (uint32_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
        entry->off = op->offset + op->moved;
    }
    ring->sq_array[at] = at;
    store(ring->sq_tail, tail + 1);
    if (enter(ring, 1, 0) != 1) {
        store(ring->sq_tail, tail); /* not taken: out of kernel memory for the moment */
        return false;
    }
    ring->in_flight++;
    return true;
}

struct kvd_file_op *kvd_uring_take(struct kvd_uring *ring, int32_t *result, bool wait)
{
    uint32_t head = *ring->cq_head;
    const struct io_uring_cqe *entry;
    struct kvd_file_op *op;

    if (head == load(ring->cq_tail) && wait && ring->in_flight)
        (void)enter(ring, 0, 1);
    if (head == load(ring->cq_tail))
        return NULL;
    entry = &ring->results[head & ring->cq_mask];
    op = (struct kvd_file_op *)(uintptr_t)entry->user_data;
    *result = entry->res;
    store(ring->cq_head, head + 1);
    ring->in_flight--;
    return op;
}
