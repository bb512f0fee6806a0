/* The main job with real processes: one worker compresses a prefix, another finds it by key and
 * decodes over it. Every answer is compared with attention computed here over the rows that kvarnd
 * says it holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/model.h"
#include "tests/support/child.h"
#include "tests/support/daemon.h"

enum { MODEL_SEED = 7 }; /* the same model in every process */

static struct test_daemon daemon_;
static struct model model;

static int start(void **state)
{
    (void)state;
    model_fill(&model, MODEL_SEED);
    test_daemon_start(&daemon_, "host:64MiB");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    assert_int_equal(test_daemon_stop(&daemon_), 0);
    return 0;
}

/* Rows of blocks as kvarnd gives them back, as f32 [layer][token][kv head][dim]; v after k. */
static float *read_back(kvarn_client *client, uint64_t space, size_t blocks)
{
    size_t count = MODEL_LAYERS * blocks * MODEL_GROUP * MODEL_ROW;
    uint16_t *half = malloc(2 * count * sizeof *half);
    float *rows = malloc(2 * count * sizeof *rows);
    kvarn_decompress_args args = KVARN_DECOMPRESS_INIT;

    assert_non_null(half);
    assert_non_null(rows);
    args.space = space;
    args.keys = model.keys;
    args.count = blocks;
    args.k = half;
    args.v = half + count;
    model_expect(client, kvarn_decompress(client, &args), KVARN_OK, "decompress");
    assert_int_equal(args.matched, blocks);
    for (size_t i = 0; i < 2 * count; i++)
        rows[i] = model_half(half[i]);
    free(half);
    return rows;
}

/* Error of `got` against attention over what kvarnd holds: blocks from read_back, later tokens
 * exact. */
static double answer_error(const float *held, size_t blocks, uint32_t layer, size_t token,
                           const float *got)
{
    static float k[MODEL_TOKENS * MODEL_ROW], v[MODEL_TOKENS * MODEL_ROW];
    size_t layer_rows = blocks * MODEL_GROUP * MODEL_ROW;
    double want[MODEL_Q_ROW], difference = 0.0, norm = 0.0;

    memcpy(k, held + layer * layer_rows, layer_rows * sizeof *k);
    memcpy(v, held + (MODEL_LAYERS + layer) * layer_rows, layer_rows * sizeof *v);
    for (size_t i = layer_rows; i < (token + 1) * MODEL_ROW; i++) {
        k[i] = model_half((&model.k[layer][0][0][0])[i]);
        v[i] = model_half((&model.v[layer][0][0][0])[i]);
    }
    model_attention(k, v, &model.q[layer][token][0][0], token + 1, want);
    for (size_t i = 0; i < MODEL_Q_ROW; i++) {
        difference += (want[i] - (double)got[i]) * (want[i] - (double)got[i]);
        norm += want[i] * want[i];
    }
    return sqrt(difference / norm);
}

static void prefill_as(const char *address, const char *preset, int k_rotated)
{
    model_fill(&model, MODEL_SEED);

    kvarn_client *client = model_connect(address);
    uint64_t space = model_open_as(client, "share", preset, k_rotated);
    kvarn_block_result results[MODEL_BLOCKS];

    model_expect(client, model_put(client, space, &model, 4, results), KVARN_OK, "compress");
    for (size_t b = 0; b < 4; b++) {
        assert_int_equal(results[b].status, KVARN_OK);
        assert_int_equal(results[b].kind, model.kinds[b]);
    }
    kvarn_close(&client);
}

static void decode_as(const char *address, const char *preset, int k_rotated)
{
    model_fill(&model, MODEL_SEED);

    kvarn_client *client = model_connect(address);
    uint64_t space = model_open_as(client, "share", preset, k_rotated), sequence;
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS], *held;
    uint32_t blocks;

    sequence = model_sequence(client, space, &model, MODEL_BLOCKS, &blocks);
    assert_int_equal(blocks, 4);
    held = read_back(client, space, 4);
    /* A tail that is no whole block, then tokens one by one across a block's end. */
    model_extend(client, space, &model, sequence, 256, 60);
    for (size_t token = 316; token < 319; token++) {
        for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
            model_expect(client,
                         model_attend(client, space, &model, sequence, layer, token, out, lse),
                         KVARN_OK, "attend");
            assert_true(answer_error(held, 4, layer, token, out) < 2e-3);
        }
        kvarn_seq seq = {.sequence = sequence, .tokens = 1};
        kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

        args.space = space;
        args.seqs = &seq;
        args.count = 1;
        model_expect(client, kvarn_sequence_commit(client, &args), KVARN_OK, "commit");
        assert_int_equal(seq.committed, token + 1);
    }
    free(held);
    kvarn_close(&client);
}

