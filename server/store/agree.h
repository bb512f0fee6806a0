/* One answer for all ranks of a group.
 *
 * The ranks that serve one model hold different shards of it, each in a space of its own, and look
 * up the same keys at slightly different times; what one shard still has another may have lost. So
 * the first rank's question is answered for all of them: the longest run that every shard has, with
 * a lease for each. The others, who name the same group, are handed theirs when they ask.
 *
 * The shards of a group are the spaces of one tenant and fingerprint with as many heads as the
 * asker's that do not overlap it. Are there not as many as the group says, nothing is shared: the
 * answer is 0 for all. An agreement ends with the last rank's question, at the end of its time, or
 * with the connection of who asked first. Loop thread only. */
#ifndef KVD_AGREE_H
#define KVD_AGREE_H

#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

#include "server/core/limits.h"

struct kvd_blocks;
struct kvd_leases;
struct kvd_space;
struct kvd_spaces;

struct kvd_agreed_rank {
    uint64_t space; /* handle */
    uint64_t lease; /* 0: nothing is held for it, or it has been handed out */
};

struct kvd_agreement {
    uint64_t group, conn, expires_ns, keys;
    struct kvd_agreed_rank *ranks; /* [count]; NULL: the slot is free */
    uint32_t tenant, count, found, left, matched;
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
};

struct kvd_agreements {
    struct kvd_agreement slots[KVD_AGREEMENTS_MAX];
    uint32_t count, high;
};

struct kvd_agree_question {
    struct kvd_space *space;
    uint64_t conn, group, expires_ns;
    const uint8_t *keys; /* [count], 32 bytes each */
    uint32_t count, ranks;
    struct kvd_block **room; /* [count], to work in */
};

/* OK: *matched for all; *lease over that many blocks of the asker's space, now its connection's, 0
 * when there are none. INVALID_SHAPE: the group asked for other keys, or has no such shard. STALE:
 * this rank has had its answer. LEASE_EXPIRED: its blocks were held as long as was asked for.
 * RETRY, QUOTA as with a lease, RETRY also when KVD_AGREEMENTS_MAX are under way. */
kvarn_status kvd_agree(struct kvd_agreements *agreements, struct kvd_spaces *spaces,
                       struct kvd_blocks *blocks, struct kvd_leases *leases,
                       const struct kvd_agree_question *question, uint32_t *matched,
                       uint64_t *lease);

void kvd_agreements_expire(struct kvd_agreements *agreements, uint64_t now_ns);
/* After kvd_leases_conn_gone, which gives back what was held. */
void kvd_agreements_conn_gone(struct kvd_agreements *agreements, uint64_t conn);
void kvd_agreements_free(struct kvd_agreements *agreements);

#endif
