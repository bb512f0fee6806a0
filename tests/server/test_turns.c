/* rpc/turns: sequence tables, positions of rows, queues of sequences, handles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static struct kvw_seq_status must_commit(struct rig *rig, const struct rig_space *space,
                                         uint64_t sequence, uint32_t tokens, const kvarn_key *keys,
                                         uint32_t count)
{
    struct kvw_seq_status row = rig_seq_commit(rig, space, sequence, tokens, keys, count);

    assert_int_equal(row.status, KVARN_OK);
    return row;
}

static struct rig_call *call_of(struct rig *rig, uint8_t op, const struct kvw_sequences *args,
                                const void *payload, uint64_t bytes)
{
    uint8_t meta[128];

    return rig_call(rig, op, meta, kvw_sequences_encode(meta, sizeof meta, args), payload, bytes);
}

static void refuses(const struct rig_call *call, kvarn_status status, const char *says)
{
    if (call->status != status || strstr(call->text, says) == NULL)
        fail_msg("%d: %s", (int)call->status, call->text);
    assert_int_equal(call->payload_bytes, 0);
}

static void test_tables(void **state)
{
    static uint8_t payload[4096];
    const uint64_t row = KVW_SEQ_ROW_BYTES;
    struct kvw_sequences args;
    struct rig rig;
    struct rig_space space;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args = (struct kvw_sequences){.space = space.handle, .sequence_count = 2, .key_count = 1};
    refuses(call_of(&rig, KVW_SEQ_COMMIT, &args, payload, 2 * row + KVARN_KEY_BYTES - 1),
            KVARN_INVALID_SHAPE, "2 sequence rows and 1 keys take");
    refuses(call_of(&rig, KVW_SEQ_COMMIT, &args, payload, 2 * row + KVARN_KEY_BYTES + 1),
            KVARN_INVALID_SHAPE, "2 sequence rows and 1 keys take");
    refuses(call_of(&rig, KVW_SEQ_RELEASE, &args, payload, 2 * row + KVARN_KEY_BYTES),
            KVARN_INVALID_SHAPE, "key_count = 1; must be at most 0");
    args.key_count = KVW_BLOCKS_MAX + 1;
    refuses(call_of(&rig, KVW_SEQ_COMMIT, &args, payload, sizeof payload), KVARN_INVALID_SHAPE,
            "key_count");
    args.key_count = 0;
    args.sequence_count = 0;
    refuses(call_of(&rig, KVW_SEQ_COMMIT, &args, payload, 0), KVARN_INVALID_SHAPE,
            "sequence_count = 0; must be 1 to");
    args.sequence_count = UINT32_MAX;
    refuses(call_of(&rig, KVW_SEQ_COMMIT, &args, payload, sizeof payload), KVARN_INVALID_SHAPE,
            "sequence_count");
    args.sequence_count = 1;
    args.space++;
    refuses(call_of(&rig, KVW_SEQ_COMMIT, &args, payload, row), KVARN_NOT_FOUND, "no such space");
    rig_close(&rig);
}

/* One row of many fails: it is named, the others are done. Twice the same sequence: nothing is. */
static void test_rows_fail_alone(void **state)
{
    struct kvw_seq_row rows[3];
    struct kvw_sequences args;
    struct rig_call *call;
    struct rig rig;
    struct rig_space space;
    uint64_t a, b;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args = (struct kvw_sequences){.space = space.handle};
    a = rig_seq_open(&rig, &space, NULL, 0, NULL);
    b = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rows[0] = rows[2] = (struct kvw_seq_row){.sequence = a};
    rows[1] = (struct kvw_seq_row){.sequence = b};
    call = rig_sequences(&rig, KVW_SEQ_RELEASE, &args, rows, 3, NULL, 0);
    refuses(call, KVARN_INVALID_SHAPE, "sequence 2 of the call is named twice");
    assert_int_equal(rig.service->sequences.count, 2);
    rows[1].sequence = 12345;
    rows[2].sequence = b;
    call = rig_sequences(&rig, KVW_SEQ_RELEASE, &args, rows, 3, NULL, 0);
    assert_int_equal(call->status, KVARN_NOT_FOUND);
    assert_non_null(strstr(call->text, "sequence 1 of the call: no such sequence"));
    assert_int_equal(rig_seq(call, 0).status, KVARN_OK);
    assert_int_equal(rig_seq(call, 1).status, KVARN_NOT_FOUND);
    assert_int_equal(rig_seq(call, 1).sequence, 12345);
    assert_int_equal(rig_seq(call, 2).status, KVARN_OK);
    assert_int_equal(rig.service->sequences.count, 0);
    rig_close(&rig);
}

