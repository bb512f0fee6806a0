/* Sequence operations: commits, sharing, attention, forks and every way they go wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { G = 64 };

static uint32_t digest_of(struct rig *rig, const struct rig_space *space, uint32_t key,
                          uint32_t *kind)
{
    struct kvw_blocks args = {.space = space->handle};
    kvarn_key k = rig_key(key);
    struct rig_call *call = rig_blocks(rig, KVW_LOOKUP, &args, &k, 1, NULL, 0);
    struct kvw_block_status row = rig_block(call, 0);

    rig_free(call);
    *kind = row.kind;
    return row.digest;
}

/* Rows [from, +count) of a tensor pair of `tokens` tokens, dense. */
static uint16_t *part(const struct rig_space *space, const uint16_t *rows, uint32_t tokens,
                      uint32_t from, uint32_t count)
{
    size_t row = space->heads * space->dim;
    uint16_t *out = malloc(rig_rows_bytes(space, space->layers, count) + 2);

    for (size_t plane = 0; plane < 2 * space->layers; plane++)
        memcpy(out + plane * count * row, rows + (plane * tokens + from) * row, count * row * 2);
    return out;
}

static struct kvw_seq_status must_commit(struct rig *rig, const struct rig_space *space,
                                         uint64_t sequence, uint32_t tokens, const kvarn_key *keys,
                                         uint32_t count)
{
    struct kvw_seq_status row = rig_seq_commit(rig, space, sequence, tokens, keys, count);

    assert_int_equal(row.status, KVARN_OK);
    return row;
}

/* Appended in odd pieces, committed in odd pieces: the sealed blocks are what COMPRESS makes. */
static void test_seal_equals_compress(void **state)
{
    struct rig rig;
    struct rig_space space, other;
    struct kvw_open_space options = rig_space_options();
    kvarn_key keys[4] = {rig_key(0), rig_key(1), rig_key(2), rig_key(3)};
    uint32_t tokens = 4 * G - 1, at = 0, piece = 1, kind, other_kind, found;
    uint16_t *rows;
    uint64_t sequence;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    options.revision = "other";
    other = rig_open_space(&rig, &options);
    rows = rig_rows(&space, space.layers, tokens, 6);
    sequence = rig_seq_open(&rig, &space, NULL, 0, &found);
    assert_int_equal(found, 0);
    while (at < tokens) {
        uint32_t count = piece < tokens - at ? piece : tokens - at;
        uint16_t *some = part(&space, rows, tokens, at, count);
        uint32_t full = (at + count) / G - at / G;
        struct kvw_seq_status row;

        assert_int_equal(
            rig_seq_append(&rig, &space, sequence, at % 2 ? KVW_AT_END : at, count, some),
            KVARN_OK);
        row = must_commit(&rig, &space, sequence, count, keys + at / G, full);
        assert_int_equal(row.blocks, full);
        at += count;
        assert_int_equal(row.committed, at);
        piece = piece * 2 + 1;
        free(some);
    }
    for (uint32_t b = 0; b < 3; b++) {
        uint16_t *some = part(&space, rows, tokens, b * G, G);
        struct rig_call *call =
            rig_compress(&rig, &other, &keys[b], 1, b ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT, some);

        assert_int_equal(digest_of(&rig, &space, b, &kind), rig_block(call, 0).digest);
        assert_int_equal(digest_of(&rig, &other, b, &other_kind), rig_block(call, 0).digest);
        assert_int_equal(kind, other_kind);
        assert_int_equal(kind, b ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT);
        rig_free(call);
        free(some);
    }
    /* one partial EXACT block is the tail */
    assert_int_equal(rig.service->spaces.slots[0].exact_blocks, 2);
    assert_int_equal(rig.service->spaces.slots[0].tile_blocks, 2);
    /* another connection finds the prefix */
    rig.conn_id = 2;
    rig_seq_open(&rig, &space, keys, 4, &found);
    assert_int_equal(found, 3);
    rig.conn_id = 1;
    assert_int_equal(rig_seq_release(&rig, &space, sequence), KVARN_OK);
    rig_hang_up(&rig, 2);
    assert_int_equal(rig.service->spaces.slots[0].exact_blocks, 1);
    free(rows);
    rig_close(&rig);
}

