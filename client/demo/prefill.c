/* The prefill worker: compresses every whole block of the capture's prompt under its key. */
#include "client/demo/demo.h"

#include <stdio.h>

#include "client/demo/measure.h"
#include "client/demo/report.h"

enum { ROUNDS = 5 }; /* the first fills caches; the median is reported */

static kvarn_status put_blocks(struct demo_worker *worker, double *seconds, double *device_seconds)
{
    const struct demo_capture *capture = &worker->capture;
    uint64_t row_bytes = (uint64_t)capture->kv_heads * capture->dim * sizeof(uint16_t);
    kvarn_strides strides = {
        .layer = capture->tokens * row_bytes,
        .block = worker->preset->group * row_bytes,
        .token = row_bytes,
        .head = capture->dim * sizeof(uint16_t),
    };
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_call *call = NULL;
    kvarn_status status;
    double begin;

    put.space = worker->space.space;
    put.keys = worker->keys;
    put.kinds = worker->kinds;
    put.count = worker->whole_blocks;
    put.k = capture->k;
    put.v = capture->v;
    put.strides = &strides;
    begin = demo_seconds();
    status = kvarn_compress_start(worker->client, &put, &call);
    if (status == KVARN_OK)
        status = kvarn_call_wait(call, -1);
    *seconds = demo_seconds() - begin;
    *device_seconds = call != NULL ? 1e-9 * (double)kvarn_call_device_ns(call) : 0.0;
    if (status != KVARN_OK)
        demo_fail(worker, call != NULL ? kvarn_call_text(call) : "compress", status);
    kvarn_call_free(&call);
    return status;
}

static kvarn_status drop_blocks(struct demo_worker *worker)
{
    kvarn_blocks_args drop = KVARN_BLOCKS_INIT;
    kvarn_status status;

    drop.space = worker->space.space;
    drop.keys = worker->keys;
    drop.count = worker->whole_blocks;
    status = kvarn_drop(worker->client, &drop);
    if (status != KVARN_OK)
        demo_fail(worker, "drop", status);
    return status;
}

static int prefill(struct demo_worker *worker, const struct demo_options *options)
{
    double seconds[ROUNDS], device_seconds[ROUNDS];
    double input = (double)worker->whole_blocks * worker->preset->group * worker->capture.layers *
                   worker->capture.kv_heads * worker->capture.dim * 4.0;

    for (int round = 0; round < ROUNDS; round++) {
        if (round > 0 && drop_blocks(worker) != KVARN_OK)
            return 1;
        if (put_blocks(worker, &seconds[round], &device_seconds[round]) != KVARN_OK)
            return 1;
    }
    fprintf(stderr, "prefill: %zu blocks of %u tokens stored as %s (%zu of them exact: the sink)\n",
            worker->whole_blocks, worker->preset->group, worker->label, worker->sink_blocks);
    return demo_report(options->report,
                       json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "stage", "prefill", "preset",
                                 worker->label, "blocks", (json_int_t)worker->whole_blocks,
                                 "input_bytes", input, "seconds",
                                 demo_percentile(seconds, ROUNDS, 0.5), "device_seconds",
                                 demo_percentile(device_seconds, ROUNDS, 0.5))) == 0
               ? 0
               : 1;
}

int demo_prefill(const struct demo_options *options)
{
    struct demo_worker worker;
    int code = 1;

    if (demo_worker_open(&worker, options) == 0)
        code = prefill(&worker, options);
    demo_worker_close(&worker);
    return code;
}
