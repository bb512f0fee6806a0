/* Operations on blocks by key: good paths and every refusal, through the seam that net uses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static struct kvw_blocks in_space(const struct rig_space *space)
{
    return (struct kvw_blocks){.space = space->handle};
}

/* Stores blocks 0 .. count-1 of keys base + i; rows from seed. */
static void store(struct rig *rig, const struct rig_space *space, uint32_t base, uint32_t count,
                  uint32_t kind, uint64_t seed)
{
    kvarn_key keys[16];
    uint16_t *rows = rig_rows(space, space->layers, count * space->group, seed);
    struct rig_call *call;

    for (uint32_t i = 0; i < count; i++)
        keys[i] = rig_key(base + i);
    call = rig_compress(rig, space, keys, count, kind, rows);
    if (call->status != KVARN_OK)
        fail_msg("%s", call->text);
    rig_free(call);
    free(rows);
}

static float half(uint16_t h)
{
    int exponent = h >> 10 & 31;
    float value = exponent ? ldexpf((float)(1024 + (h & 1023)), exponent - 25)
                           : ldexpf((float)(h & 1023), -24);

    return h & 0x8000 ? -value : value;
}

static void test_exact_round_trip(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[3] = {rig_key(1), rig_key(99), rig_key(2)};
    struct kvw_blocks args;
    struct rig_call *call;
    uint16_t *rows, *back;
    size_t plane;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 2, KVARN_BLOCK_EXACT, 5);
    rows = rig_rows(&space, space.layers, 2 * space.group, 5);
    args = in_space(&space);
    call = rig_blocks(&rig, KVW_DECOMPRESS, &args, keys, 3, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND); /* the middle one */
    assert_non_null(strstr(call->text, "block 1"));
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).status, KVARN_NOT_FOUND);
    assert_int_equal(rig_block(call, 2).status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, 2);
    plane = space.group * space.heads * space.dim;
    assert_int_equal(call->payload_bytes, 3 * 16 + 2 * 2 * 3 * plane * 2);
    back = (uint16_t *)(void *)(call->payload + 3 * 16);
    for (uint32_t tensor = 0; tensor < 2; tensor++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            const uint16_t *out = back + (tensor * 2 + layer) * 3 * plane;
            const uint16_t *in = rows + (tensor * 2 + layer) * 2 * plane;

            assert_memory_equal(out, in, plane * 2);
            assert_memory_equal(out + 2 * plane, in + plane, plane * 2);
            for (size_t i = 0; i < plane; i++)
                assert_int_equal(out[plane + i], 0);
        }
    free(rows);
    rig_free(call);
    rig_close(&rig);
}

/* Of a block that the device could not read, no byte of its memory goes out. */
static void test_failed_block_is_cleared(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    struct kvw_blocks args;
    struct rig_call *call;
    const uint16_t *back;
    size_t plane;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 2, KVARN_BLOCK_EXACT, 5);
    args = in_space(&space);
    fake_device_claim_get(rig.device, KVARN_UNSUPPORTED);
    call = rig_blocks(&rig, KVW_DECOMPRESS, &args, keys, 2, NULL, 0);
    assert_int_equal(rig_block(call, 0).status, KVARN_UNSUPPORTED);
    assert_int_equal(rig_block(call, 1).status, KVARN_OK);
    plane = space.group * space.heads * space.dim;
    back = (const uint16_t *)(const void *)(call->payload + 2 * 16);
    for (size_t i = 0; i < 2 * 2 * 2 * plane; i += plane) {
        size_t filled = 0;

        for (size_t j = 0; j < plane; j++)
            filled += back[i + j] != 0;
        assert_true(i / plane % 2 ? filled > 0 : filled == 0);
    }
    rig_free(call);
    rig_close(&rig);
}

