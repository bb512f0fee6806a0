/* Slots, a free list and a heap by expiry. See lease.h. */
#include "server/store/lease.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/block.h"
#include "server/store/counts.h"

kvarn_status kvd_leases_open(struct kvd_leases *leases, struct kvd_blocks *blocks, uint32_t max,
                             uint32_t generation)
{
    memset(leases, 0, sizeof *leases);
    leases->slots = calloc(max, sizeof *leases->slots);
    leases->heap = calloc(max, sizeof *leases->heap);
    leases->blocks = blocks;
    leases->max = max;
    leases->generation = generation;
    if (leases->slots && leases->heap)
        return KVARN_OK;
    kvd_leases_close(leases);
    return KVARN_INTERNAL;
}

static bool sooner(const struct kvd_leases *leases, uint32_t a, uint32_t b)
{
    return leases->slots[leases->heap[a]].expires_ns < leases->slots[leases->heap[b]].expires_ns;
}

static void swap(struct kvd_leases *leases, uint32_t a, uint32_t b)
{
    uint32_t slot = leases->heap[a];

    leases->heap[a] = leases->heap[b];
    leases->heap[b] = slot;
    leases->slots[leases->heap[a]].heap = a;
    leases->slots[leases->heap[b]].heap = b;
}

static void sift(struct kvd_leases *leases, uint32_t at)
{
    while (at && sooner(leases, at, (at - 1) / 2)) {
        swap(leases, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < leases->count && sooner(leases, child + 1, child))
            child++;
        if (child >= leases->count || !sooner(leases, child, at))
            return;
        swap(leases, child, at);
        at = child;
    }
}

static void own(struct kvd_leases *leases, uint32_t slot)
{
    struct kvd_lease *lease = &leases->slots[slot];
    uint32_t *first = &leases->owned[lease->conn % KVD_OWNER_LISTS];

    lease->own_before = 0;
    lease->own_next = *first;
    if (*first)
        leases->slots[*first - 1].own_before = slot + 1;
    *first = slot + 1;
}

static void disown(struct kvd_leases *leases, const struct kvd_lease *lease)
{
    if (lease->own_before)
        leases->slots[lease->own_before - 1].own_next = lease->own_next;
    else
        leases->owned[lease->conn % KVD_OWNER_LISTS] = lease->own_next;
    if (lease->own_next)
        leases->slots[lease->own_next - 1].own_before = lease->own_before;
}

static void uncount(struct kvd_leases *leases, uint32_t tenant, uint32_t blocks)
{
    struct kvd_counts *counts = leases->blocks->counts;

    if (!counts)
        return;
    kvd_counts_give(counts, tenant, KVD_COUNTED_LEASES, 1);
    kvd_counts_give(counts, tenant, KVD_COUNTED_LEASED_BLOCKS, blocks);
}

static bool count_in(struct kvd_leases *leases, uint32_t tenant, uint32_t blocks)
{
    struct kvd_counts *counts = leases->blocks->counts;

    if (!counts)
        return true;
    if (!kvd_counts_take(counts, tenant, KVD_COUNTED_LEASES, 1))
        return false;
    if (kvd_counts_take(counts, tenant, KVD_COUNTED_LEASED_BLOCKS, blocks))
        return true;
    kvd_counts_give(counts, tenant, KVD_COUNTED_LEASES, 1);
    return false;
}

/* Ends the lease of a slot. The owner stays on record until the slot is used again. */
static void end(struct kvd_leases *leases, uint32_t slot, bool expired)
{
    struct kvd_lease *lease = &leases->slots[slot];
    uint32_t at = lease->heap;

    assert(leases->heap && leases->count);
    leases->count--;
    if (at != leases->count) {
        swap(leases, at, leases->count);
        sift(leases, at);
    }
    for (uint32_t i = lease->count; i-- > 0;) /* a chain's end is to go before its head */
        kvd_block_release(leases->blocks, lease->blocks[i]);
    leases->blocks_held -= lease->count;
    uncount(leases, lease->tenant, lease->count);
    leases->expired_total += expired;
    free(lease->blocks);
    lease->blocks = NULL;
    disown(leases, lease);
    lease->count = 0;
    lease->expired = expired;
    lease->next_free = leases->free;
    leases->free = slot + 1;
}