/* Rows over the border of two blocks: a fault in the second piece is told by the caller's count. */
static void test_fault_after_a_border(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_sequences args;
    struct kvw_seq_row row;
    struct rig_call *call;
    uint16_t *rows;
    uint64_t s;
    size_t per_token;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    per_token = space.heads * space.dim;
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rows = rig_rows(&space, space.layers, 50, 6);
    assert_int_equal(rig_seq_append(&rig, &space, s, 0, 50, rows), KVARN_OK);
    must_commit(&rig, &space, s, 50, NULL, 0);
    /* V, layer 1, new token 40 (token 90: the second block), head 1, channel 9 */
    rows[(2 + 1) * 50 * per_token + 40 * per_token + 64 + 9] = 0xfe00;
    args = (struct kvw_sequences){.space = space.handle};
    row = (struct kvw_seq_row){.sequence = s, .position = KVW_AT_END, .tokens = 50};
    call = rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                         rig_rows_bytes(&space, space.layers, 50));
    assert_int_equal(call->status, KVARN_NON_FINITE);
    assert_non_null(strstr(
        call->text,
        "sequence 0 of the call: tensor v holds NaN or infinity at layer 1, kv head 1, new token "
        "40, channel 9"));
    assert_int_equal(rig_seq_commit(&rig, &space, s, 1, NULL, 0).status, KVARN_INVALID_SHAPE);
    rig_seq_release(&rig, &space, s);
    free(rows);
    rig_close(&rig);
}

static void test_positions(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_sequences args;
    struct kvw_seq_row row;
    struct rig_call *call;
    struct kvw_seq_status out;
    uint64_t s;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 10, 6);
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    assert_int_equal(rig_seq_append(&rig, &space, s, 1, 10, rows), KVARN_INVALID_SHAPE);
    assert_int_equal(rig_seq_append(&rig, &space, s, 0, 10, rows), KVARN_OK);
    assert_int_equal(rig_seq_append(&rig, &space, s, 11, 10, rows), KVARN_INVALID_SHAPE);
    assert_int_equal(rig_seq_append(&rig, &space, s, 10, 10, rows), KVARN_OK);
    assert_int_equal(rig_seq_append(&rig, &space, s, 10, 10, rows), KVARN_OK); /* lost reply */
    out = rig_seq_commit(&rig, &space, s, 21, NULL, 0);
    assert_int_equal(out.status, KVARN_INVALID_SHAPE);
    assert_int_equal(out.committed, 0);
    must_commit(&rig, &space, s, 15, NULL, 0);
    assert_int_equal(rig_seq_append(&rig, &space, s, 14, 10, rows), KVARN_INVALID_SHAPE);
    assert_int_equal(rig_seq_append(&rig, &space, s, UINT64_MAX - 3, 10, rows),
                     KVARN_INVALID_SHAPE);
    /* one layer only: the commit names the other */
    args = (struct kvw_sequences){.space = space.handle, .layer_begin = 0, .layer_count = 1};
    row = (struct kvw_seq_row){.sequence = s, .position = 15, .tokens = 10};
    call = rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows, rig_rows_bytes(&space, 1, 10));
    assert_int_equal(call->status, KVARN_OK);
    args = (struct kvw_sequences){.space = space.handle};
    row = (struct kvw_seq_row){.sequence = s, .tokens = 6};
    call = rig_sequences(&rig, KVW_SEQ_COMMIT, &args, &row, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    assert_non_null(strstr(call->text, "layer 1"));
    args = (struct kvw_sequences){.space = space.handle, .layer_begin = 1, .layer_count = 1};
    row = (struct kvw_seq_row){.sequence = s, .position = 15, .tokens = 5};
    call = rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows, rig_rows_bytes(&space, 1, 5));
    assert_int_equal(call->status, KVARN_OK);
    must_commit(&rig, &space, s, 5, NULL, 0);
    /* keys for blocks that do not fill up */
    assert_int_equal(rig_seq_commit(&rig, &space, s, 0, &(kvarn_key){{1}}, 1).status,
                     KVARN_INVALID_SHAPE);
    free(rows);
    rows = rig_rows(&space, space.layers, KVD_PENDING_TOKENS_MAX + 1, 1);
    assert_int_equal(rig_seq_append(&rig, &space, s, 20, KVD_PENDING_TOKENS_MAX + 1, rows),
                     KVARN_TOO_LARGE);
    rig_seq_release(&rig, &space, s);
    assert_int_equal(rig.service->blocks.live, 0);
    free(rows);
    rig_close(&rig);
}

