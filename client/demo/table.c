/* Draws what prefill and decode reported: quality per preset beside KIVI and RTN, then speed. */
#include "client/demo/demo.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/demo/measure.h"

enum { ROWS_MAX = 64 };

struct rows {
    json_t *decode[ROWS_MAX], *prefill[ROWS_MAX]; /* prefill[i] is of decode[i]'s preset, or NULL */
    size_t count;
};

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value != NULL ? value : "?";
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Adds one reported line; takes it. */
static void add(struct rows *rows, json_t *line, json_t **prefills, size_t *prefill_count)
{
    if (strcmp(text(line, "stage"), "prefill") == 0 && *prefill_count < ROWS_MAX)
        prefills[(*prefill_count)++] = line;
    else if (strcmp(text(line, "stage"), "decode") == 0 && rows->count < ROWS_MAX)
        rows->decode[rows->count++] = line;
    else
        json_decref(line);
}

/* Gives each prefill report to the decode report of the same preset. */
static void join(struct rows *rows, json_t **prefills, size_t prefill_count)
{
    for (size_t i = 0; i < prefill_count; i++) {
        size_t j = 0;

        while (j < rows->count &&
               (rows->prefill[j] != NULL ||
                strcmp(text(prefills[i], "preset"), text(rows->decode[j], "preset")) != 0))
            j++;
        if (j < rows->count)
            rows->prefill[j] = prefills[i];
        else
            json_decref(prefills[i]);
    }
}

static int read_rows(struct rows *rows, const char *path)
{
    FILE *file = path != NULL ? fopen(path, "r") : stdin;
    json_t *prefills[ROWS_MAX];
    size_t prefill_count = 0, room = 0, bad = 0;
    char *line = NULL;

    memset(rows, 0, sizeof *rows);
    if (file == NULL) {
        fprintf(stderr, "kvarn-demo: cannot read %s: %s\n", path, strerror(errno));
        return -1;
    }
    for (size_t number_of_line = 1; getline(&line, &room, file) > 0; number_of_line++) {
        json_error_t error;
        json_t *object = json_loads(line, 0, &error);

        if (object == NULL) {
            fprintf(stderr, "kvarn-demo: line %zu of the report: %s\n", number_of_line, error.text);
            bad++;
        } else {
            add(rows, object, prefills, &prefill_count);
        }
    }
    free(line);
    if (file != stdin)
        fclose(file);
    join(rows, prefills, prefill_count);
    if (rows->count == 0)
        fprintf(stderr, "kvarn-demo: no decode report in %s\n", path != NULL ? path : "stdin");
    return rows->count > 0 && bad == 0 ? 0 : -1;
}

static void free_rows(struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        json_decref(rows->decode[i]);
        json_decref(rows->prefill[i]);
    }
}

/* Exact, tile and tail tokens of the prompt: what is stored when the first token is decoded. */
struct prompt {
    double sink, tiles, tail;
};

static struct prompt prompt_of(const json_t *decode)
{
    return (struct prompt){.sink = number(decode, "prompt_sink_tokens"),
                           .tiles = number(decode, "prompt_tile_tokens"),
                           .tail = number(decode, "prompt_tail_tokens")};
}

static void print_method(const json_t *method, int ours, const struct prompt *prompt,
                         double fp16_bytes)
{
    double bytes = number(method, "bytes_per_token");
    double exact = prompt->sink + prompt->tail, tokens = exact + prompt->tiles;

    printf("  %c %-20s %6.1f %7.2fx %6.0f %5.0f %7.2fx %10.2f %% %11.2f %% %10.2f %%\n",
           ours ? '*' : ' ', text(method, "name"), bytes, fp16_bytes / bytes, prompt->tiles,
           prompt->tail, tokens * fp16_bytes / (exact * fp16_bytes + prompt->tiles * bytes),
           100.0 * number(method, "attention_error"), 100.0 * number(method, "norm_mean"),
           100.0 * number(method, "norm_p99"));
}

/* True when an earlier row of the same bits printed the baselines already. */
static int seen(const struct rows *rows, size_t row)
{
    for (size_t i = 0; i < row; i++) {
        if (number(rows->decode[i], "bits_k") == number(rows->decode[row], "bits_k") &&
            number(rows->decode[i], "bits_v") == number(rows->decode[row], "bits_v"))
            return 1;
    }
    return 0;
}

