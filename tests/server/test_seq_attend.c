/* SEQ_ATTEND and ATTEND: how much one call may ask for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/core/limits.h"
#include "support/rpc_rig.h"

enum { G = 64, HEADS = 2 * KVARN_MAX_GQA, Q = KVD_Q_TOKENS_MAX, DIM = 64 };

static const struct rig_options large = {.staging_bytes = 64 << 20};

static void refused(const struct rig_call *call)
{
    assert_int_equal(call->status, KVARN_TOO_LARGE);
    assert_non_null(strstr(call->text, "17179869184")); /* 256 x 128 x 2^18 x 2 */
    assert_non_null(strstr(call->text, "8589934592"));
    assert_int_equal(call->payload_bytes, 0);
}

/* Two sequences of 2^18 tokens, one block 4096 times over. */
static void long_sequences_take_fewer_query_tokens(void **state)
{
    static kvarn_key keys[KVW_BLOCKS_MAX];
    size_t q_bytes = 2ul * Q * HEADS * DIM * 2;
    uint8_t *q = calloc(1, q_bytes);
    struct rig rig;
    struct rig_space space;
    struct kvw_sequences args = {.query = {.present = true, .q_heads = HEADS}};
    struct kvw_seq_row rows[2] = {{.position = KVW_AT_END, .q_tokens = Q},
                                  {.position = KVW_AT_END, .q_tokens = Q}};
    uint16_t *data;

    (void)state;
    rig_open(&rig, &large);
    args.space = (space = rig_open_space(&rig, NULL)).handle;
    data = rig_rows(&space, space.layers, G, 6);
    for (uint32_t i = 0; i < KVW_BLOCKS_MAX; i++)
        keys[i] = rig_key(1);
    rig_compress(&rig, &space, keys, 1, KVARN_BLOCK_TILE, data);
    for (int i = 0; i < 2; i++) {
        uint32_t found;

        rows[i].sequence = rig_seq_open(&rig, &space, keys, KVW_BLOCKS_MAX, &found);
        assert_int_equal(found, KVW_BLOCKS_MAX);
    }
    refused(rig_sequences(&rig, KVW_SEQ_ATTEND, &args, rows, 2, q, q_bytes));
    assert_int_equal(fake_device_ran(rig.device, KVD_JOB_ATTEND), 0);
    /* what the window leaves out costs nothing */
    args.query.window = 64;
    rows[0].q_tokens = 2;
    rows[1].q_tokens = 2;
    assert_int_equal(
        rig_sequences(&rig, KVW_SEQ_ATTEND, &args, rows, 2, q, q_bytes / Q * 2)->status, KVARN_OK);
    free(data);
    free(q);
    rig_hang_up(&rig, 1);
    rig_close(&rig);
}

static void so_do_many_blocks(void **state)
{
    static kvarn_key keys[KVW_BLOCKS_MAX];
    size_t q_bytes = 1ul * Q * HEADS * DIM * 2;
    uint8_t *q = calloc(1, q_bytes);
    struct kvw_open_space options = rig_space_options();
    struct kvw_blocks args = {.query = {.present = true, .q_heads = HEADS, .q_tokens = Q}};
    struct rig rig;

    (void)state;
    rig_open(&rig, &large);
    options.preset = "kvarn_k2v2_g128";
    options.sink_tokens = 128;
    args.space = rig_open_space(&rig, &options).handle;
    refused(rig_blocks(&rig, KVW_ATTEND, &args, keys, KVW_BLOCKS_MAX, q, q_bytes));
    args.query.window = 128; /* then it is the keys that are not there */
    assert_int_equal(rig_blocks(&rig, KVW_ATTEND, &args, keys, KVW_BLOCKS_MAX, q, q_bytes)->status,
                     KVARN_NOT_FOUND);
    free(q);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_sequences_take_fewer_query_tokens),
        cmocka_unit_test(so_do_many_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