static void test_tile_round_trip(void **state)
{
    struct kvw_open_space options = rig_space_options();
    struct rig rig;
    struct rig_space space;
    kvarn_key key = rig_key(1);
    struct kvw_blocks args;
    struct rig_call *call;
    uint16_t *rows;
    const uint16_t *back;
    double error = 0, power = 0;
    size_t count;

    (void)state;
    options.preset = "kvarn_k4v4_g64";
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, &options);
    store(&rig, &space, 1, 1, KVARN_BLOCK_TILE, 5);
    rows = rig_rows(&space, space.layers, space.group, 5);
    args = in_space(&space);
    args.layer_begin = 1;
    args.layer_count = 1;
    call = rig_blocks(&rig, KVW_DECOMPRESS, &args, &key, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    count = space.group * space.heads * space.dim;
    assert_int_equal(call->payload_bytes, 16 + 2 * count * 2);
    back = (const uint16_t *)(const void *)(call->payload + 16);
    for (size_t i = 0; i < 2 * count; i++) {
        float a = half(rows[i < count ? count + i : 2 * count + i]), b = half(back[i]);

        error += (double)(a - b) * (double)(a - b);
        power += (double)a * (double)a;
    }
    assert_true(error < 0.02 * power);
    free(rows);
    rig_free(call);
    rig_close(&rig);
}

static void test_compress_statuses(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[4] = {rig_key(1), rig_key(2), rig_key(2), rig_key(3)};
    struct rig_call *call, *again;
    uint16_t *rows;
    size_t plane;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    plane = space.group * space.heads * space.dim;
    rows = rig_rows(&space, space.layers, 4 * space.group, 9);
    /* V, layer 1, block 3, token 17, head 1, channel 5 */
    rows[(2 + 1) * 4 * plane + 3 * plane + (17 * 2 + 1) * 64 + 5] = 0x7c00;
    call = rig_compress(&rig, &space, keys, 4, KVARN_BLOCK_TILE, rows);
    assert_int_equal(call->status, KVARN_NON_FINITE);
    assert_non_null(strstr(call->text, "block 3"));
    assert_non_null(strstr(call->text, "tensor v"));
    assert_non_null(strstr(call->text, "layer 1, kv head 1, token 17, channel 5"));
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).status, KVARN_OK);
    assert_int_equal(rig_block(call, 2).status, KVARN_EXISTS);
    assert_int_equal(rig_block(call, 2).digest, rig_block(call, 1).digest);
    assert_int_equal(rig_block(call, 3).status, KVARN_NON_FINITE);
    assert_int_equal(rig_blocks_reply(call).matched, 3);
    assert_int_equal(rig.service->spaces.slots[0].tile_blocks, 2);
    again = rig_compress(&rig, &space, keys, 2, KVARN_BLOCK_TILE, rows);
    assert_int_equal(again->status, KVARN_OK);
    assert_int_equal(rig_block(again, 0).status, KVARN_EXISTS);
    assert_int_equal(rig_block(again, 0).digest, rig_block(call, 0).digest);
    free(rows);
    rig_free(call);
    rig_free(again);
    rig_close(&rig);
}

/* Two clients store one key at once: one copy, both are told it is there. */
static void test_compress_race(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key key = rig_key(1);
    struct rig_call *a, *b;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, space.group, 3);
    a = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    rig.conn_id = 2;
    b = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    assert_false(a->replied || b->replied);
    assert_int_equal(fake_device_queued(rig.device), 1);
    rig_run(&rig);
    assert_int_equal(rig_block(a, 0).status, KVARN_OK);
    assert_int_equal(rig_block(b, 0).status, KVARN_EXISTS);
    assert_int_equal(fake_device_ran(rig.device, KVD_JOB_COMPRESS), 1);
    /* The first fails: the second stores its own. */
    key = rig_key(2);
    rows[7] = 0x7e00;
    a = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    rows[7] = 0;
    b = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    rig_run(&rig);
    assert_int_equal(a->status, KVARN_NON_FINITE);
    assert_int_equal(rig_block(b, 0).status, KVARN_OK);
    /* The second's deadline passes while it waits. */
    key = rig_key(3);
    a = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    rig.deadline_ms = 10;
    b = rig_compress_start(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows);
    rig.now_ns += 20 * 1000000;
    kvd_service_tick(rig.service);
    assert_true(b->replied);
    assert_int_equal(b->status, KVARN_DEADLINE);
    rig_run(&rig);
    assert_int_equal(a->status, KVARN_OK);
    free(rows);
    rig_close(&rig);
}

