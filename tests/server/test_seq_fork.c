/* SEQ_FORK: children that are copies, and what becomes of them when nobody hears of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { G = 64, TOKENS = 2 * G + 5 };

struct forks {
    struct rig rig;
    struct rig_space space;
    kvarn_key keys[2];
    uint64_t parent;
};

/* A parent with two full blocks and a tail. */
static void forks_open(struct forks *forks)
{
    uint16_t *rows;

    forks->keys[0] = rig_key(0);
    forks->keys[1] = rig_key(1);
    rig_open(&forks->rig, NULL);
    forks->space = rig_open_space(&forks->rig, NULL);
    rows = rig_rows(&forks->space, forks->space.layers, TOKENS, 6);
    forks->parent = rig_seq_open(&forks->rig, &forks->space, NULL, 0, NULL);
    rig_seq_append(&forks->rig, &forks->space, forks->parent, 0, TOKENS, rows);
    rig_seq_commit(&forks->rig, &forks->space, forks->parent, TOKENS, forks->keys, 2);
    free(rows);
}

static struct rig_call *fork_call(struct forks *forks, uint32_t count)
{
    struct kvw_sequences args = {.space = forks->space.handle, .fork_count = count};
    struct kvw_seq_row row = {.sequence = forks->parent};

    return rig_sequences_start(&forks->rig, KVW_SEQ_FORK, &args, &row, 1, NULL, 0);
}

/* What stands in a job that the worker had is not believed. */
static void counts_of_a_job_are_not_read_back(void **state)
{
    struct forks forks;
    struct rig_call *call;

    (void)state;
    forks_open(&forks);
    fake_device_scribble(forks.rig.device);
    call = fork_call(&forks, 3);
    rig_run(&forks.rig);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_seq(call, 2).committed, TOKENS);
    assert_int_equal(forks.rig.service->sequences.count, 4);
    rig_hang_up(&forks.rig, 1);
    rig_close(&forks.rig);
}

static void children_of_a_late_answer_go_back(void **state)
{
    struct forks forks;
    struct rig *rig = &forks.rig;
    uint64_t blocks;

    (void)state;
    forks_open(&forks);
    blocks = rig->service->blocks.live;
    fork_call(&forks, 3);
    rig->late = true;
    rig_run(rig);
    assert_int_equal(rig->service->sequences.count, 1);
    assert_int_equal(rig->service->blocks.live, blocks);
    rig->late = false;
    rig_hang_up(rig, 1);
    rig_close(rig);
}

/* The connection goes while the copy runs: both ways of giving back meet. */
static void children_of_a_lost_connection_go_back_once(void **state)
{
    struct forks forks;

    (void)state;
    forks_open(&forks);
    fork_call(&forks, 3);
    forks.rig.late = true;
    rig_hang_up(&forks.rig, 1);
    rig_run(&forks.rig);
    assert_int_equal(forks.rig.service->sequences.count, 0);
    rig_close(&forks.rig);
}

/* The same for a sequence and a lease that nobody hears of. */
static void open_and_lookup_go_back_too(void **state)
{
    struct forks forks;
    struct rig *rig = &forks.rig;
    struct kvw_blocks args = {.lease_ms = 60000};

    (void)state;
    forks_open(&forks);
    args.space = forks.space.handle;
    rig->late = true;
    rig_seq_open(rig, &forks.space, forks.keys, 2, NULL);
    assert_int_equal(rig->service->sequences.count, 1);
    rig_blocks(rig, KVW_LOOKUP, &args, forks.keys, 2, NULL, 0);
    assert_int_equal(rig->service->leases.count, 0);
    rig->late = false;
    rig_blocks(rig, KVW_LOOKUP, &args, forks.keys, 2, NULL, 0);
    assert_int_equal(rig->service->leases.count, 1);
    rig_hang_up(rig, 1);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_a_job_are_not_read_back),
        cmocka_unit_test(children_of_a_late_answer_go_back),
        cmocka_unit_test(children_of_a_lost_connection_go_back_once),
        cmocka_unit_test(open_and_lookup_go_back_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
