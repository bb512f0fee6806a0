/* A service over several devices: where spaces go, and that one device does not concern another.
 * What a GPU, whose pool is not mapped here, does differently. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/pool.h"
#include "support/rpc_rig.h"

enum { G = 64 };

static struct rig_space open_named(struct rig *rig, const char *model)
{
    struct kvw_open_space options = rig_space_options();

    options.model = model;
    return rig_open_space(rig, &options);
}

static uint32_t device_of(struct rig *rig, const struct rig_space *space)
{
    return kvd_space_find(&rig->service->spaces, rig->tenant, space->handle)->device;
}

static void put(struct rig *rig, const struct rig_space *space, uint32_t number, uint32_t kind,
                kvarn_status expected)
{
    kvarn_key key = rig_key(number);
    uint16_t *rows = rig_rows(space, space->layers, G, number + 1);
    struct rig_call *call = rig_compress(rig, space, &key, 1, kind, rows);

    if (call->status != expected)
        fail_msg("%s", call->text);
    rig_free(call);
    free(rows);
}

static struct rig_call *call_keys(struct rig *rig, uint8_t op, const struct rig_space *space,
                                  const kvarn_key *keys, uint32_t count)
{
    struct kvw_blocks args = {.space = space->handle};

    return rig_blocks(rig, op, &args, keys, count, NULL, 0);
}

static uint64_t used(const struct rig *rig, uint32_t device)
{
    return kvd_pool_used_bytes(rig->service->devices[device].pool);
}

static void spaces_go_to_the_gpu_while_they_fit(void **state)
{
    struct rig_options options = {.gpu = true, .pool_bytes = 128 << 10, .second_bytes = 64 << 20};
    struct kvw_open_space large = rig_space_options();
    struct rig_space a, b;
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    a = open_named(&rig, "small");
    assert_int_equal(device_of(&rig, &a), 0);
    large.layers = 64;
    b = rig_open_space(&rig, &large);
    assert_int_equal(device_of(&rig, &b), 1);
    put(&rig, &a, 1, KVARN_BLOCK_TILE, KVARN_OK);
    put(&rig, &b, 1, KVARN_BLOCK_TILE, KVARN_OK);
    assert_int_equal(used(&rig, 0), a.tile_bytes);
    assert_int_equal(used(&rig, 1), b.tile_bytes);
    assert_int_equal(rig_metric(&rig, "kvarn_pool_used_bytes"), a.tile_bytes + b.tile_bytes);
    assert_int_equal(rig_metric(&rig, "kvarn_device_pool_used_bytes{device=\"cuda:0\"}"),
                     a.tile_bytes);
    assert_int_equal(rig_metric(&rig, "kvarn_device_pool_used_bytes{device=\"host\"}"),
                     b.tile_bytes);
    assert_int_equal(rig_metric(&rig, "kvarn_device_jobs_total{device=\"host\"}"), 1);
    large.layers = 1024;
    large.kv_heads = 64; /* larger than both */
    assert_int_equal(rig_open_space_call(&rig, &large)->status, KVARN_TOO_LARGE);
    rig_close(&rig);
}

static void a_space_goes_where_it_is_asked_to(void **state)
{
    struct rig_options options = {.gpu = true, .second_bytes = 4 << 20};
    struct kvw_open_space wanted = rig_space_options();
    struct rig_space a, b;
    struct rig_call *call;
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    wanted.device = "host";
    a = rig_open_space(&rig, &wanted);
    assert_int_equal(device_of(&rig, &a), 1);
    wanted.device = "cuda:0"; /* it is in host memory already, and stays */
    b = rig_open_space(&rig, &wanted);
    assert_int_equal(b.handle, a.handle);
    wanted.model = "another";
    b = rig_open_space(&rig, &wanted);
    assert_int_equal(device_of(&rig, &b), 0);
    wanted.device = "cuda:1";
    call = rig_open_space_call(&rig, &wanted);
    assert_int_equal(call->status, KVARN_UNSUPPORTED);
    assert_string_equal(call->text,
                        "there is no pool of device \"cuda:1\"; use one of cuda:0, host");
    wanted.device = "host";
    wanted.layers = 256; /* does not fit there, but would fit the GPU's */
    wanted.model = "large";
    call = rig_open_space_call(&rig, &wanted);
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    rig_close(&rig);
}