static void test_layout(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    struct kvw_blocks args;
    struct rig_call *dense, *strided, *bad;
    uint16_t *rows, *mixed;
    uint8_t table[2 * KVW_PUT_ROW_BYTES], *payload, meta[512];
    size_t tokens, row;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    tokens = 2 * space.group;
    row = space.heads * space.dim;
    rows = rig_rows(&space, 2, (uint32_t)tokens, 4);
    dense = rig_compress(&rig, &space, keys, 2, KVARN_BLOCK_TILE, rows);
    /* the same as [token][layer][k, v][head][dim] */
    mixed = malloc(rig_rows_bytes(&space, 2, (uint32_t)tokens));
    for (size_t t = 0; t < tokens; t++)
        for (size_t layer = 0; layer < 2; layer++)
            for (size_t tensor = 0; tensor < 2; tensor++)
                memcpy(mixed + ((t * 2 + layer) * 2 + tensor) * row,
                       rows + ((tensor * 2 + layer) * tokens + t) * row, row * 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct kvw_put_row put = {.key = rig_key(10 + i), .kind = 1, .tokens = space.group};

        kvw_put_row_store(table + i * KVW_PUT_ROW_BYTES, &put);
    }
    payload = malloc(sizeof table + tokens * 4 * row * 2);
    memcpy(payload, table, sizeof table);
    memcpy(payload + sizeof table, mixed, tokens * 4 * row * 2);
    args = in_space(&space);
    args.block_count = 2;
    args.layout = (struct kvw_layout){.present = true,
                                      .v_offset = row * 2,
                                      .layer_stride = row * 4,
                                      .token_stride = row * 8,
                                      .head_stride = space.dim * 2};
    strided = rig_call(&rig, KVW_COMPRESS, meta, kvw_blocks_encode(meta, sizeof meta, &args),
                       payload, sizeof table + tokens * 4 * row * 2);
    assert_int_equal(strided->status, KVARN_OK);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig_block(strided, i).digest, rig_block(dense, i).digest);
    args.layout.layer_stride = UINT64_MAX / 2;
    args.layout.token_stride = UINT64_MAX - 5;
    bad = rig_call(&rig, KVW_COMPRESS, meta, kvw_blocks_encode(meta, sizeof meta, &args), payload,
                   sizeof table + tokens * 4 * row * 2);
    assert_int_equal(bad->status, KVARN_INVALID_SHAPE);
    assert_non_null(strstr(bad->text, "64 bits"));
    args.layout = (struct kvw_layout){0};
    for (int d = -1; d <= 1; d += 2) { /* one byte short, one too many */
        bad = rig_call(&rig, KVW_COMPRESS, meta, kvw_blocks_encode(meta, sizeof meta, &args),
                       payload, sizeof table + tokens * 4 * row * 2 - (uint64_t)(int64_t)d);
        assert_int_equal(bad->status, KVARN_INVALID_SHAPE);
        if (d > 0)
            break;
        payload = realloc(payload, sizeof table + tokens * 4 * row * 2 + 1);
    }
    free(rows);
    free(mixed);
    free(payload);
    rig_close(&rig);
}

