/* rpc/recheck: what a GPU's worker left behind is checked before it is served again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/pool.h"
#include "support/rpc_rig.h"

enum { G = 64 };

struct scene {
    struct rig rig;
    struct rig_space space;
    kvarn_key *keys;
    uint32_t count;
};

/* `count` blocks of one space on a GPU. */
static void open_scene_of(struct scene *scene, uint32_t count, uint32_t kind,
                          struct rig_options options)
{
    uint16_t *rows;

    options.gpu = true;
    rig_open(&scene->rig, &options);
    scene->space = rig_open_space(&scene->rig, NULL);
    scene->count = count;
    scene->keys = calloc(count + 1, sizeof *scene->keys);
    rows = rig_rows(&scene->space, scene->space.layers, G, 6);
    for (uint32_t i = 0; i < count; i++) {
        struct rig_call *call;

        scene->keys[i] = rig_key(i);
        call = rig_compress(&scene->rig, &scene->space, &scene->keys[i], 1, kind, rows);
        assert_int_equal(call->status, KVARN_OK);
        rig_free(call);
    }
    free(rows);
}

static void open_scene(struct scene *scene, uint32_t count)
{
    open_scene_of(scene, count, KVARN_BLOCK_TILE, (struct rig_options){0});
}

static void close_scene(struct scene *scene)
{
    free(scene->keys);
    rig_close(&scene->rig);
}

static uint8_t *bytes_of(struct scene *scene, uint32_t i)
{
    struct kvd_service *service = scene->rig.service;
    struct kvd_space *space =
        kvd_space_find(&service->spaces, scene->rig.tenant, scene->space.handle);
    struct kvd_block *block = kvd_index_find(&space->index, &scene->keys[i]);

    assert_non_null(block);
    return fake_device_memory(scene->rig.device) + block->offset;
}

static struct rig_call *get(struct scene *scene, uint32_t i)
{
    struct kvw_blocks args = {.space = scene->space.handle};

    return rig_blocks(&scene->rig, KVW_DECOMPRESS, &args, &scene->keys[i], 1, NULL, 0);
}

static kvarn_status status_of(struct rig_call *call)
{
    kvarn_status status = call->status;

    rig_free(call);
    return status;
}

static void nothing_is_served_before_all_is_checked(void **state)
{
    struct scene scene;
    struct kvw_blocks args = {0};
    struct rig_call *call;
    uint32_t ran;

    (void)state;
    open_scene(&scene, 3);
    args.space = scene.space.handle;
    bytes_of(&scene, 1)[9] ^= 4;
    ran = fake_device_ran(scene.rig.device, KVD_JOB_DIGEST);
    fake_device_restarted(scene.rig.device);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 0);
    call = rig_blocks_start(&scene.rig, KVW_DECOMPRESS, &args, &scene.keys[0], 1, NULL, 0);
    assert_true(call->replied);
    assert_int_equal(call->status, KVARN_RETRY);
    assert_int_equal(call->retry_after_us, KVD_RECHECK_RETRY_US);
    assert_non_null(strstr(call->text, "being verified"));
    rig_free(call);

    rig_run(&scene.rig);
    assert_int_equal(fake_device_ran(scene.rig.device, KVD_JOB_DIGEST), ran + 1);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 1);
    assert_int_equal(status_of(get(&scene, 0)), KVARN_OK);
    assert_int_equal(status_of(get(&scene, 1)), KVARN_NOT_FOUND);
    assert_int_equal(status_of(get(&scene, 2)), KVARN_OK);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), 1);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_blocks_lost_total{device=\"cuda:0\"}"),
                     1);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_integrity_failures_total"), 1);
    close_scene(&scene);
}

/* Jobs hold at most 1024 blocks of one space; these are 2500 of two spaces, of both kinds. */
static void many_blocks_of_two_spaces_are_all_looked_at(void **state)
{
    enum { BLOCKS = 1500 };
    struct kvw_open_space other = rig_space_options();
    struct scene scene;
    struct rig_space space;
    uint16_t *rows;
    uint32_t ran;

    (void)state;
    open_scene_of(&scene, BLOCKS, KVARN_BLOCK_EXACT, (struct rig_options){.pool_bytes = 192 << 20});
    other.model = "another";
    space = rig_open_space(&scene.rig, &other);
    rows = rig_rows(&space, space.layers, G, 8);
    for (uint32_t i = 0; i < 1000; i++) {
        kvarn_key key = rig_key(i);

        rig_free(rig_compress(&scene.rig, &space, &key, 1,
                              i % 10 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE, rows));
    }
    free(rows);
    for (uint32_t i = 0; i < BLOCKS; i += 100)
        bytes_of(&scene, i)[0] ^= 1;
    ran = fake_device_ran(scene.rig.device, KVD_JOB_DIGEST);
    fake_device_restarted(scene.rig.device);
    rig_run(&scene.rig);
    assert_int_equal(fake_device_ran(scene.rig.device, KVD_JOB_DIGEST), ran + 3);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), BLOCKS / 100);
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_int_equal(status_of(get(&scene, i)), i % 100 ? KVARN_OK : KVARN_NOT_FOUND);
    close_scene(&scene);
}

