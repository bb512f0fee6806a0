/* client against a real kvarnd (argv[1]) that it spawns: every operation on blocks and sequences,
 * dense and strided rows giving the same records, hand-over, errors that come from the daemon. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include <kvarn/client.h>

#include "support/rng.h"

enum {
    LAYERS = 2,
    HEADS = 2,
    DIM = 64,
    GROUP = 64,
    BLOCKS = 4, /* two of the sink, two tiles */
    Q_HEADS = 4,
    TOKENS = BLOCKS * GROUP,
    VALUES = LAYERS * TOKENS * HEADS * DIM
};

static const char *kvarnd;
static kvarn_client *client;
static kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;
static kvarn_key keys[BLOCKS];
static const kvarn_block_kind kinds[BLOCKS] = {KVARN_BLOCK_EXACT, KVARN_BLOCK_EXACT,
                                               KVARN_BLOCK_TILE, KVARN_BLOCK_TILE};
static uint16_t k[VALUES], v[VALUES], got_k[VALUES], got_v[VALUES];
static kvarn_block_result stored[BLOCKS];

static uint16_t half_of(float value)
{
    union {
        float f;
        uint32_t u;
    } bits = {value};
    uint32_t exponent = bits.u >> 23 & 0xff;

    if (exponent < 113)
        return 0;
    return (uint16_t)((bits.u >> 16 & 0x8000) | (exponent - 112) << 10 | (bits.u >> 13 & 0x3ff));
}

static float float_of(uint16_t half)
{
    float magnitude = ldexpf((float)(half & 0x3ff) + (half & 0x7c00 ? 1024.0f : 0.0f),
                             (half >> 10 & 31) - (half & 0x7c00 ? 25 : 24));

    return half & 0x8000 ? -magnitude : magnitude;
}

static void check(kvarn_status got, kvarn_status status)
{
    if (got != status)
        fail_msg("%s, not %s: %s", kvarn_status_name(got), kvarn_status_name(status),
                 kvarn_client_error(client));
}

static void connect_to(kvarn_client **out)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;

    options.kvarnd_path = kvarnd;
    options.spawn_pool = "host:64MiB";
    client = NULL;
    kvarn_status status = kvarn_connect(out, "spawn:", &options);
    client = *out;
    check(status, KVARN_OK);
    space.model = "test";
    space.layers = LAYERS;
    space.kv_heads = HEADS;
    space.head_dim = DIM;
    space.dtype = KVARN_F16;
    space.preset = "kvarn_k4v4_g64";
    check(kvarn_open_space(client, &space), KVARN_OK);
    assert_int_equal(space.group, GROUP);
}

static int setup(void **state)
{
    struct rng rng = rng_make(rng_seed(3));

    (void)state;
    connect_to(&client);
    for (size_t i = 0; i < VALUES; i++) {
        k[i] = half_of((float)rng_normal(&rng));
        v[i] = half_of((float)rng_normal(&rng));
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        uint32_t tokens[GROUP];
        for (uint32_t t = 0; t < GROUP; t++)
            tokens[t] = (uint32_t)i * GROUP + t;
        check(kvarn_block_key(&keys[i], i ? &keys[i - 1] : NULL, NULL, tokens, GROUP, NULL),
              KVARN_OK);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvarn_close(&client);
    return 0;
}

static void drop_all(void)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    args.space = space.space;
    args.keys = keys;
    args.count = BLOCKS;
    kvarn_drop(client, &args);
}

static void compress(const void *at_k, const void *at_v, const kvarn_strides *strides,
                     kvarn_block_result results[BLOCKS])
{
    kvarn_compress_args args = KVARN_COMPRESS_INIT;

    args.space = space.space;
    args.keys = keys;
    args.kinds = kinds;
    args.count = BLOCKS;
    args.k = at_k;
    args.v = at_v;
    args.strides = strides;
    args.results = results;
    check(kvarn_compress(client, &args), KVARN_OK);
    assert_int_equal(args.stored, BLOCKS);
}

