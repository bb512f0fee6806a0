/* Test bodies that run in a process of their own: the test program starts itself again with --child
 * BODY ARGUMENT. (A plain fork would carry the test runner along, and a failed assertion in the
 * child would go on with the parent's remaining tests.) */
#ifndef TEST_CHILD_H
#define TEST_CHILD_H

#include <sys/types.h>

struct test_body {
    const char *name;
    void (*run)(
        const char *argument); /* a failed assertion ends the process with another code than 0 */
};

/* First thing in main. -1: this is not a child; else the exit code. bodies end with a NULL name. */
int test_child_main(int count, char **values, const struct test_body *bodies);

/* Starts body. The child's descriptor 3 is `fd` (-1: none). Fails the test when it cannot. */
pid_t test_child_start(const char *body, const char *argument, int fd);

/* Runs body to its end; fails the test unless it ends with 0. */
void test_child_run(const char *body, const char *argument);

enum { TEST_CHILD_FD = 3 };

#endif