static void print_bits(const struct rows *rows, size_t first)
{
    const json_t *head = rows->decode[first], *methods = json_object_get(head, "methods");
    double fp16_bytes = 4.0 * number(head, "dim");
    struct prompt prompt;

    printf("K%.0fV%.0f\n", number(head, "bits_k"), number(head, "bits_v"));
    for (size_t i = first; i < rows->count; i++) {
        prompt = prompt_of(rows->decode[i]);
        if (number(rows->decode[i], "bits_k") == number(head, "bits_k") &&
            number(rows->decode[i], "bits_v") == number(head, "bits_v"))
            print_method(json_array_get(json_object_get(rows->decode[i], "methods"), 0), 1, &prompt,
                         fp16_bytes);
    }
    prompt = prompt_of(head);
    for (size_t i = 1; i < json_array_size(methods); i++)
        print_method(json_array_get(methods, i), 0, &prompt, fp16_bytes);
}

/* "1 layer", "2 layers" */
static void print_count(double count, const char *one, const char *after)
{
    printf("%.0f %s%s%s", count, one, count == 1.0 ? "" : "s", after);
}

static int any_k_rotated(const struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (strstr(text(rows->decode[i], "preset"), "+k") != NULL)
            return 1;
    }
    return 0;
}

static void print_legend(const struct rows *rows)
{
    const json_t *head = rows->decode[0];
    double sink = number(head, "prompt_sink_tokens"), fp16_bytes = 4.0 * number(head, "dim");

    printf(
        "  *         kvarnd, through the socket. The rows without it are computed here, over the "
        "tokens that are\n"
        "            tiles in the first * row of the same bits.\n"
        "  KIVI      keys per channel over 128 tokens, values per token (arXiv 2402.02750).\n"
        "  RTN       plain rounding to nearest, one scale per token and head for keys and "
        "values.\n");
    if (any_k_rotated(rows))
        printf("  +k        keys and queries as they come, without the rotation (k_rotated).\n");
    printf("  tile      bytes per token and kv head, scales included (fp16: %.0f), and how much "
           "smaller that is.\n",
           fp16_bytes);
    printf("  tokens    of the prompt when its first token is decoded: tiles, and the exact tail "
           "after the last\n"
           "            whole block (of 64 tokens with g64, of 128 with g128). The first %.0f are "
           "the sink, exact\n"
           "            in every row. A longer exact tail alone makes an error smaller.\n",
           sink);
    printf("  prompt    how much smaller the whole prompt is, sink and tail included at fp16.\n"
           "  attention error of the attention output relative to the fp16 cache's; lower is "
           "better.\n"
           "  K norm    error of each tile key's length |K|: mean and 99th percentile; lower is "
           "better.\n\n");
}

static void print_quality(const struct rows *rows)
{
    const json_t *head = rows->decode[0];

    printf("\n%s: ", text(head, "model"));
    print_count(number(head, "layers"), "layer", ", ");
    print_count(number(head, "kv_heads"), "kv head", ", ");
    printf("head dim %.0f; ", number(head, "dim"));
    print_count(number(head, "tokens"), "token", ", ");
    printf("the last %.0f decoded.\n\n", number(head, "positions"));
    print_legend(rows);
    printf("    %-20s %6s %8s %12s %8s %12s %13s %12s\n", "", "tile", "", "tokens", "prompt",
           "attention", "K norm", "K norm");
    printf("    %-20s %6s %8s %6s %5s %8s %12s %13s %12s\n", "", "bytes", "smaller", "tiles",
           "tail", "smaller", "error", "mean", "p99");
    for (size_t i = 0; i < rows->count; i++) {
        if (!seen(rows, i))
            print_bits(rows, i);
    }
}

static void print_speed(const struct rows *rows)
{
    printf("\nThrough the socket, as one client sees it (fp16 side of the transfer; ATTEND is one "
           "layer of "
           "one token):\n\n");
    printf("  %-22s %14s %14s %12s %12s %10s %10s\n", "", "compress", "decompress", "ATTEND p50",
           "ATTEND p99", "PING p50", "PING p99");
    for (size_t i = 0; i < rows->count; i++) {
        const json_t *d = rows->decode[i], *p = rows->prefill[i];
        double put = p != NULL ? number(p, "input_bytes") / number(p, "seconds") / 1e6 : 0.0;

        printf("  %-22s %9.0f MB/s %9.0f MB/s %9.0f us %9.0f us %7.0f us %7.0f us\n",
               text(d, "preset"), put, number(d, "read_bytes") / number(d, "read_seconds") / 1e6,
               1e6 * number(d, "attend_p50"), 1e6 * number(d, "attend_p99"),
               1e6 * number(d, "ping_p50"), 1e6 * number(d, "ping_p99"));
    }
}

int demo_table(const struct demo_options *options)
{
    struct rows rows;
    int code = 1;

    if (read_rows(&rows, options->report) == 0) {
        print_quality(&rows);
        print_speed(&rows);
        code = fflush(stdout) == 0 ? 0 : 1;
    }
    free_rows(&rows);
    return code;
}
