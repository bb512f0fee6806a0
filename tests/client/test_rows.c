/* client/rows: which bytes of strided rows are sent, as the pretended daemon got them. */
#include "client_rig.h"

static uint64_t sum_of(const uint8_t *bytes, size_t count)
{
    return peer_checksum(bytes, count);
}

/* What the daemon must have got: the table, then the ranges. */
static void assert_payload(struct rig *rig, size_t table, const uint8_t *a, size_t a_bytes,
                           const uint8_t *b, size_t b_bytes)
{
    uint8_t *whole = malloc(table + a_bytes + b_bytes);

    for (size_t i = 0; i < table / KVW_PUT_ROW_BYTES; i++) {
        struct kvw_put_row row = {.key = keys[i], .kind = KVARN_BLOCK_TILE, .tokens = PEER_GROUP};
        kvw_put_row_store(whole + i * KVW_PUT_ROW_BYTES, &row);
    }
    memcpy(whole + table, a, a_bytes);
    if (b_bytes)
        memcpy(whole + table + a_bytes, b, b_bytes);
    assert_true(sum_of(whole, table + a_bytes + b_bytes) == atomic_load(&rig->daemon.payload_sum));
    free(whole);
}

static void strided_rows(void **state)
{
    struct rig *rig = *state;
    const uint64_t row = PEER_DIM * 2;
    static uint8_t slab[PEER_LAYERS * 2 * PEER_GROUP * 2 * PEER_HEADS * PEER_DIM * 2 + 64];
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_strides strides = {0};

    for (size_t i = 0; i < sizeof slab; i++)
        slab[i] = peer_pattern(8, i);
    put.space = rig->space;
    put.keys = keys;
    put.count = 2;
    put.strides = &strides;

    /* [layer][block][token][K or V][head][dim]: one range with both. */
    strides.head = row;
    strides.token = 2 * PEER_HEADS * row;
    strides.block = PEER_GROUP * strides.token;
    strides.layer = 2 * strides.block;
    put.k = slab;
    put.v = slab + PEER_HEADS * row;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_payload(rig, 2 * KVW_PUT_ROW_BYTES, slab, PEER_LAYERS * strides.layer, NULL, 0);
    put.k = slab + PEER_HEADS * row; /* and V first */
    put.v = slab;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_payload(rig, 2 * KVW_PUT_ROW_BYTES, slab, PEER_LAYERS * strides.layer, NULL, 0);

    /* Two halves: two ranges, K first whatever the addresses. */
    strides.token = PEER_HEADS * row;
    strides.block = PEER_GROUP * strides.token;
    strides.layer = 2 * strides.block;
    size_t half = (size_t)(PEER_LAYERS * strides.layer);
    put.k = slab + half;
    put.v = slab;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_payload(rig, 2 * KVW_PUT_ROW_BYTES, slab + half, half, slab, half);

    /* 0 is the dense stride over the axis inside: the same bytes, said in full. */
    memset(&strides, 0, sizeof strides);
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_payload(rig, 2 * KVW_PUT_ROW_BYTES, slab + half, half, slab, half);
    strides.token = 2 * PEER_HEADS * row; /* and the outer ones follow the inner one given */
    put.k = slab;
    put.v = slab + PEER_HEADS * row;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_payload(rig, 2 * KVW_PUT_ROW_BYTES, slab, 2 * half, NULL, 0);

    /* K and V in the same place go twice. */
    memset(&strides, 0, sizeof strides);
    put.v = slab;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_OK);
    assert_payload(rig, 2 * KVW_PUT_ROW_BYTES, slab, half, slab, half);

    /* Sizes that overflow are said, not sent. */
    strides.layer = UINT64_MAX / 2 + 5;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_INVALID_SHAPE);
    strides.layer = UINT64_MAX - 5;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_INVALID_SHAPE);
    strides.layer = 1u << 30;
    assert_int_equal(kvarn_compress(rig->client, &put), KVARN_TOO_LARGE);
}

static void strided_sequence_rows(void **state)
{
    struct rig *rig = *state;
    const size_t row = PEER_DIM * 2, token = PEER_HEADS * row;
    static uint8_t q[4 * PEER_DIM * 2], slab[4096];
    static float out[4 * PEER_DIM], lse[4];
    uint8_t expected[KVW_SEQ_ROW_BYTES + sizeof q + 2 * PEER_HEADS * PEER_DIM * 2];
    kvarn_seq seq = {.sequence = 3, .position = KVARN_AT_END, .tokens = 1, .q_tokens = 1};
    kvarn_strides strides = {.token = 5000, .head = 2 * row};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    for (size_t i = 0; i < sizeof slab; i++)
        slab[i] = peer_pattern(8, i);
    args.space = rig->space;
    args.seqs = &seq;
    args.count = 1;
    args.query.q_heads = 4;
    args.q = q;
    args.k = slab;
    args.v = slab + row;
    args.strides = &strides;
    args.out = out;
    args.lse = lse;
    assert_int_equal(kvarn_sequence_attend(rig->client, &args), KVARN_OK);
    struct kvw_seq_row head = {.sequence = 3, .position = KVW_AT_END, .tokens = 1, .q_tokens = 1};
    kvw_seq_row_store(expected, &head);
    memcpy(expected + KVW_SEQ_ROW_BYTES, q, sizeof q);
    for (size_t i = 0; i < PEER_HEADS; i++) {
        uint8_t *at = expected + KVW_SEQ_ROW_BYTES + sizeof q + i * row;
        memcpy(at, slab + i * 2 * row, row);
        memcpy(at + token, slab + row + i * 2 * row, row);
    }
    assert_true(sum_of(expected, sizeof expected) == atomic_load(&rig->daemon.payload_sum));

    strides = (kvarn_strides){.token = 5000}; /* heads side by side */
    assert_int_equal(kvarn_sequence_attend(rig->client, &args), KVARN_OK);
    memcpy(expected + KVW_SEQ_ROW_BYTES + sizeof q, slab, token);
    memcpy(expected + KVW_SEQ_ROW_BYTES + sizeof q + token, slab + row, token);
    assert_true(sum_of(expected, sizeof expected) == atomic_load(&rig->daemon.payload_sum));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG(strided_rows),
        RIG(strided_sequence_rows),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
