/* A space: one model's cache geometry inside one tenant, for one shard, with its index of blocks.
 *
 * A space lives in one pool, chosen when it is made: that of the device it is asked for by name,
 * else the emptiest of those that are preferred and large enough, else the emptiest of the others.
 * The same tenant, fingerprint and shard always give the same space, wherever it lives. Spaces stay
 * open; when the table is full, one that holds nothing (no block, sequence or request) is given up,
 * and its handle is stale. Handles carry a generation that begins at a random number, so that a
 * handle of an earlier daemon names nothing. Loop thread only. */
#ifndef KVD_SPACE_H
#define KVD_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

#include "kernels/kernels.h"
#include "proto/codec.h"
#include "server/core/limits.h"
#include "server/store/epochs.h"
#include "server/store/evict.h"
#include "server/store/index.h"

struct kvd_blocks;
struct kvd_pool;

enum { KVD_SPACE_NAME_MAX = 128 };

struct kvd_space {
    bool used;
    uint64_t handle;
    uint32_t slot, tenant;
    uint32_t device; /* whose pool holds it */
    struct kvd_pool *pool;
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint8_t base[KVARN_FINGERPRINT_BYTES]; /* the fingerprint of epoch 0 */
    uint32_t epoch;                        /* how often the model was reset */
    bool reset;                            /* was of an epoch before; what it holds goes */
    char model[KVD_SPACE_NAME_MAX];
    const kvarn_preset *preset;
    struct kvk_shape shape;
    uint32_t model_layers, model_heads;
    uint32_t layer_begin, layers, head_begin, heads; /* the shard; layers, heads count in it */
    uint32_t sink_tokens;
    uint64_t record_bytes, tile_bytes, exact_bytes;
    struct kvd_index index;
    /* what it holds */
    uint64_t tile_blocks, exact_blocks; /* slots taken */
    uint64_t sequences;
    uint32_t pins; /* requests that work on it */
    /* counters */
    uint64_t hits, misses, stored, existed;
};

struct kvd_space_pool {
    const char *name; /* "cuda:0", "host"; outlives the spaces */
    struct kvd_pool *pool;
    bool preferred; /* a GPU's */
};

struct kvd_spaces {
    struct kvd_space slots[KVD_SPACES_MAX];
    struct kvd_blocks *blocks;
    uint64_t secret[2];
    struct kvd_space_pool pools[KVD_DEVICES_MAX];
    uint32_t pool_count;
    uint32_t generation;
    struct kvd_epochs *epochs; /* the disk's, or its own */
    struct kvd_epochs own_epochs;
    const char *(*tenant_name)(void *context, uint32_t tenant); /* in epochs; NULL: its number */
    void *name_context;
};

void kvd_spaces_init(struct kvd_spaces *spaces, struct kvd_blocks *blocks, const uint64_t secret[2],
                     const struct kvd_space_pool *pools, uint32_t pool_count);
void kvd_spaces_free(struct kvd_spaces *spaces);
/* Before a space is opened: epochs are kept in this table, of tenants with these names. */
void kvd_spaces_keep_epochs(struct kvd_spaces *spaces, struct kvd_epochs *epochs,
                            const char *(*tenant_name)(void *context, uint32_t tenant),
                            void *context);
/* Has anybody a space of the model with this fingerprint of epoch 0? One that was reset counts as
 * long as it holds something. */
bool kvd_spaces_hold(const struct kvd_spaces *spaces, const uint8_t base[KVARN_FINGERPRINT_BYTES]);

/* Checks everything, then finds or makes the space. On failure text (at least 256 bytes) says what
 * was wrong. UNSUPPORTED, INVALID_SHAPE, TOO_LARGE, RETRY (table full), INTERNAL. */
kvarn_status kvd_space_open(struct kvd_spaces *spaces, uint32_t tenant,
                            const struct kvw_open_space *options, struct kvd_space **space,
                            char *text, size_t text_room);

/* NULL when the handle names nothing of this tenant. */
struct kvd_space *kvd_space_find(struct kvd_spaces *spaces, uint32_t tenant, uint64_t handle);
/* Did the handle name a space of this tenant that was reset since? */
bool kvd_space_was_reset(const struct kvd_spaces *spaces, uint32_t tenant, uint64_t handle);

/* The weights changed: the model's next spaces have another fingerprint, and those of all its
 * shards in this tenant are reset; their handles are stale. Their blocks are for the caller to
 * drop. NO_SPACE, and nothing was done, when the table of epochs is full. */
kvarn_status kvd_space_reset(struct kvd_spaces *spaces, const struct kvd_space *space);

/* Of any tenant: for the daemon's own user, who sees them all in LIST. */
struct kvd_space *kvd_space_find_any(struct kvd_spaces *spaces, uint64_t handle);

/* Tenant and pool as one number, for eviction. */
static inline uint32_t kvd_owner_of(uint32_t tenant, uint32_t device)
{
    return tenant * KVD_DEVICES_MAX + device;
}
static inline uint32_t kvd_space_owner(const struct kvd_space *space)
{
    return kvd_owner_of(space->tenant, space->device);
}

static inline uint32_t kvd_space_list(const struct kvd_space *space, uint32_t kind)
{
    return space->slot * 2 + kind - 1;
}

static inline uint64_t kvd_space_slot_bytes(const struct kvd_space *space, uint32_t kind)
{
    return kind == KVARN_BLOCK_TILE ? space->tile_bytes : space->exact_bytes;
}

/* Bytes of one K or V row. */
static inline uint64_t kvd_space_row_bytes(const struct kvd_space *space)
{
    return (uint64_t)space->shape.dim * kvarn_dtype_bytes((kvarn_dtype)space->shape.dtype);
}

#endif
