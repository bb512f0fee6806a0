/* Global options, connecting, errors and exit codes of every command. */
#include "client/ctl/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEY_ADDRESS = 'a', KEY_TIMEOUT = 't', KEY_OUTPUT = 'o', TIMEOUT_MAX_S = 3600 };

volatile sig_atomic_t ctl_interrupted;

/* ---- options */

uint64_t ctl_number(const struct argp_state *state, const char *name, const char *text,
                    uint64_t least, uint64_t most)
{
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || strchr(text, '-') || value < least || value > most)
        argp_error(state, "%s: \"%s\" is not a number from %llu to %llu", name, text,
                   (unsigned long long)least, (unsigned long long)most);
    return value;
}

double ctl_seconds(const struct argp_state *state, const char *name, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || (*end && strcmp(end, "s") != 0) || !(value > 0 && value <= TIMEOUT_MAX_S))
        argp_error(state, "%s: \"%s\" is not a number of seconds, more than 0 and at most %d", name,
                   text, TIMEOUT_MAX_S);
    return value;
}

static error_t parse_global(int key, char *text, struct argp_state *state)
{
    struct ctl *ctl = state->input;

    switch (key) {
    case KEY_ADDRESS:
        ctl->address = text;
        return 0;
    case KEY_TIMEOUT:
        ctl->timeout_s = ctl_seconds(state, "--timeout", text);
        return 0;
    case KEY_OUTPUT:
        if (strcmp(text, "table") == 0)
            ctl->format = CTL_TABLE;
        else if (strcmp(text, "json") == 0)
            ctl->format = CTL_JSON;
        else if (strcmp(text, "csv") == 0)
            ctl->format = CTL_CSV;
        else
            argp_error(state, "--output: \"%s\" is not table, json or csv", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option global_options[] = {
    {NULL, 0, NULL, 0, "Everywhere:", 10},
    {"address", KEY_ADDRESS, "ADDRESS", 0,
     "unix:/path, tcp://host:port or spawn: (default: $KVARN_ADDRESS, then "
     "$XDG_RUNTIME_DIR/kvarnd/kvarnd.sock)",
     10},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "for connecting and for each answer (default 5)", 10},
    {"output", KEY_OUTPUT, "FORMAT", 0, "table, json or csv (default table)", 10},
    {0},
};

const struct argp ctl_globals = {global_options, parse_global, NULL, NULL, NULL, NULL, NULL};

struct parse_input {
    struct ctl *ctl;
    argp_parser_t parse;
    void *input;
};

static error_t parse_command(int key, char *text, struct argp_state *state)
{
    struct parse_input *in = state->input;

    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = in->ctl;
        return 0;
    }
    if (key == ARGP_KEY_ARG)
        argp_error(state, "\"%s\": this command takes options only", text);
    if (!in->parse)
        return ARGP_ERR_UNKNOWN;
    state->input = in->input;
    error_t result = in->parse(key, text, state);
    state->input = in;
    return result;
}

void ctl_parse(struct ctl *ctl, const struct argp_option *options, argp_parser_t parse, void *input,
               const char *documentation, int argc, char **argv)
{
    const struct argp_child children[] = {{&ctl_globals, 0, NULL, 10}, {0}};
    const struct argp argp = {options, parse_command, "", documentation, children, NULL, NULL};
    struct parse_input in = {ctl, parse, input};

    argp_parse(&argp, argc, argv, 0, NULL, &in);
}

/* ---- connecting and failing */

int ctl_exit_of(kvarn_status status)
{
    switch (status) {
    case KVARN_OK:
    case KVARN_EXISTS:
        return CTL_FINE;
    case KVARN_NOT_FOUND:
    case KVARN_STALE:
    case KVARN_LEASE_EXPIRED:
        return CTL_NOT_FOUND;
    case KVARN_NO_SPACE:
    case KVARN_QUOTA:
        return CTL_FULL;
    case KVARN_CORRUPT:
        return CTL_INTEGRITY;
    case KVARN_DEADLINE:
        return CTL_TIMEOUT;
    case KVARN_PEER_LOST:
        return CTL_NO_CONNECTION;
    default:
        return CTL_FAILED;
    }
}

int ctl_fail(const struct ctl *ctl, const kvarn_client *client, kvarn_status status)
{
    fprintf(stderr, "kvarnctl %s: %s (%s)\n", ctl->command, kvarn_client_error(client),
            kvarn_status_name(status));
    return ctl_exit_of(status);
}

kvarn_status ctl_open(const struct ctl *ctl, kvarn_client **client)
{
    kvarn_connect_options options = KVARN_CONNECT_OPTIONS_INIT;

    options.connect_timeout_ms = (uint32_t)(ctl->timeout_s * 1000) + 1;
    options.deadline_ms = options.connect_timeout_ms;
    options.name = "kvarnctl";
    return kvarn_connect(client, ctl->address, &options);
}

int ctl_connect(struct ctl *ctl)
{
    kvarn_status status = ctl_open(ctl, &ctl->client);

    if (status == KVARN_OK)
        return CTL_FINE;
    /* The sentence says it all; the status would read as if there had been a connection. */
    fprintf(stderr, "kvarnctl %s: %s\n", ctl->command, kvarn_client_error(ctl->client));
    /* What is wrong with the address itself is usage; all else means that no daemon answers. */
    return status == KVARN_INVALID_SHAPE || status == KVARN_TOO_LARGE ? CTL_USAGE
                                                                      : CTL_NO_CONNECTION;
}

kvarn_space_info *ctl_spaces(struct ctl *ctl, size_t *count, int *code)
{
    kvarn_list_args list = KVARN_LIST_INIT;

    list.capacity = 256; /* the most that one answer carries */
    list.spaces = calloc(list.capacity, sizeof *list.spaces);
    kvarn_status status = list.spaces ? kvarn_list(ctl->client, &list) : KVARN_INTERNAL;
    if (status != KVARN_OK) {
        *code = ctl_fail(ctl, ctl->client, status);
        free(list.spaces);
        return NULL;
    }
    *count = list.count < list.capacity ? list.count : list.capacity;
    return list.spaces;
}

/* ---- ^C */

static void on_interrupt(int number)
{
    (void)number;
    ctl_interrupted = 1;
}

void ctl_catch_interrupt(void)
{
    /* Once: a second ^C ends the program even when the daemon hangs. */
    const struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void ctl_sleep(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};

    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    if (!ctl_interrupted)
        nanosleep(&time, NULL);
}
