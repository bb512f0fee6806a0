/* Command line of kvarn-demo. */
#include "client/demo/demo.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(const struct demo_options *options);
};

static const struct command commands[] = {
    {"prefill", demo_prefill},
    {"decode", demo_decode},
    {"table", demo_table},
};

struct arguments {
    struct demo_options options;
    const struct command *command;
};

static const struct argp_option flags[] = {
    {"address", 'a', "ADDRESS", 0, "kvarnd to talk to, e.g. unix:/run/kvarnd/kvarnd.sock", 0},
    {"capture", 'c', "FILE", 0, "safetensors file with keys, values and queries", 0},
    {"preset", 'p', "NAME", 0, "how the cache is stored (default kvarn_k2v2_g128)", 0},
    {"iterations", 'i', "N", 0, "passes of the variance normalisation (default 8)", 0},
    {"k-rotated", 'k', NULL, 0,
     "leave keys and queries as they come, which suits models that normalise both; in the table "
     "as PRESET+k",
     0},
    {"report", 'r', "FILE", 0, "JSON lines: appended by prefill and decode, read by table", 0},
    {0},
};

static const char documentation[] =
    "Compresses a capture of a real KV cache into kvarnd (prefill), finds it by key in another "
    "process and "
    "decodes over it (decode), and prints what both measured (table).\v"
    "Examples:\n"
    "  CAPTURE=tests/data/capture_smollm2_135m.safetensors\n"
    "  kvarn-demo prefill -c $CAPTURE -r out.jsonl\n"
    "  kvarn-demo decode -c $CAPTURE -r out.jsonl\n"
    "  kvarn-demo table -r out.jsonl\n";

static error_t parse(int key, char *value, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    struct demo_options *options = &arguments->options;
    char *end;

    switch (key) {
    case 'a':
        options->address = value;
        return 0;
    case 'c':
        options->capture = value;
        return 0;
    case 'p':
        options->preset = value;
        return 0;
    case 'k':
        options->k_rotated = 1;
        return 0;
    case 'r':
        options->report = value;
        return 0;
    case 'i':
        options->iterations = (uint32_t)strtoul(value, &end, 10);
        if (*end != '\0' || options->iterations < 1 || options->iterations > KVARN_MAX_ITERATIONS)
            argp_error(state, "--iterations %s: a number from 1 to %d", value,
                       KVARN_MAX_ITERATIONS);
        return 0;
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
            if (strcmp(value, commands[i].name) == 0)
                arguments->command = &commands[i];
        }
        if (arguments->command == NULL || state->arg_num > 0)
            argp_error(state, "'%s' is not prefill, decode or table", value);
        return 0;
    case ARGP_KEY_END:
        if (arguments->command == NULL)
            argp_error(state, "which of prefill, decode, table?"); /* ends the program */
        else if (arguments->command->run != demo_table && options->capture == NULL)
            argp_error(state, "--capture FILE is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int count, char **values)
{
    struct arguments arguments = {.options = {.preset = "kvarn_k2v2_g128"}};
    const struct argp argp = {flags, parse, "prefill|decode|table", documentation, NULL,
                              NULL,  NULL};

    argp_err_exit_status = 2;
    argp_program_version = "kvarn-demo " KVARN_VERSION;
    argp_parse(&argp, count, values, 0, NULL, &arguments);
    return arguments.command->run(&arguments.options);
}