/* A sequence that holds a block which is in no index any more, and one whose key is dropped while
 * the check runs. */
static void blocks_that_only_a_sequence_holds_are_checked(void **state)
{
    struct scene scene;
    struct kvw_blocks args = {0};
    struct kvw_sequences attend = {.query = {.present = true, .q_heads = 2}};
    struct kvw_seq_row row = {.q_tokens = 1, .position = KVW_AT_END};
    struct rig_call *call;
    uint16_t q[128] = {0};
    uint8_t *at;

    (void)state;
    open_scene(&scene, 3);
    args.space = attend.space = scene.space.handle;
    row.sequence = rig_seq_open(&scene.rig, &scene.space, scene.keys, 2, NULL);
    at = bytes_of(&scene, 0);
    assert_int_equal(status_of(rig_blocks(&scene.rig, KVW_DROP, &args, &scene.keys[0], 1, NULL, 0)),
                     KVARN_OK);
    at[100] ^= 0x80;
    fake_device_restarted(scene.rig.device);
    assert_int_equal(
        status_of(rig_blocks_start(&scene.rig, KVW_DROP, &args, &scene.keys[2], 1, NULL, 0)),
        KVARN_OK);
    rig_run(&scene.rig);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), 1);
    call = rig_sequences(&scene.rig, KVW_SEQ_ATTEND, &attend, &row, 1, q, sizeof q);
    assert_int_equal(rig_seq(call, 0).status, KVARN_CORRUPT);
    rig_free(call);
    assert_int_equal(rig_seq_release(&scene.rig, &scene.space, row.sequence), KVARN_OK);
    close_scene(&scene);
}

/* Rows that were acknowledged stay; those in flight failed and may be written again. */
static void tails_are_kept(void **state)
{
    struct scene scene;
    uint64_t sequence;
    uint16_t *rows;

    (void)state;
    open_scene(&scene, 1);
    rows = rig_rows(&scene.space, scene.space.layers, 3, 11);
    sequence = rig_seq_open(&scene.rig, &scene.space, scene.keys, 1, NULL);
    assert_int_equal(rig_seq_append(&scene.rig, &scene.space, sequence, KVW_AT_END, 3, rows),
                     KVARN_OK);
    assert_int_equal(rig_seq_commit(&scene.rig, &scene.space, sequence, 2, NULL, 0).status,
                     KVARN_OK);
    fake_device_lose(scene.rig.device, 0);
    assert_int_equal(rig_seq_append(&scene.rig, &scene.space, sequence, G + 3, 3, rows),
                     KVARN_GPU_LOST);
    fake_device_restarted(scene.rig.device);
    rig_run(&scene.rig);
    assert_int_equal(rig_seq_commit(&scene.rig, &scene.space, sequence, 2, NULL, 0).status,
                     KVARN_INVALID_SHAPE); /* one acknowledged row is left */
    assert_int_equal(rig_seq_append(&scene.rig, &scene.space, sequence, G + 3, 3, rows), KVARN_OK);
    assert_int_equal(rig_seq_commit(&scene.rig, &scene.space, sequence, 4, NULL, 0).committed,
                     G + 6);
    assert_int_equal(rig_seq_release(&scene.rig, &scene.space, sequence), KVARN_OK);
    free(rows);
    close_scene(&scene);
}

/* Memory that ends whoever reads it costs the blocks around it, not the device. */
static void what_ends_one_worker_after_the_other_is_given_up(void **state)
{
    struct scene scene;
    uint64_t used;

    (void)state;
    open_scene(&scene, 40);
    used = kvd_pool_used_bytes(scene.rig.service->devices[0].pool);
    for (uint32_t life = 0; life < 3; life++) {
        fake_device_restarted(scene.rig.device);
        fake_device_lose(scene.rig.device, life > 0); /* all but the first survive a step */
        rig_run(&scene.rig);
        assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 0);
        assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), life == 2 ? 16 : 0);
    }
    fake_device_restarted(scene.rig.device);
    fake_device_lose(scene.rig.device, 1); /* now it is known that there is such memory */
    rig_run(&scene.rig);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), 24);
    fake_device_restarted(scene.rig.device);
    rig_run(&scene.rig);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 1);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(status_of(get(&scene, i)), i < 16 ? KVARN_OK : KVARN_NOT_FOUND);
    /* The slots stay taken: nobody is given them. */
    assert_int_equal(kvd_pool_used_bytes(scene.rig.service->devices[0].pool), used);
    for (uint32_t id = 16; id < 40; id++)
        kvd_block_release(&scene.rig.service->blocks, kvd_block_at(&scene.rig.service->blocks, id));
    close_scene(&scene);
}

