/* rpc/import.c: tiles are read straight into their slots; what of them is not kept goes back,
 * whatever happens between the header and the answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kernels/tile.h"
#include "server/store/pool.h"
#include "support/rpc_rig.h"

enum { COUNT = 4 };

/* A space with COUNT exported tiles, and a second space to import them into. */
struct scene {
    struct rig rig;
    struct rig_space to;
    kvarn_key keys[COUNT];
    uint8_t *bytes; /* put rows, then blocks */
    uint64_t bytes_count;
    uint64_t used; /* of the pool, before any import */
    struct kvw_origin origin;
};

static struct scene *open_scene(const struct rig_options *options)
{
    struct scene *scene = calloc(1, sizeof *scene);
    struct kvw_open_space other = rig_space_options();
    struct rig_space from;
    struct rig_call *call;
    uint16_t *rows;

    assert_non_null(scene);
    rig_open(&scene->rig, options);
    from = rig_open_space(&scene->rig, NULL);
    other.revision = "importer";
    scene->to = rig_open_space(&scene->rig, &other);
    scene->origin = rig_origin(&scene->rig, scene->to.handle);
    for (uint32_t i = 0; i < COUNT; i++)
        scene->keys[i] = rig_key(i);
    rows = rig_rows(&from, from.layers, COUNT * from.group, 3);
    call = rig_compress(&scene->rig, &from, scene->keys, COUNT, KVARN_BLOCK_TILE, rows);
    assert_int_equal(call->status, KVARN_OK);
    call = rig_blocks(&scene->rig, KVW_EXPORT,
                      &(struct kvw_blocks){.space = from.handle, .block_count = COUNT}, scene->keys,
                      COUNT, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    scene->bytes_count = call->payload_bytes;
    scene->bytes = malloc(scene->bytes_count);
    memcpy(scene->bytes, call->payload, scene->bytes_count);
    scene->used = kvd_pool_used_bytes(scene->rig.service->devices[0].pool);
    free(rows);
    return scene;
}

static void close_scene(struct scene *scene)
{
    free(scene->bytes);
    rig_close(&scene->rig);
    free(scene);
}

static struct rig_call *start(struct scene *scene, uint32_t count)
{
    struct kvw_blocks args = {
        .space = scene->to.handle, .block_count = count, .origin = scene->origin};
    uint8_t meta[128];

    return rig_start(&scene->rig, KVW_IMPORT, meta, kvw_blocks_encode(meta, sizeof meta, &args),
                     scene->bytes, scene->bytes_count);
}

static struct rig_call *import(struct scene *scene)
{
    struct rig_call *call = start(scene, COUNT);

    rig_run(&scene->rig);
    assert_true(call->replied);
    return call;
}

static uint64_t kept(const struct scene *scene)
{
    return (kvd_pool_used_bytes(scene->rig.service->devices[0].pool) - scene->used) /
           scene->to.tile_bytes;
}

static void tiles_go_straight_into_their_slots(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct kvw_blocks args = {.space = scene->to.handle, .block_count = COUNT};
    struct rig_call *call;

    (void)state;
    scene->rig.hold = true;
    call = start(scene, COUNT);
    assert_non_null(call->request->payload_parts); /* not one piece of staging */
    rig_run(&scene->rig);
    assert_int_equal(call->status, KVARN_OK);
    rig_done(call);
    scene->rig.hold = false;
    assert_int_equal(kept(scene), COUNT);
    call = rig_blocks(&scene->rig, KVW_EXPORT, &args, scene->keys, COUNT, NULL, 0);
    assert_int_equal(call->payload_bytes, scene->bytes_count);
    assert_memory_equal(call->payload, scene->bytes, scene->bytes_count);
    close_scene(scene);
}

static void what_exists_gives_its_slot_back(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct rig_call *call;

    (void)state;
    assert_int_equal(import(scene)->status, KVARN_OK);
    call = import(scene);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(rig_block(call, i).status, KVARN_EXISTS);
    assert_int_equal(kept(scene), COUNT);
    /* one key twice in a request: its second copy exists by then */
    rig_blocks(&scene->rig, KVW_DROP,
               &(struct kvw_blocks){.space = scene->to.handle, .block_count = COUNT}, scene->keys,
               COUNT, NULL, 0);
    memcpy(scene->bytes + KVW_PUT_ROW_BYTES, scene->bytes, KVARN_KEY_BYTES);
    call = import(scene);
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).status, KVARN_EXISTS);
    assert_int_equal(kept(scene), COUNT - 1);
    close_scene(scene);
}

static void a_wrong_bit_is_not_kept(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct rig_call *call;

    (void)state;
    scene->bytes[COUNT * KVW_PUT_ROW_BYTES + 2 * scene->to.tile_bytes + 77] ^= 16;
    call = import(scene);
    assert_int_equal(call->status, KVARN_CORRUPT);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(rig_block(call, i).status, i == 2 ? KVARN_CORRUPT : KVARN_OK);
    assert_int_equal(kept(scene), COUNT - 1);
    close_scene(scene);
}