static void test_lookup_lease(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[4] = {rig_key(1), rig_key(2), rig_key(77), rig_key(3)};
    struct kvw_blocks args;
    struct rig_call *call;
    struct kvw_blocks_reply reply;
    struct kvw_release release;
    uint8_t meta[64];

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 3, KVARN_BLOCK_TILE, 1);
    args = in_space(&space);
    args.lease_ms = 100;
    call = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 4, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    reply = rig_blocks_reply(call);
    assert_int_equal(reply.matched, 2);
    assert_int_equal(reply.lease_ms, 100);
    assert_int_not_equal(reply.lease, 0);
    assert_int_equal(rig_block(call, 2).status, KVARN_NOT_FOUND);
    assert_int_equal(rig_block(call, 3).status, KVARN_OK);
    assert_int_equal(rig.service->leases.blocks_held, 2);
    assert_int_equal(rig.service->evict.listed, 1);
    release.lease = reply.lease;
    rig.conn_id = 2; /* not yours = absent */
    call =
        rig_call(&rig, KVW_RELEASE, meta, kvw_release_encode(meta, sizeof meta, &release), NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    rig.conn_id = 1;
    call =
        rig_call(&rig, KVW_RELEASE, meta, kvw_release_encode(meta, sizeof meta, &release), NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    call =
        rig_call(&rig, KVW_RELEASE, meta, kvw_release_encode(meta, sizeof meta, &release), NULL, 0);
    assert_int_equal(call->status, KVARN_STALE);
    call = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 4, NULL, 0);
    release.lease = rig_blocks_reply(call).lease;
    rig.now_ns += 200 * 1000000;
    call =
        rig_call(&rig, KVW_RELEASE, meta, kvw_release_encode(meta, sizeof meta, &release), NULL, 0);
    assert_int_equal(call->status, KVARN_LEASE_EXPIRED);
    assert_int_equal(rig.service->leases.count, 0);
    /* freed with the connection */
    call = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 4, NULL, 0);
    rig_hang_up(&rig, 1);
    assert_int_equal(rig.service->leases.count, 0);
    assert_int_equal(rig.service->evict.listed, 3);
    rig_close(&rig);
}

static void test_attend(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[3] = {rig_key(1), rig_key(2), rig_key(3)};
    struct kvw_blocks args;
    struct rig_call *call;
    uint16_t *q;
    float lse;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 3, KVARN_BLOCK_TILE, 1);
    q = rig_rows(&space, 1, 2, 8); /* enough for [2][4][64] */
    args = in_space(&space);
    args.layer_begin = 1;
    args.query = (struct kvw_query){.present = true, .q_heads = 4, .q_tokens = 2};
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(call->payload_bytes, 2 * 4 * 64 * 4 + 2 * 4 * 4);
    memcpy(&lse, call->payload + 2 * 4 * 64 * 4, 4);
    assert_true(lse > 0 && lse < 100);
    /* over nothing: zero and -inf */
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 0, q, 2 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_OK);
    memcpy(&lse, call->payload + 2 * 4 * 64 * 4, 4);
    assert_true(isinf(lse) && lse < 0);
    for (size_t i = 0; i < 2 * 4 * 64 * 4; i++)
        assert_int_equal(call->payload[i], 0);
    keys[1] = rig_key(55);
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    assert_non_null(strstr(call->text, "block 1"));
    keys[1] = rig_key(2);
    q[64 * 5 + 3] = 0x7e01; /* query token 1, head 1 */
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_NON_FINITE);
    q[64 * 5 + 3] = 0;
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 4 * 64 * 2 - 1);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    args.query.q_heads = 3;
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 3 * 64 * 2);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    args.query.q_heads = 4;
    args.layer_begin = 2;
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    free(q);
    rig_close(&rig);
}

static struct rig_call *import(struct rig *rig, const struct rig_space *space,
                               const struct rig_call *exported, uint32_t count, uint64_t bytes)
{
    struct kvw_blocks args = {.space = space->handle, .block_count = count};
    uint8_t meta[128];

    args.origin = rig_origin(rig, space->handle);
    return rig_call(rig, KVW_IMPORT, meta, kvw_blocks_encode(meta, sizeof meta, &args),
                    exported->payload, bytes);
}

