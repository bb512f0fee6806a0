/* kvarnctl ls, describe, verify: what looks at spaces. */
#include "client/ctl/spaces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_FINGERPRINT = 6, VERIFY_STEP = 8192 };

json_t *ctl_space_row(const kvarn_space_info *space, enum ctl_format format)
{
    char hex[2 * KVARN_FINGERPRINT_BYTES + 1];
    const char *dtype = kvarn_dtype_name((kvarn_dtype)space->dtype);
    size_t shown = format == CTL_TABLE ? SHORT_FINGERPRINT : KVARN_FINGERPRINT_BYTES;

    for (size_t i = 0; i < shown; i++)
        snprintf(hex + 2 * i, 3, "%02x", space->fingerprint[i]);
    return json_pack("{s:I, s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:s}", "space",
                     (json_int_t)space->space, "model", space->model, "preset", space->preset,
                     "layers", (json_int_t)space->layers, "kv_heads", (json_int_t)space->kv_heads,
                     "head_dim", (json_int_t)space->head_dim, "dtype", dtype ? dtype : "?",
                     "tile_blocks", (json_int_t)space->tile_blocks, "exact_blocks",
                     (json_int_t)space->exact_blocks, "bytes", (json_int_t)space->bytes,
                     "sequences", (json_int_t)space->sequences, "fingerprint", hex);
}

json_t *ctl_space_rows(const kvarn_space_info *spaces, size_t count, enum ctl_format format)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(rows, ctl_space_row(&spaces[i], format));
    return rows;
}

/* ---- ls */

