/* kvarn-demo: what the quickstart runs, and an example of the client library.
 *
 * `prefill` compresses a capture under block keys, as a prefill worker would; `decode`, another
 * process, finds it by key and decodes layer by layer, as an engine must; `table` draws what both
 * reported. Each reports one JSON object per line. */
#ifndef DEMO_H
#define DEMO_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/client.h>

#include "client/demo/capture.h"

struct demo_options {
    const char *address; /* of kvarnd */
    const char *capture; /* safetensors file */
    const char *preset;
    const char *report; /* file the JSON lines are appended to; NULL = stdout */
    uint32_t iterations;
    int k_rotated; /* keys and queries as they come */
};

/* Each returns the exit code of the process. */
int demo_prefill(const struct demo_options *options);
int demo_decode(const struct demo_options *options);
int demo_table(const struct demo_options *options);

/* ------------------------------------------------------------------ shared by prefill and decode
 */

/* A capture, a connection and the space both workers open; the keys of every whole block. */
struct demo_worker {
    struct demo_capture capture;
    kvarn_client *client;
    const kvarn_preset *preset;
    char label[48]; /* in reports: the preset's name, and "+k" with k_rotated */
    kvarn_space_options space;
    size_t whole_blocks;     /* blocks of the prefill that are complete */
    size_t prefill_tokens;   /* tokens before the first decoded one */
    size_t sink_blocks;      /* of whole_blocks, those kept EXACT */
    kvarn_key *keys;         /* [capture.tokens / group] */
    kvarn_block_kind *kinds; /* [whole_blocks] */
};

/* 0, or -1 after saying on stderr what went wrong. demo_worker_close accepts a half-open one. */
int demo_worker_open(struct demo_worker *worker, const struct demo_options *options);
void demo_worker_close(struct demo_worker *worker);

/* Prints "kvarn-demo: <what>: <status>: <the client's sentence>" and returns status. */
kvarn_status demo_fail(const struct demo_worker *worker, const char *what, kvarn_status status);

double demo_seconds(void); /* monotonic */

#endif
