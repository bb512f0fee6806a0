/* What the commands of kvarnctl share: global options, connecting, exit codes, the table of
 * commands. One thread. */
#ifndef KVC_CTL_H
#define KVC_CTL_H

#include <argp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include <kvarn/client.h>

#include "client/ctl/output.h"

enum ctl_exit {
    CTL_FINE = 0,
    CTL_FAILED = 1,
    CTL_USAGE = 2,
    CTL_NO_CONNECTION = 3,
    CTL_NOT_FOUND = 4,
    CTL_FULL = 5,
    CTL_INTEGRITY = 6,
    CTL_TIMEOUT = 7,
    CTL_INTERRUPTED = 130
};

struct ctl {
    const char *command; /* its name */
    const char *address; /* NULL: the default rule */
    double timeout_s;
    enum ctl_format format;
    kvarn_client *client; /* after ctl_connect; main closes it */
};

/* Each takes its own arguments (argv[0] is "kvarnctl COMMAND") and returns an exit code. */
typedef int ctl_run(struct ctl *ctl, int argc, char **argv);
ctl_run ctl_ping, ctl_describe, ctl_stat, ctl_ls, ctl_verify, ctl_drain, ctl_bench;
ctl_run ctl_flush, ctl_reset, ctl_pin, ctl_persist, ctl_erase, ctl_events;

/* -a, -t, -o: a child of every command's parser, whose input is the struct ctl. */
extern const struct argp ctl_globals;
/* Parses a command's arguments. options may be NULL; parse gets its own keys with input. Ends the
 * program with CTL_USAGE on a wrong one. */
void ctl_parse(struct ctl *ctl, const struct argp_option *options, argp_parser_t parse, void *input,
               const char *documentation, int argc, char **argv);
/* Numbers of options; end the program with a sentence when they are none. */
uint64_t ctl_number(const struct argp_state *state, const char *name, const char *text,
                    uint64_t least, uint64_t most);
double ctl_seconds(const struct argp_state *state, const char *name, const char *text);

/* Connects with the global options. An exit code; says what is wrong. */
int ctl_connect(struct ctl *ctl);
/* Opens another connection with the same options. */
kvarn_status ctl_open(const struct ctl *ctl, kvarn_client **client);
/* Prints why the last call failed and gives its exit code. */
int ctl_fail(const struct ctl *ctl, const kvarn_client *client, kvarn_status status);
int ctl_exit_of(kvarn_status status);

/* Every space; the caller frees. NULL with *code set. */
kvarn_space_info *ctl_spaces(struct ctl *ctl, size_t *count, int *code);

/* Set by the first ^C once ctl_catch_interrupt() was called; the second one ends the program. */
extern volatile sig_atomic_t ctl_interrupted;
void ctl_catch_interrupt(void);
/* Sleeps, or less when interrupted. */
void ctl_sleep(double seconds);

#endif