/* A worker that lives and says that it is lost does not hold the check up: its blocks count as
 * wrong. */
static void a_worker_cannot_say_that_it_is_gone(void **state)
{
    struct scene scene;

    (void)state;
    open_scene(&scene, 3);
    fake_device_restarted(scene.rig.device);
    fake_device_claim(scene.rig.device, KVARN_GPU_LOST);
    rig_run(&scene.rig);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 1);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), 3);
    close_scene(&scene);
}

/* Workers that are killed at other blocks each time cost none. */
static void who_kills_workers_here_and_there_loses_nothing(void **state)
{
    static const uint32_t steps[] = {0, 0, 1, 0, 2, 1, 2};
    struct scene scene;

    (void)state;
    open_scene(&scene, 40);
    for (size_t life = 0; life < sizeof steps / sizeof steps[0]; life++) {
        fake_device_restarted(scene.rig.device);
        fake_device_lose(scene.rig.device, steps[life]);
        rig_run(&scene.rig);
        assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 0);
    }
    fake_device_restarted(scene.rig.device);
    rig_run(&scene.rig);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 1);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_blocks_lost_total"), 0);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(status_of(get(&scene, i)), KVARN_OK);
    close_scene(&scene);
}

static void a_check_waits_for_staging(void **state)
{
    struct scene scene;
    uint8_t *all;

    (void)state;
    open_scene(&scene, 2);
    all = kvd_staging_take(scene.rig.device, kvd_staging_free_bytes(scene.rig.device));
    assert_non_null(all);
    fake_device_restarted(scene.rig.device);
    assert_int_equal(fake_device_queued(scene.rig.device), 0);
    kvd_service_tick(scene.rig.service);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 0);
    kvd_staging_give(scene.rig.device, all);
    fake_device_full(scene.rig.device, 0, 1); /* nor is there a place in the ring */
    kvd_service_tick(scene.rig.service);
    assert_int_equal(fake_device_queued(scene.rig.device), 0);
    kvd_service_tick(scene.rig.service);
    rig_run(&scene.rig);
    assert_int_equal(rig_metric(&scene.rig, "kvarn_device_ready"), 1);
    assert_int_equal(status_of(get(&scene, 1)), KVARN_OK);
    close_scene(&scene);
}

/* Who is evicted next does not depend on a restart. */
static void the_order_of_eviction_stays(void **state)
{
    struct scene scene;
    const struct kvd_evict_order *order;
    struct kvd_evict *evict;
    uint32_t before[5], count = 0;

    (void)state;
    open_scene_of(&scene, 5, KVARN_BLOCK_TILE, (struct rig_options){.eviction = KVD_EVICT_LRU});
    assert_int_equal(status_of(get(&scene, 1)), KVARN_OK);
    evict = &scene.rig.service->evict;
    order = &evict
                 ->groups[evict->group_of[kvd_space_list(kvd_space_find(&scene.rig.service->spaces,
                                                                        scene.rig.tenant,
                                                                        scene.space.handle),
                                                         KVARN_BLOCK_TILE)] -
                          1]
                 .queues[KVD_QUEUE_MAIN];
    for (const struct kvd_block *at = order->oldest; at; at = at->newer)
        before[count++] = at->id;
    assert_int_equal(count, 5);
    assert_int_equal(before[4], 1);
    fake_device_restarted(scene.rig.device);
    rig_run(&scene.rig);
    count = 0;
    for (const struct kvd_block *at = order->oldest; at; at = at->newer)
        assert_int_equal(at->id, before[count++]);
    assert_int_equal(count, 5);
    close_scene(&scene);
}

static void a_host_pool_is_not_checked(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, NULL);
    fake_device_restarted(rig.device);
    assert_int_equal(rig_metric(&rig, "kvarn_device_ready"), 1);
    assert_int_equal(fake_device_queued(rig.device), 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_served_before_all_is_checked),
        cmocka_unit_test(many_blocks_of_two_spaces_are_all_looked_at),
        cmocka_unit_test(blocks_that_only_a_sequence_holds_are_checked),
        cmocka_unit_test(tails_are_kept),
        cmocka_unit_test(what_ends_one_worker_after_the_other_is_given_up),
        cmocka_unit_test(a_worker_cannot_say_that_it_is_gone),
        cmocka_unit_test(who_kills_workers_here_and_there_loses_nothing),
        cmocka_unit_test(a_check_waits_for_staging),
        cmocka_unit_test(the_order_of_eviction_stays),
        cmocka_unit_test(a_host_pool_is_not_checked),
    };

    return cmocka_run_group_tests_name("recheck", tests, NULL, NULL);
}
