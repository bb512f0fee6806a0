/* What both demo workers do first: load the capture, connect, open the space, name the blocks. */
#include "client/demo/demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double demo_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

kvarn_status demo_fail(const struct demo_worker *worker, const char *what, kvarn_status status)
{
    const char *text = worker->client != NULL ? kvarn_client_error(worker->client) : "";

    fprintf(stderr, "kvarn-demo: %s: %s: %s\n", what, kvarn_status_name(status),
            text[0] != '\0' ? text : kvarn_status_text(status));
    return status;
}

/* Keys of every whole block of the capture: a chain over its tokens. */
static int name_blocks(struct demo_worker *worker)
{
    size_t group = worker->preset->group, count = worker->capture.tokens / group;

    worker->keys = calloc(count, sizeof *worker->keys);
    worker->kinds = calloc(count, sizeof *worker->kinds);
    if (worker->keys == NULL || worker->kinds == NULL) {
        fprintf(stderr, "kvarn-demo: no memory for %zu keys\n", count);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        const kvarn_key *parent = i > 0 ? &worker->keys[i - 1] : NULL;
        kvarn_status status = kvarn_block_key(&worker->keys[i], parent, NULL,
                                              worker->capture.token_ids + i * group, group, NULL);

        if (status != KVARN_OK) {
            demo_fail(worker, "block key", status);
            return -1;
        }
        worker->kinds[i] =
            i * group < worker->space.sink_tokens ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE;
    }
    worker->prefill_tokens = worker->capture.tokens - worker->capture.positions;
    worker->whole_blocks = worker->prefill_tokens / group;
    worker->sink_blocks = (worker->space.sink_tokens + group - 1) / group;
    if (worker->whole_blocks > worker->sink_blocks)
        return 0;
    fprintf(
        stderr,
        "kvarn-demo: the prompt has %zu tokens, of which the first %u stay exact: nothing would be "
        "compressed; take a capture of at least %zu tokens more\n",
        worker->prefill_tokens, worker->space.sink_tokens,
        (worker->sink_blocks + 1) * group - worker->prefill_tokens);
    return -1;
}

static int open_space(struct demo_worker *worker, const struct demo_options *options)
{
    const struct demo_capture *capture = &worker->capture;
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;
    kvarn_status status;

    space.model = capture->model;
    space.revision = "capture";
    space.layers = capture->layers;
    space.kv_heads = capture->kv_heads;
    space.head_dim = capture->dim;
    space.dtype = KVARN_F16;
    space.preset = options->preset;
    space.iterations = options->iterations;
    space.k_rotated = options->k_rotated;
    worker->space = space;
    status = kvarn_open_space(worker->client, &worker->space);
    if (status != KVARN_OK)
        demo_fail(worker, "open space", status);
    return status == KVARN_OK ? 0 : -1;
}

int demo_worker_open(struct demo_worker *worker, const struct demo_options *options)
{
    char why[256];
    kvarn_status status;

    memset(worker, 0, sizeof *worker);
    worker->preset = kvarn_preset_find(options->preset);
    if (worker->preset == NULL) {
        fprintf(stderr, "kvarn-demo: no preset '%s'; the presets are", options->preset);
        for (size_t i = 0; kvarn_preset_at(i) != NULL; i++)
            fprintf(stderr, " %s", kvarn_preset_at(i)->name);
        fprintf(stderr, "\n");
        return -1;
    }
    snprintf(worker->label, sizeof worker->label, "%s%s", options->preset,
             options->k_rotated ? "+k" : "");
    if (demo_capture_open(&worker->capture, options->capture, why, sizeof why) != 0) {
        fprintf(stderr, "kvarn-demo: %s: %s\n", options->capture, why);
        return -1;
    }
    status = kvarn_connect(&worker->client, options->address, NULL);
    if (status != KVARN_OK) {
        fprintf(stderr, "kvarn-demo: %s\n",
                worker->client != NULL ? kvarn_client_error(worker->client) : "out of memory");
        return -1;
    }
    if (open_space(worker, options) != 0)
        return -1;
    return name_blocks(worker);
}

void demo_worker_close(struct demo_worker *worker)
{
    kvarn_close(&worker->client);
    demo_capture_close(&worker->capture);
    free(worker->keys);
    free(worker->kinds);
    worker->keys = NULL;
    worker->kinds = NULL;
}
