/* Orders. Entries: written before tail is stored with release, read after tail was loaded with
 * acquire; head the same way round for reuse of an entry. Sleep: the consumer stores `sleeping` and
 * then loads tail, the producer stores tail and then loads `sleeping`. All four are sequentially
 * consistent, so at least one of the two sees the other's store and no wake-up is lost. */
#include "server/core/ring.h"

#include <sys/eventfd.h>
#include <unistd.h>

enum { MASK = KVD_RING_ENTRIES - 1 };

void kvd_ring_reset(struct kvd_ring *ring, bool asleep)
{
    atomic_store_explicit(&ring->tail, 0, memory_order_relaxed);
    atomic_store_explicit(&ring->head, 0, memory_order_relaxed);
    atomic_store(&ring->sleeping, asleep);
}

bool kvd_ring_push(struct kvd_ring *ring, struct kvd_ring_producer *producer,
                   struct kvd_ring_entry entry)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

    if (producer->filled - head >= KVD_RING_ENTRIES)
        return false;
    ring->entries[producer->filled++ & MASK] = entry;
    return true;
}

bool kvd_ring_publish(struct kvd_ring *ring, struct kvd_ring_producer *producer)
{
    if (producer->published == producer->filled)
        return false;
    producer->published = producer->filled;
    atomic_store(&ring->tail, producer->filled);
    return atomic_load(&ring->sleeping) != 0;
}

int32_t kvd_ring_count(struct kvd_ring *ring)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    uint32_t count = tail - atomic_load_explicit(&ring->head, memory_order_relaxed);

    return count <= KVD_RING_ENTRIES ? (int32_t)count : -1;
}

bool kvd_ring_pop(struct kvd_ring *ring, struct kvd_ring_entry *entry)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    if (atomic_load_explicit(&ring->tail, memory_order_acquire) == head)
        return false;
    *entry = ring->entries[head & MASK];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return true;
}

bool kvd_ring_sleep(struct kvd_ring *ring)
{
    atomic_store(&ring->sleeping, 1);
    if (atomic_load(&ring->tail) == atomic_load_explicit(&ring->head, memory_order_relaxed))
        return true;
    atomic_store_explicit(&ring->sleeping, 0, memory_order_relaxed);
    return false;
}

void kvd_ring_wake(struct kvd_ring *ring)
{
    atomic_store_explicit(&ring->sleeping, 0, memory_order_relaxed);
}

int kvd_bell_open(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void kvd_bell_ring(int bell)
{
    uint64_t one = 1;

    /* Fails only when 2^64 - 2 rings are unread; the reader is awake then. */
    (void)!write(bell, &one, sizeof(one));
}

void kvd_bell_clear(int bell)
{
    uint64_t count;

    (void)!read(bell, &count, sizeof(count));
}
