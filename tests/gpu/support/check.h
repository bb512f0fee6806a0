/* Checks for programs that run where there is no test framework: a failed one prints where and
 * what, and the program goes on to the next. */
#ifndef GPU_SUPPORT_CHECK_H
#define GPU_SUPPORT_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Whether the program was called with --small: every kind of shape, but few and small ones, as the
 * sanitizers want (they slow kernels down a hundred times). Ends the program on other options. */
static inline bool check_small(int argc, char **argv)
{
    bool small = argc == 2 && strcmp(argv[1], "--small") == 0;

    if (argc > 1 && !small) {
        fprintf(stderr, "usage: %s [--small]\n", argv[0]);
        exit(2);
    }
    return small;
}

/* The program's last line and its exit code. A program that checked nothing has failed. */
static inline int check_done(const char *program)
{
    printf("%s: %lu checks, %lu failed\n", program, check_count.passed + check_count.failed,
           check_count.failed);
    return check_count.failed != 0 || check_count.passed == 0;
}

#endif