static void test_export_import(void **state)
{
    struct rig rig;
    struct rig_space space, other;
    struct kvw_open_space options = rig_space_options();
    kvarn_key keys[3] = {rig_key(1), rig_key(50), rig_key(2)};
    struct kvw_blocks args;
    struct rig_call *out, *call, *again;
    struct kvw_put_row row;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 1, KVARN_BLOCK_TILE, 1);
    store(&rig, &space, 2, 1, KVARN_BLOCK_EXACT, 2);
    args = in_space(&space);
    call = rig_blocks(&rig, KVW_EXPORT, &args, keys, 3, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    assert_int_equal(rig_blocks_reply(call).matched, 2);
    kvw_put_row_load(&row, call->payload + KVW_PUT_ROW_BYTES);
    assert_int_equal(row.bytes, 0);
    assert_int_equal(call->payload_bytes, 3 * 56 + space.tile_bytes + space.exact_bytes);
    keys[1] = keys[2];
    out = rig_blocks(&rig, KVW_EXPORT, &args, keys, 2, NULL, 0);
    assert_int_equal(out->status, KVARN_OK);
    kvw_put_row_load(&row, out->payload);
    assert_int_equal(row.digest, kvk_digest(0, out->payload + 2 * 56, space.tile_bytes));
    /* another space: all new */
    options.revision = "r2";
    other = rig_open_space(&rig, &options);
    call = import(&rig, &other, out, 2, out->payload_bytes);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, 2);
    args = in_space(&other);
    again = rig_blocks(&rig, KVW_EXPORT, &args, keys, 2, NULL, 0);
    assert_memory_equal(again->payload, out->payload, out->payload_bytes);
    call = import(&rig, &other, out, 2, out->payload_bytes);
    assert_int_equal(rig_block(call, 0).status, KVARN_EXISTS);
    assert_int_equal(rig.service->digest_differences, 0);
    /* one bit wrong: refused, nothing kept, the other one is */
    call = rig_blocks(&rig, KVW_DROP, &args, keys, 2, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    out->payload[2 * 56 + 100] ^= 4;
    call = import(&rig, &other, out, 2, out->payload_bytes);
    assert_int_equal(call->status, KVARN_CORRUPT);
    assert_int_equal(rig_block(call, 0).status, KVARN_CORRUPT);
    assert_int_equal(rig_block(call, 1).status, KVARN_OK);
    call = rig_blocks(&rig, KVW_LOOKUP, &args, keys, 2, NULL, 0);
    assert_int_equal(rig_block(call, 0).status, KVARN_NOT_FOUND);
    assert_int_equal(rig.service->integrity_failures, 1);
    /* lengths */
    call = import(&rig, &other, out, 2, out->payload_bytes - 1);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    call = import(&rig, &other, out, 1, out->payload_bytes);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    rig_close(&rig);
}

static void test_drop_while_read(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key key = rig_key(1);
    struct kvw_blocks args;
    struct rig_call *reader, *call;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 1, KVARN_BLOCK_TILE, 1);
    args = in_space(&space);
    rig.hold = true;
    reader = rig_blocks(&rig, KVW_EXPORT, &args, &key, 1, NULL, 0); /* not sent yet */
    rig.hold = false;
    call = rig_blocks(&rig, KVW_DROP, &args, &key, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig.service->blocks.live, 1);
    call = rig_blocks(&rig, KVW_DROP, &args, &key, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    rig_done(reader);
    assert_int_equal(rig.service->blocks.live, 0);
    /* gone for good about a second later */
    for (int i = 0; i <= KVD_POOL_LINGER_TICKS; i++) {
        assert_int_equal(fake_device_zeroed(rig.device), 0);
        kvd_service_tick(rig.service);
    }
    assert_true(fake_device_zeroed(rig.device) > 0);
    rig_close(&rig);
}

