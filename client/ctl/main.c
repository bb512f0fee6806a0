/* kvarnctl: asks a kvarnd what it is, how it does, and how fast it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

struct command {
    const char *name, *summary;
    ctl_run *run;
};

static const struct command commands[] = {
    {"ping", "is it there, and how long does a round trip take", ctl_ping},
    {"describe", "what it is: version, backend, bounds, spaces", ctl_describe},
    {"stat", "its metrics, once or every few seconds", ctl_stat},
    {"ls", "the spaces it holds", ctl_ls},
    {"verify", "check every stored block against its digest", ctl_verify},
    {"pin", "keep a block, or let it go again", ctl_pin},
    {"persist", "keep a block on the daemon's disk until it is dropped", ctl_persist},
    {"flush", "drop what a space holds", ctl_flush},
    {"reset", "a model's weights changed: nothing of before is found again", ctl_reset},
    {"erase", "take everything of this user away, also from the disk", ctl_erase},
    {"events", "what is stored and removed, as it happens", ctl_events},
    {"bench", "throughput and latency of one operation", ctl_bench},
    {"drain", "finish what runs, refuse new work, and end", ctl_drain},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* What stands before the command. */
struct front {
    struct ctl ctl;
    int command_index; /* in argv; 0 = none */
};

static error_t parse_front(int key, char *text, struct argp_state *state)
{
    struct front *front = state->input;

    (void)text;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &front->ctl;
        return 0;
    case ARGP_KEY_ARG:
        front->command_index = state->next - 1;
        state->next = state->argc; /* the rest is the command's */
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The command list stands in the help between the text and the examples. */
static char *help_filter(int key, const char *text, void *input)
{
    char *out = NULL;
    size_t size = 0;

    (void)input;
    if (key != ARGP_KEY_HELP_PRE_DOC)
        return (char *)(uintptr_t)text;
    FILE *stream = open_memstream(&out, &size);
    if (!stream)
        return (char *)(uintptr_t)text;
    fprintf(stream, "%s\n\nCommands (kvarnctl COMMAND --help says more):\n", text);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(stream, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fclose(stream);
    return out;
}

static const char documentation[] =
    "Asks a running kvarnd what it is, how it does, and how fast it is."
    "\v"
    "Examples:\n"
    "  kvarnctl ping\n"
    "  kvarnctl -a tcp://127.0.0.1:7070 describe\n"
    "  kvarnctl stat -i 1 -o csv\n"
    "  kvarnctl -a spawn: bench --op attend --context 4096\n\n"
    "Exit codes: 0 fine, 1 failed, 2 usage, 3 cannot connect, 4 not found, 5 full, 6 integrity, "
    "7 timeout, 130 interrupted.";

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int run(struct ctl *ctl, const struct command *command, int argc, char **argv)
{
    char name[64];

    snprintf(name, sizeof name, "kvarnctl %s", command->name);
    argv[0] = name;
    ctl->command = command->name;
    int code = command->run(ctl, argc, argv);
    kvarn_close(&ctl->client);
    if (ctl_interrupted)
        return CTL_INTERRUPTED;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("kvarnctl: standard output");
        return CTL_FAILED;
    }
    return code;
}

int main(int argc, char **argv)
{
    const struct argp_child children[] = {{&ctl_globals, 0, NULL, 10}, {0}};
    const struct argp argp = {
        NULL, parse_front, "COMMAND [OPTION...]", documentation, children, help_filter, NULL};
    struct front front = {.ctl = {.timeout_s = 5}};
    static char help[] = "--help", program[] = "kvarnctl";

    /* Assigned, not defined: our own definition would be hidden from the C library. */
    argp_program_version = "kvarnctl " KVARN_VERSION;
    argp_err_exit_status = CTL_USAGE;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &front);
    if (front.command_index == 0) {
        argp_help(&argp, stderr, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, program);
        return CTL_USAGE;
    }
    argc -= front.command_index;
    argv += front.command_index;
    if (strcmp(argv[0], "help") == 0 && argc == 1) {
        argp_help(&argp, stdout, ARGP_HELP_STD_HELP, program);
        return CTL_FINE;
    }
    if (strcmp(argv[0], "help") == 0) { /* help COMMAND = COMMAND --help */
        argv[0] = argv[1];
        argv[1] = help;
    }
    const struct command *command = find(argv[0]);
    if (!command) {
        fprintf(stderr, "kvarnctl: no command \"%s\"; kvarnctl --help lists them\n", argv[0]);
        return CTL_USAGE;
    }
    return run(&front.ctl, command, argc, argv);
}
