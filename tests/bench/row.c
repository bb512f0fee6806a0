/* One benchmark result as one JSON line; see row.h. */
#include "tests/bench/row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char machine_name[101];

void bench_row_machine(const char *name)
{
    snprintf(machine_name, sizeof machine_name, "%s", name);
}

/* "model name" of the first CPU, with quotes and backslashes left out. */
static const char *machine(void)
{
    char line[256];
    FILE *file;

    if (machine_name[0] != '\0')
        return machine_name;
    bench_row_machine("unknown CPU");
    file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            colon[strcspn(colon, "\n\"\\")] = '\0';
            bench_row_machine(colon + 2);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
    return machine_name;
}

static int print(const struct bench_row *row, int absolute, double share)
{
    const char *commit = getenv("KVARN_COMMIT");
    double ratio = row->baseline > 0.0 ? row->value / row->baseline : 0.0;
    double measured = absolute ? row->value : ratio;
    int ok = row->direction == 0 ||
             (row->direction == '<' ? measured <= row->reach : measured >= row->reach);

    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", row->name, row->value, row->unit);
    if (row->baseline > 0.0)
        printf(",\"baseline\":%.6g,\"ratio\":%.4g", row->baseline, ratio);
    else
        printf(",\"baseline\":null,\"ratio\":null");
    if (row->direction != 0)
        printf(",\"reach\":\"%c= %g%s%s\"", row->direction, row->reach, absolute ? " " : "",
               absolute ? row->unit : "");
    else
        printf(",\"reach\":null");
    if (share > 0.0)
        printf(",\"share\":%.3g", share);
    printf(",\"ok\":%s,\"machine\":\"%s\",\"commit\":\"%s\"}\n", ok ? "true" : "false", machine(),
           commit != NULL ? commit : "");
    fflush(stdout);
    return ok;
}

int bench_row_print(const struct bench_row *row)
{
    return print(row, 0, 0.0);
}

int bench_row_print_share(const struct bench_row *row, double share)
{
    return print(row, 1, share);
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