static void test_verify(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[3] = {rig_key(1), rig_key(2), rig_key(3)};
    struct kvw_blocks args;
    struct rig_call *call;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 3, KVARN_BLOCK_TILE, 1);
    args = in_space(&space);
    call = rig_blocks(&rig, KVW_VERIFY, &args, keys, 3, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, 3);
    for (uint32_t i = 0; kvd_block_at(&rig.service->blocks, i); i++)
        if (!memcmp(&kvd_block_at(&rig.service->blocks, i)->key, &keys[1], sizeof keys[1]))
            kvd_device_pool(rig.device)[kvd_block_at(&rig.service->blocks, i)->offset + 9] ^= 1;
    call = rig_blocks(&rig, KVW_VERIFY, &args, keys, 3, NULL, 0);
    assert_int_equal(call->status, KVARN_CORRUPT);
    assert_int_equal(rig_block(call, 1).status, KVARN_CORRUPT);
    assert_true(rig_metric(&rig, "kvarn_integrity_failures_total") == 1);
    call = rig_blocks(&rig, KVW_VERIFY, &args, keys, 3, NULL, 0);
    assert_int_equal(rig_block(call, 1).status, KVARN_NOT_FOUND);
    kvd_device_pool(
        rig.device)[kvd_block_find(&rig.service->blocks, &rig.service->spaces.slots[0], &keys[0])
                        ->offset] ^= 1;
    args.all = true;
    call = rig_blocks(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);
    assert_int_equal(call->status, KVARN_CORRUPT);
    assert_int_equal(rig_blocks_reply(call).matched, 1);
    call = rig_blocks(&rig, KVW_VERIFY, &args, NULL, 0, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    rig_close(&rig);
}

/* A pool of a few blocks: least recently used goes first, what is leased stays. */
static void test_full_pool(void **state)
{
    struct rig_options options = {.pool_bytes = 1 << 20, .eviction = KVD_EVICT_LRU};
    struct rig rig;
    struct rig_space space;
    kvarn_key key;
    struct kvw_blocks args;
    struct rig_call *call;
    uint32_t fit = 0;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    args = in_space(&space);
    for (; !rig.service->blocks.evictions; fit++)
        store(&rig, &space, fit, 1, KVARN_BLOCK_EXACT, fit);
    fit--;
    assert_true(fit >= 4);
    key = rig_key(0);
    call = rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0);
    assert_int_equal(rig_block(call, 0).status, KVARN_NOT_FOUND);
    key = rig_key(1); /* used now: the next to go is 2 */
    args.lease_ms = 1000;
    call = rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0);
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    for (uint32_t i = 0; i < 3 * fit; i++)
        store(&rig, &space, 100 + i, 1, KVARN_BLOCK_EXACT, i);
    call = rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0);
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    for (uint32_t i = 0; i < fit; i++) { /* lease everything */
        key = rig_key(100 + 2 * fit + i);
        rig_free(rig_blocks(&rig, KVW_LOOKUP, &args, &key, 1, NULL, 0));
    }
    key = rig_key(500);
    {
        uint16_t *rows = rig_rows(&space, space.layers, space.group, 1);

        call = rig_compress(&rig, &space, &key, 1, KVARN_BLOCK_EXACT, rows);
        assert_int_equal(call->status, KVARN_NO_SPACE);
        rig.tenant = 1; /* another tenant cannot push it out either */
        call = rig_open_space_call(&rig, &(struct kvw_open_space){.model = "a",
                                                                  .revision = "",
                                                                  .adapter = "",
                                                                  .rope = "",
                                                                  .preset = "kvarn_k2v2_g64",
                                                                  .key_algorithm = "",
                                                                  .layers = 2,
                                                                  .kv_heads = 2,
                                                                  .head_dim = 64,
                                                                  .dtype = 1});
        assert_int_equal(call->status, KVARN_OK);
        rig.tenant = 0;
        rig.now_ns += 2000 * 1000000ull;
        kvd_service_tick(rig.service);
        call = rig_compress(&rig, &space, &key, 1, KVARN_BLOCK_EXACT, rows);
        assert_int_equal(call->status, KVARN_OK);
        free(rows);
    }
    rig_close(&rig);
}