/* The second sequence that commits the same keys uses the stored blocks. */
static void test_commit_exists(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(0), rig_key(1)};
    uint64_t a, b;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 2 * G, 6);
    a = rig_seq_open(&rig, &space, NULL, 0, NULL);
    b = rig_seq_open(&rig, &space, NULL, 0, NULL);
    assert_int_equal(rig_seq_append(&rig, &space, a, 0, 2 * G, rows), KVARN_OK);
    assert_int_equal(rig_seq_append(&rig, &space, b, 0, 2 * G, rows), KVARN_OK);
    assert_int_equal(rig.service->blocks.live, 4);
    must_commit(&rig, &space, a, 2 * G, keys, 2);
    must_commit(&rig, &space, b, 2 * G, keys, 2);
    assert_int_equal(rig.service->blocks.live, 2);
    assert_int_equal(fake_device_ran(rig.device, KVD_JOB_COMPRESS), 1);
    rig_seq_release(&rig, &space, a);
    rig_seq_release(&rig, &space, b);
    assert_int_equal(rig.service->blocks.live, 2); /* kept for the next one */
    free(rows);
    rig_close(&rig);
}

/* The same at the same moment, in one call and in two. */
static void test_commit_race(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[4] = {rig_key(0), rig_key(1), rig_key(0), rig_key(1)};
    struct kvw_sequences args;
    struct kvw_seq_row rows[2];
    struct rig_call *x, *y;
    uint64_t s[3];
    uint16_t *data;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    data = rig_rows(&space, space.layers, 2 * G, 6);
    for (int i = 0; i < 3; i++) {
        s[i] = rig_seq_open(&rig, &space, NULL, 0, NULL);
        assert_int_equal(rig_seq_append(&rig, &space, s[i], 0, 2 * G, data), KVARN_OK);
    }
    args = (struct kvw_sequences){.space = space.handle, .key_count = 4};
    for (uint32_t i = 0; i < 2; i++)
        rows[i] = (struct kvw_seq_row){.sequence = s[i], .tokens = 2 * G, .keys = 2};
    x = rig_sequences_start(&rig, KVW_SEQ_COMMIT, &args, rows, 2, keys, sizeof keys);
    rows[0].sequence = s[2];
    args.key_count = 2;
    y = rig_sequences_start(&rig, KVW_SEQ_COMMIT, &args, rows, 1, keys, sizeof keys / 2);
    rig_run(&rig);
    assert_int_equal(x->status, KVARN_OK);
    assert_int_equal(y->status, KVARN_OK);
    assert_int_equal(rig_seq(x, 1).committed, 2 * G);
    assert_int_equal(rig.service->spaces.slots[0].tile_blocks, 1);
    for (int i = 0; i < 3; i++)
        rig_seq_release(&rig, &space, s[i]);
    assert_int_equal(rig.service->blocks.live, 2);
    free(data);
    rig_close(&rig);
}

/* 4 written, 2 accepted, the rest written anew: the block is as if the first draft never was. */
static void test_speculation(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(0), rig_key(1)}, plain[2] = {rig_key(10), rig_key(11)};
    uint16_t *rows, *draft, *some;
    uint64_t a, b;
    uint32_t kind;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 2 * G, 6);
    draft = rig_rows(&space, space.layers, 4, 77);
    a = rig_seq_open(&rig, &space, NULL, 0, NULL);
    b = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rig_seq_append(&rig, &space, a, 0, 2 * G, rows);
    must_commit(&rig, &space, a, 2 * G, plain, 2);
    some = part(&space, rows, 2 * G, 0, G - 2);
    rig_seq_append(&rig, &space, b, 0, G - 2, some);
    must_commit(&rig, &space, b, G - 2, NULL, 0);
    free(some);
    for (uint32_t at = G - 2; at < 2 * G;) { /* over the block's border too */
        uint32_t left = 2 * G - at, good = left < 2 ? left : 2;

        assert_int_equal(rig_seq_append(&rig, &space, b, at, 4, draft), KVARN_OK);
        some = part(&space, rows, 2 * G, at, good);
        assert_int_equal(rig_seq_append(&rig, &space, b, at, good, some), KVARN_OK);
        must_commit(&rig, &space, b, good, keys + at / G, (at + good) / G - at / G);
        free(some);
        at += good;
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(digest_of(&rig, &space, i, &kind), digest_of(&rig, &space, 10 + i, &kind));
    free(rows);
    free(draft);
    rig_seq_release(&rig, &space, a);
    rig_seq_release(&rig, &space, b);
    rig_close(&rig);
}

