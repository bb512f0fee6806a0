/* Tenants: names and numbers only. A number comes from a credential, never from a request.
 *
 * Number 0 is "default": the daemon's own user. Other users get one number each, TCP on loopback
 * (where nobody can be told apart) shares one. Members of a sharing group, which only an operator
 * makes, are one tenant with one number: they see each other's blocks and share one quota. Loop
 * thread only. */
#ifndef KVD_TENANT_H
#define KVD_TENANT_H

#include <stdint.h>
#include <sys/types.h>

#include <kvarn/status.h>

#include "server/core/quota.h"

enum { KVD_TENANT_DEFAULT = 0 };

struct kvd_tenants;

kvarn_status kvd_tenants_open(struct kvd_tenants **tenants, uid_t own_uid);
void kvd_tenants_close(struct kvd_tenants **tenants);

/* Before any number is asked for. QUOTA when there are too many groups; INVALID_SHAPE when one of
 * its members is in another one, or its name is a member's. */
kvarn_status kvd_tenants_share(struct kvd_tenants *tenants, const struct kvd_share *share);

/* Number of the tenant of this name, as a quota names it; QUOTA as below. */
kvarn_status kvd_tenants_of_name(struct kvd_tenants *tenants, const char *name, uint32_t *number);

/* Number of a user, made on first use; QUOTA when KVD_TENANTS_MAX are known. */
kvarn_status kvd_tenants_of_uid(struct kvd_tenants *tenants, uid_t uid, uint32_t *number);
kvarn_status kvd_tenants_of_loopback(struct kvd_tenants *tenants, uint32_t *number);

/* "default", "uid-1000", "tcp-loopback"; NULL for a number that was never given out. Valid until
 * close. */
const char *kvd_tenants_name(const struct kvd_tenants *tenants, uint32_t number);

#endif
