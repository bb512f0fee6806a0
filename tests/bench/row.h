/* One benchmark result as one JSON line:
 * {"name","value","unit","baseline","ratio","reach","ok","machine","commit"}.
 *
 * value and baseline were measured in the same run and have the same unit; ratio = value /
 * baseline. reach is what the ratio should be ("<= 1.5", ">= 15"); rows without one are for
 * information and always ok. */
#ifndef BENCH_ROW_H
#define BENCH_ROW_H

struct bench_row {
    const char *name, *unit;
    double value, baseline; /* baseline 0 = none: baseline and ratio are null */
    char direction;         /* '<': ratio at most reach; '>': at least; 0: no reach */
    double reach;
};

/* Prints the row to stdout. Gives 1 when it reaches, else 0. */
int bench_row_print(const struct bench_row *row);

double bench_seconds(void); /* monotonic */

/* Sorts values; share in 0..1. */
double bench_percentile(double *values, unsigned long count, double share);

#endif