static void blocks_come_back(void **state)
{
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
    kvarn_blocks_args look = KVARN_BLOCKS_INIT;
    double error = 0, power = 0;

    (void)state;
    compress(k, v, NULL, stored);
    get.space = look.space = space.space;
    get.keys = look.keys = keys;
    get.count = look.count = BLOCKS;
    get.k = got_k;
    get.v = got_v;
    check(kvarn_decompress(client, &get), KVARN_OK);
    assert_int_equal(get.matched, BLOCKS);
    for (size_t i = 0; i < VALUES; i++) {
        double x = float_of(k[i]), y = float_of(got_k[i]);
        size_t token = i / (HEADS * DIM) % TOKENS;
        if (token < 2 * GROUP) {
            assert_int_equal(got_k[i], k[i]);
            assert_int_equal(got_v[i], v[i]);
            continue;
        }
        error += (x - y) * (x - y);
        power += x * x;
    }
    assert_true(power > 0 && error / power < 0.05);

    look.lease_ms = 1000;
    look.results = stored;
    check(kvarn_lookup(client, &look), KVARN_OK);
    assert_int_equal(look.matched, BLOCKS);
    assert_true(look.lease != 0);
    check(kvarn_release(client, &look), KVARN_OK);
    check(kvarn_verify(client, &look), KVARN_OK);
    look.all = 1;
    check(kvarn_verify(client, &look), KVARN_OK);
    assert_int_equal(look.matched, BLOCKS);
}

/* Pin, drop all, events, reset, as a client has them. */
static void blocks_are_pinned_followed_and_reset(void **state)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    kvarn_events_args events = KVARN_EVENTS_INIT;
    kvarn_event seen[64];
    size_t removed = 0, dropped = 0, calls = 0;

    (void)state;
    drop_all();
    events.events = seen;
    events.capacity = 64;
    check(kvarn_events(client, &events), KVARN_OK);
    assert_true(events.lost && events.epoch != 0);
    compress(k, v, NULL, stored);
    check(kvarn_events(client, &events), KVARN_OK);
    assert_false(events.lost);
    assert_int_equal(events.count, BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(seen[i].type, KVARN_EVENT_STORED);
        assert_int_equal(seen[i].space, space.space);
        assert_memory_equal(&seen[i].key, &keys[i], sizeof keys[i]);
        assert_int_equal(seen[i].kind, stored[i].kind);
    }
    args.space = space.space;
    args.keys = keys;
    args.count = 1;
    check(kvarn_pin(client, &args), KVARN_OK);
    args.all = 1;
    args.limit = 2;
    do {
        check(kvarn_drop(client, &args), KVARN_OK);
        dropped += args.matched;
        calls++;
    } while (args.cursor != 0);
    assert_int_equal(dropped, BLOCKS - 1);
    assert_true(calls > 1 && args.total >= BLOCKS);
    events.capacity = 1;
    do {
        check(kvarn_events(client, &events), KVARN_OK);
        removed += events.count == 1 && seen[0].type == KVARN_EVENT_REMOVED;
    } while (events.count > 0);
    assert_int_equal(removed, BLOCKS - 1);
    events.snapshot = 1;
    events.capacity = 64;
    check(kvarn_events(client, &events), KVARN_OK);
    assert_int_equal(events.count, 1);
    assert_memory_equal(&seen[0].key, &keys[0], sizeof keys[0]);
    args.unpin = 1;
    args.all = 0;
    check(kvarn_pin(client, &args), KVARN_OK);
    events.events = NULL;
    assert_int_equal(kvarn_events(client, &events), KVARN_INVALID_SHAPE);
    compress(k, v, NULL, stored); /* for the tests that follow */
}