/* Every operation on somebody else's space answers as if it did not exist. */
static void test_other_tenant(void **state)
{
    static const uint8_t ops[] = {KVW_LOOKUP, KVW_DECOMPRESS, KVW_EXPORT, KVW_DROP, KVW_VERIFY};
    struct rig rig;
    struct rig_space space;
    kvarn_key key = rig_key(1);
    struct kvw_blocks mine, absent;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 1, KVARN_BLOCK_TILE, 1);
    mine = in_space(&space);
    absent = mine;
    absent.space ^= 0x7700000000;
    rig.tenant = 3;
    for (size_t i = 0; i < sizeof ops; i++) {
        struct rig_call *a = rig_blocks(&rig, ops[i], &mine, &key, 1, NULL, 0);
        struct rig_call *b = rig_blocks(&rig, ops[i], &absent, &key, 1, NULL, 0);

        assert_int_equal(a->status, KVARN_NOT_FOUND);
        assert_int_equal(a->meta_bytes, b->meta_bytes);
        assert_memory_equal(a->meta, b->meta, a->meta_bytes);
        assert_int_equal(a->payload_bytes + b->payload_bytes, 0);
    }
    rows = rig_rows(&space, 2, space.group, 1);
    assert_int_equal(rig_compress(&rig, &space, &key, 1, KVARN_BLOCK_TILE, rows)->status,
                     KVARN_NOT_FOUND);
    /* the same parameters are another space for another tenant, and its own blocks */
    space = rig_open_space(&rig, NULL);
    assert_int_not_equal(space.handle, mine.space);
    mine.space = space.handle;
    assert_int_equal(rig_blocks(&rig, KVW_LOOKUP, &mine, &key, 1, NULL, 0)->status, KVARN_OK);
    assert_int_equal(rig_metric(&rig, "kvarn_block_misses_total"), 1);
    free(rows);
    rig_close(&rig);
}

static void test_counts(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    struct kvw_blocks args;
    uint8_t meta[64];
    size_t bytes;
    static uint8_t big[(KVW_BLOCKS_MAX + 1) * KVARN_KEY_BYTES];

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args = in_space(&space);
    args.block_count = 2; /* but the payload has one and a half */
    bytes = kvw_blocks_encode(meta, sizeof meta, &args);
    for (uint8_t op = KVW_LOOKUP; op <= KVW_VERIFY; op++) {
        if (op == KVW_RELEASE)
            continue;
        assert_int_equal(rig_call(&rig, op, meta, bytes, keys, 48)->status, KVARN_INVALID_SHAPE);
        assert_int_equal(rig_call(&rig, op, meta, bytes, NULL, 0)->status, KVARN_INVALID_SHAPE);
    }
    args.block_count = KVW_BLOCKS_MAX + 1;
    bytes = kvw_blocks_encode(meta, sizeof meta, &args);
    assert_int_equal(rig_call(&rig, KVW_LOOKUP, meta, bytes, big, sizeof big)->status,
                     KVARN_INVALID_SHAPE);
    for (uint8_t op = 0; op < 64; op++) { /* garbage metadata, every operation */
        struct rig_call *call = rig_call(&rig, op, (const uint8_t *)"\xff\xff\xff", 3, keys, 64);

        if (op != KVW_LIST)
            assert_true(call->status == KVARN_BAD_FRAME || call->status == KVARN_UNSUPPORTED);
        assert_true(call->status == KVARN_OK || call->text[0]);
    }
    rig_close(&rig);
}