/* The answer of SEQ_ATTEND for one sequence: [q_tokens][2][64] f32, then the LSE. */
static struct rig_call *attend(struct rig *rig, const struct rig_space *space, uint32_t layer,
                               const struct kvw_seq_row *rows, uint32_t count, const uint16_t *q,
                               uint32_t q_total, const uint16_t *kv, uint32_t tokens)
{
    struct kvw_sequences args = {
        .space = space->handle, .layer_begin = layer, .query = {.present = true, .q_heads = 2}};
    size_t q_bytes = q_total * 2 * 64 * 2ul, kv_bytes = rig_rows_bytes(space, 1, tokens);
    uint8_t *more = malloc(q_bytes + kv_bytes + 1);
    struct rig_call *call;

    memcpy(more, q, q_bytes);
    if (kv_bytes)
        memcpy(more + q_bytes, kv, kv_bytes);
    call = rig_sequences_start(rig, KVW_SEQ_ATTEND, &args, rows, count, more, q_bytes + kv_bytes);
    free(more);
    return call;
}

/* Layer by layer over a sequence = ATTEND over the same blocks by key. */
static void test_attend(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[3] = {rig_key(0), rig_key(1), rig_key(2)};
    struct kvw_blocks args;
    struct kvw_seq_row row;
    struct rig_call *call, *by_key;
    uint16_t *rows, *q, *last;
    uint64_t s;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 3 * G, 6);
    q = rig_rows(&space, 1, 2, 9);
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rig_seq_append(&rig, &space, s, 0, 3 * G, rows);
    must_commit(&rig, &space, s, 3 * G, keys, 3);
    args = (struct kvw_blocks){.space = space.handle, .layer_begin = 1};
    args.query = (struct kvw_query){.present = true, .q_heads = 2, .q_tokens = 2};
    by_key = rig_blocks(&rig, KVW_ATTEND, &args, keys, 3, q, 2 * 2 * 64 * 2);
    row = (struct kvw_seq_row){.sequence = s, .position = KVW_AT_END, .q_tokens = 2};
    call = attend(&rig, &space, 1, &row, 1, q, 2, NULL, 0);
    rig_run(&rig);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(call->payload_bytes, 32 + 2 * 2 * 64 * 4 + 2 * 2 * 4);
    assert_memory_equal(call->payload + 32, by_key->payload, by_key->payload_bytes);
    /* two new rows go in first; without them the answer differs, with them it is repeatable */
    last = rig_rows(&space, 1, 2, 31);
    row = (struct kvw_seq_row){.sequence = s, .position = KVW_AT_END, .q_tokens = 2, .tokens = 2};
    for (uint32_t layer = 0; layer < 2; layer++) {
        struct rig_call *first, *again;

        first = attend(&rig, &space, layer, &row, 1, q, 2, last, 2);
        rig_run(&rig);
        assert_int_equal(first->status, KVARN_OK);
        again = attend(&rig, &space, layer, &row, 1, q, 2, last, 2);
        rig_run(&rig);
        assert_memory_equal(first->payload, again->payload, first->payload_bytes);
        if (layer == 1)
            assert_memory_not_equal(first->payload + 32, call->payload + 32, 64);
    }
    must_commit(&rig, &space, s, 2, NULL, 0);
    row = (struct kvw_seq_row){.sequence = s, .position = KVW_AT_END, .q_tokens = 300};
    call = attend(&rig, &space, 1, &row, 1, rows, 300, NULL, 0);
    rig_run(&rig);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    rig_seq_release(&rig, &space, s);
    free(rows);
    free(q);
    free(last);
    rig_close(&rig);
}

