/* SEQ_COMMIT: that it can be repeated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

static struct rig rig;
static struct rig_space space;
static uint64_t sequence;

static struct rig_call *commit(uint32_t tokens, uint32_t expected)
{
    struct kvw_sequences args = {.space = space.handle};
    struct kvw_seq_row row = {.sequence = sequence, .tokens = tokens, .expected = expected};

    return rig_sequences(&rig, KVW_SEQ_COMMIT, &args, &row, 1, NULL, 0);
}

static void expect(uint32_t tokens, uint32_t expected, kvarn_status status, uint32_t committed)
{
    struct rig_call *call = commit(tokens, expected);

    assert_int_equal(call->status, status);
    assert_int_equal(rig_seq(call, 0).committed, committed);
}

/* The answer is lost, the call is made again: the tokens count once. */
static void a_repeated_commit_counts_once(void **state)
{
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 20, 6);
    sequence = rig_seq_open(&rig, &space, NULL, 0, NULL);
    rig_seq_append(&rig, &space, sequence, 0, 20, rows);
    expect(5, 0 + 1, KVARN_OK, 5);
    expect(5, 0 + 1, KVARN_INVALID_SHAPE, 5);
    assert_non_null(strstr(commit(5, 1)->text, "committed is 5, the call expected 0"));
    expect(5, 5 + 1, KVARN_OK, 10);
    expect(5, UINT32_MAX, KVARN_INVALID_SHAPE, 10);
    expect(5, 0, KVARN_OK, 15); /* 0: whatever there is */
    free(rows);
    rig_seq_release(&rig, &space, sequence);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_repeated_commit_counts_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
