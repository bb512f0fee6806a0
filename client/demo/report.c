/* One JSON object per line; see report.h. */
#include "client/demo/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int demo_report(const char *path, json_t *object)
{
    FILE *file = path != NULL ? fopen(path, "a") : stdout;
    int failed;

    if (object == NULL || file == NULL) {
        fprintf(stderr, "kvarn-demo: cannot write to %s: %s\n", path != NULL ? path : "stdout",
                object == NULL ? "the report could not be made" : strerror(errno));
        json_decref(object);
        return -1;
    }
    failed = json_dumpf(object, file, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0 ||
             fputc('\n', file) == EOF;
    failed |= file == stdout ? fflush(file) != 0 : fclose(file) != 0;
    json_decref(object);
    if (failed)
        fprintf(stderr, "kvarn-demo: writing the report failed: %s\n", strerror(errno));
    return failed ? -1 : 0;
}