static void test_attend_one_bad(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_seq_row rows[4];
    struct rig_call *call;
    uint16_t *kv, *q;
    uint64_t s[3];
    const uint8_t *out;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    for (int i = 0; i < 3; i++)
        s[i] = rig_seq_open(&rig, &space, NULL, 0, NULL);
    kv = rig_rows(&space, 1, 4, 1);
    q = rig_rows(&space, 1, 4, 2);
    for (uint32_t i = 0; i < 4; i++)
        rows[i] = (struct kvw_seq_row){
            .sequence = i < 3 ? s[i] : 12345, .position = 0, .q_tokens = 1, .tokens = 1};
    kv[4 * 128 + 128 + 64 + 7] = 0x7e00; /* v of sequence 1, head 1, channel 7 */
    q[2 * 128 + 3] = 0xfc00;             /* q of sequence 2 */
    call = attend(&rig, &space, 1, rows, 4, q, 4, kv, 4);
    rig_run(&rig);
    assert_int_equal(call->status, KVARN_NOT_FOUND); /* text of the first that failed */
    assert_int_equal(rig_seq(call, 0).status, KVARN_OK);
    assert_int_equal(rig_seq(call, 1).status, KVARN_NON_FINITE);
    assert_int_equal(rig_seq(call, 2).status, KVARN_NON_FINITE);
    assert_int_equal(rig_seq(call, 3).status, KVARN_NOT_FOUND);
    out = call->payload + 4 * 32;
    assert_memory_not_equal(out, out + 128 * 4, 64);
    for (size_t i = 128 * 4; i < 4 * 128 * 4; i++)
        assert_int_equal(out[i], 0);
    assert_int_equal(rig.service->sequences.slots[0].written[1], 1);
    assert_int_equal(rig.service->sequences.slots[1].written[1], 0);
    assert_int_equal(rig.service->sequences.slots[2].written[1], 1); /* its rows were fine */
    rows[1].sequence = s[0];
    call = attend(&rig, &space, 1, rows, 4, q, 4, kv, 4);
    rig_run(&rig);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE); /* named twice */
    assert_int_equal(call->payload_bytes, 0);
    rows[1].sequence = s[1];
    rows[1].tokens = 2; /* more rows than the payload has */
    call = attend(&rig, &space, 1, rows, 4, q, 4, kv, 4);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    rows[1].tokens = UINT32_MAX;
    rows[1].q_tokens = UINT32_MAX;
    call = attend(&rig, &space, 1, rows, 4, q, 4, kv, 4);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    for (int i = 0; i < 3; i++)
        rig_seq_release(&rig, &space, s[i]);
    free(kv);
    free(q);
    rig_close(&rig);
}

