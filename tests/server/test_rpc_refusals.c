/* Operations that are refused for what they ask: the status, the words, and that nothing is done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static struct rig rig;
static struct rig_space space;

static int setup(void **state)
{
    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

static void refuses(const struct rig_call *call, kvarn_status status, const char *says)
{
    if (call->status != status || strstr(call->text, says) == NULL)
        fail_msg("%d: %s", (int)call->status, call->text);
    assert_int_equal(call->payload_bytes, 0);
}

/* A bad row of the table fails alone. */
static void rows_of_compress(void **state)
{
    const struct kvw_put_row rows[4] = {
        {.key = rig_key(1), .kind = KVARN_BLOCK_TILE, .tokens = space.group},
        {.key = rig_key(2), .kind = 3, .tokens = space.group},
        {.key = rig_key(3), .kind = KVARN_BLOCK_EXACT, .tokens = space.group - 1},
        {.key = rig_key(4), .kind = KVARN_BLOCK_EXACT, .tokens = space.group}};
    struct kvw_blocks args = {.space = space.handle, .block_count = 4};
    uint64_t more = rig_rows_bytes(&space, space.layers, 4 * space.group);
    uint8_t *payload = malloc(sizeof rows + 4 * KVW_PUT_ROW_BYTES + more), meta[128];
    uint16_t *data = rig_rows(&space, space.layers, 4 * space.group, 1);
    struct rig_call *call;

    (void)state;
    for (size_t i = 0; i < 4; i++)
        kvw_put_row_store(payload + i * KVW_PUT_ROW_BYTES, &rows[i]);
    memcpy(payload + 4 * KVW_PUT_ROW_BYTES, data, more);
    call = rig_call(&rig, KVW_COMPRESS, meta, kvw_blocks_encode(meta, sizeof meta, &args), payload,
                    4 * KVW_PUT_ROW_BYTES + more);
    assert_int_equal(call->status, KVARN_INVALID_SHAPE);
    assert_string_equal(call->text, "block 1: kind = 3; must be 1 (TILE) or 2 (EXACT)");
    assert_int_equal(rig_block(call, 0).status, KVARN_OK);
    assert_int_equal(rig_block(call, 1).status, KVARN_INVALID_SHAPE);
    assert_int_equal(rig_block(call, 2).status, KVARN_INVALID_SHAPE);
    assert_int_equal(rig_block(call, 3).status, KVARN_OK);
    assert_int_equal(rig.service->blocks.live, 2);
    free(payload);
    free(data);
}

static void layers_outside_of_the_shard(void **state)
{
    const uint32_t bad[][2] = {{2, 0}, {2, 1}, {0, 3}, {1, 2}, {UINT32_MAX, 2}, {1, UINT32_MAX}};
    uint64_t sequence = rig_seq_open(&rig, &space, NULL, 0, NULL);
    struct kvw_seq_row row = {.sequence = sequence, .tokens = 1, .q_tokens = 1};
    kvarn_key key = rig_key(1);
    static uint8_t more[8192];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvw_blocks blocks = {
            .space = space.handle, .layer_begin = bad[i][0], .layer_count = bad[i][1]};
        struct kvw_sequences args = {
            .space = space.handle, .layer_begin = bad[i][0], .layer_count = bad[i][1]};

        refuses(rig_blocks(&rig, KVW_DECOMPRESS, &blocks, &key, 1, NULL, 0), KVARN_INVALID_SHAPE,
                "layer");
        refuses(rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, more, 1024),
                KVARN_INVALID_SHAPE, "layer");
    }
    for (uint32_t layer = 2; layer < 4; layer++) {
        struct kvw_blocks blocks = {.space = space.handle,
                                    .layer_begin = layer,
                                    .query = {.present = true, .q_heads = 2, .q_tokens = 1}};
        struct kvw_sequences args = {
            .space = space.handle, .layer_begin = layer, .query = {.present = true, .q_heads = 2}};

        refuses(rig_blocks(&rig, KVW_ATTEND, &blocks, &key, 1, more, 256), KVARN_INVALID_SHAPE,
                "is outside the shard's 2");
        refuses(rig_sequences(&rig, KVW_SEQ_ATTEND, &args, &row, 1, more, 256 + 512),
                KVARN_INVALID_SHAPE, "is outside the shard's 2");
    }
    rig_seq_release(&rig, &space, sequence);
}

static void appends_of_nothing(void **state)
{
    uint64_t sequence = rig_seq_open(&rig, &space, NULL, 0, NULL);
    struct kvw_sequences args = {.space = space.handle};
    struct kvw_seq_row row = {.sequence = sequence, .position = KVW_AT_END};

    (void)state;
    refuses(rig_sequences(&rig, KVW_SEQ_APPEND, &args, &row, 1, NULL, 0), KVARN_INVALID_SHAPE,
            "appends no tokens at all");
    rig_seq_release(&rig, &space, sequence);
}

static void queries_of_attend(void **state)
{
    struct kvw_blocks args = {.space = space.handle, .query = {.present = true, .q_heads = 2}};
    kvarn_key key = rig_key(1);
    static uint8_t q[(KVD_Q_TOKENS_MAX + 1) * 256];

    (void)state;
    refuses(rig_blocks(&rig, KVW_ATTEND, &args, &key, 1, q, 0), KVARN_INVALID_SHAPE,
            "q_tokens = 0; must be 1 to 256");
    args.query.q_tokens = KVD_Q_TOKENS_MAX + 1;
    refuses(rig_blocks(&rig, KVW_ATTEND, &args, &key, 1, q, sizeof q), KVARN_INVALID_SHAPE,
            "q_tokens = 257");
    args.query.q_tokens = space.group + 1;
    refuses(rig_blocks(&rig, KVW_ATTEND, &args, &key, 1, q, (space.group + 1) * 256),
            KVARN_INVALID_SHAPE, "more than the 64 tokens");
    args.query.q_tokens = 1;
    refuses(rig_blocks(&rig, KVW_ATTEND, &args, &key, 1, q, 255), KVARN_INVALID_SHAPE,
            "the payload has 287");
    refuses(rig_blocks(&rig, KVW_ATTEND, &args, &key, 1, q, 257), KVARN_INVALID_SHAPE,
            "the payload has 289");
}

static void exports_of_too_many_blocks(void **state)
{
    struct kvw_blocks args = {.space = space.handle};
    static kvarn_key keys[KVD_REPLY_IOVECS_MAX];

    (void)state;
    refuses(rig_blocks(&rig, KVW_EXPORT, &args, keys, KVD_REPLY_IOVECS_MAX, NULL, 0),
            KVARN_TOO_LARGE, "one EXPORT gives at most");
    assert_int_equal(
        rig_blocks(&rig, KVW_EXPORT, &args, keys, KVD_REPLY_IOVECS_MAX - 1, NULL, 0)->status,
        KVARN_NOT_FOUND);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rows_of_compress),  TEST(layers_outside_of_the_shard), TEST(appends_of_nothing),
        TEST(queries_of_attend), TEST(exports_of_too_many_blocks),
    };
    return cmocka_run_group_tests_name("rpc_refusals", tests, NULL, NULL);
}
