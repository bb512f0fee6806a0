/* Checks for programs that run where there is no test framework: a failed one prints where and
 * what, and the program goes on to the next. */
#ifndef GPU_SUPPORT_CHECK_H
#define GPU_SUPPORT_CHECK_H

#include <stdio.h>

struct check_count {
    unsigned long passed, failed;
};

static struct check_count check_count;

enum { CHECK_MAX_PRINTED = 20 }; /* more of the same tell nothing */

/* CHECK(condition, format, ...): format says which case and which values. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (condition) {                                                                           \
            check_count.passed++;                                                                  \
        } else if (check_count.failed++ < CHECK_MAX_PRINTED) {                                     \
            printf("%s:%d: not %s: ", __FILE__, __LINE__, #condition);                             \
            printf(__VA_ARGS__);                                                                   \
            putchar('\n');                                                                         \
        }                                                                                          \
    } while (0)

/* The program's last line and its exit code. A program that checked nothing has failed. */
static inline int check_done(const char *program)
{
    printf("%s: %lu checks, %lu failed\n", program, check_count.passed + check_count.failed,
           check_count.failed);
    return check_count.failed != 0 || check_count.passed == 0;
}

#endif