static void test_fork(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(0), rig_key(1)};
    struct kvw_sequences args;
    struct kvw_seq_row row;
    struct rig_call *call, *x, *y;
    uint16_t *rows, *q, *one, *two;
    uint64_t parent, children[2];

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 2 * G + 5, 6);
    q = rig_rows(&space, 1, 1, 9);
    one = rig_rows(&space, 1, 1, 10);
    two = rig_rows(&space, 1, 1, 11);
    parent = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rig_seq_append(&rig, &space, parent, 0, 2 * G + 5, rows);
    must_commit(&rig, &space, parent, 2 * G + 3, keys, 2);
    args = (struct kvw_sequences){.space = space.handle, .fork_count = 2};
    row = (struct kvw_seq_row){.sequence = parent};
    call = rig_sequences(&rig, KVW_SEQ_FORK, &args, &row, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_OK);
    for (uint32_t i = 0; i < 2; i++) {
        children[i] = rig_seq(call, i).sequence;
        assert_int_equal(rig_seq(call, i).committed, 2 * G + 3);
    }
    assert_int_equal(rig.service->blocks.live, 2 + 3);
    /* same rows, same answer; other rows, another; and the parent does not notice */
    row = (struct kvw_seq_row){
        .sequence = children[0], .position = KVW_AT_END, .q_tokens = 1, .tokens = 1};
    x = attend(&rig, &space, 0, &row, 1, q, 1, one, 1);
    row.sequence = children[1];
    y = attend(&rig, &space, 0, &row, 1, q, 1, two, 1);
    rig_run(&rig);
    assert_memory_not_equal(x->payload + 32, y->payload + 32, 128);
    y = attend(&rig, &space, 0, &row, 1, q, 1, one, 1);
    rig_run(&rig);
    assert_memory_equal(x->payload + 32, y->payload + 32, 128 * 4 + 8);
    row.sequence = parent;
    row.tokens = 0;
    row.position = 2 * G + 5;
    y = attend(&rig, &space, 0, &row, 1, q, 1, NULL, 0);
    rig_run(&rig);
    assert_int_equal(y->status, KVARN_OK);
    rig_seq_release(&rig, &space, parent);
    args.fork_count = 0;
    row.sequence = children[0];
    call = rig_sequences(&rig, KVW_SEQ_FORK, &args, &row, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    /* the connection goes while the copy runs */
    args.fork_count = 3;
    call = rig_sequences_start(&rig, KVW_SEQ_FORK, &args, &row, 1, NULL, 0);
    assert_false(call->replied);
    rig_hang_up(&rig, 1);
    rig_run(&rig);
    assert_int_equal(rig.service->sequences.count, 0);
    assert_int_equal(rig.service->blocks.live, 2);
    free(rows);
    free(q);
    free(one);
    free(two);
    rig_close(&rig);
}

/* Every job of every operation comes back as GPU_LOST, or finds the ring full, once: nothing leaks,
 * the same call works afterwards. */
static void test_worker_lost(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(0), rig_key(1)};
    struct kvw_sequences args;
    struct kvw_seq_row row;
    uint16_t *rows, *q;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 2 * G, 6);
    q = rig_rows(&space, 1, 1, 6);
    for (uint32_t full = 0; full < 2; full++) {
        kvarn_status expected = full ? KVARN_RETRY : KVARN_GPU_LOST;

        for (uint32_t at = 0; at < 8; at++) {
            kvarn_status status[8];
            uint64_t s = rig_seq_open(&rig, &space, NULL, 0, NULL);
            struct rig_call *call;
            uint32_t failed = 0, steps = 0;

            keys[0] = rig_key(at * 4 + full * 100);
            keys[1] = rig_key(at * 4 + 1 + full * 100);
            if (full)
                fake_device_full(rig.device, at, 1);
            else
                fake_device_lose(rig.device, at);
            for (int again = 0; again < 2; again++) /* write, seal tile, digest sink */
                if (again == 0 || status[0] != KVARN_OK)
                    status[again ? 1 : 0] = rig_seq_append(&rig, &space, s, 0, 2 * G, rows);
            failed += status[0] != KVARN_OK;
            if (status[0] != KVARN_OK) {
                assert_int_equal(status[0], expected);
                assert_int_equal(status[1], KVARN_OK);
            }
            for (; steps < 3; steps++) {
                struct kvw_seq_status out = rig_seq_commit(&rig, &space, s, 2 * G, keys, 2);

                if (out.status == KVARN_OK)
                    break;
                assert_int_equal(out.status, expected);
                assert_int_equal(out.committed, 0);
                failed++;
            }
            assert_true(steps < 2);
            args = (struct kvw_sequences){.space = space.handle, .fork_count = 1};
            row = (struct kvw_seq_row){
                .sequence = s, .position = KVW_AT_END, .q_tokens = 1, .tokens = 1};
            for (steps = 0; steps < 3; steps++) {
                call = attend(&rig, &space, 1, &row, 1, q, 1, rows, 1);
                rig_run(&rig);
                if (call->status == KVARN_OK)
                    break;
                assert_int_equal(call->status, expected);
                assert_int_equal(call->payload_bytes, 0);
                failed++;
            }
            assert_true(steps < 2);
            for (steps = 0; steps < 3; steps++) {
                call = rig_sequences(&rig, KVW_SEQ_FORK, &args, &row, 1, NULL, 0);
                if (call->status == KVARN_OK)
                    break;
                assert_int_equal(call->status, expected);
                assert_int_equal(rig.service->sequences.count, 1);
                failed++;
            }
            assert_int_equal(failed, at < 6 ? 1 : 0);
            fake_device_full(rig.device, 0, 0);
            fake_device_lose(rig.device, 1000000);
            rig_assert_quiet(&rig);
            rig_hang_up(&rig, 1);
            assert_int_equal(rig.service->evict.listed, rig.service->blocks.live);
        }
    }
    free(rows);
    free(q);
    rig_close(&rig);
}

