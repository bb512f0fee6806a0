/* What goes wrong around a running daemon: its worker dies, its client dies, its pool is full, its
 * input is bad, it is told to stop. Each fault gets one typed answer; the daemon lives and holds
 * what it held. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/model.h"
#include "tests/support/child.h"
#include "tests/support/daemon.h"

enum { MODEL_SEED = 11 };

static struct test_daemon daemon_;
static struct model model;

static int start(void **state)
{
    (void)state;
    model_fill(&model, MODEL_SEED);
    test_daemon_start(&daemon_, "host:48MiB");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    assert_int_equal(test_daemon_stop(&daemon_), 0);
    return 0;
}

/* Not from another one because that is missing. */
static void the_device_asked_for_serves(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    const char *device = getenv("KVARN_TEST_DEVICE");
    kvarn_metric metrics[256];
    kvarn_stats_args stats = KVARN_STATS_INIT;
    char name[96];
    size_t found = 0;

    (void)state;
    snprintf(name, sizeof name, "kvarn_device_serving{device=\"%s\"}",
             device != NULL ? device : "host");
    stats.metrics = metrics;
    stats.capacity = sizeof metrics / sizeof metrics[0];
    model_expect(client, kvarn_stats(client, &stats), KVARN_OK, "stats");
    while (found < stats.count && strcmp(metrics[found].name, name) != 0)
        found++;
    assert_true(found < stats.count && metrics[found].value == 1);
    kvarn_close(&client);
}

/* SIGKILL of the device worker: at most the calls in flight are lost; blocks and sequences stay. */
static void the_worker_may_die(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "worker"), sequence;
    float before[MODEL_Q_ROW], after[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
    pid_t worker[4];
    time_t limit = time(NULL) + 30;
    kvarn_status status;
    uint32_t blocks;

    (void)state;
    model_expect(client, model_put(client, space, &model, MODEL_BLOCKS, NULL), KVARN_OK,
                 "compress");
    sequence = model_sequence(client, space, &model, 4, &blocks);
    model_expect(client, model_attend(client, space, &model, sequence, 0, 256, before, lse),
                 KVARN_OK, "attend");
    for (int round = 0; round < 3; round++) {
        assert_int_equal(test_children(daemon_.pid, worker, 4), 1);
        assert_int_equal(kill(worker[0], SIGKILL), 0);
        do {
            status = model_attend(client, space, &model, sequence, 0, 256, after, lse);
            assert_true(status == KVARN_OK || status == KVARN_GPU_LOST || status == KVARN_RETRY);
            if (status == KVARN_RETRY) {
                assert_true(kvarn_client_retry_after_us(client) > 0);
                usleep(kvarn_client_retry_after_us(client));
            }
        } while (status != KVARN_OK && time(NULL) < limit);
        assert_int_equal(status, KVARN_OK);
        assert_memory_equal(before, after, sizeof before);
    }
    kvarn_close(&client);
}

/* Opens sequences and writes them full, for ever; says by one byte when the first is under way. */
static void write_for_ever(const char *address)
{
    kvarn_client *client;
    uint64_t space, sequence;
    uint32_t blocks;

    model_fill(&model, MODEL_SEED);
    client = model_connect(address);
    space = model_open(client, "victim");
    for (int round = 0;; round++) {
        sequence = model_sequence(client, space, &model, 0, &blocks);
        for (size_t from = 0; from < MODEL_TOKENS; from += 8) {
            model_extend(client, space, &model, sequence, from, 8);
            if (round == 0 && from == 16)
                assert_int_equal(write(TEST_CHILD_FD, "r", 1), 1);
        }
    }
}

