/* What a client holds comes back when it closes, is killed, or is stopped past its lease: within
 * 100 ms, as others see it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/model.h"
#include "tests/support/child.h"
#include "tests/support/daemon.h"

enum { MODEL_SEED = 7, LEASE_MS = 300, WITHIN_MS = 100, TRIES = 5 };

static struct test_daemon daemon_;
static struct model model;

static int start(void **state)
{
    (void)state;
    model_fill(&model, MODEL_SEED);
    test_daemon_start(&daemon_, "host:64MiB");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    assert_int_equal(test_daemon_stop(&daemon_), 0);
    return 0;
}

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* argument: ADDRESS LEASE_MS HOW. Leases all blocks and opens a sequence over them, says so, and
 * then closes when it is told to, or waits for what comes. */
static void hold(const char *argument)
{
    char address[256], how[16], byte;
    unsigned lease_ms;
    kvarn_client *client;
    kvarn_blocks_args find = KVARN_BLOCKS_INIT;
    uint32_t blocks;

    assert_int_equal(sscanf(argument, "%255s %u %15s", address, &lease_ms, how), 3);
    model_fill(&model, MODEL_SEED);
    client = model_connect(address);
    find.space = model_open(client, "held");
    model_put(client, find.space, &model, MODEL_BLOCKS, NULL);
    model_sequence(client, find.space, &model, MODEL_BLOCKS, &blocks);
    find.keys = model.keys;
    find.count = MODEL_BLOCKS;
    find.lease_ms = lease_ms;
    model_expect(client, kvarn_lookup(client, &find), KVARN_OK, "lookup");
    assert_int_equal(find.matched, MODEL_BLOCKS);
    assert_int_equal(write(TEST_CHILD_FD, "+", 1), 1);
    if (strcmp(how, "close") == 0) {
        assert_int_equal(read(TEST_CHILD_FD, &byte, 1), 1);
        kvarn_close(&client);
    }
    pause();
}

static double metric(kvarn_client *client, const char *name)
{
    static kvarn_metric metrics[256];
    kvarn_stats_args args = KVARN_STATS_INIT;

    args.metrics = metrics;
    args.capacity = 256;
    model_expect(client, kvarn_stats(client, &args), KVARN_OK, "stats");
    for (size_t i = 0; i < args.count; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    fail_msg("no metric %s", name);
    return 0;
}

/* Until nothing is leased, and no sequence is open unless their client only sleeps. */
static void wait_until_back(kvarn_client *client, bool sequences_too)
{
    double begin = now_ms();

    while (metric(client, "kvarn_leases") > 0 ||
           (sequences_too && metric(client, "kvarn_sequences") > 0))
        assert_true(now_ms() - begin < 10000);
}

/* One client's end. Gives the milliseconds from the moment when what it holds is due. */
static double end_of(kvarn_client *client, const char *how)
{
    bool stopped = strcmp(how, "stop") == 0;
    char argument[320], byte;
    double due;
    int pair[2];
    pid_t child;

    snprintf(argument, sizeof argument, "%s %d %s", daemon_.unix_address,
             stopped ? LEASE_MS : 60000, how);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    child = test_child_start("hold", argument, pair[1]);
    close(pair[1]);
    assert_int_equal(read(pair[0], &byte, 1), 1);
    due = now_ms();
    assert_int_equal((int)metric(client, "kvarn_leases"), 1);
    assert_int_equal((int)metric(client, "kvarn_leased_blocks"), MODEL_BLOCKS);
    assert_int_equal((int)metric(client, "kvarn_sequences"), 1);
    if (stopped) {
        assert_int_equal(kill(child, SIGSTOP), 0);
        due += LEASE_MS; /* it began before the byte came */
    } else {
        due = now_ms();
        if (strcmp(how, "close") == 0)
            assert_int_equal(write(pair[0], "-", 1), 1);
        else
            assert_int_equal(kill(child, SIGKILL), 0);
    }
    wait_until_back(client, !stopped);
    due = now_ms() - due;
    assert_int_equal((int)metric(client, "kvarn_leased_blocks"), 0);
    assert_int_equal((int)metric(client, "kvarn_sequences"), stopped);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    wait_until_back(client, true);
    close(pair[0]);
    return due;
}

/* The best of a few, for the machine may be busy with something else. */
static void comes_back(const char *how)
{
    kvarn_client *client = model_connect(daemon_.unix_address);
    double best = 1e9;

    for (int i = 0; i < TRIES && best > WITHIN_MS; i++) {
        double took = end_of(client, how);

        best = took < best ? took : best;
    }
    print_message("%s: back after %.1f ms\n", how, best);
    assert_true(best <= WITHIN_MS);
    kvarn_close(&client);
}

static void a_client_that_closes(void **state)
{
    (void)state;
    comes_back("close");
}

static void a_client_that_is_killed(void **state)
{
    (void)state;
    comes_back("kill");
}

static void a_client_that_is_stopped(void **state)
{
    (void)state;
    comes_back("stop");
}

int main(int count, char **values)
{
    static const struct test_body bodies[] = {{"hold", hold}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_closes),
        cmocka_unit_test(a_client_that_is_killed),
        cmocka_unit_test(a_client_that_is_stopped),
    };
    int code = test_child_main(count, values, bodies);

    return code >= 0 ? code : cmocka_run_group_tests_name("dead_clients", tests, start, stop);
}