/* The last one: its space is of another epoch than that of any other daemon. */
static void a_reset_space_is_stale(void **state)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    kvarn_events_args events = KVARN_EVENTS_INIT;
    kvarn_space_options again = space;
    kvarn_event seen[64];

    (void)state;
    events.events = seen;
    events.capacity = 64;
    check(kvarn_events(client, &events), KVARN_OK); /* from here on */
    args.space = space.space;
    args.keys = keys;
    args.count = 1;
    check(kvarn_reset(client, &args), KVARN_OK);
    assert_int_equal(args.matched, 1);
    assert_int_equal(kvarn_lookup(client, &args), KVARN_STALE);
    check(kvarn_open_space(client, &again), KVARN_OK);
    assert_int_not_equal(again.space, space.space);
    assert_memory_not_equal(again.fingerprint, space.fingerprint, sizeof again.fingerprint);
    args.space = again.space;
    assert_int_equal(kvarn_lookup(client, &args), KVARN_OK);
    assert_int_equal(args.matched, 0);
    check(kvarn_events(client, &events), KVARN_OK);
    assert_int_equal(events.count, 1);
    assert_int_equal(seen[0].type, KVARN_EVENT_CLEARED);
    assert_int_equal(seen[0].space, space.space);
}

/* [layer][token][head][K then V][dim] in one allocation, and V before K far apart. */
static void strides_give_the_same_records(void **state)
{
    static uint16_t both[2 * VALUES];
    kvarn_block_result results[BLOCKS];
    kvarn_strides strides;

    (void)state;
    for (size_t i = 0; i < VALUES; i++) {
        both[i / DIM * 2 * DIM + i % DIM] = k[i];
        both[i / DIM * 2 * DIM + DIM + i % DIM] = v[i];
    }
    drop_all();
    strides.head = 2 * DIM * 2;
    strides.token = HEADS * strides.head;
    strides.block = GROUP * strides.token;
    strides.layer = BLOCKS * strides.block;
    compress(both, both + DIM, &strides, results);
    for (size_t i = 0; i < BLOCKS; i++)
        assert_int_equal(results[i].digest, stored[i].digest);

    /* [head][layer][token][dim], V first. */
    for (size_t i = 0; i < VALUES; i++) {
        size_t dim = i % DIM, head = i / DIM % HEADS, row = i / DIM / HEADS;
        size_t at = (head * LAYERS * TOKENS + row) * DIM + dim;
        both[at] = v[i];
        both[VALUES + at] = k[i];
    }
    drop_all();
    strides.head = (uint64_t)LAYERS * TOKENS * DIM * 2;
    strides.token = DIM * 2;
    strides.block = GROUP * strides.token;
    strides.layer = BLOCKS * strides.block;
    compress(both + VALUES, both, &strides, results);
    for (size_t i = 0; i < BLOCKS; i++)
        assert_int_equal(results[i].digest, stored[i].digest);
}

static void hand_over(void **state)
{
    kvarn_client *first = client, *second = NULL;
    static uint8_t bytes[2 * sizeof k + sizeof v];
    kvarn_block_result results[BLOCKS];
    kvarn_export_args out = KVARN_EXPORT_INIT;
    kvarn_import_args in = KVARN_IMPORT_INIT;

    (void)state;
    out.space = space.space;
    out.keys = in.keys = keys;
    out.count = in.count = BLOCKS;
    out.bytes = bytes;
    out.bytes_capacity = sizeof bytes;
    out.results = results;
    check(kvarn_export(client, &out), KVARN_OK);
    assert_int_equal(out.bytes_used, 2 * (space.exact_block_bytes + space.tile_block_bytes));
    kvarn_space_options before = space;
    connect_to(&second); /* another daemon */
    assert_memory_equal(before.fingerprint, space.fingerprint, sizeof space.fingerprint);
    in.space = space.space;
    in.blocks = results;
    in.bytes = bytes;
    in.bytes_count = out.bytes_used;
    in.origin = &out.origin;
    check(kvarn_import_blocks(client, &in), KVARN_OK);
    assert_int_equal(in.stored, BLOCKS);
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
    static uint16_t other_k[VALUES], other_v[VALUES];
    get.space = space.space;
    get.keys = keys;
    get.count = BLOCKS;
    get.k = other_k;
    get.v = other_v;
    check(kvarn_decompress(client, &get), KVARN_OK);
    assert_memory_equal(other_k, got_k, sizeof got_k);
    assert_memory_equal(other_v, got_v, sizeof got_v);
    drop_all();
    bytes[2 * space.exact_block_bytes + 7] ^= 1;
    in.results = stored;
    check(kvarn_import_blocks(client, &in), KVARN_CORRUPT);
    assert_int_equal(stored[2].status, KVARN_CORRUPT);
    kvarn_close(&second);
    client = first;
    space = before;
}

