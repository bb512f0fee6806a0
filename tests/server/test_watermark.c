/* store/watermark: starts at the high mark, ends at the low one, in steps, each tenant by itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/watermark.h"
#include "support/store_rig.h"

static struct store_rig rig;
static struct kvd_watermark marks;

static uint32_t step(void)
{
    return kvd_watermark_step(&marks, &rig.blocks, rig.pool, 0);
}

static void blocks_go_between_the_marks(void **state)
{
    struct kvd_space *a, *b;
    struct kvd_block *held;
    kvarn_key key;
    uint64_t most;
    uint32_t count = 0, gone, steps = 0, all = 0;

    (void)state;
    memset(&marks, 0, sizeof marks);
    store_open_policy(&rig, 16 << 20, KVD_EVICT_LRU);
    a = store_space(&rig, 0, "a");
    b = store_space(&rig, 1, "a");
    assert_int_equal(kvd_pool_quota(rig.pool, 1, 4 << 20, UINT64_MAX), KVARN_OK);
    assert_int_equal(kvd_pool_tenant_most_bytes(rig.pool, 0), 12 << 20);
    assert_int_equal(kvd_pool_tenant_most_bytes(rig.pool, 1), 16 << 20);
    most = 12 << 20;
    for (uint32_t i = 0; i < 50; i++)
        store_block(&rig, b, i, KVARN_BLOCK_TILE);
    while (kvd_pool_tenant_used_bytes(rig.pool, 0) <= most / 100 * 80)
        store_block(&rig, a, count++, KVARN_BLOCK_TILE);
    assert_int_equal(step(), 0); /* no marks */
    marks.high = 80;
    marks.low = 60;
    key = store_key(0); /* the oldest one is in use */
    held = kvd_block_find(&rig.blocks, a, &key);
    kvd_block_hold(&rig.blocks, held);
    while ((gone = step()) > 0) {
        assert_true(gone <= 64);
        all += gone;
        steps++;
    }
    assert_true(steps > 3);
    assert_int_equal(rig.blocks.evictions, all);
    assert_true(kvd_pool_tenant_used_bytes(rig.pool, 0) <= most / 100 * 60);
    assert_true(kvd_pool_tenant_used_bytes(rig.pool, 0) > most / 100 * 59);
    assert_ptr_equal(kvd_block_find(&rig.blocks, a, &key), held);
    key = store_key(count - 1);
    assert_non_null(kvd_block_find(&rig.blocks, a, &key)); /* the oldest went first */
    for (uint32_t i = 0; i < 50; i++) {                    /* the other tenant's stay */
        key = store_key(i);
        assert_non_null(kvd_block_find(&rig.blocks, b, &key));
    }
    while (kvd_pool_tenant_used_bytes(rig.pool, 0) < most / 100 * 79)
        store_block(&rig, a, count++, KVARN_BLOCK_TILE);
    assert_int_equal(step(), 0); /* between the marks, on the way up */
    kvd_block_release(&rig.blocks, held);
    store_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_go_between_the_marks)};

    return cmocka_run_group_tests_name("watermark", tests, NULL, NULL);
}