void kvd_leases_close(struct kvd_leases *leases)
{
    while (leases->heap && leases->count)
        end(leases, leases->heap[leases->count - 1], false);
    free(leases->slots);
    free(leases->heap);
    memset(leases, 0, sizeof *leases);
}

kvarn_status kvd_lease_new(struct kvd_leases *leases, uint64_t conn, uint32_t tenant,
                           uint64_t expires_ns, struct kvd_block *const *held, uint32_t count,
                           uint64_t *handle)
{
    struct kvd_block **blocks;
    struct kvd_lease *lease;
    uint32_t slot;

    if (!leases->free && leases->high == leases->max)
        return KVARN_RETRY;
    if (leases->blocks_held + count > KVD_LEASED_BLOCKS_MAX)
        return KVARN_RETRY;
    if (!count_in(leases, tenant, count))
        return KVARN_QUOTA;
    blocks = malloc((count ? count : 1) * sizeof(struct kvd_block *));
    if (!blocks) {
        uncount(leases, tenant, count);
        return KVARN_RETRY;
    }
    slot = leases->free ? leases->free - 1 : leases->high++;
    lease = &leases->slots[slot];
    leases->free = leases->free ? lease->next_free : 0;
    for (uint32_t i = 0; i < count; i++) {
        kvd_block_hold(leases->blocks, held[i]);
        blocks[i] = held[i];
    }
    lease->blocks = blocks;
    lease->count = count;
    lease->conn = conn;
    lease->tenant = tenant;
    lease->expires_ns = expires_ns;
    lease->expired = 0;
    lease->handle = (uint64_t)++leases->generation << 32 | (slot + 1);
    lease->heap = leases->count;
    leases->heap[leases->count++] = slot;
    leases->blocks_held += count;
    own(leases, slot);
    sift(leases, lease->heap);
    *handle = lease->handle;
    return KVARN_OK;
}

/* OK: *slot holds the lease. */
static kvarn_status find(const struct kvd_leases *leases, uint64_t conn, uint64_t handle,
                         uint32_t *slot)
{
    const struct kvd_lease *lease;

    *slot = (uint32_t)handle - 1;
    if (*slot >= leases->high)
        return KVARN_NOT_FOUND;
    lease = &leases->slots[*slot];
    if (lease->conn != conn || (handle >> 32) > (lease->handle >> 32))
        return KVARN_NOT_FOUND;
    if (lease->handle != handle)
        return KVARN_STALE;
    if (!lease->blocks)
        return lease->expired ? KVARN_LEASE_EXPIRED : KVARN_STALE;
    return KVARN_OK;
}

kvarn_status kvd_lease_release(struct kvd_leases *leases, uint64_t conn, uint64_t handle)
{
    uint32_t slot;
    kvarn_status status = find(leases, conn, handle, &slot);

    if (status == KVARN_OK)
        end(leases, slot, false);
    return status;
}

kvarn_status kvd_lease_move(struct kvd_leases *leases, uint64_t conn, uint64_t handle, uint64_t to)
{
    uint32_t slot;
    kvarn_status status = find(leases, conn, handle, &slot);

    if (status != KVARN_OK)
        return status;
    disown(leases, &leases->slots[slot]);
    leases->slots[slot].conn = to;
    own(leases, slot);
    return KVARN_OK;
}

void kvd_leases_expire(struct kvd_leases *leases, uint64_t now_ns)
{
    while (leases->count && leases->slots[leases->heap[0]].expires_ns <= now_ns)
        end(leases, leases->heap[0], true);
}

void kvd_leases_conn_gone(struct kvd_leases *leases, uint64_t conn)
{
    uint32_t next;

    for (uint32_t at = leases->owned[conn % KVD_OWNER_LISTS]; at; at = next) {
        next = leases->slots[at - 1].own_next;
        if (leases->slots[at - 1].conn == conn)
            end(leases, at - 1, false);
    }
}
