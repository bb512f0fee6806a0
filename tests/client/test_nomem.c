/* client: every n-th allocation fails, once for each n and then for all from n on. No crash, no
 * leak (the sanitizer build looks), a typed answer, and a client that still closes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/client.h>

#include "fake_daemon.h"

/* Of the thread under test only; the pretended daemon has its own. */
static _Thread_local bool counting;
static _Thread_local unsigned made, fail_at;
static _Thread_local bool fail_on;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *at, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *at, size_t size);

static bool fails(void)
{
    if (!counting)
        return false;
    made++;
    return made == fail_at || (fail_on && made > fail_at);
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *at, size_t size)
{
    return fails() ? NULL : __real_realloc(at, size);
}

static void note(kvarn_status status, unsigned *bad)
{
    if (status != KVARN_OK) {
        assert_true(status == KVARN_INTERNAL || status == KVARN_PEER_LOST ||
                    status == KVARN_NOT_FOUND);
        ++*bad;
    }
}

/* A session with every kind of allocation in it. Returns how many calls failed. */
static unsigned scenario(const char *address)
{
    static uint8_t rows[PEER_BLOCK_ROWS_BYTES], out[4096];
    static const kvarn_key keys[2];
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_call *calls[3] = {NULL};
    kvarn_client *client = NULL;
    kvarn_seq seq = {.tokens = 1, .q_tokens = 1};
    kvarn_strides strides = {.token = 256, .head = 128};
    kvarn_seq_args attend = KVARN_SEQ_ARGS_INIT;
    unsigned bad = 0;

    note(kvarn_connect(&client, address, NULL), &bad);
    space.model = "m";
    space.layers = PEER_LAYERS;
    space.kv_heads = PEER_HEADS;
    space.head_dim = PEER_DIM;
    space.dtype = KVARN_F16;
    space.preset = "kvarn_k2v2_g64";
    if (client) {
        for (int i = 0; i < 12; i++)
            note(kvarn_open_space(client, &space), &bad);
        put.space = attend.space = space.space;
        put.keys = keys;
        put.count = 1;
        put.k = put.v = rows;
        note(kvarn_compress(client, &put), &bad);
        attend.seqs = &seq;
        attend.count = 1;
        attend.query.q_heads = PEER_HEADS;
        attend.q = attend.k = attend.v = rows;
        attend.strides = &strides;
        attend.out = out;
        note(kvarn_sequence_attend(client, &attend), &bad);
        for (size_t i = 0; i < 3; i++)
            note(kvarn_ping_start(client, &ping, &calls[i]), &bad);
        kvarn_call_free(&calls[0]);
        for (size_t i = 1; i < 3; i++) {
            if (calls[i])
                note(kvarn_call_wait(calls[i], -1), &bad);
            kvarn_call_free(&calls[i]);
        }
        assert_non_null(kvarn_client_error(client));
    }
    kvarn_close(&client);
    assert_null(client);
    return bad;
}

static void every_allocation_fails_once(void **state)
{
    struct fake_daemon daemon;

    (void)state;
    fake_daemon_start(&daemon, 0);
    counting = true;
    made = fail_at = 0;
    assert_int_equal(scenario(daemon.address), 0);
    unsigned total = made;
    assert_in_range(total, 10, 1000);
    for (int on = 0; on < 2; on++) {
        fail_on = on;
        for (fail_at = 1; fail_at <= total; fail_at++) {
            made = 0;
            assert_true(scenario(daemon.address) > 0);
        }
    }
    counting = false;
    fake_daemon_stop(&daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_once)};

    return cmocka_run_group_tests_name("nomem", tests, NULL, NULL);
}
