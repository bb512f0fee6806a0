/* One benchmark result as one JSON line; see row.h. */
#include "tests/bench/row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* "model name" of the first CPU, with quotes and backslashes left out. */
static const char *machine(void)
{
    static char name[128];
    char line[256];
    FILE *file;

    if (name[0] != '\0')
        return name;
    snprintf(name, sizeof name, "unknown CPU");
    file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            colon[strcspn(colon, "\n\"\\")] = '\0';
            snprintf(name, sizeof name, "%.100s", colon + 2);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
    return name;
}

int bench_row_print(const struct bench_row *row)
{
    const char *commit = getenv("KVARN_COMMIT");
    double ratio = row->baseline > 0.0 ? row->value / row->baseline : 0.0;
    int ok =
        row->direction == 0 || (row->direction == '<' ? ratio <= row->reach : ratio >= row->reach);

    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", row->name, row->value, row->unit);
    if (row->baseline > 0.0)
        printf(",\"baseline\":%.6g,\"ratio\":%.4g", row->baseline, ratio);
    else
        printf(",\"baseline\":null,\"ratio\":null");
    if (row->direction != 0)
        printf(",\"reach\":\"%c= %g\"", row->direction, row->reach);
    else
        printf(",\"reach\":null");
    printf(",\"ok\":%s,\"machine\":\"%s\",\"commit\":\"%s\"}\n", ok ? "true" : "false", machine(),
           commit != NULL ? commit : "");
    fflush(stdout);
    return ok;
}

double bench_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

double bench_percentile(double *values, unsigned long count, double share)
{
    if (count == 0)
        return 0.0;
    qsort(values, count, sizeof *values, ascending);
    return values[(unsigned long)(share * (double)(count - 1) + 0.5)];
}