static void same(const float *a, const float *b, size_t count, float tolerance)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(a[i] - b[i]) <= tolerance))
            fail_msg("value %zu: %g and %g", i, (double)a[i], (double)b[i]);
}

/* A sequence built row by row attends as the named blocks do, forks, seals under the same keys. */
static void sequences(void **state)
{
    static float by_key[Q_HEADS * DIM], by_seq[2][Q_HEADS * DIM], lse[3][Q_HEADS];
    kvarn_seq seqs[3] = {{.position = KVARN_AT_END}};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_attend_args attend = KVARN_ATTEND_INIT;
    static uint16_t q[2 * Q_HEADS * DIM];

    (void)state;
    for (size_t i = 0; i < Q_HEADS * DIM; i++)
        q[i] = q[Q_HEADS * DIM + i] = k[7 * i % VALUES];
    attend.space = args.space = space.space;
    attend.keys = args.keys = keys;
    attend.count = BLOCKS;
    attend.layer = 1;
    attend.query.q_heads = Q_HEADS;
    attend.q_tokens = 1;
    attend.q = q;
    attend.out = by_key;
    attend.lse = lse[0];
    check(kvarn_attend(client, &attend), KVARN_OK);
    drop_all();

    args.seqs = seqs;
    args.count = 1;
    check(kvarn_sequence_open(client, &args), KVARN_OK);
    assert_int_equal(seqs[0].blocks, 0);
    seqs[0].position = KVARN_AT_END;
    seqs[0].tokens = TOKENS;
    args.k = k;
    args.v = v;
    check(kvarn_sequence_append(client, &args), KVARN_OK);
    seqs[0].keys = BLOCKS;
    args.key_count = BLOCKS;
    seqs[0].expected = 0 + 1;
    check(kvarn_sequence_commit(client, &args), KVARN_OK);
    assert_int_equal(seqs[0].committed, TOKENS);
    assert_int_equal(seqs[0].blocks, BLOCKS);
    check(kvarn_sequence_commit(client, &args), KVARN_INVALID_SHAPE); /* it was done */
    assert_int_equal(seqs[0].committed, TOKENS);

    kvarn_blocks_args look = KVARN_BLOCKS_INIT;
    kvarn_block_result results[BLOCKS];
    look.space = space.space;
    look.keys = keys;
    look.count = BLOCKS;
    look.results = results;
    check(kvarn_lookup(client, &look), KVARN_OK);
    assert_int_equal(look.matched, BLOCKS);

    check(kvarn_sequence_fork(client, &args), KVARN_OK); /* one child */
    assert_true(seqs[1].sequence != seqs[0].sequence);
    for (size_t i = 0; i < 2; i++) {
        seqs[i].position = KVARN_AT_END;
        seqs[i].tokens = 0;
        seqs[i].q_tokens = 1;
        seqs[i].keys = 0;
    }
    args.count = 2;
    args.key_count = 0;
    args.layer_begin = 1;
    args.query.q_heads = Q_HEADS;
    args.q = q;
    args.out = by_seq;
    args.lse = lse[1];
    check(kvarn_sequence_attend(client, &args), KVARN_OK);
    same(by_seq[0], by_key, Q_HEADS * DIM, 1e-4f);
    same(by_seq[1], by_key, Q_HEADS * DIM, 1e-4f);
    same(lse[1], lse[0], Q_HEADS, 1e-4f);

    /* One new token: strided rows as dense ones. */
    static uint16_t row_k[HEADS * DIM], row_v[HEADS * DIM], wide[2 * HEADS * DIM];
    static float dense[Q_HEADS * DIM];
    const kvarn_strides strides = {.token = 2 * HEADS * DIM * 2, .head = 2 * DIM * 2};
    for (size_t i = 0; i < HEADS * DIM; i++) {
        wide[i / DIM * 2 * DIM + i % DIM] = row_k[i] = k[3 * i];
        wide[i / DIM * 2 * DIM + DIM + i % DIM] = row_v[i] = v[3 * i];
    }
    args.count = 1;
    seqs[0].tokens = 1;
    args.k = row_k;
    args.v = row_v;
    args.out = dense;
    args.lse = NULL;
    check(kvarn_sequence_attend(client, &args), KVARN_OK);
    args.k = wide;
    args.v = wide + DIM;
    args.strides = &strides;
    args.out = by_seq[0];
    check(kvarn_sequence_attend(client, &args), KVARN_OK);
    assert_memory_equal(dense, by_seq[0], sizeof dense);
    args.count = 2;
    check(kvarn_sequence_release(client, &args), KVARN_OK);
    check(kvarn_sequence_release(client, &args), KVARN_STALE);
    assert_int_equal(seqs[0].status, KVARN_STALE);
}

