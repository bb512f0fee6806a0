/* Spaces: what is refused and with which words, who shares one, what becomes of old handles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/store_rig.h"

static struct store_rig rig;
static char text[512];

static kvarn_status open_with(const struct kvw_open_space *options, struct kvd_space **space)
{
    text[0] = 0;
    *space = NULL;
    return kvd_space_open(&rig.spaces, 0, options, space, text, sizeof text);
}

static void test_sizes(void **state)
{
    struct kvw_open_space options = store_options();
    struct kvd_space *space;

    (void)state;
    store_open(&rig, 64 << 20);
    options.head_dim = 128;
    options.preset = "kvarn_k4v2_g128";
    options.layers = 10;
    options.kv_heads = 8;
    options.layer_begin = 4;
    options.head_begin = 6;
    assert_int_equal(open_with(&options, &space), KVARN_OK);
    assert_int_equal(space->layers, 6);
    assert_int_equal(space->heads, 2);
    assert_int_equal(space->record_bytes, 13824);
    assert_int_equal(space->tile_bytes, 13824 * 12);
    assert_int_equal(space->exact_bytes, 65536 * 12);
    assert_int_equal(space->sink_tokens, 128);
    assert_int_equal(space->shape.iterations, 8);
    store_close(&rig);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *model, *preset;
        uint32_t layers, heads, dim, dtype, layer_begin, layer_count, head_begin, iterations, sink;
        kvarn_status status;
        const char *says;
    } bad[] = {
        {"", "kvarn_k2v2_g64", 2, 2, 64, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "model"},
        {"m", "kvarn_k3v3", 2, 2, 64, 1, 0, 0, 0, 0, 64, KVARN_UNSUPPORTED, "kvarn_k2v2_g128"},
        {"m", "", 2, 2, 64, 1, 0, 0, 0, 0, 64, KVARN_UNSUPPORTED, "preset"},
        {"m", "kvarn_k2v2_g64", 0, 2, 64, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "layers = 0"},
        {"m", "kvarn_k2v2_g64", 1025, 2, 64, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "1025"},
        {"m", "kvarn_k2v2_g64", 2, 0, 64, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "kv_heads = 0"},
        {"m", "kvarn_k2v2_g64", 2, UINT32_MAX, 64, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "kv_h"},
        {"m", "kvarn_k2v2_g64", 2, 2, 80, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "head_dim = 80;"},
        {"m", "kvarn_k2v2_g64", 2, 2, 1u << 20, 1, 0, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "104"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 3, 0, 0, 0, 0, 64, KVARN_UNSUPPORTED, "dtype"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 999, 0, 0, 0, 0, 64, KVARN_UNSUPPORTED, "dtype = 999;"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 2, 0, 0, 0, 64, KVARN_INVALID_SHAPE, "layers"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 1, 2, 0, 0, 64, KVARN_INVALID_SHAPE, "[1, +2)"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 1, UINT32_MAX, 0, 0, 64, KVARN_INVALID_SHAPE, "lay"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 0, 0, 9, 0, 64, KVARN_INVALID_SHAPE, "kv heads"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 0, 0, 0, 65, 64, KVARN_INVALID_SHAPE, "65"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 0, 0, 0, 0, 65, KVARN_INVALID_SHAPE, "sink_tokens"},
        {"m", "kvarn_k2v2_g64", 2, 2, 64, 1, 0, 0, 0, 0, 1088, KVARN_INVALID_SHAPE, "1024"},
        {"m", "kvarn_k2v2_g64", 1024, 1024, 64, 1, 0, 0, 0, 0, 64, KVARN_TOO_LARGE, "17179869184"},
    };
    struct kvd_space *space;

    (void)state;
    store_open(&rig, 64 << 20);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvw_open_space options = store_options();

        options.model = bad[i].model;
        options.preset = bad[i].preset;
        options.layers = bad[i].layers;
        options.kv_heads = bad[i].heads;
        options.head_dim = bad[i].dim;
        options.dtype = bad[i].dtype;
        options.layer_begin = bad[i].layer_begin;
        options.layer_count = bad[i].layer_count;
        options.head_begin = bad[i].head_begin;
        options.iterations = bad[i].iterations;
        options.has_iterations = bad[i].iterations != 0;
        options.sink_tokens = bad[i].sink;
        options.has_sink_tokens = true;
        if (open_with(&options, &space) != bad[i].status || !strstr(text, bad[i].says))
            fail_msg("case %zu: %s", i, text);
    }
    for (uint32_t i = 0; i < KVD_SPACES_MAX; i++)
        assert_false(rig.spaces.slots[i].used);
    store_close(&rig);
}

/* Another rotation of K, another range: other spaces, on whatever device. */
static void test_forms(void **state)
{
    struct kvw_open_space options = store_options();
    struct kvd_space *space, *plain;

    (void)state;
    store_open(&rig, 64 << 20);
    assert_int_equal(open_with(&options, &plain), KVARN_OK);
    assert_int_equal(plain->shape.k_rotated, 0);
    options.k_rotated = true;
    assert_int_equal(open_with(&options, &space), KVARN_OK);
    assert_ptr_not_equal(space, plain);
    assert_int_equal(space->shape.k_rotated, 1);
    rig.spaces.pools[0].name = "cuda:0";
    rig.spaces.pools[0].preferred = true;
    rig.spaces.pools[1] = (struct kvd_space_pool){"host", rig.pool, false};
    rig.spaces.pool_count = 2;
    options.model = "another";
    assert_int_equal(open_with(&options, &space), KVARN_OK);
    assert_int_equal(space->device, 0);
    options.preset = "tight_k2v2_g64";
    assert_int_equal(open_with(&options, &space), KVARN_OK);
    assert_int_equal(space->device, 0);
    assert_int_equal(space->shape.range, KVARN_RANGE_TIGHT);
    assert_int_equal(space->shape.k_rotated, 1);
    store_close(&rig);
}

