/* Leases: bounded promises that named blocks stay.
 *
 * A lease holds one reference per block until it is released, runs out or its connection goes.
 * Bounded in number, in blocks of all leases together (kvd_lease_new refuses) and in time. A handle
 * carries a generation; the slot of a lease remembers its last owner, so that an old handle gets a
 * true answer (LEASE_EXPIRED, STALE) from its owner and NOT_FOUND from anyone else. One malloc per
 * lease, for its blocks. Expiry order is kept in a binary heap. Loop thread only. */
#ifndef KVD_LEASE_H
#define KVD_LEASE_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/core/limits.h"

struct kvd_block;
struct kvd_blocks;

struct kvd_lease {
    uint64_t handle, conn;
    uint64_t expires_ns;
    struct kvd_block **blocks; /* [count]; NULL when the slot is free */
    uint32_t count;
    uint32_t tenant;
    uint32_t heap;                 /* its place in the heap */
    uint32_t next_free;            /* slot + 1 */
    uint32_t own_next, own_before; /* slot + 1, in the list of its connection; 0 = none */
    uint32_t expired;              /* how the last lease of this slot ended */
};

struct kvd_leases {
    struct kvd_blocks *blocks;
    struct kvd_lease *slots; /* [max] */
    uint32_t *heap;          /* [max] slots, the next to expire first */
    uint32_t max, count, high, free, generation;
    uint64_t blocks_held, expired_total;
    uint32_t owned[KVD_OWNER_LISTS]; /* slot + 1 of the first; by connection number */
};

/* INTERNAL without memory. */
kvarn_status kvd_leases_open(struct kvd_leases *leases, struct kvd_blocks *blocks, uint32_t max,
                             uint32_t generation);
void kvd_leases_close(struct kvd_leases *leases); /* gives all references back */

/* Takes one more reference on each block. RETRY when a bound is reached, QUOTA when it is one of
 * the tenant. */
kvarn_status kvd_lease_new(struct kvd_leases *leases, uint64_t conn, uint32_t tenant,
                           uint64_t expires_ns, struct kvd_block *const *held, uint32_t count,
                           uint64_t *handle);
/* NOT_FOUND, STALE (released before), LEASE_EXPIRED. */
kvarn_status kvd_lease_release(struct kvd_leases *leases, uint64_t conn, uint64_t handle);
/* Gives it to another connection. As release when it is not there. */
kvarn_status kvd_lease_move(struct kvd_leases *leases, uint64_t conn, uint64_t handle, uint64_t to);
void kvd_leases_expire(struct kvd_leases *leases, uint64_t now_ns);
void kvd_leases_conn_gone(struct kvd_leases *leases, uint64_t conn);

#endif