static void prefill(const char *address)
{
    prefill_as(address, "kvarn_k2v2_g64", 0);
}

static void decode(const char *address)
{
    decode_as(address, "kvarn_k2v2_g64", 0);
}

static void prefill_tight(const char *address)
{
    prefill_as(address, "tight_k2v2_g64", 1);
}

static void decode_tight(const char *address)
{
    decode_as(address, "tight_k2v2_g64", 1);
}

static void a_second_process_finds_the_prefix(void **state)
{
    (void)state;
    test_child_run("prefill", daemon_.unix_address);
    test_child_run("decode", daemon_.unix_address);
}

/* Blocks of the same keys in a space of their own: the other preset's are not found. */
static void keys_as_they_come_are_shared_too(void **state)
{
    (void)state;
    test_child_run("prefill_tight", daemon_.unix_address);
    test_child_run("decode_tight", daemon_.unix_address);
}

static void over_tcp_too(void **state)
{
    (void)state;
    test_child_run("prefill", daemon_.tcp_address);
    test_child_run("decode", daemon_.tcp_address);
}

static void a_second_put_answers_exists(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "exists");
    kvarn_block_result first[MODEL_BLOCKS], second[MODEL_BLOCKS];

    (void)state;
    model_expect(client, model_put(client, space, &model, MODEL_BLOCKS, first), KVARN_OK, "first");
    kvarn_status status = model_put(client, space, &model, MODEL_BLOCKS, second);
    assert_true(status == KVARN_OK || status == KVARN_EXISTS);
    for (size_t b = 0; b < MODEL_BLOCKS; b++) {
        assert_int_equal(first[b].status, KVARN_OK);
        assert_int_equal(second[b].status, KVARN_EXISTS);
        assert_int_equal(first[b].digest, second[b].digest);
    }
    kvarn_close(&client);
}

/* Rows that come one by one and are sealed by COMMIT give the bits that COMPRESS makes of them at
 * once. */
static void append_then_seal_is_compress(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t whole = model_open(client, "seal, at once"),
             piece = model_open(client, "seal, by rows");
    kvarn_block_result results[MODEL_BLOCKS];
    static uint8_t bytes[2][1 << 20];
    uint32_t blocks;
    uint64_t sequence;

    (void)state;
    model_expect(client, model_put(client, whole, &model, MODEL_BLOCKS, NULL), KVARN_OK,
                 "compress");
    sequence = model_sequence(client, piece, &model, 0, &blocks);
    assert_int_equal(blocks, 0);
    /* Uneven steps, so that commits end inside, at and beyond the ends of blocks. */
    for (size_t from = 0, step = 1; from < MODEL_TOKENS; step = step * 2 % 97) {
        size_t count = from + step > MODEL_TOKENS ? MODEL_TOKENS - from : step;

        model_extend(client, piece, &model, sequence, from, count);
        from += count;
    }
    for (int i = 0; i < 2; i++) {
        kvarn_export_args args = KVARN_EXPORT_INIT;

        args.space = i == 0 ? whole : piece;
        args.keys = model.keys;
        args.count = MODEL_BLOCKS;
        args.bytes = bytes[i];
        args.bytes_capacity = sizeof bytes[i];
        args.results = results;
        model_expect(client, kvarn_export(client, &args), KVARN_OK, "export");
        assert_int_equal(args.matched, MODEL_BLOCKS);
        if (i == 1)
            assert_memory_equal(bytes[0], bytes[1], args.bytes_used);
    }
    kvarn_close(&client);
}

