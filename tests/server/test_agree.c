/* Ranks of a group: one answer for all of them, whatever happens between their questions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { RANKS = 4, KEYS = 8 };

struct scene {
    struct rig rig;
    struct rig_space shards[RANKS];
    kvarn_key keys[KEYS];
};

static void open_shard(struct scene *s, uint32_t rank)
{
    struct kvw_open_space options = rig_space_options();

    options.kv_heads = 4;
    options.head_begin = rank;
    options.head_count = 1;
    s->shards[rank] = rig_open_space(&s->rig, &options);
}

static void put(struct scene *s, uint32_t rank, uint32_t first, uint32_t count)
{
    uint16_t *rows =
        rig_rows(&s->shards[rank], s->shards[rank].layers, count * s->shards[rank].group, rank);
    struct rig_call *call =
        rig_compress(&s->rig, &s->shards[rank], &s->keys[first], count, KVARN_BLOCK_TILE, rows);

    assert_int_equal(call->status, KVARN_OK);
    rig_free(call);
    free(rows);
}

static void open_scene(struct scene *s, uint32_t shards)
{
    rig_open(&s->rig, NULL);
    for (uint32_t i = 0; i < KEYS; i++)
        s->keys[i] = rig_key(i);
    for (uint32_t rank = 0; rank < shards; rank++) {
        open_shard(s, rank);
        put(s, rank, 0, KEYS - rank); /* the last rank has the shortest run */
    }
}

/* As the rank's own connection. */
static struct rig_call *ask(struct scene *s, uint32_t rank, uint64_t group, uint32_t ranks)
{
    struct kvw_blocks args = {
        .space = s->shards[rank].handle, .lease_ms = 1000, .group = group, .ranks = ranks};

    s->rig.conn_id = 10 + rank;
    return rig_blocks(&s->rig, KVW_LOOKUP, &args, s->keys, KEYS, NULL, 0);
}

static uint32_t matched(struct scene *s, uint32_t rank, uint64_t group)
{
    struct rig_call *call = ask(s, rank, group, RANKS);
    struct kvw_blocks_reply reply;

    if (call->status != KVARN_OK)
        fail_msg("%s", call->text);
    reply = rig_blocks_reply(call);
    assert_int_equal(reply.lease != 0, reply.matched > 0);
    assert_int_equal(reply.lease_ms, reply.matched ? 1000 : 0);
    rig_free(call);
    return reply.matched;
}

static void close_scene(struct scene *s)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        rig_hang_up(&s->rig, 10 + rank);
    assert_int_equal(s->rig.service->agreements.count, 0);
    assert_int_equal(s->rig.service->leases.count, 0);
    rig_close(&s->rig);
}

static void all_get_one_answer(void **state)
{
    struct scene s;
    struct kvw_blocks drop;

    (void)state;
    open_scene(&s, RANKS);
    assert_int_equal(matched(&s, 1, 7), KEYS - 3);
    /* Between the questions one shard loses blocks of the run and another one gets more: both the
     * answer and the bytes stay. */
    drop = (struct kvw_blocks){.space = s.shards[2].handle};
    rig_free(rig_blocks(&s.rig, KVW_DROP, &drop, s.keys, 2, NULL, 0));
    put(&s, 3, KEYS - 3, 3);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != 1)
            assert_int_equal(matched(&s, rank, 7), KEYS - 3);
    assert_int_equal(s.rig.service->agreements.count, 0);
    assert_int_equal(s.rig.service->leases.count, RANKS); /* each of its own connection */
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        rig_hang_up(&s.rig, 10 + rank);
        assert_int_equal(s.rig.service->leases.count, RANKS - rank - 1);
    }
    assert_int_equal(matched(&s, 0, 8), 0); /* a new question, a new answer */
    close_scene(&s);
}

