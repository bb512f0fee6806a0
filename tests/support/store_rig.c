/* See store_rig.h. */
#include "support/store_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "support/rng.h"

static void no_wipe(void *context, uint64_t offset, uint64_t bytes)
{
    (void)context;
    (void)offset;
    (void)bytes;
}

static void settled(void *context)
{
    ((struct store_rig *)context)->settled++;
}

void store_open_policy(struct store_rig *rig, uint64_t pool_bytes, enum kvd_evict_policy policy)
{
    const uint64_t secret[2] = {11, 22};

    memset(rig, 0, sizeof *rig);
    assert_int_equal(kvd_pool_open(&rig->pool, pool_bytes, 0, no_wipe, NULL), KVARN_OK);
    kvd_evict_init(&rig->evict, policy, secret);
    kvd_blocks_init(&rig->blocks, &rig->evict);
    rig->blocks.settled = settled;
    rig->blocks.settled_context = rig;
    kvd_spaces_init(&rig->spaces, &rig->blocks, secret,
                    &(struct kvd_space_pool){"host", rig->pool, false}, 1);
}

void store_open(struct store_rig *rig, uint64_t pool_bytes)
{
    store_open_policy(rig, pool_bytes, KVD_EVICT_S3FIFO);
}

void store_drop_all(struct store_rig *rig)
{
    struct kvd_block *block;

    for (uint32_t i = 0; (block = kvd_block_at(&rig->blocks, i)) != NULL; i++)
        if (block->state != KVD_BLOCK_FREE && block->indexed)
            kvd_block_drop(&rig->blocks, block);
}

void store_close(struct store_rig *rig)
{
    store_drop_all(rig);
    assert_int_equal(rig->blocks.live, 0);
    assert_int_equal(rig->evict.listed, 0);
    assert_int_equal(kvd_pool_used_bytes(rig->pool), 0);
    assert_int_equal(kvd_pool_reserved_bytes(rig->pool), 0);
    kvd_spaces_free(&rig->spaces);
    kvd_blocks_free(&rig->blocks);
    kvd_evict_free(&rig->evict);
    kvd_pool_close(&rig->pool);
}

struct kvw_open_space store_options(void)
{
    return (struct kvw_open_space){.model = "test/model",
                                   .revision = "r1",
                                   .adapter = "",
                                   .rope = "theta=10000",
                                   .preset = "kvarn_k2v2_g64",
                                   .key_algorithm = "",
                                   .layers = 2,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .dtype = KVARN_F16};
}

struct kvd_space *store_space(struct store_rig *rig, uint32_t tenant, const char *model)
{
    struct kvw_open_space options = store_options();
    struct kvd_space *space = NULL;
    char text[512];

    options.model = model;
    assert_int_equal(kvd_space_open(&rig->spaces, tenant, &options, &space, text, sizeof text),
                     KVARN_OK);
    return space;
}

kvarn_key store_key(uint32_t number)
{
    struct rng rng = rng_make(number + 1000);
    kvarn_key key;

    for (size_t i = 0; i < sizeof key.bytes; i++)
        key.bytes[i] = (uint8_t)rng_below(&rng, 256);
    return key;
}

struct kvd_block *store_block(struct store_rig *rig, struct kvd_space *space, uint32_t number,
                              uint32_t kind)
{
    kvarn_key key = store_key(number);
    struct kvd_block *block;

    assert_int_equal(kvd_block_claim(&rig->blocks, space, &key, kind, &block), KVARN_OK);
    kvd_block_publish(&rig->blocks, block, number);
    kvd_block_release(&rig->blocks, block);
    return block;
}