/* A client killed in the middle of many calls leaves nothing behind. */
static void a_client_may_die(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    kvarn_space_info spaces[64];
    kvarn_list_args list = KVARN_LIST_INIT;
    int ready[2];
    char byte;

    (void)state;
    for (int round = 0; round < 5; round++) {
        pid_t child;

        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        child = test_child_start("write_for_ever", daemon_.unix_address, ready[1]);
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    list.spaces = spaces;
    list.capacity = 64;
    for (int tries = 0;; tries++) {
        uint64_t alive = 0;

        model_expect(client, kvarn_list(client, &list), KVARN_OK, "list");
        for (size_t i = 0; i < list.count && i < 64; i++)
            alive += strcmp(spaces[i].model, "victim") == 0 ? spaces[i].sequences : 0;
        if (alive == 0)
            break;
        assert_true(tries < 1000);
    }
    kvarn_close(&client);
}

static void non_finite_rows_are_named(void **state)
{
    static struct model bad;
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "non-finite");
    kvarn_block_result results[MODEL_BLOCKS];
    kvarn_blocks_args find = KVARN_BLOCKS_INIT;
    kvarn_status status;

    (void)state;
    bad = model;
    bad.v[1][3 * MODEL_GROUP + 17][1][5] = 0x7e00; /* NaN: block 3, layer 1, token 17, head 1 */
    status = model_put(client, space, &bad, 5, results);
    model_expect(client, status, KVARN_NON_FINITE, "compress");
    for (size_t b = 0; b < 5; b++)
        assert_int_equal(results[b].status, b == 3 ? KVARN_NON_FINITE : KVARN_OK);
    assert_non_null(strstr(kvarn_client_error(client), "layer 1"));
    assert_non_null(strstr(kvarn_client_error(client), "token 17"));
    find.space = space;
    find.keys = model.keys;
    find.count = 5;
    model_expect(client, kvarn_lookup(client, &find), KVARN_OK, "lookup");
    assert_int_equal(find.matched, 3); /* the run ends at the block that was refused */
    kvarn_close(&client);
}

static void a_full_pool_is_no_disaster(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "full"), sequence = 0;
    uint32_t blocks;
    kvarn_status status = KVARN_OK;
    kvarn_strides strides = model_strides();
    int made = 0;

    (void)state;
    /* Sequences hold their tails, so nothing of them can be evicted. */
    while (status == KVARN_OK && made < 100000) {
        kvarn_seq seq = {.position = KVARN_AT_END, .tokens = 64};
        kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

        sequence = model_sequence(client, space, &model, 0, &blocks);
        seq.sequence = sequence;
        args.space = space;
        args.seqs = &seq;
        args.count = 1;
        args.k = model.k;
        args.v = model.v;
        args.strides = &strides;
        status = kvarn_sequence_append(client, &args);
        made++;
    }
    model_expect(client, status, KVARN_NO_SPACE, "append into a full pool");
    assert_true(made > 10);
    assert_true(strlen(kvarn_client_error(client)) > 20);
    kvarn_close(&client); /* gives all of them back */
    client = model_connect(daemon_.unix_address);
    space = model_open(client, "full");
    for (int tries = 0; tries < 1000; tries++) {
        status = model_put(client, space, &model, MODEL_BLOCKS, NULL);
        if (status == KVARN_OK || status == KVARN_EXISTS)
            break;
    }
    assert_true(status == KVARN_OK || status == KVARN_EXISTS);
    kvarn_close(&client);
}

/* Sends bytes on a connection of its own; gives the first byte of an answer, or -1 when it was
 * closed. */
static int send_raw(const void *bytes, size_t count)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    uint8_t answer;
    ssize_t got;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(at.sun_path, daemon_.unix_address + strlen("unix:"));
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    got = recv(fd, &answer, 1, 0);
    close(fd);
    return got == 1 ? answer : -1;
}

