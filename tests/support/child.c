/* Test bodies in processes of their own; see child.h. */
#include "tests/support/child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int test_child_main(int count, char **values, const struct test_body *bodies)
{
    if (count != 4 || strcmp(values[1], "--child") != 0)
        return -1;
    for (; bodies->name != NULL; bodies++) {
        if (strcmp(bodies->name, values[2]) == 0) {
            bodies->run(values[3]);
            return 0;
        }
    }
    fprintf(stderr, "no body '%s' in this test\n", values[2]);
    return 2;
}

pid_t test_child_start(const char *body, const char *argument, int fd)
{
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (fd >= 0 && fd != TEST_CHILD_FD)
            dup2(fd, TEST_CHILD_FD);
        execl("/proc/self/exe", "child", "--child", body, argument, (char *)NULL);
        _exit(127);
    }
    return child;
}

void test_child_run(const char *body, const char *argument)
{
    pid_t child = test_child_start(body, argument, -1);
    int status = -1;

    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