static void the_emptier_of_equals_is_taken(void **state)
{
    struct rig_options options = {.second_bytes = 32 << 20};
    struct rig_space a, b, c;
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    a = open_named(&rig, "a");
    assert_int_equal(device_of(&rig, &a), 1); /* 32 MiB unused of 32; the other has 16 */
    for (uint32_t i = 0; used(&rig, 1) <= 16 << 20; i++)
        put(&rig, &a, i, KVARN_BLOCK_EXACT, KVARN_OK);
    b = open_named(&rig, "b");
    assert_int_equal(device_of(&rig, &b), 0);
    c = open_named(&rig, "a"); /* the same space is where it was */
    assert_int_equal(c.handle, a.handle);
    assert_int_equal(device_of(&rig, &c), 1);
    rig_close(&rig);
}

/* A full pool takes from the spaces of its own device. */
static void eviction_stays_on_the_device(void **state)
{
    struct rig_options options = {.gpu = true, .pool_bytes = 256 << 10, .second_bytes = 4 << 20};
    struct kvw_open_space large = rig_space_options();
    struct rig_space a, b;
    struct rig_call *call;
    kvarn_key key = rig_key(7);
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    large.layers = 32;
    b = rig_open_space(&rig, &large);
    assert_int_equal(device_of(&rig, &b), 1);
    put(&rig, &b, 7, KVARN_BLOCK_TILE, KVARN_OK); /* the oldest of all */
    a = open_named(&rig, "a");
    assert_int_equal(device_of(&rig, &a), 0);
    for (uint32_t i = 0; i < 20; i++)
        put(&rig, &a, i, KVARN_BLOCK_EXACT, KVARN_OK);
    assert_true(rig_metric(&rig, "kvarn_evictions_total") > 0);
    call = call_keys(&rig, KVW_DECOMPRESS, &b, &key, 1);
    assert_int_equal(call->status, KVARN_OK);
    rig_close(&rig);
}

static void a_lost_device_leaves_the_other_alone(void **state)
{
    struct rig_options options = {.gpu = true, .pool_bytes = 128 << 10, .second_bytes = 64 << 20};
    struct kvw_open_space large = rig_space_options();
    struct kvw_blocks args = {0};
    struct rig_call *lost, *fine;
    struct rig_space a, b;
    kvarn_key key = rig_key(1);
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    large.layers = 64;
    a = open_named(&rig, "a");
    b = rig_open_space(&rig, &large);
    put(&rig, &a, 1, KVARN_BLOCK_TILE, KVARN_OK);
    put(&rig, &b, 1, KVARN_BLOCK_TILE, KVARN_OK);
    args.space = a.handle;
    lost = rig_blocks_start(&rig, KVW_DECOMPRESS, &args, &key, 1, NULL, 0);
    args.space = b.handle;
    fine = rig_blocks_start(&rig, KVW_DECOMPRESS, &args, &key, 1, NULL, 0);
    fake_device_lose(rig.device, 0);
    fake_device_down(rig.device, 77);
    rig_run(&rig);
    assert_int_equal(lost->status, KVARN_GPU_LOST);
    assert_int_equal(fine->status, KVARN_OK);
    lost = call_keys(&rig, KVW_DECOMPRESS, &a, &key, 1);
    assert_int_equal(lost->status, KVARN_RETRY);
    assert_int_equal(lost->retry_after_us, 77000);
    fine = call_keys(&rig, KVW_DECOMPRESS, &b, &key, 1);
    assert_int_equal(fine->status, KVARN_OK);
    assert_int_equal(rig_metric(&rig, "kvarn_device_serving{device=\"host\"}"), 1);
    assert_int_equal(rig_metric(&rig, "kvarn_device_serving{device=\"cuda:0\"}"), 0);
    assert_int_equal(rig_metric(&rig, "kvarn_device_ready"), 0);
    fake_device_down(rig.device, 0);
    fake_device_restarted(rig.device);
    rig_run(&rig);
    lost = call_keys(&rig, KVW_DECOMPRESS, &a, &key, 1);
    assert_int_equal(lost->status, KVARN_OK);
    rig_close(&rig);
}

