/* One benchmark result as one JSON line:
 * {"name","value","unit","baseline","ratio","reach","ok","machine","commit"}.
 *
 * value and baseline were measured in the same run and have the same unit; ratio = value /
 * baseline. reach is what the ratio should be ("<= 1.5", ">= 15"), or the value where that is a
 * figure of one machine ("<= 60 us"); rows without one are for information and always ok. GPU rows
 * have one field more, "share": of what a copy on the same device would move in that time. */
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
/* A GPU row: reach is of the value. */
int bench_row_print_share(const struct bench_row *row, double share);

/* Names the machine in rows from now on; the CPU's model otherwise. Cut at 100 bytes. */
void bench_row_machine(const char *name);

double bench_seconds(void); /* monotonic */

/* Sorts values; share in 0..1. */
double bench_percentile(double *values, unsigned long count, double share);

#endif