/* A scale that is infinite, under a digest that is right: every attention over it would be NaN. */
static void a_record_that_is_not_finite_is_refused(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct kvk_layout at = kvk_layout_of(64, 64, 2, 2);
    uint8_t *block = scene->bytes + COUNT * KVW_PUT_ROW_BYTES + scene->to.tile_bytes;
    uint8_t *record = block + 3 * at.bytes; /* layer 1, head 1 of block 1 */
    struct kvw_put_row row;
    struct rig_call *call;

    (void)state;
    record[at.v_step + 2 * 9] = 0x00; /* token 9: infinity */
    record[at.v_step + 2 * 9 + 1] = 0x7c;
    kvw_put_row_load(&row, scene->bytes + KVW_PUT_ROW_BYTES);
    row.digest = kvk_digest(0, block, scene->to.tile_bytes);
    kvw_put_row_store(scene->bytes + KVW_PUT_ROW_BYTES, &row);
    call = import(scene);
    assert_int_equal(call->status, KVARN_NON_FINITE);
    assert_non_null(strstr(call->text, "tensor v"));
    assert_non_null(strstr(call->text, "layer 1, kv head 1, token 9"));
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).status, KVARN_NON_FINITE);
    assert_int_equal(kept(scene), COUNT - 1);
    close_scene(scene);
}

static void a_wrong_row_keeps_nothing(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct kvw_put_row row;

    (void)state;
    for (int field = 0; field < 4; field++) {
        kvw_put_row_load(&row, scene->bytes + KVW_PUT_ROW_BYTES);
        row.kind = field == 0 ? KVARN_BLOCK_EXACT : field == 1 ? 9 : row.kind;
        row.tokens -= field == 2;
        row.bytes -= field == 3;
        struct kvw_put_row good;
        kvw_put_row_load(&good, scene->bytes + KVW_PUT_ROW_BYTES);
        kvw_put_row_store(scene->bytes + KVW_PUT_ROW_BYTES, &row);
        assert_int_equal(import(scene)->status, KVARN_INVALID_SHAPE);
        kvw_put_row_store(scene->bytes + KVW_PUT_ROW_BYTES, &good);
        assert_int_equal(kept(scene), 0);
    }
    close_scene(scene);
}

/* Right sizes and digests, but of another model or shard: must never be read as this one's. */
static void another_origin_is_refused(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct kvw_origin right = scene->origin;
    struct rig_call *call;

    (void)state;
    scene->origin.fingerprint[31] ^= 1;
    call = import(scene);
    assert_int_equal(call->status, KVARN_FINGERPRINT_MISMATCH);
    assert_non_null(strstr(call->text, "fingerprint"));
    scene->origin = right;
    scene->origin.layer_begin++;
    call = import(scene);
    assert_int_equal(call->status, KVARN_FINGERPRINT_MISMATCH);
    assert_non_null(strstr(call->text, "layers 1+"));
    scene->origin = right;
    scene->origin.head_begin = 7;
    assert_int_equal(import(scene)->status, KVARN_FINGERPRINT_MISMATCH);
    scene->origin.present = false;
    assert_int_equal(import(scene)->status, KVARN_INVALID_SHAPE);
    assert_int_equal(kept(scene), 0);
    close_scene(scene);
}

static void a_client_that_goes_keeps_nothing(void **state)
{
    struct scene *scene = open_scene(NULL);
    struct kvw_blocks args = {
        .space = scene->to.handle, .block_count = COUNT, .origin = scene->origin};
    struct kvd_request *request;
    uint8_t meta[128];

    (void)state;
    /* gone between the header and the end of the payload: begun, never run */
    request = kvd_request_new(scene->rig.service);
    request->conn_id = 9;
    request->header = (struct kvw_header){
        .version = 1, .op = KVW_IMPORT, .request_id = 1, .payload_bytes = scene->bytes_count};
    request->header.metadata_bytes = (uint32_t)kvw_blocks_encode(meta, sizeof meta, &args);
    assert_int_equal(kvd_request_begin(request, meta), KVD_BEGIN_OK);
    assert_non_null(request->payload_parts);
    assert_int_equal(kept(scene), COUNT);
    kvd_request_done(request);
    assert_int_equal(kept(scene), 0);
    close_scene(scene);
}

/* Without room for all of them at once the blocks land in staging and find room one by one. */
static void a_full_pool_falls_back_to_staging(void **state)
{
    struct rig_options options = {.pool_bytes = 0};
    struct scene *scene;
    struct rig_call *call;

    (void)state;
    options.pool_bytes = 256 << 10;
    scene = open_scene(&options);
    /* the source space's blocks may be evicted for them: all get in */
    call = import(scene);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, COUNT);
    close_scene(scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_go_straight_into_their_slots),
        cmocka_unit_test(what_exists_gives_its_slot_back),
        cmocka_unit_test(a_wrong_bit_is_not_kept),
        cmocka_unit_test(a_record_that_is_not_finite_is_refused),
        cmocka_unit_test(a_wrong_row_keeps_nothing),
        cmocka_unit_test(another_origin_is_refused),
        cmocka_unit_test(a_client_that_goes_keeps_nothing),
        cmocka_unit_test(a_full_pool_falls_back_to_staging),
    };
    return cmocka_run_group_tests_name("import", tests, NULL, NULL);
}
