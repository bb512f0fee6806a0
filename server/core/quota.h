/* What a tenant may have, as an operator writes it, and who shares a tenant.
 *
 *   quota  NAME tier=[GUARANTEED..][MAXIMUM] count=MOST ...
 *          "uid-1001 host=1GiB..4GiB gpu=..8GiB requests=16 sequences=100 leases=50"
 *   share  NAME MEMBER MEMBER ...
 *          "team uid-1001 uid-1002": both are the tenant "team" and see each other's blocks
 *
 * Names of tenants are those that HELLO tells: default, uid-N, tcp-loopback. A tier's bytes hold in
 * every pool of that tier. */
#ifndef KVD_QUOTA_H
#define KVD_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

enum { KVD_TENANT_NAME_MAX = 32, KVD_SHARE_MEMBERS_MAX = 16 };

enum kvd_tier { KVD_TIER_HOST, KVD_TIER_GPU, KVD_TIER_COUNT };

enum kvd_counted {
    KVD_COUNTED_REQUESTS, /* that wait for their answer */
    KVD_COUNTED_SPACES,
    KVD_COUNTED_SEQUENCES,
    KVD_COUNTED_LEASES,
    KVD_COUNTED_LEASED_BLOCKS,
    KVD_COUNTED_PINNED_BLOCKS,
    KVD_COUNTED_COUNT
};

struct kvd_quota {
    char name[KVD_TENANT_NAME_MAX];
    uint64_t guaranteed[KVD_TIER_COUNT]; /* bytes that nobody else gets */
    uint64_t maximum[KVD_TIER_COUNT];    /* UINT64_MAX: as far as there are */
    uint32_t most[KVD_COUNTED_COUNT];    /* UINT32_MAX: none but the daemon's own bound */
};

struct kvd_share {
    char name[KVD_TENANT_NAME_MAX];
    char members[KVD_SHARE_MEMBERS_MAX][KVD_TENANT_NAME_MAX];
    uint32_t count;
};

/* False with *why (static text). */
bool kvd_quota_parse(const char *text, struct kvd_quota *quota, const char **why);
bool kvd_share_parse(const char *text, struct kvd_share *share, const char **why);

#endif