int ctl_ls(struct ctl *ctl, int argc, char **argv)
{
    size_t count = 0;

    ctl_parse(ctl, NULL, NULL, NULL,
              "Lists the spaces of this tenant: one model's cache geometry each."
              "\v"
              "Examples:\n"
              "  kvarnctl ls\n"
              "  kvarnctl ls -o json | jq '.spaces[].model'\n",
              argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    kvarn_space_info *spaces = ctl_spaces(ctl, &count, &code);
    if (!spaces)
        return code;
    if (count == 0 && ctl->format == CTL_TABLE)
        puts("no spaces");
    else if (count == 0 && ctl->format == CTL_CSV)
        ctl_print_head(ctl->format, ctl_space_row(&(kvarn_space_info){0}, ctl->format));
    else
        ctl_print(ctl->format, "spaces", ctl_space_rows(spaces, count, ctl->format));
    free(spaces);
    return CTL_FINE;
}

/* ---- describe */

static json_t *server_object(const kvarn_server_info *info, size_t spaces)
{
    char features[32];

    snprintf(features, sizeof features, "0x%llx", (unsigned long long)info->features);
    return json_pack("{s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:I}", "server", info->server, "backend",
                     info->backend, "tenant", info->tenant, "protocol", (json_int_t)info->version,
                     "features", features, "payload_max_bytes", (json_int_t)info->payload_max_bytes,
                     "in_flight_max", (json_int_t)info->in_flight_max, "spaces",
                     (json_int_t)spaces);
}

int ctl_describe(struct ctl *ctl, int argc, char **argv)
{
    kvarn_server_info info;
    size_t count = 0;

    ctl_parse(
        ctl, NULL, NULL, NULL,
        "Shows what the daemon is: version, backend, bounds, spaces. CSV has the daemon alone; "
        "kvarnctl ls -o csv has its spaces."
        "\v"
        "Examples:\n"
        "  kvarnctl describe\n"
        "  kvarnctl describe -o json | jq -r .daemon.backend\n",
        argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    kvarn_client_info(ctl->client, &info);
    kvarn_space_info *spaces = ctl_spaces(ctl, &count, &code);
    if (!spaces)
        return code;
    json_t *server = server_object(&info, count);
    json_t *rows = ctl_space_rows(spaces, count, ctl->format);
    free(spaces);
    if (ctl->format == CTL_JSON) {
        ctl_print_json(json_pack("{s:o, s:o}", "daemon", server, "spaces", rows));
        return CTL_FINE;
    }
    ctl_print_one(ctl->format, "daemon", server);
    if (ctl->format == CTL_CSV && count > 0)
        fprintf(stderr, "kvarnctl describe: %zu space%s: see kvarnctl ls -o csv\n", count,
                count == 1 ? "" : "s");
    if (ctl->format == CTL_TABLE && count > 0) {
        putchar('\n');
        ctl_print_rows(ctl->format, rows, 1);
    }
    json_decref(rows);
    return CTL_FINE;
}

/* ---- verify */

struct verify_options {
    uint64_t space;
    bool one;
};

static const struct argp_option verify_flags[] = {
    {"space", 's', "ID", 0, "this space alone (default: all); ls shows the numbers", 0},
    {0},
};

static error_t parse_verify(int key, char *text, struct argp_state *state)
{
    struct verify_options *options = state->input;

    if (key != 's')
        return ARGP_ERR_UNKNOWN;
    options->space = ctl_number(state, "--space", text, 0, UINT64_MAX);
    options->one = true;
    return 0;
}

static json_t *verify_row(const kvarn_space_info *space, size_t fine, const char *result)
{
    uint64_t blocks = space->tile_blocks + space->exact_blocks;

    return json_pack("{s:I, s:s, s:I, s:I, s:s}", "space", (json_int_t)space->space, "model",
                     space->model, "blocks", (json_int_t)blocks, "fine", (json_int_t)fine, "result",
                     result);
}

/* Appends a row; gives the exit code of this space. The operator's list shows the spaces of every
 * tenant, but only their own can verify them: such a space is reported and not counted, unless it
 * was asked for. */
static int verify_space(struct ctl *ctl, const kvarn_space_info *space, bool asked, json_t *rows)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    kvarn_status status = KVARN_OK, first = KVARN_OK;
    size_t fine = 0;

    args.space = space->space;
    args.all = 1;
    args.limit = VERIFY_STEP;
    do {
        status = kvarn_verify(ctl->client, &args);
        first = first == KVARN_OK ? status : first;
        fine += args.matched;
        if (isatty(STDERR_FILENO) && args.cursor != 0)
            fprintf(stderr, "space %llu: %3.0f %%\r", (unsigned long long)space->space,
                    100.0 * (double)args.cursor / (double)args.total);
    } while ((status == KVARN_OK || status == KVARN_CORRUPT) && args.cursor != 0);
    if (status == KVARN_OK)
        status = first;
    bool skipped = status == KVARN_NOT_FOUND && !asked;
    if (status != KVARN_OK && status != KVARN_CORRUPT && !skipped)
        return ctl_fail(ctl, ctl->client, status);
    if (status == KVARN_CORRUPT)
        ctl_fail(ctl, ctl->client, status);
    json_array_append_new(
        rows, verify_row(space, fine, skipped ? "NOT_YOURS" : kvarn_status_name(status)));
    return skipped ? CTL_FINE : ctl_exit_of(status);
}

int ctl_verify(struct ctl *ctl, int argc, char **argv)
{
    struct verify_options options = {0};
    size_t count = 0, seen = 0;

    ctl_parse(ctl, verify_flags, parse_verify, &options,
              "Reads every stored block and checks its digest. Exit code 6 when one is corrupt; a "
              "corrupt block is never served."
              "\v"
              "Examples:\n"
              "  kvarnctl verify\n"
              "  kvarnctl -t 600 verify --space 3 -o json\n",
              argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    kvarn_space_info *spaces = ctl_spaces(ctl, &count, &code);
    if (!spaces)
        return code;
    json_t *rows = json_array();
    for (size_t i = 0; i < count; i++) {
        if (options.one && spaces[i].space != options.space)
            continue;
        seen++;
        int one = verify_space(ctl, &spaces[i], options.one, rows);
        code = one > code ? one : code;
        if (one == CTL_NO_CONNECTION)
            break;
    }
    free(spaces);
    if (options.one && seen == 0) {
        fprintf(stderr, "kvarnctl verify: no space %llu; kvarnctl ls shows those there are\n",
                (unsigned long long)options.space);
        code = CTL_NOT_FOUND;
    }
    if (json_array_size(rows) > 0 || ctl->format == CTL_JSON)
        ctl_print(ctl->format, "spaces", rows);
    else
        json_decref(rows);
    if (seen == 0 && ctl->format == CTL_CSV)
        ctl_print_head(ctl->format, verify_row(&(kvarn_space_info){0}, 0, ""));
    if (seen == 0 && !options.one && ctl->format == CTL_TABLE)
        puts("no spaces");
    return code;
}