/* The worker dies in each kind of job; a full ring; a client that hangs up while the job runs. */
static void test_worker_lost(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(1), rig_key(2)};
    struct kvw_blocks args;
    struct rig_call *call, *out;
    uint16_t *rows, *q;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args = in_space(&space);
    args.query = (struct kvw_query){.present = true, .q_heads = 2, .q_tokens = 1};
    rows = rig_rows(&space, 2, 2 * space.group, 1);
    q = rig_rows(&space, 1, 1, 1);
    for (int round = 0; round < 2; round++) {
        kvarn_status expected = round ? KVARN_RETRY : KVARN_GPU_LOST;

        for (int i = 0; i < 5; i++) {
            if (round)
                fake_device_full(rig.device, 0, 1);
            else
                fake_device_lose(rig.device, 0);
            if (i == 0) {
                call = rig_compress(&rig, &space, keys, 2, KVARN_BLOCK_TILE, rows);
                assert_int_equal(rig.service->blocks.live, 0);
            } else if (i == 1) {
                call = rig_blocks(&rig, KVW_DECOMPRESS, &args, keys, 2, NULL, 0);
            } else if (i == 2) {
                call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 2, q, 2 * 64 * 2);
            } else if (i == 3) {
                call = rig_blocks(&rig, KVW_VERIFY, &args, keys, 2, NULL, 0);
            } else {
                rig_free(rig_blocks(&rig, KVW_DROP, &args, keys, 2, NULL, 0));
                call = import(&rig, &space, out, 2, out->payload_bytes);
                assert_int_equal(rig.service->blocks.live, 0);
            }
            assert_int_equal(call->status, expected);
            rig_assert_quiet(&rig);
            if (i == 0) {
                store(&rig, &space, 1, 2, KVARN_BLOCK_TILE, 1);
                out = rig_blocks(&rig, KVW_EXPORT, &args, keys, 2, NULL, 0);
            }
        }
    }
    call = rig_compress_start(&rig, &space, keys, 2, KVARN_BLOCK_TILE, rows);
    rig_hang_up(&rig, 1);
    rig_run(&rig);
    assert_true(call->replied); /* to nobody; the blocks are stored all the same */
    assert_int_equal(rig.service->blocks.live, 2);
    free(rows);
    free(q);
    rig_close(&rig);
}

/* HELLO says how long a payload may be. That holds for answers, tables included. */
static void test_longest_reply(void **state)
{
    struct rig_options options = {.payload_max_bytes = 64 << 10}; /* rows of one block */
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(1), rig_key(1)};
    struct kvw_blocks args;
    struct rig_call *call;
    uint16_t *q;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    store(&rig, &space, 1, 1, KVARN_BLOCK_TILE, 5);
    assert_int_equal(rig_rows_bytes(&space, space.layers, space.group), 64 << 10);
    args = in_space(&space);
    call = rig_blocks(&rig, KVW_DECOMPRESS, &args, keys, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    assert_non_null(strstr(call->text, "65552"));
    rig_free(call);
    args.layer_count = 1;
    call = rig_blocks(&rig, KVW_DECOMPRESS, &args, keys, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    rig_free(call);
    /* 16-bit queries of 32 KiB, an answer of 64 KiB and its sums */
    q = calloc(64 * 4, 64 * 2);
    args = in_space(&space);
    args.query.present = true;
    args.query.q_heads = 4;
    args.query.q_tokens = 64;
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 1, q, (size_t)64 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    assert_non_null(strstr(call->text, "query tokens"));
    rig_free(call);
    args.query.q_tokens = 32;
    call = rig_blocks(&rig, KVW_ATTEND, &args, keys, 1, q, (size_t)32 * 4 * 64 * 2);
    assert_int_equal(call->status, KVARN_OK);
    rig_free(call);
    free(q);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_round_trip), cmocka_unit_test(test_failed_block_is_cleared),
        cmocka_unit_test(test_tile_round_trip),  cmocka_unit_test(test_compress_statuses),
        cmocka_unit_test(test_compress_race),    cmocka_unit_test(test_layout),
        cmocka_unit_test(test_lookup_lease),     cmocka_unit_test(test_attend),
        cmocka_unit_test(test_export_import),    cmocka_unit_test(test_drop_while_read),
        cmocka_unit_test(test_verify),           cmocka_unit_test(test_full_pool),
        cmocka_unit_test(test_other_tenant),     cmocka_unit_test(test_counts),
        cmocka_unit_test(test_worker_lost),      cmocka_unit_test(test_longest_reply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
