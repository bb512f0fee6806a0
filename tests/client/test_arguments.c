/* client: what is refused before anything is sent, with a sentence that names the argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/client.h>

#include "fake_daemon.h"

static struct fake_daemon daemon_;
static kvarn_client *client;
static kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;
static kvarn_key keys[2];
static uint8_t memory[16];

static void expect(kvarn_status got, kvarn_status status, const char *hint)
{
    if (got != status)
        fail_msg("%s, not %s: %s", kvarn_status_name(got), kvarn_status_name(status),
                 kvarn_client_error(client));
    if (!strstr(kvarn_client_error(client), hint))
        fail_msg("\"%s\" does not say \"%s\"", kvarn_client_error(client), hint);
}

static int setup(void **state)
{
    (void)state;
    fake_daemon_start(&daemon_, 0);
    if (kvarn_connect(&client, daemon_.address, NULL) != KVARN_OK)
        return -1;
    space.model = "m";
    space.layers = PEER_LAYERS;
    space.kv_heads = PEER_HEADS;
    space.head_dim = PEER_DIM;
    space.dtype = KVARN_F16;
    space.preset = "kvarn_k2v2_g64";
    return kvarn_open_space(client, &space) == KVARN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvarn_close(&client);
    fake_daemon_stop(&daemon_);
    return 0;
}

static void structs(void **state)
{
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_call *call = NULL;

    (void)state;
    ping.size--;
    expect(kvarn_ping(client, &ping), KVARN_INVALID_SHAPE, "_INIT");
    ping.size += 100; /* a newer program with this library */
    assert_int_equal(kvarn_ping(client, &ping), KVARN_OK);
    expect(kvarn_ping(client, NULL), KVARN_INVALID_SHAPE, "args");
    expect(kvarn_ping_start(client, &ping, NULL), KVARN_INVALID_SHAPE, "call");
    assert_int_equal(kvarn_ping(NULL, &ping), KVARN_INVALID_SHAPE);
    assert_int_equal(kvarn_ping_start(NULL, &ping, &call), KVARN_INVALID_SHAPE);
    assert_int_equal(kvarn_call_status(NULL), KVARN_INVALID_SHAPE);
    assert_int_equal(kvarn_call_wait(NULL, 0), KVARN_INVALID_SHAPE);
    assert_string_equal(kvarn_call_text(NULL), "");
    assert_int_equal(kvarn_client_process(NULL), KVARN_INVALID_SHAPE);
    assert_int_equal(kvarn_client_fd(NULL), -1);
    assert_non_null(kvarn_client_error(NULL));
    kvarn_close(NULL);
    assert_string_equal(kvarn_version(), KVARN_VERSION);
}

static void open_space(void **state)
{
    kvarn_space_options wrong = space;
    char text[600];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    wrong.model = text;
    expect(kvarn_open_space(client, &wrong), KVARN_TOO_LARGE, "model has 599");
    wrong = space;
    wrong.layers = 0;
    expect(kvarn_open_space(client, &wrong), KVARN_INVALID_SHAPE, "layers 0");
    wrong = space;
    wrong.dtype = KVARN_F32;
    expect(kvarn_open_space(client, &wrong), KVARN_INVALID_SHAPE, "KVARN_F16");
    wrong = space;
    wrong.preset = NULL;
    expect(kvarn_open_space(client, &wrong), KVARN_INVALID_SHAPE, "kvarn_preset_at");
    wrong = space;
    wrong.layer_begin = 1;
    wrong.layer_count = 2;
    expect(kvarn_open_space(client, &wrong), KVARN_INVALID_SHAPE, "shard");
    wrong.layer_begin = UINT32_MAX;
    expect(kvarn_open_space(client, &wrong), KVARN_INVALID_SHAPE, "shard");
}

static void blocks(void **state)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    (void)state;
    args.space = space.space;
    args.keys = keys;
    expect(kvarn_lookup(client, &args), KVARN_INVALID_SHAPE, "count is 0");
    args.count = 5000;
    expect(kvarn_drop(client, &args), KVARN_TOO_LARGE, "4096");
    args.count = 1;
    args.keys = NULL;
    expect(kvarn_verify(client, &args), KVARN_INVALID_SHAPE, "keys is NULL");
    expect(kvarn_release(client, &args), KVARN_INVALID_SHAPE, "lease is 0");
}

static void rows(void **state)
{
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
    kvarn_block_kind kinds[] = {(kvarn_block_kind)9};

    (void)state;
    put.space = 12345;
    put.keys = keys;
    put.count = 1;
    expect(kvarn_compress(client, &put), KVARN_NOT_FOUND, "12345");
    put.space = space.space;
    expect(kvarn_compress(client, &put), KVARN_INVALID_SHAPE, "k is NULL");
    put.k = memory;
    expect(kvarn_compress(client, &put), KVARN_INVALID_SHAPE, "v is NULL");
    put.v = memory;
    put.kinds = kinds;
    expect(kvarn_compress(client, &put), KVARN_INVALID_SHAPE, "kinds[0]");
    put.kinds = NULL;
    put.count = 4096;
    put.keys = calloc(4096, sizeof keys[0]);
    expect(kvarn_compress(client, &put), KVARN_TOO_LARGE, "fewer");

    get.space = space.space;
    get.keys = put.keys;
    get.count = 4096;
    get.k = get.v = memory;
    expect(kvarn_decompress(client, &get), KVARN_TOO_LARGE, "fewer");
    get.count = 1;
    get.layer_begin = 2;
    expect(kvarn_decompress(client, &get), KVARN_INVALID_SHAPE, "layers 2+0");
    get.layer_begin = 1;
    get.layer_count = 2;
    expect(kvarn_decompress(client, &get), KVARN_INVALID_SHAPE, "layers 1+2");
    get.layer_count = 0;
    get.v = NULL;
    expect(kvarn_decompress(client, &get), KVARN_INVALID_SHAPE, "v is NULL");
    free((void *)(uintptr_t)put.keys);
}

