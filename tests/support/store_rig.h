/* Pool, eviction list, blocks and spaces without a service, for tests of the store. */
#ifndef TEST_STORE_RIG_H
#define TEST_STORE_RIG_H

#include "server/store/block.h"
#include "server/store/evict.h"
#include "server/store/pool.h"
#include "server/store/space.h"

struct store_rig {
    struct kvd_pool *pool;
    struct kvd_evict evict;
    struct kvd_blocks blocks;
    struct kvd_spaces spaces;
    uint32_t settled;
};

void store_open(struct store_rig *rig, uint64_t pool_bytes);
void store_open_policy(struct store_rig *rig, uint64_t pool_bytes, enum kvd_evict_policy policy);
void store_close(struct store_rig *rig);   /* asserts that nothing is left in the pool */
struct kvw_open_space store_options(void); /* 2 layers, 2 kv heads, 64 wide, k2v2_g64 */
struct kvd_space *store_space(struct store_rig *rig, uint32_t tenant, const char *model);
kvarn_key store_key(uint32_t number);
/* A READY block under the key, without references. */
struct kvd_block *store_block(struct store_rig *rig, struct kvd_space *space, uint32_t key,
                              uint32_t kind);
/* Drops every indexed block. */
void store_drop_all(struct store_rig *rig);

#endif
