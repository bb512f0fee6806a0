/* SEQ_APPEND: what a call that was not carried out leaves behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

/* The rows of the call before still count when nothing was queued, and do not when the worker died
 * over them. */
static void only_what_was_sent_takes_rows_away(void **state)
{
    struct rig rig;
    struct rig_space space;
    uint64_t sequence;
    uint16_t *rows;

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    rows = rig_rows(&space, space.layers, 20, 6);
    sequence = rig_seq_open(&rig, &space, NULL, 0, NULL);
    assert_int_equal(rig_seq_append(&rig, &space, sequence, 0, 20, rows), KVARN_OK);
    fake_device_full(rig.device, 0, 1);
    assert_int_equal(rig_seq_append(&rig, &space, sequence, 5, 15, rows), KVARN_RETRY);
    assert_int_equal(rig_seq_commit(&rig, &space, sequence, 10, NULL, 0).status, KVARN_OK);
    fake_device_lose(rig.device, 0);
    assert_int_equal(rig_seq_append(&rig, &space, sequence, 15, 5, rows), KVARN_GPU_LOST);
    assert_int_equal(rig_seq_commit(&rig, &space, sequence, 6, NULL, 0).status,
                     KVARN_INVALID_SHAPE);
    assert_int_equal(rig_seq_commit(&rig, &space, sequence, 5, NULL, 0).status, KVARN_OK);
    free(rows);
    rig_seq_release(&rig, &space, sequence);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_what_was_sent_takes_rows_away)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