/* The payload of EXPORT as that of IMPORT. */
static struct rig_call *import(struct rig *rig, const struct rig_space *space,
                               const struct rig_call *exported, uint32_t count)
{
    struct kvw_blocks args = {
        .space = space->handle, .block_count = count, .origin = rig_origin(rig, space->handle)};
    uint8_t meta[1024];

    return rig_call(rig, KVW_IMPORT, meta, kvw_blocks_encode(meta, sizeof meta, &args),
                    exported->payload, exported->payload_bytes);
}

/* With the same answers as a host pool gives, byte for byte. */
static void a_gpus_blocks_leave_and_come_through_staging(void **state)
{
    kvarn_key keys[3] = {rig_key(1), rig_key(2), rig_key(9)};
    struct rig_call *out, *call;
    uint8_t *first = NULL; /* what the host's pool gave */
    uint64_t first_bytes = 0;

    (void)state;
    for (uint32_t gpu = 0; gpu < 2; gpu++) {
        struct rig_options options = {.gpu = gpu == 1};
        struct rig_space space;
        struct rig rig;
        uint32_t copies;

        rig_open(&rig, &options);
        space = open_named(&rig, "a");
        put(&rig, &space, 1, KVARN_BLOCK_TILE, KVARN_OK);
        put(&rig, &space, 2, KVARN_BLOCK_EXACT, KVARN_OK);
        copies = fake_device_ran(rig.device, KVD_JOB_COPY);
        call = call_keys(&rig, KVW_EXPORT, &space, keys, 3); /* the third is not there */
        assert_int_equal(call->status, KVARN_NOT_FOUND);
        assert_int_equal(fake_device_ran(rig.device, KVD_JOB_COPY), copies + gpu);
        call = call_keys(&rig, KVW_EXPORT, &space, keys + 2, 1); /* nothing to copy */
        assert_int_equal(call->status, KVARN_NOT_FOUND);
        assert_int_equal(fake_device_ran(rig.device, KVD_JOB_COPY), copies + gpu);
        out = call_keys(&rig, KVW_EXPORT, &space, keys, 2);
        assert_int_equal(out->status, KVARN_OK);
        call = call_keys(&rig, KVW_DROP, &space, keys, 2);
        assert_int_equal(call->status, KVARN_OK);
        call = import(&rig, &space, out, 2);
        assert_int_equal(call->status, KVARN_OK);
        call = call_keys(&rig, KVW_VERIFY, &space, keys, 2);
        assert_int_equal(call->status, KVARN_OK);
        if (gpu) {
            assert_int_equal(out->payload_bytes, first_bytes);
            assert_memory_equal(out->payload, first, first_bytes);
        } else {
            first_bytes = out->payload_bytes;
            first = malloc(first_bytes);
            memcpy(first, out->payload, first_bytes);
        }
        rig_close(&rig);
    }
    free(first);
}