static void a_missing_shard_is_a_miss_for_all(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, RANKS - 1);
    assert_int_equal(matched(&s, 0, 7), 0);
    open_shard(&s, RANKS - 1); /* too late for this question */
    put(&s, RANKS - 1, 0, KEYS);
    for (uint32_t rank = 1; rank < RANKS; rank++)
        assert_int_equal(matched(&s, rank, 7), 0);
    assert_int_equal(s.rig.service->agreements.count, 0);
    assert_int_equal(matched(&s, 0, 8), KEYS - 2);
    close_scene(&s);
}

static void what_cannot_be_agreed_is_said(void **state)
{
    struct scene s;
    kvarn_key kept;
    struct rig_call *call;

    (void)state;
    open_scene(&s, RANKS);
    assert_int_equal(ask(&s, 0, 7, 0)->status, KVARN_INVALID_SHAPE);
    assert_int_equal(ask(&s, 0, 7, KVD_RANKS_MAX + 1)->status, KVARN_INVALID_SHAPE);
    assert_int_equal(matched(&s, 0, 7), KEYS - 3);
    call = ask(&s, 0, 7, RANKS);
    assert_int_equal(call->status, KVARN_STALE);
    assert_non_null(strstr(call->text, "had its answer"));
    assert_int_equal(ask(&s, 1, 7, RANKS - 1)->status, KVARN_INVALID_SHAPE);
    kept = s.keys[5];
    s.keys[5] = rig_key(99);
    assert_int_equal(ask(&s, 1, 7, RANKS)->status, KVARN_INVALID_SHAPE);
    s.keys[5] = kept;
    assert_int_equal(matched(&s, 1, 7), KEYS - 3);
    s.rig.now_ns += 1000 * 1000000ull; /* the rest is held no longer */
    kvd_leases_expire(&s.rig.service->leases, s.rig.now_ns);
    assert_int_equal(ask(&s, 2, 7, RANKS)->status, KVARN_LEASE_EXPIRED);
    kvd_service_tick(s.rig.service);
    assert_int_equal(s.rig.service->agreements.count, 0);
    /* without room for all leases nobody gets one */
    s.rig.service->leases.max = s.rig.service->leases.high = 2;
    s.rig.service->leases.free = 0;
    assert_int_equal(ask(&s, 0, 9, RANKS)->status, KVARN_RETRY);
    assert_int_equal(s.rig.service->leases.count, 0);
    assert_int_equal(s.rig.service->agreements.count, 0);
    close_scene(&s);
}

/* Who asked first goes: what waited for the others comes back at once. */
static void the_first_ones_end_ends_it(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, RANKS);
    assert_int_equal(matched(&s, 0, 7), KEYS - 3);
    assert_int_equal(matched(&s, 1, 7), KEYS - 3);
    assert_int_equal(s.rig.service->leases.count, RANKS);
    rig_hang_up(&s.rig, 10);
    assert_int_equal(s.rig.service->leases.count, 1); /* that of rank 1 */
    assert_int_equal(s.rig.service->agreements.count, 0);
    close_scene(&s);
}

static void agreements_are_bounded(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, RANKS);
    for (uint32_t group = 1; group <= KVD_AGREEMENTS_MAX; group++)
        rig_free(ask(&s, 0, group, RANKS));
    assert_int_equal(s.rig.service->agreements.count, KVD_AGREEMENTS_MAX);
    assert_int_equal(ask(&s, 0, KVD_AGREEMENTS_MAX + 1, RANKS)->status, KVARN_RETRY);
    assert_int_equal(matched(&s, 1, 3), KEYS - 3);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_get_one_answer),
        cmocka_unit_test(a_missing_shard_is_a_miss_for_all),
        cmocka_unit_test(what_cannot_be_agreed_is_said),
        cmocka_unit_test(the_first_ones_end_ends_it),
        cmocka_unit_test(agreements_are_bounded),
    };

    return cmocka_run_group_tests_name("agree", tests, NULL, NULL);
}
