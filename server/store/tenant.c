/* A flat table: there are few tenants and a connection looks its own up once. */
#include "server/store/tenant.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/limits.h"

static const char default_name[] = "default", loopback_name[] = "tcp-loopback";

struct kvd_tenants {
    uid_t own_uid;
    uint32_t count;
    char names[KVD_TENANTS_MAX][KVD_TENANT_NAME_MAX];
    struct kvd_share shares[KVD_SHARES_MAX];
    uint32_t share_count;
};

kvarn_status kvd_tenants_open(struct kvd_tenants **tenants, uid_t own_uid)
{
    struct kvd_tenants *made = calloc(1, sizeof *made);

    *tenants = made;
    if (made == NULL)
        return KVARN_NO_SPACE;
    made->own_uid = own_uid;
    memcpy(made->names[KVD_TENANT_DEFAULT], default_name, sizeof default_name);
    made->count = 1;
    return KVARN_OK;
}

void kvd_tenants_close(struct kvd_tenants **tenants)
{
    free(*tenants);
    *tenants = NULL;
}

/* The group that a name is a member of, or the name itself. */
static const char *group_of(const struct kvd_tenants *tenants, const char *name)
{
    for (uint32_t i = 0; i < tenants->share_count; i++)
        for (uint32_t j = 0; j < tenants->shares[i].count; j++)
            if (strcmp(tenants->shares[i].members[j], name) == 0)
                return tenants->shares[i].name;
    return name;
}

kvarn_status kvd_tenants_share(struct kvd_tenants *tenants, const struct kvd_share *share)
{
    if (tenants->share_count == KVD_SHARES_MAX)
        return KVARN_QUOTA;
    if (group_of(tenants, share->name) != share->name)
        return KVARN_INVALID_SHAPE;
    for (uint32_t i = 0; i < share->count; i++)
        if (group_of(tenants, share->members[i]) != share->members[i])
            return KVARN_INVALID_SHAPE;
    for (uint32_t i = 0; i < tenants->share_count; i++)
        for (uint32_t j = 0; j < share->count; j++)
            if (strcmp(tenants->shares[i].name, share->members[j]) == 0)
                return KVARN_INVALID_SHAPE;
    tenants->shares[tenants->share_count++] = *share;
    return KVARN_OK;
}

static kvarn_status find_or_make(struct kvd_tenants *tenants, const char *name, uint32_t *number)
{
    name = group_of(tenants, name);
    for (uint32_t i = 0; i < tenants->count; i++) {
        if (strcmp(tenants->names[i], name) == 0) {
            *number = i;
            return KVARN_OK;
        }
    }
    if (tenants->count == KVD_TENANTS_MAX)
        return KVARN_QUOTA;
    assert(strlen(name) < KVD_TENANT_NAME_MAX);
    snprintf(tenants->names[tenants->count], KVD_TENANT_NAME_MAX, "%s", name);
    *number = tenants->count++;
    return KVARN_OK;
}

kvarn_status kvd_tenants_of_uid(struct kvd_tenants *tenants, uid_t uid, uint32_t *number)
{
    char name[KVD_TENANT_NAME_MAX];

    if (uid == tenants->own_uid)
        return find_or_make(tenants, default_name, number);
    snprintf(name, sizeof name, "uid-%lu", (unsigned long)uid);
    return find_or_make(tenants, name, number);
}

kvarn_status kvd_tenants_of_name(struct kvd_tenants *tenants, const char *name, uint32_t *number)
{
    return find_or_make(tenants, name, number);
}

kvarn_status kvd_tenants_of_loopback(struct kvd_tenants *tenants, uint32_t *number)
{
    return find_or_make(tenants, loopback_name, number);
}

const char *kvd_tenants_name(const struct kvd_tenants *tenants, uint32_t number)
{
    return number < tenants->count ? tenants->names[number] : NULL;
}