/* Tiles alone: on a host pool they are read straight into their slots. */
static void imported_tiles_are_copied_on_a_gpu(void **state)
{
    struct rig_options options = {.gpu = true};
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    struct rig_call *out, *call;
    struct rig_space space;
    struct rig rig;
    uint32_t copies;

    (void)state;
    rig_open(&rig, &options);
    space = open_named(&rig, "a");
    put(&rig, &space, 1, KVARN_BLOCK_TILE, KVARN_OK);
    put(&rig, &space, 2, KVARN_BLOCK_TILE, KVARN_OK);
    out = call_keys(&rig, KVW_EXPORT, &space, keys, 2);
    call = call_keys(&rig, KVW_DROP, &space, keys, 2);
    copies = fake_device_ran(rig.device, KVD_JOB_COPY);
    out->payload[out->payload_bytes - 1] ^= 1; /* of the second */
    call = import(&rig, &space, out, 2);
    assert_int_equal(call->status, KVARN_CORRUPT);
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).status, KVARN_CORRUPT);
    assert_int_equal(fake_device_ran(rig.device, KVD_JOB_COPY), copies + 1);
    rig_close(&rig);
}

static void a_corrupt_block_is_not_exported(void **state)
{
    struct rig_options options = {.gpu = true};
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    struct kvw_put_row row;
    struct rig_call *call;
    struct rig_space space;
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    space = open_named(&rig, "a");
    put(&rig, &space, 1, KVARN_BLOCK_TILE, KVARN_OK);
    put(&rig, &space, 2, KVARN_BLOCK_TILE, KVARN_OK);
    fake_device_memory(rig.device)[kvd_block_at(&rig.service->blocks, 0)->offset + 5] ^= 8;
    call = call_keys(&rig, KVW_EXPORT, &space, keys, 2);
    assert_int_equal(call->status, KVARN_CORRUPT);
    assert_int_equal(call->payload_bytes, 2 * KVW_PUT_ROW_BYTES + space.tile_bytes);
    kvw_put_row_load(&row, call->payload);
    assert_int_equal(row.bytes, 0);
    kvw_put_row_load(&row, call->payload + KVW_PUT_ROW_BYTES);
    assert_int_equal(row.bytes, space.tile_bytes);
    call = call_keys(&rig, KVW_LOOKUP, &space, keys, 2);
    assert_int_equal(rig_block(call, 0).status, KVARN_NOT_FOUND);
    assert_int_equal(rig_metric(&rig, "kvarn_integrity_failures_total"), 1);
    fake_device_lose(rig.device, 0);
    call = call_keys(&rig, KVW_EXPORT, &space, keys + 1, 1);
    assert_int_equal(call->status, KVARN_GPU_LOST);
    fake_device_down(rig.device, 5);
    call = call_keys(&rig, KVW_EXPORT, &space, keys + 1, 1);
    assert_int_equal(call->status, KVARN_RETRY);
    rig_close(&rig);
}

static void freed_chunks_are_wiped_where_they_are(void **state)
{
    struct rig_options options = {.gpu = true, .pool_bytes = 128 << 10, .second_bytes = 4 << 20};
    struct rig_space space;
    struct rig_call *call;
    kvarn_key key = rig_key(1);
    struct rig rig;

    (void)state;
    rig_open(&rig, &options);
    space = open_named(&rig, "a");
    put(&rig, &space, 1, KVARN_BLOCK_TILE, KVARN_OK);
    call = call_keys(&rig, KVW_DROP, &space, &key, 1);
    assert_int_equal(call->status, KVARN_OK);
    for (int i = 0; i < 2 * KVD_POOL_LINGER_TICKS; i++)
        kvd_service_tick(rig.service);
    assert_true(fake_device_zeroed(rig.device) >= space.tile_bytes);
    assert_int_equal(fake_device_zeroed(rig.second), 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spaces_go_to_the_gpu_while_they_fit),
        cmocka_unit_test(a_space_goes_where_it_is_asked_to),
        cmocka_unit_test(the_emptier_of_equals_is_taken),
        cmocka_unit_test(eviction_stays_on_the_device),
        cmocka_unit_test(a_lost_device_leaves_the_other_alone),
        cmocka_unit_test(a_gpus_blocks_leave_and_come_through_staging),
        cmocka_unit_test(imported_tiles_are_copied_on_a_gpu),
        cmocka_unit_test(a_corrupt_block_is_not_exported),
        cmocka_unit_test(freed_chunks_are_wiped_where_they_are),
    };

    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
