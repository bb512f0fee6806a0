/* rpc/items: what a block table must look like, what is found and counted, and what the reply says
 * when some of it failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/rpc/items.h"
#include "support/rpc_rig.h"

static struct rig rig;
static struct rig_space space;

static int setup(void **state)
{
    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

static void store(uint32_t first, uint32_t count)
{
    uint16_t *rows = rig_rows(&space, space.layers, count * space.group, first);
    kvarn_key keys[8];

    for (uint32_t i = 0; i < count; i++)
        keys[i] = rig_key(first + i);
    assert_int_equal(rig_compress(&rig, &space, keys, count, KVARN_BLOCK_TILE, rows)->status,
                     KVARN_OK);
    free(rows);
}

/* DROP takes keys and nothing else. `count` is announced, `bytes` are sent. */
static struct rig_call *drop(uint64_t handle, uint32_t count, const void *keys, uint64_t bytes)
{
    struct kvw_blocks args = {.space = handle, .block_count = count};
    uint8_t meta[128];

    return rig_call(&rig, KVW_DROP, meta, kvw_blocks_encode(meta, sizeof meta, &args), keys, bytes);
}

static void refuses(const struct rig_call *call, kvarn_status status, const char *says)
{
    if (call->status != status || strstr(call->text, says) == NULL)
        fail_msg("%d: %s", (int)call->status, call->text);
    assert_int_equal(call->payload_bytes, 0);
}

static void tables_must_fit_their_payload(void **state)
{
    static kvarn_key keys[KVW_BLOCKS_MAX + 1];

    (void)state;
    refuses(drop(space.handle, 2, keys, 2 * sizeof *keys - 1), KVARN_INVALID_SHAPE,
            "2 rows of 32 bytes are announced, the payload has 63");
    refuses(drop(space.handle, 2, keys, 2 * sizeof *keys + 1), KVARN_INVALID_SHAPE, "has 65");
    refuses(drop(space.handle, 0, keys, 0), KVARN_INVALID_SHAPE, "block_count = 0; must be 1 to");
    refuses(drop(space.handle, KVW_BLOCKS_MAX + 1, keys, sizeof keys), KVARN_INVALID_SHAPE,
            "block_count = ");
    refuses(drop(space.handle, UINT32_MAX, keys, 32), KVARN_INVALID_SHAPE, "block_count");
    refuses(drop(space.handle + 1, 1, keys, 32), KVARN_NOT_FOUND, "no such space");
    rig.tenant = 1; /* another's space is no space */
    refuses(drop(space.handle, 1, keys, 32), KVARN_NOT_FOUND, "no such space");
    rig.tenant = 0;
    refuses(rig_call(&rig, KVW_DROP, (const uint8_t *)"\xff\xff", 2, keys, 32), KVARN_BAD_FRAME,
            "metadata: ");
    for (size_t i = 0; i < KVW_BLOCKS_MAX; i++) /* as many as a table may have */
        keys[i] = rig_key((uint32_t)i);
    assert_int_equal(
        drop(space.handle, KVW_BLOCKS_MAX, keys, KVW_BLOCKS_MAX * sizeof *keys)->payload_bytes,
        (uint64_t)KVW_BLOCKS_MAX * KVW_BLOCK_STATUS_BYTES);
}

static void keys_are_named_by_their_head(void **state)
{
    const uint8_t key[KVARN_KEY_BYTES] = {0x00, 0x01, 0x0a, 0xff, 0x80, 0x7f, 0xab, 0xcd, 0xef};

    (void)state;
    assert_string_equal(kvd_key_text(key).text, "00010aff807fabcd...");
}

static void finding_counts_hits_and_misses(void **state)
{
    struct kvw_blocks args = {.space = space.handle};
    kvarn_key keys[5] = {rig_key(1), rig_key(9), rig_key(2), rig_key(1), rig_key(8)};
    const struct kvd_space *at = &rig.service->spaces.slots[0];
    struct rig_call *call;

    (void)state;
    store(1, 2);
    call = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 5, NULL, 0);
    assert_int_equal(at->hits, 3);
    assert_int_equal(at->misses, 2);
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 0).kind, KVARN_BLOCK_TILE);
    assert_int_not_equal(rig_block(call, 0).digest, 0);
    assert_int_equal(rig_block(call, 1).status, KVARN_NOT_FOUND);
    assert_int_equal(rig_block(call, 1).kind, 0); /* nothing is said of what is not there */
    assert_int_equal(rig_block(call, 1).digest, 0);
    assert_int_equal(rig_block(call, 3).digest, rig_block(call, 0).digest);
    assert_int_equal(rig.service->evict.listed, 2); /* every reference is given back */
}

/* The status is that of the first block that failed; the text names it. */
static void the_first_failure_is_named(void **state)
{
    kvarn_key keys[4] = {rig_key(1), rig_key(9), rig_key(2), rig_key(8)};
    struct rig_call *call;
    char says[64];

    (void)state;
    store(1, 2);
    call = drop(space.handle, 4, keys, sizeof keys);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    snprintf(says, sizeof says, "block 1 (key %s) is not stored", kvd_key_text(&keys[1]).text);
    assert_string_equal(call->text, says);
    assert_int_equal(rig_blocks_reply(call).matched, 2);
    assert_int_equal(rig_blocks_reply(call).block_count, 4);
    assert_int_equal(rig_block(call, 2).status, KVARN_OK); /* the others are done all the same */
    assert_int_equal(rig.service->blocks.live, 0);
}

/* What the worker found wrong is told of the block it was found in, and of no other. */
static void statuses_and_texts_belong_together(void **state)
{
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    uint16_t *rows = rig_rows(&space, space.layers, 2 * space.group, 3);
    struct rig_call *call;

    (void)state;
    rows[5 * space.heads * space.dim + 3] = 0x7c00; /* K, layer 0, block 0, token 5, channel 3 */
    call = rig_compress(&rig, &space, keys, 2, KVARN_BLOCK_EXACT, rows);
    assert_int_equal(call->status, KVARN_NON_FINITE);
    assert_non_null(strstr(call->text, "block 0"));
    assert_non_null(strstr(call->text, "tensor k"));
    assert_non_null(strstr(call->text, "layer 0, kv head 0, token 5, channel 3"));
    assert_int_equal(rig_block(call, 1).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).kind, KVARN_BLOCK_EXACT);
    assert_int_equal(rig_block(call, 0).digest, 0);
    assert_int_equal(rig_blocks_reply(call).matched, 1);
    free(rows);
}

static void stored_and_existing_are_counted(void **state)
{
    const struct kvd_space *at = &rig.service->spaces.slots[0];

    (void)state;
    store(1, 3);
    assert_int_equal(at->stored, 3);
    assert_int_equal(at->existed, 0);
    store(2, 4);
    assert_int_equal(at->stored, 5);
    assert_int_equal(at->existed, 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tables_must_fit_their_payload),      cmocka_unit_test(keys_are_named_by_their_head),
        TEST(finding_counts_hits_and_misses),     TEST(the_first_failure_is_named),
        TEST(statuses_and_texts_belong_together), TEST(stored_and_existing_are_counted),
    };
    return cmocka_run_group_tests_name("items", tests, NULL, NULL);
}