/* A pool with no room for a tail or a sealed block. */
static void test_full_pool(void **state)
{
    struct rig_options options = {.pool_bytes = 1 << 20};
    struct rig rig;
    struct rig_space space;
    uint16_t *rows;
    uint64_t s;
    uint32_t at = 0, committed = 0;
    kvarn_status status = KVARN_OK;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, G, 6);
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    while ((status = rig_seq_append(&rig, &space, s, at, G, rows)) == KVARN_OK)
        at += G;
    assert_int_equal(status, KVARN_NO_SPACE);
    assert_true(at >= 4 * G);
    /* EXACT slots fill the pool: there is no TILE slot to seal into, and nothing changes */
    status = (kvarn_status)rig_seq_commit(&rig, &space, s, at, NULL, 0).status;
    assert_int_equal(status, KVARN_NO_SPACE);
    assert_int_equal(rig.service->sequences.slots[0].committed, 0);
    /* the sink alone needs no slot */
    committed = rig_seq_commit(&rig, &space, s, G, NULL, 0).status;
    assert_int_equal(committed, KVARN_OK);
    rig_seq_release(&rig, &space, s);
    assert_int_equal(rig.service->blocks.live, 0);
    free(rows);
    rig_close(&rig);
}

static void test_counts(void **state)
{
    struct rig rig;
    struct rig_space space, other;
    struct kvw_open_space options = rig_space_options();
    struct kvw_sequences args;
    struct kvw_seq_row row = {.sequence = 1, .position = KVW_AT_END, .q_tokens = 1, .tokens = 1};
    struct rig_call *call;
    uint8_t meta[128], junk[600] = {0};
    uint64_t s;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    options.revision = "x";
    other = rig_open_space(&rig, &options);
    for (uint8_t op = KVW_SEQ_OPEN; op <= KVW_SEQ_RELEASE; op++) {
        size_t bytes;

        args = (struct kvw_sequences){.space = space.handle, .sequence_count = 2, .fork_count = 1};
        args.query = (struct kvw_query){.present = true, .q_heads = 2};
        bytes = kvw_sequences_encode(meta, sizeof meta, &args);
        assert_int_equal(rig_call(&rig, op, meta, bytes, junk, 33)->status, KVARN_INVALID_SHAPE);
        args.sequence_count = KVW_SEQUENCES_MAX + 1;
        bytes = kvw_sequences_encode(meta, sizeof meta, &args);
        assert_int_equal(rig_call(&rig, op, meta, bytes, junk, 600)->status, KVARN_INVALID_SHAPE);
        args.sequence_count = op == KVW_SEQ_OPEN ? 0 : 1;
        args.key_count = 9;
        bytes = kvw_sequences_encode(meta, sizeof meta, &args);
        assert_int_equal(rig_call(&rig, op, meta, bytes, junk, 100)->status, KVARN_INVALID_SHAPE);
        args.space++;
        bytes = kvw_sequences_encode(meta, sizeof meta, &args);
        assert_int_equal(rig_call(&rig, op, meta, bytes, junk, 100)->status, KVARN_NOT_FOUND);
    }
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    row.sequence = s; /* right sequence, wrong space */
    args = (struct kvw_sequences){.space = other.handle};
    call = rig_sequences(&rig, KVW_SEQ_RELEASE, &args, &row, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    args = (struct kvw_sequences){.space = space.handle, .layer_begin = 1, .layer_count = 2};
    call = rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, junk, 512);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    args.layer_count = 1; /* 2 tensors x 2 heads x 128 bytes */
    call = rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, junk, 511);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    call = rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, junk, 512);
    assert_int_equal(call->status, KVARN_OK);
    /* rows announce more keys than the call carries */
    args = (struct kvw_sequences){.space = space.handle};
    row.keys = 1;
    row.tokens = 0;
    call = rig_sequences(&rig, KVW_SEQ_COMMIT, &args, &row, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    /* a commit of nothing anybody knows */
    row = (struct kvw_seq_row){.sequence = 99, .tokens = 1};
    call = rig_sequences(&rig, KVW_SEQ_COMMIT, &args, &row, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    assert_int_equal(rig_seq(call, 0).status, KVARN_NOT_FOUND);
    rig_hang_up(&rig, 1);
    rig_close(&rig);
}

/* A block that fails verification is not served to the sequence that holds it. */
static void test_corrupt(void **state)
{
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2] = {rig_key(0), rig_key(1)};
    struct kvw_blocks args;
    struct kvw_seq_row row;
    struct rig_call *call;
    uint16_t *rows;
    uint64_t s;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 2 * G, 6);
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rig_seq_append(&rig, &space, s, 0, 2 * G, rows);
    must_commit(&rig, &space, s, 2 * G, keys, 2);
    kvd_device_pool(rig.device)[rig.service->sequences.slots[0].blocks[1]->offset + 3] ^= 16;
    args = (struct kvw_blocks){.space = space.handle};
    call = rig_blocks(&rig, KVW_VERIFY, &args, keys, 2, NULL, 0);
    assert_int_equal(call->status, KVARN_CORRUPT);
    row = (struct kvw_seq_row){.sequence = s, .position = KVW_AT_END, .q_tokens = 1};
    call = attend(&rig, &space, 0, &row, 1, rows, 1, NULL, 0);
    rig_run(&rig);
    assert_int_equal(call->status, KVARN_CORRUPT);
    rig_seq_release(&rig, &space, s);
    assert_int_equal(rig.service->blocks.live, 1);
    free(rows);
    rig_close(&rig);
}