/* What one daemon exports, another imports; both then give the same bits. */
static void export_and_import_between_daemons(void **state)
{
    struct test_daemon other;
    kvarn_client *from = model_connect(daemon_.unix_address), *to;
    uint64_t space = model_open(from, "hand-over"), copy, sequence;
    kvarn_block_result blocks[MODEL_BLOCKS];
    static uint8_t bytes[1 << 20];
    kvarn_export_args out = KVARN_EXPORT_INIT;
    kvarn_import_args in = KVARN_IMPORT_INIT;
    float answer[2][MODEL_Q_ROW], lse[2][MODEL_Q_HEADS];
    uint32_t found;

    (void)state;
    model_expect(from, model_put(from, space, &model, 5, NULL), KVARN_OK, "compress");
    out.space = space;
    out.keys = model.keys;
    out.count = 5;
    out.bytes = bytes;
    out.bytes_capacity = sizeof bytes;
    out.results = blocks;
    model_expect(from, kvarn_export(from, &out), KVARN_OK, "export");

    test_daemon_start(&other, "host:32MiB");
    to = model_connect(other.tcp_address);
    copy = model_open(to, "hand-over");
    in.space = copy;
    in.keys = model.keys;
    in.blocks = blocks;
    in.count = 5;
    in.bytes = bytes;
    in.bytes_count = out.bytes_used;
    in.origin = &out.origin;
    model_expect(to, kvarn_import_blocks(to, &in), KVARN_OK, "import");
    assert_int_equal(in.stored, 5);
    sequence = model_sequence(from, space, &model, 5, &found);
    model_expect(from, model_attend(from, space, &model, sequence, 1, 320, answer[0], lse[0]),
                 KVARN_OK, "attend");
    sequence = model_sequence(to, copy, &model, 5, &found);
    assert_int_equal(found, 5);
    model_expect(to, model_attend(to, copy, &model, sequence, 1, 320, answer[1], lse[1]), KVARN_OK,
                 "attend");
    assert_memory_equal(answer[0], answer[1], sizeof answer[0]);
    assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
    kvarn_close(&to);
    kvarn_close(&from);
    assert_int_equal(test_daemon_stop(&other), 0);
}

static void a_fork_goes_its_own_way(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "fork"), parent;
    float before[MODEL_Q_ROW], after[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
    kvarn_seq seqs[2] = {0};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    uint32_t blocks;

    (void)state;
    parent = model_sequence(client, space, &model, 0, &blocks);
    model_extend(client, space, &model, parent, 0, 200);
    model_expect(client, model_attend(client, space, &model, parent, 0, 200, before, lse), KVARN_OK,
                 "attend");
    args.space = space;
    seqs[0].sequence = parent;
    args.seqs = seqs;
    args.count = 1;
    model_expect(client, kvarn_sequence_fork(client, &args), KVARN_OK, "fork");
    assert_int_equal(seqs[1].committed, 200);
    /* The child writes and commits other rows; the parent must not notice. */
    model_extend(client, space, &model, seqs[1].sequence, 200, 100);
    model_expect(client, model_attend(client, space, &model, parent, 0, 200, after, lse), KVARN_OK,
                 "attend");
    assert_memory_equal(before, after, sizeof before);
    kvarn_close(&client);
}

/* What a client leaves behind goes with its connection. */
static void a_closed_connection_gives_everything_back(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    kvarn_client *watcher = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "leave"), sequence;
    kvarn_space_info spaces[64];
    kvarn_list_args list = KVARN_LIST_INIT;
    uint32_t blocks;

    (void)state;
    sequence = model_sequence(client, space, &model, 0, &blocks);
    model_extend(client, space, &model, sequence, 0, 30);
    kvarn_close(&client);
    list.spaces = spaces;
    list.capacity = 64;
    /* The daemon sees the end of the connection in its own time, but before many round trips. */
    for (int tries = 0;; tries++) {
        uint64_t alive = 0;

        model_expect(watcher, kvarn_list(watcher, &list), KVARN_OK, "list");
        for (size_t i = 0; i < list.count && i < 64; i++)
            alive += strcmp(spaces[i].model, "leave") == 0 ? spaces[i].sequences : 0;
        if (alive == 0)
            break;
        assert_true(tries < 1000);
    }
    kvarn_close(&watcher);
}

static const struct test_body bodies[] = {{"prefill", prefill},
                                          {"decode", decode},
                                          {"prefill_tight", prefill_tight},
                                          {"decode_tight", decode_tight},
                                          {NULL, NULL}};

int main(int count, char **values)
{
    int child = test_child_main(count, values, bodies);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_process_finds_the_prefix),
        cmocka_unit_test(keys_as_they_come_are_shared_too),
        cmocka_unit_test(over_tcp_too),
        cmocka_unit_test(a_second_put_answers_exists),
        cmocka_unit_test(append_then_seal_is_compress),
        cmocka_unit_test(export_and_import_between_daemons),
        cmocka_unit_test(a_fork_goes_its_own_way),
        cmocka_unit_test(a_closed_connection_gives_everything_back),
    };

    if (child >= 0)
        return child;
    return cmocka_run_group_tests_name("share", tests, start, stop);
}
