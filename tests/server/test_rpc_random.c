/* Random calls of several clients, in any order, with jobs that finish late, a worker that dies, a
 * ring that is full, deadlines and hang-ups in between. Whatever happens: every call is answered
 * once, and at the end nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/rpc_rig.h"

enum { CONNS = 3, SEQUENCES = 12, STEPS = 15000, KEYS = 30, ROWS = 130 };

struct fuzz {
    struct rig rig;
    struct rng rng;
    struct rig_space space;
    uint64_t sequences[SEQUENCES];
    uint16_t *rows, *bad;
    uint32_t answered, ok;
};

static uint32_t below(struct fuzz *f, uint32_t bound)
{
    return rng_below(&f->rng, bound);
}

static void some_keys(struct fuzz *f, kvarn_key *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        keys[i] = rig_key(below(f, KEYS));
}

static void block_call(struct fuzz *f)
{
    static const uint8_t ops[] = {KVW_LOOKUP, KVW_DECOMPRESS, KVW_EXPORT,
                                  KVW_DROP,   KVW_VERIFY,     KVW_ATTEND};
    struct kvw_blocks args = {.space = f->space.handle};
    uint8_t op = ops[below(f, sizeof ops)];
    uint32_t count = 1 + below(f, 4);
    kvarn_key keys[4];

    some_keys(f, keys, count);
    if (op == KVW_LOOKUP)
        args.lease_ms = below(f, 2) * 50;
    if (op == KVW_VERIFY && below(f, 4) == 0)
        args.all = true;
    if (op == KVW_ATTEND)
        args.query = (struct kvw_query){.present = true,
                                        .q_heads = 2,
                                        .q_tokens = 2,
                                        .full = below(f, 2) == 0,
                                        .window = below(f, 200)};
    rig_blocks_start(&f->rig, op, &args, keys, count, f->rows,
                     op == KVW_ATTEND ? 2 * f->space.heads * f->space.row_bytes : 0);
}

static void compress_call(struct fuzz *f)
{
    kvarn_key keys[2];
    uint32_t count = 1 + below(f, 2);

    some_keys(f, keys, count);
    rig_compress_start(&f->rig, &f->space, keys, count, 1 + below(f, 2),
                       below(f, 8) ? f->rows : f->bad);
}

/* A table of one to three sequences, now and then one that does not exist or one twice. */
static void sequence_call(struct fuzz *f)
{
    static const uint8_t ops[] = {KVW_SEQ_OPEN,   KVW_SEQ_APPEND, KVW_SEQ_APPEND, KVW_SEQ_ATTEND,
                                  KVW_SEQ_COMMIT, KVW_SEQ_COMMIT, KVW_SEQ_FORK,   KVW_SEQ_RELEASE};
    struct kvw_sequences args = {.space = f->space.handle, .fork_count = 1 + below(f, 2)};
    uint8_t op = ops[below(f, sizeof ops)];
    uint32_t count = op == KVW_SEQ_FORK ? 1 : 1 + below(f, 3), tokens = 0, layers = 2;
    uint64_t bytes = 0;
    struct kvw_seq_row rows[3];
    const void *more = below(f, 8) ? f->rows : f->bad;
    kvarn_key keys[6];

    for (uint32_t i = 0; i < count; i++) {
        uint32_t n = below(f, ROWS / 3);

        rows[i] = (struct kvw_seq_row){.sequence = f->sequences[below(f, SEQUENCES)],
                                       .position = KVW_AT_END,
                                       .q_tokens = 1,
                                       .tokens = n + 1};
        tokens += n + 1;
    }
    if (op == KVW_SEQ_APPEND && below(f, 3) == 0)
        layers = args.layer_count = 1;
    if (op == KVW_SEQ_APPEND)
        bytes = rig_rows_bytes(&f->space, layers, tokens);
    if (op == KVW_SEQ_ATTEND) {
        args.query = (struct kvw_query){.present = true, .q_heads = 2};
        bytes = rig_rows_bytes(&f->space, 1, tokens) + count * 2 * f->space.row_bytes;
    }
    if (op == KVW_SEQ_OPEN || op == KVW_SEQ_COMMIT) {
        args.key_count = op == KVW_SEQ_OPEN ? below(f, 4) : below(f, 2);
        rows[0].keys = args.key_count;
        some_keys(f, keys, args.key_count);
        more = keys;
        bytes = args.key_count * sizeof keys[0];
    }
    rig_sequences_start(&f->rig, op, &args, rows, op == KVW_SEQ_OPEN ? 0 : count, more, bytes);
}

/* New handles come from the replies; calls that are done go. */
static void collect(struct fuzz *f)
{
    for (struct rig_call *call = f->rig.calls, *next; call; call = next) {
        next = call->next;
        if (!call->replied && !call->waited)
            continue;
        f->answered += call->replied;
        f->ok += call->replied && call->status == KVARN_OK;
        if (call->status == KVARN_OK && call->payload_bytes == KVW_SEQ_STATUS_BYTES &&
            rig_seq(call, 0).sequence > 1000)
            f->sequences[below(f, SEQUENCES)] = rig_seq(call, 0).sequence;
        rig_free(call);
    }
}

static void trouble(struct fuzz *f)
{
    switch (below(f, 40)) {
    case 0:
        rig_hang_up(&f->rig, 1 + below(f, CONNS));
        break;
    case 1:
    case 2:
        fake_device_lose(f->rig.device, below(f, 3));
        break;
    case 3:
        fake_device_full(f->rig.device, below(f, 3), 1 + below(f, 2));
        break;
    default:
        f->rig.now_ns += below(f, 5) * 1000000ull;
        kvd_service_tick(f->rig.service);
    }
}

static void test_random(void **state)
{
    struct rig_options options = {.pool_bytes = 2 << 20,
                                  .staging_bytes = 4 << 20,
                                  .requests_max = 40,
                                  .sequences_max = 20,
                                  .leases_max = 10,
                                  .parked_max = 12};
    struct fuzz *f = calloc(1, sizeof *f);
    uint64_t seed = rng_seed(12);

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    f->rng = rng_make(seed);
    rig_open(&f->rig, &options);
    f->space = rig_open_space(&f->rig, NULL);
    f->rows = rig_rows(&f->space, 2, 2 * ROWS, 1);
    f->bad = rig_rows(&f->space, 2, 2 * ROWS, 2);
    f->bad[777] = 0x7c00;
    for (int i = 0; i < STEPS; i++) {
        f->rig.conn_id = 1 + below(f, CONNS);
        f->rig.deadline_ms = below(f, 10) ? 1000 : 3;
        switch (below(f, 10)) {
        case 0:
            block_call(f);
            break;
        case 1:
            compress_call(f);
            break;
        case 2:
        case 3:
        case 4:
            sequence_call(f);
            break;
        case 5:
            trouble(f);
            break;
        default:
            fake_device_run(f->rig.device, 1 + below(f, 3));
        }
        collect(f);
    }
    fake_device_full(f->rig.device, 0, 0);
    rig_run(&f->rig);
    for (uint64_t conn = 1; conn <= CONNS; conn++)
        rig_hang_up(&f->rig, conn);
    rig_run(&f->rig);
    collect(f);
    assert_null(f->rig.calls);
    assert_int_equal(f->rig.service->sequences.count, 0);
    assert_int_equal(f->rig.service->leases.count, 0);
    print_message("%u answers, %u of them OK\n", f->answered, f->ok);
    assert_true(f->ok > 500);
    rig_close(&f->rig);
    free(f->rows);
    free(f->bad);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