/* Requests on one sequence run in the order they came; deadlines and hang-ups while parked. */
static void test_parking(void **state)
{
    struct rig_options options = {.parked_max = 3};
    struct rig rig;
    struct rig_space space;
    struct kvw_sequences args;
    struct kvw_seq_row row, both[2];
    struct rig_call *a, *b, *c, *d, *e;
    uint16_t *rows;
    uint64_t s, t;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 3, 6);
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    t = rig_seq_open(&rig, &space, NULL, 0, NULL);
    args = (struct kvw_sequences){.space = space.handle};
    row = (struct kvw_seq_row){.sequence = s, .position = KVW_AT_END, .tokens = 3};
    both[0] = (struct kvw_seq_row){.sequence = t, .tokens = 0};
    both[1] = (struct kvw_seq_row){.sequence = s, .tokens = 3};
    a = rig_sequences_start(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                            rig_rows_bytes(&space, 2, 3));
    b = rig_sequences_start(&rig, KVW_SEQ_COMMIT, &args, both, 2, NULL, 0);
    c = rig_sequences_start(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                            rig_rows_bytes(&space, 2, 3));
    row.sequence = t; /* t is idle, but b stands before it */
    d = rig_sequences_start(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                            rig_rows_bytes(&space, 2, 3));
    assert_int_equal(rig.service->parked, 3);
    e = rig_sequences_start(&rig, KVW_SEQ_RELEASE, &args, &row, 1, NULL, 0);
    assert_true(e->replied);
    assert_int_equal(e->status, KVARN_RETRY);
    rig_run(&rig);
    assert_true(a->number < b->number && b->number < c->number && b->number < d->number);
    assert_int_equal(a->status, KVARN_OK);
    assert_int_equal(b->status, KVARN_OK);
    assert_int_equal(rig_seq(b, 1).committed, 3);
    assert_int_equal(rig_seq(c, 0).committed, 3);
    assert_int_equal(c->status, KVARN_OK);
    assert_int_equal(d->status, KVARN_OK);
    /* a deadline that passes in the queue; who stands behind goes on */
    row.sequence = s;
    a = rig_sequences_start(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                            rig_rows_bytes(&space, 2, 3));
    rig.deadline_ms = 5;
    b = rig_sequences_start(&rig, KVW_SEQ_COMMIT, &args, both, 2, NULL, 0);
    rig.deadline_ms = 1000;
    row.sequence = t;
    c = rig_sequences_start(&rig, KVW_SEQ_RELEASE, &args, &row, 1, NULL, 0);
    rig.now_ns += 6000000;
    kvd_service_tick(rig.service);
    assert_true(b->replied && c->replied && !a->replied);
    assert_int_equal(b->status, KVARN_DEADLINE);
    assert_int_equal(c->status, KVARN_OK);
    /* released while others wait: they find it stale, nobody finds another object */
    row.sequence = s;
    b = rig_sequences_start(&rig, KVW_SEQ_RELEASE, &args, &row, 1, NULL, 0);
    c = rig_sequences_start(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                            rig_rows_bytes(&space, 2, 3));
    rig_run(&rig);
    assert_int_equal(b->status, KVARN_OK);
    assert_int_equal(c->status, KVARN_STALE);
    assert_int_equal(rig.service->sequences.count, 0);
    assert_int_equal(rig.service->blocks.live, 0);
    /* hang up with one running and one parked */
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    row.sequence = s;
    a = rig_sequences_start(&rig, KVW_SEQ_APPEND, &args, &row, 1, rows,
                            rig_rows_bytes(&space, 2, 3));
    b = rig_sequences_start(&rig, KVW_SEQ_RELEASE, &args, &row, 1, NULL, 0);
    rig_hang_up(&rig, 1);
    assert_true(b->replied && !a->replied);
    rig_run(&rig);
    assert_int_equal(rig.service->sequences.count, 0);
    assert_int_equal(rig.service->blocks.live, 0);
    free(rows);
    rig_close(&rig);
}

static void test_handles(void **state)
{
    struct rig_options options = {.sequences_max = 4};
    struct rig rig;
    struct rig_space space;
    struct kvw_sequences args;
    struct rig_call *call;
    uint64_t s, t;

    (void)state;
    rig_open(&rig, &options);
    space = rig_open_space(&rig, NULL);
    s = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rig.conn_id = 2; /* not yours = absent */
    assert_int_equal(rig_seq_release(&rig, &space, s), KVARN_NOT_FOUND);
    rig.conn_id = 1;
    assert_int_equal(rig_seq_release(&rig, &space, s + (5ull << 32)), KVARN_NOT_FOUND);
    assert_int_equal(rig_seq_release(&rig, &space, s), KVARN_OK);
    assert_int_equal(rig_seq_release(&rig, &space, s), KVARN_STALE);
    t = rig_seq_open(&rig, &space, NULL, 0, NULL);
    assert_int_equal((uint32_t)t, (uint32_t)s); /* the same slot */
    assert_int_equal(rig_seq_release(&rig, &space, s), KVARN_STALE);
    assert_int_equal(rig.service->sequences.count, 1);
    for (int i = 0; i < 3; i++)
        rig_seq_open(&rig, &space, NULL, 0, NULL);
    args = (struct kvw_sequences){.space = space.handle};
    call = rig_sequences(&rig, KVW_SEQ_OPEN, &args, NULL, 0, NULL, 0);
    assert_int_equal(call->status, KVARN_RETRY);
    rig_hang_up(&rig, 1);
    assert_int_equal(rig.service->sequences.count, 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_rows_fail_alone),
        cmocka_unit_test(test_fault_after_a_border),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_parking),
        cmocka_unit_test(test_handles),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