static void test_shared(void **state)
{
    struct kvw_open_space options = store_options();
    struct kvd_space *a, *b, *c;

    (void)state;
    store_open(&rig, 64 << 20);
    assert_int_equal(open_with(&options, &a), KVARN_OK);
    options.key_algorithm = "sha256_cbor"; /* the default, said aloud */
    options.has_iterations = true;
    options.iterations = 8;
    assert_int_equal(open_with(&options, &b), KVARN_OK);
    assert_ptr_equal(a, b);
    options.iterations = 9; /* other parameters: another space, no mismatch */
    assert_int_equal(open_with(&options, &b), KVARN_OK);
    assert_ptr_not_equal(a, b);
    options.iterations = 8;
    options.layer_count = 1; /* a shard: same fingerprint */
    assert_int_equal(open_with(&options, &c), KVARN_OK);
    assert_ptr_not_equal(a, c);
    assert_memory_equal(a->fingerprint, c->fingerprint, sizeof a->fingerprint);
    b = store_space(&rig, 1, "test/model");
    assert_ptr_not_equal(a, b);
    assert_memory_equal(a->fingerprint, b->fingerprint, sizeof a->fingerprint);
    assert_ptr_equal(kvd_space_find(&rig.spaces, 0, a->handle), a);
    assert_null(kvd_space_find(&rig.spaces, 1, a->handle));
    assert_null(kvd_space_find(&rig.spaces, 0, a->handle + (1ull << 32)));
    assert_null(kvd_space_find(&rig.spaces, 0, 0));
    assert_null(kvd_space_find(&rig.spaces, 0, KVD_SPACES_MAX + 1));
    store_close(&rig);
}

/* 256 and no more; one that holds nothing makes room, and its handle names nothing any more. */
static void test_table_full(void **state)
{
    struct kvw_open_space options = store_options();
    struct kvd_space *space, *first;
    uint64_t old;
    char model[32];

    (void)state;
    store_open(&rig, 64 << 20);
    first = store_space(&rig, 0, "0");
    old = first->handle;
    store_block(&rig, first, 1, KVARN_BLOCK_TILE);
    for (int i = 1; i < KVD_SPACES_MAX; i++) {
        snprintf(model, sizeof model, "%d", i);
        store_space(&rig, 0, model)->pins = 1;
    }
    options.model = "one more";
    assert_int_equal(open_with(&options, &space), KVARN_RETRY);
    store_drop_all(&rig);
    assert_int_equal(open_with(&options, &space), KVARN_OK);
    assert_ptr_equal(space, first);
    assert_null(kvd_space_find(&rig.spaces, 0, old));
    assert_int_equal(space->index.count, 0);
    store_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_shared),
        cmocka_unit_test(test_table_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