static void attend(void **state)
{
    kvarn_attend_args args = KVARN_ATTEND_INIT;

    (void)state;
    args.space = space.space;
    args.keys = keys;
    args.count = 1;
    args.layer = 2;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "layer is 2");
    args.layer = 0;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "q_tokens");
    args.q_tokens = 1;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "q is NULL");
    args.q = memory;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "out is NULL");
    args.out = memory;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "q_heads is 0");
    args.query.q_heads = 3;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "2 kv heads");
    args.query.q_heads = 2 * KVARN_MAX_GQA + 2;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "q_heads");
    args.query.q_heads = 4;
    args.query.q_dtype = (kvarn_dtype)77;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "q_dtype is 77");
    args.query.q_dtype = 0;
    args.query.out_dtype = (kvarn_dtype)78;
    expect(kvarn_attend(client, &args), KVARN_INVALID_SHAPE, "out_dtype is 78");
    args.query.out_dtype = 0;
    args.q_tokens = UINT32_MAX;
    expect(kvarn_attend(client, &args), KVARN_TOO_LARGE, "fewer tokens");
}

static void transfers(void **state)
{
    kvarn_block_result results[2] = {{.kind = KVARN_BLOCK_TILE}};
    kvarn_export_args out = KVARN_EXPORT_INIT;
    kvarn_import_args in = KVARN_IMPORT_INIT;

    (void)state;
    out.space = space.space;
    out.keys = keys;
    out.count = 1;
    expect(kvarn_export(client, &out), KVARN_INVALID_SHAPE, "results is NULL");
    out.results = results;
    out.bytes_capacity = 5;
    expect(kvarn_export(client, &out), KVARN_INVALID_SHAPE, "bytes is NULL");
    in.space = space.space;
    in.keys = keys;
    in.count = 2;
    expect(kvarn_import_blocks(client, &in), KVARN_INVALID_SHAPE, "blocks is NULL");
    in.blocks = results;
    in.bytes = memory;
    expect(kvarn_import_blocks(client, &in), KVARN_INVALID_SHAPE, "origin");
    in.origin = &out.origin;
    expect(kvarn_import_blocks(client, &in), KVARN_INVALID_SHAPE, "blocks[1].kind is 0");
    in.count = 1;
    expect(kvarn_import_blocks(client, &in), KVARN_INVALID_SHAPE, "1000");
}

static void sequences(void **state)
{
    kvarn_seq seqs[2] = {{.sequence = 1}};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    (void)state;
    args.space = space.space;
    expect(kvarn_sequence_open(client, &args), KVARN_INVALID_SHAPE, "seqs is NULL");
    expect(kvarn_sequence_append(client, &args), KVARN_INVALID_SHAPE, "count is 0");
    args.count = 1;
    expect(kvarn_sequence_release(client, &args), KVARN_INVALID_SHAPE, "seqs is NULL");
    args.seqs = seqs;
    expect(kvarn_sequence_append(client, &args), KVARN_INVALID_SHAPE, "new tokens");
    args.query.q_heads = 2;
    expect(kvarn_sequence_attend(client, &args), KVARN_INVALID_SHAPE, "query tokens");
    seqs[0].q_tokens = 1;
    args.q = args.out = memory;
    seqs[0].tokens = 1;
    expect(kvarn_sequence_attend(client, &args), KVARN_INVALID_SHAPE, "k is NULL");
    args.layer_begin = 2;
    expect(kvarn_sequence_attend(client, &args), KVARN_INVALID_SHAPE, "layer_begin");
    args.key_count = 1;
    expect(kvarn_sequence_commit(client, &args), KVARN_INVALID_SHAPE, "keys is NULL");
    args.count = 5000;
    expect(kvarn_sequence_fork(client, &args), KVARN_TOO_LARGE, "4096");
}

static void block_keys(void **state)
{
    kvarn_key first, again, second;
    const uint32_t tokens[] = {1, 2, 3};

    (void)state;
    assert_int_equal(kvarn_block_key(&first, NULL, NULL, tokens, 3, NULL), KVARN_OK);
    assert_int_equal(kvarn_block_key(&again, NULL, "0", tokens, 3, ""), KVARN_OK);
    assert_memory_equal(&first, &again, sizeof first);
    assert_int_equal(kvarn_block_key(&second, &first, NULL, tokens, 3, NULL), KVARN_OK);
    assert_memory_not_equal(&first, &second, sizeof first);
    assert_int_equal(kvarn_block_key(NULL, NULL, NULL, tokens, 3, NULL), KVARN_INVALID_SHAPE);
    assert_int_equal(kvarn_block_key(&first, NULL, NULL, NULL, 3, NULL), KVARN_INVALID_SHAPE);
}

static void nothing_was_sent(void **state)
{
    (void)state;
    assert_int_equal(atomic_load(&daemon_.requests), 3); /* HELLO, OPEN_SPACE, one good PING */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs),          cmocka_unit_test(open_space),
        cmocka_unit_test(blocks),           cmocka_unit_test(rows),
        cmocka_unit_test(attend),           cmocka_unit_test(transfers),
        cmocka_unit_test(sequences),        cmocka_unit_test(block_keys),
        cmocka_unit_test(nothing_was_sent),
    };
    return cmocka_run_group_tests_name("arguments", tests, setup, teardown);
}
