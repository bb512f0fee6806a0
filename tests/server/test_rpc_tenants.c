/* Tenants beside each other: nobody finds, evicts or starves what another one has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/pool.h"
#include "support/rpc_rig.h"

static struct kvd_quota quota_of(const char *text)
{
    struct kvd_quota quota;
    const char *why = "";

    if (!kvd_quota_parse(text, &quota, &why))
        fail_msg("%s", why);
    return quota;
}

static kvarn_status put(struct rig *rig, const struct rig_space *space, uint32_t number)
{
    uint16_t *rows = rig_rows(space, space->layers, space->group, number);
    kvarn_key key = rig_key(number);
    struct rig_call *call = rig_compress(rig, space, &key, 1, KVARN_BLOCK_EXACT, rows);
    kvarn_status status = call->status;

    if (status != KVARN_OK && status != KVARN_EXISTS)
        assert_true(strlen(call->text) > 20);
    rig_free(call);
    free(rows);
    return status;
}

static uint32_t found(struct rig *rig, const struct rig_space *space, uint32_t first,
                      uint32_t count, uint32_t lease_ms)
{
    struct kvw_blocks args = {.space = space->handle, .lease_ms = lease_ms};
    kvarn_key keys[64];
    struct rig_call *call;
    uint32_t matched;

    assert_true(count <= 64);
    for (uint32_t i = 0; i < count; i++)
        keys[i] = rig_key(first + i);
    call = rig_blocks(rig, KVW_LOOKUP, &args, keys, count, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    matched = rig_blocks_reply(call).matched;
    rig_free(call);
    return matched;
}

/* The same model and the same keys: another tenant's blocks are not there. */
static void what_others_have_is_not_there(void **state)
{
    struct rig rig;
    struct rig_space mine, theirs;

    (void)state;
    rig_open(&rig, NULL);
    mine = rig_open_space(&rig, NULL);
    assert_int_equal(put(&rig, &mine, 1), KVARN_OK);
    rig.tenant = 1;
    theirs = rig_open_space(&rig, NULL);
    assert_int_equal(found(&rig, &theirs, 1, 1, 0), 0);
    assert_int_equal(put(&rig, &theirs, 1), KVARN_OK); /* not EXISTS */
    rig_close(&rig);
}

/* A floods: it evicts its own alone, ends at its maximum, and B still gets what it is guaranteed.
 */
static void a_flood_stays_in_its_share(void **state)
{
    const struct kvd_quota quotas[2] = {quota_of("a host=..1MiB"),
                                        quota_of("b host=512KiB.. requests=100")};
    struct rig_options options = {.pool_bytes = 2 << 20, .quotas = quotas, .quota_count = 2};
    struct rig rig;
    struct rig_space a, b;
    uint32_t stored = 0, leased = 0;
    kvarn_status status = KVARN_OK;

    (void)state;
    rig_open(&rig, &options);
    a = rig_open_space(&rig, NULL);
    rig.tenant = 1;
    b = rig_open_space(&rig, NULL);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(put(&rig, &b, 1000 + i), KVARN_OK);
    rig.tenant = 0;
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(put(&rig, &a, i), KVARN_OK);
    assert_true(rig.service->blocks.evictions > 50);
    assert_true(kvd_pool_tenant_bytes(rig.service->devices[0].pool, 0) <= 1 << 20);
    for (uint32_t i = 0; i < 100; i++) /* leased, nothing of it can go */
        leased += found(&rig, &a, i, 1, 60000);
    assert_true(leased > 4);
    for (uint32_t i = 0; i < 40 && status == KVARN_OK; i++)
        status = put(&rig, &a, 200 + i);
    assert_int_equal(status, KVARN_QUOTA);
    rig.tenant = 1;
    assert_int_equal(found(&rig, &b, 1000, 4, 0), 4);
    while (stored < 64 && kvd_pool_tenant_bytes(rig.service->devices[0].pool, 1) < 512 << 10)
        assert_int_equal(put(&rig, &b, 2000 + stored++), KVARN_OK);
    assert_int_equal(kvd_pool_tenant_bytes(rig.service->devices[0].pool, 1), 512 << 10);
    rig_hang_up(&rig, rig.conn_id);
    rig_close(&rig);
}

static void what_is_counted_has_an_end(void **state)
{
    const struct kvd_quota quotas[1] = {
        quota_of("a requests=2 spaces=1 sequences=2 leases=2 leased-blocks=3")};
    struct rig_options options = {.quotas = quotas, .quota_count = 1};
    struct kvw_open_space other = rig_space_options();
    struct kvw_blocks args;
    struct kvw_sequences open;
    struct rig rig;
    struct rig_space space;
    struct rig_call *calls[3];
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    uint16_t *rows;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    other.model = "other";
    calls[0] = rig_open_space_call(&rig, &other);
    assert_int_equal(calls[0]->status, KVARN_QUOTA);
    rig.tenant = 1; /* without a quota */
    calls[0] = rig_open_space_call(&rig, &other);
    assert_int_equal(calls[0]->status, KVARN_OK);
    rig.tenant = 0;
    for (uint32_t i = 1; i <= 2; i++)
        assert_int_equal(put(&rig, &space, i), KVARN_OK);
    args = (struct kvw_blocks){.space = space.handle, .lease_ms = 60000};
    calls[0] = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 2, NULL, 0);
    assert_int_equal(calls[0]->status, KVARN_OK);
    calls[1] = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 2, NULL, 0); /* a fourth block */
    assert_int_equal(calls[1]->status, KVARN_QUOTA);
    assert_non_null(strstr(calls[1]->text, "to this tenant"));
    assert_true(calls[1]->retry_after_us > 0);
    assert_int_equal(found(&rig, &space, 1, 1, 60000), 1);
    calls[1] = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 1, NULL, 0); /* a third lease */
    assert_int_equal(calls[1]->status, KVARN_QUOTA);
    for (int i = 0; i < 2; i++)
        assert_int_not_equal(rig_seq_open(&rig, &space, NULL, 0, NULL), 0);
    open = (struct kvw_sequences){.space = space.handle};
    calls[1] = rig_sequences(&rig, KVW_SEQ_OPEN, &open, NULL, 0, NULL, 0);
    assert_int_equal(calls[1]->status, KVARN_QUOTA);
    assert_int_equal(rig.service->counts.refusals, 4);
    /* two requests under way; a third is refused, one that gives back is not */
    rows = rig_rows(&space, space.layers, space.group, 9);
    for (uint32_t i = 0; i < 3; i++) {
        kvarn_key key = rig_key(10 + i);

        calls[i] = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    }
    assert_true(calls[2]->replied);
    assert_int_equal(calls[2]->status, KVARN_QUOTA);
    assert_false(calls[0]->replied);
    assert_true(rig_metric(&rig, "kvarn_quota_refusals_total") >= 5);
    rig_run(&rig);
    assert_int_equal(calls[0]->status, KVARN_OK);
    assert_int_equal(calls[1]->status, KVARN_OK);
    assert_int_equal(put(&rig, &space, 12), KVARN_OK);
    free(rows);
    rig_hang_up(&rig, rig.conn_id); /* everything comes back, counts with it */
    for (int counted = 0; counted < KVD_COUNTED_COUNT; counted++)
        assert_int_equal(rig.service->counts.used[0][counted], counted == KVD_COUNTED_SPACES);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_others_have_is_not_there),
        cmocka_unit_test(a_flood_stays_in_its_share),
        cmocka_unit_test(what_is_counted_has_an_end),
    };

    return cmocka_run_group_tests_name("rpc_tenants", tests, NULL, NULL);
}
