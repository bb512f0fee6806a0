/* A real kvarnd for an end-to-end test: its own folder, Unix socket, TCP port and worker. */
#ifndef TEST_DAEMON_H
#define TEST_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct test_daemon {
    pid_t pid;
    char folder[96], unix_address[112], tcp_address[64];
};

/* Starts kvarnd with --pool POOL (host:SIZE; of the device that $KVARN_TEST_DEVICE names, if it is
 * set) and returns when it says that it serves (--ready-fd). Fails the test when it does not. */
void test_daemon_start(struct test_daemon *daemon, const char *pool);
/* The same with these arguments, which end with NULL, and a log. */
void test_daemon_start_with(struct test_daemon *daemon, const char *const *more);
/* Lets it serve or end by itself: false, *code is its exit code and its folder is gone. text gets
 * what it wrote to standard error until then. */
bool test_daemon_try(struct test_daemon *daemon, const char *const *more, char *text, size_t room,
                     int *code);

/* SIGTERM, then its wait status. Also looks that the socket file and every child process are gone.
 */
int test_daemon_stop(struct test_daemon *daemon);

/* Removes the folder of a daemon that ended by itself; test_daemon_stop() does it too. */
void test_daemon_clean(const struct test_daemon *daemon);

/* Process ids whose parent is `parent`; at most room. Gives the count. */
size_t test_children(pid_t parent, pid_t *children, size_t room);

#endif