static void errors_of_the_daemon(void **state)
{
    kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
    kvarn_block_result results[2];
    kvarn_key strange[2] = {keys[0], {{9}}};

    (void)state;
    get.space = space.space;
    get.keys = strange;
    get.count = 2;
    get.k = got_k;
    get.v = got_v;
    get.results = results;
    kvarn_status status = kvarn_decompress(client, &get);
    assert_true(status == KVARN_OK || status == KVARN_NOT_FOUND);
    assert_int_equal(get.matched, 1);
    assert_int_equal(results[0].status, KVARN_OK);
    assert_int_equal(results[1].status, KVARN_NOT_FOUND);

    k[5] = 0x7c00; /* infinity */
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    put.space = space.space;
    put.keys = strange + 1;
    put.count = 1;
    put.k = k;
    put.v = v;
    put.results = results;
    check(kvarn_compress(client, &put), KVARN_NON_FINITE);
    assert_int_equal(results[0].status, KVARN_NON_FINITE);
    assert_non_null(strstr(kvarn_client_error(client), "layer 0"));

    kvarn_space_options wrong = space;
    wrong.preset = "kvarn_k9v9_g64";
    assert_true(kvarn_open_space(client, &wrong) != KVARN_OK);
    assert_non_null(strstr(kvarn_client_error(client), "kvarn_k9v9_g64"));
}

/* Memory that may not be touched: the call ends as the caller's fault, and the connection with it.
 */
static void wrong_pointers(void **state)
{
    enum { ROWS_BYTES = sizeof k };
    void *wall = mmap(NULL, ROWS_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    kvarn_client *before = client;
    kvarn_space_options of_before = space;

    (void)state;
    assert_ptr_not_equal(wall, MAP_FAILED);
    for (int output = 0; output < 2; output++) {
        kvarn_compress_args put = KVARN_COMPRESS_INIT;
        kvarn_decompress_args get = KVARN_DECOMPRESS_INIT;
        kvarn_ping_args ping = KVARN_PING_INIT;
        kvarn_client *other;

        connect_to(&other);
        put.space = get.space = space.space;
        put.keys = get.keys = keys;
        put.count = get.count = BLOCKS;
        put.kinds = kinds;
        put.k = k;
        put.v = output ? v : wall;
        check(kvarn_compress(other, &put), output ? KVARN_OK : KVARN_INVALID_SHAPE);
        get.k = got_k;
        get.v = wall;
        if (output)
            check(kvarn_decompress(other, &get), KVARN_INVALID_SHAPE);
        assert_non_null(strstr(kvarn_client_error(other), "pointer"));
        check(kvarn_ping(other, &ping), KVARN_PEER_LOST);
        assert_int_equal(kvarn_client_fd(other), -1);
        kvarn_close(&other);
    }
    munmap(wall, ROWS_BYTES);
    client = before;
    space = of_before;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_back),
        cmocka_unit_test(strides_give_the_same_records),
        cmocka_unit_test(blocks_are_pinned_followed_and_reset),
        cmocka_unit_test(hand_over),
        cmocka_unit_test(sequences),
        cmocka_unit_test(wrong_pointers),
        cmocka_unit_test(errors_of_the_daemon), /* spoils k */
        cmocka_unit_test(a_reset_space_is_stale),
    };

    if (argc != 2)
        return 2;
    kvarnd = argv[1];
    return cmocka_run_group_tests_name("daemon", tests, setup, teardown);
}