/* One stored block may stand in any number of sequences any number of times: what is kept for them
 * is bounded, and comes back. */
static void test_lists_bounded(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_sequences args = {0};
    struct kvw_seq_row row = {0};
    kvarn_key keys[KVW_BLOCKS_MAX];
    struct rig_call *call;
    uint16_t *rows;
    uint32_t found, forks = 0;
    kvarn_status status;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, G, 6);
    for (size_t i = 0; i < KVW_BLOCKS_MAX; i++)
        keys[i] = rig_key(1);
    rig_free(rig_compress(&rig, &space, keys, 1, KVARN_BLOCK_TILE, rows));
    row.sequence = rig_seq_open(&rig, &space, keys, KVW_BLOCKS_MAX, &found);
    assert_int_equal(found, KVW_BLOCKS_MAX);
    args.space = space.handle;
    args.fork_count = KVW_SEQUENCES_MAX - 1;
    do {
        call = rig_sequences(&rig, KVW_SEQ_FORK, &args, &row, 1, NULL, 0);
        status = call->status;
        rig_free(call);
        assert_true(rig.service->sequences.bytes <= KVD_SEQUENCES_BYTES_MAX);
    } while (status == KVARN_OK && ++forks < 16);
    assert_int_equal(status, KVARN_RETRY);
    kvd_service_conn_gone(rig.service, rig.conn_id);
    assert_int_equal(rig.service->sequences.bytes, 0);
    free(rows);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seal_equals_compress),
        cmocka_unit_test(test_commit_exists),
        cmocka_unit_test(test_commit_race),
        cmocka_unit_test(test_speculation),
        cmocka_unit_test(test_attend),
        cmocka_unit_test(test_attend_one_bad),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_worker_lost),
        cmocka_unit_test(test_full_pool),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_lists_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