static void foreign_bytes_do_not_hurt(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    uint8_t noise[4096];
    uint32_t seed = 5;
    kvarn_client *client;
    kvarn_ping_args ping = KVARN_PING_INIT;

    (void)state;
    send_raw(http, sizeof http - 1);
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof noise; i++) {
            seed = seed * 1664525u + 1013904223u;
            noise[i] = (uint8_t)(seed >> 24);
        }
        if (round % 2 == 0)
            memcpy(noise, "KVRN\x01", 5);
        send_raw(noise, (size_t)1 + seed % sizeof noise);
    }
    client = model_connect(daemon_.unix_address);
    model_expect(client, kvarn_ping(client, &ping), KVARN_OK, "ping");
    kvarn_close(&client);
}

static void handles_of_the_dead_are_refused(void **state)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    uint64_t space = model_open(client, "stale"), sequence;
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
    kvarn_seq seq = {0};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    kvarn_status status;
    uint32_t blocks;

    (void)state;
    sequence = model_sequence(client, space, &model, 0, &blocks);
    seq.sequence = sequence;
    args.space = space;
    args.seqs = &seq;
    args.count = 1;
    model_expect(client, kvarn_sequence_release(client, &args), KVARN_OK, "release");
    status = model_attend(client, space, &model, sequence, 0, 0, out, lse);
    assert_true(status == KVARN_STALE || status == KVARN_NOT_FOUND);
    (void)model_sequence(client, space, &model, 0, &blocks); /* takes the freed place */
    status = model_attend(client, space, &model, sequence, 0, 0, out, lse);
    assert_true(status == KVARN_STALE || status == KVARN_NOT_FOUND);
    status = model_attend(client, space + 12345, &model, sequence, 0, 0, out, lse);
    assert_int_equal(status, KVARN_NOT_FOUND);
    kvarn_close(&client);
}

static void a_spawned_daemon_ends_with_its_client(void **state)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;
    kvarn_client *client = NULL;
    pid_t children[4];
    uint64_t space;

    (void)state;
    options.kvarnd_path = KVARN_BIN_DIR "/kvarnd";
    options.spawn_pool = "host:32MiB";
    model_expect(client, kvarn_connect(&client, "spawn:", &options), KVARN_OK, "spawn");
    space = model_open(client, "spawned");
    model_expect(client, model_put(client, space, &model, MODEL_BLOCKS, NULL), KVARN_OK,
                 "compress");
    assert_int_equal(test_children(getpid(), children, 4), 2); /* daemon_ and the private one */
    kvarn_close(&client);
    assert_int_equal(test_children(getpid(), children, 4), 1);
}

static void drain_ends_the_daemon_well(void **state)
{
    struct test_daemon other;
    kvarn_client *client;
    kvarn_drain_args drain = KVARN_DRAIN_INIT;
    kvarn_space_options space = model_space("late");
    kvarn_status status;
    int code = -1;

    (void)state;
    test_daemon_start(&other, "host:32MiB");
    client = model_connect(other.unix_address);
    model_expect(client, kvarn_drain(client, &drain), KVARN_OK, "drain");
    status = kvarn_open_space(client, &space);
    assert_true(status == KVARN_DRAINING || status == KVARN_PEER_LOST);
    kvarn_close(&client);
    assert_int_equal(waitpid(other.pid, &code, 0), other.pid);
    assert_int_equal(code, 0);
    test_daemon_clean(&other);
}

static const struct test_body bodies[] = {{"write_for_ever", write_for_ever}, {NULL, NULL}};

int main(int count, char **values)
{
    int child = test_child_main(count, values, bodies);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_asked_for_serves),
        cmocka_unit_test(the_worker_may_die),
        cmocka_unit_test(a_client_may_die),
        cmocka_unit_test(non_finite_rows_are_named),
        cmocka_unit_test(a_full_pool_is_no_disaster),
        cmocka_unit_test(foreign_bytes_do_not_hurt),
        cmocka_unit_test(handles_of_the_dead_are_refused),
        cmocka_unit_test(a_spawned_daemon_ends_with_its_client),
        cmocka_unit_test(drain_ends_the_daemon_well),
    };

    if (child >= 0)
        return child;
    return cmocka_run_group_tests_name("faults", tests, start, stop);
}
