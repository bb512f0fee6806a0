/* kvarnctl events: what is stored and removed, as it happens. */
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/ctl.h"

enum { ROOM = 1024, WAIT_MS = 1000 };

struct options {
    uint64_t count;
    bool snapshot;
};

static const struct argp_option flags[] = {
    {"count", 'c', "N", 0, "end after so many (default: go on until ^C)", 0},
    {"snapshot", 's', NULL, 0, "what is stored now, and end", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 'c':
        options->count = ctl_number(state, "--count", text, 1, UINT64_MAX);
        return 0;
    case 's':
        options->snapshot = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static json_t *event_row(const kvarn_event *event)
{
    static const char *const types[] = {"?", "stored", "removed", "cleared"};
    static const char *const kinds[] = {"", "tile", "exact"};
    char hex[2 * sizeof event->key.bytes + 1];

    for (size_t i = 0; i < sizeof event->key.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", event->key.bytes[i]);
    return json_pack("{s:I, s:s, s:I, s:s, s:s}", "sequence", (json_int_t)event->sequence, "event",
                     types[event->type < 4 ? event->type : 0], "space", (json_int_t)event->space,
                     "kind", kinds[event->kind < 3 ? event->kind : 0], "key", hex);
}

/* A line of JSON each, or rows of a table whose head comes once. */
static void show(const struct ctl *ctl, const kvarn_event *events, size_t count, bool *headed)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(rows, event_row(&events[i]));
    if (ctl->format == CTL_JSON) {
        for (size_t i = 0; i < count; i++) {
            json_dumpf(json_array_get(rows, i), stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
            putchar('\n');
        }
    } else if (count > 0) {
        ctl_print_rows(ctl->format, rows, !*headed);
        *headed = true;
    }
    fflush(stdout);
    json_decref(rows);
}

static int follow(struct ctl *ctl, const struct options *options, kvarn_event *room)
{
    kvarn_events_args args = KVARN_EVENTS_INIT;
    uint64_t seen = 0;
    bool headed = false, begun = false;

    args.events = room;
    args.snapshot = options->snapshot;
    args.wait_ms = WAIT_MS;
    while (!ctl_interrupted && (options->count == 0 || seen < options->count)) {
        args.capacity = options->count && options->count - seen < ROOM
                            ? (size_t)(options->count - seen)
                            : (size_t)ROOM;
        kvarn_status status = kvarn_events(ctl->client, &args);
        if (status != KVARN_OK)
            return ctl_fail(ctl, ctl->client, status);
        if (args.lost && begun)
            fprintf(stderr, "kvarnctl events: some are not kept any more; take a snapshot\n");
        begun = true;
        show(ctl, room, args.count, &headed);
        seen += args.count;
        if (options->snapshot && args.cursor == 0)
            break;
    }
    return ctl_interrupted ? CTL_INTERRUPTED : CTL_FINE;
}

int ctl_events(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};

    ctl_parse(ctl, flags, parse, &options,
              "Prints what is stored and removed of this tenant's blocks, as it happens; as JSON, "
              "one object on a line."
              "\v"
              "Examples:\n"
              "  kvarnctl events -o json\n"
              "  kvarnctl events --snapshot -o csv\n",
              argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    kvarn_event *room = calloc(ROOM, sizeof *room);
    if (!room)
        return CTL_FAILED;
    ctl_catch_interrupt();
    code = follow(ctl, &options, room);
    free(room);
    return code;
}
