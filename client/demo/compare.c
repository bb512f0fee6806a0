/* What a decode run is measured against: attention over the uncompressed rows, and KIVI and RTN
 * over the same tokens that kvarnd keeps as tiles. Sink and tail stay exact for every method. */
#include "client/demo/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/demo/baseline.h"

size_t demo_answer_count(const struct demo_decode *run)
{
    const struct demo_capture *c = &run->worker->capture;

    return c->positions * c->layers * c->q_heads * c->dim;
}

/* Attention over rows k, v of the capture's shape, for every decoded position. */
static void attend_all(struct demo_decode *run, const float *k, const float *v, float *answers)
{
    const struct demo_capture *c = &run->worker->capture;
    size_t layer_rows = c->tokens * c->kv_heads * c->dim;
    uint32_t group = c->q_heads / c->kv_heads;

    for (size_t position = 0; position < c->positions; position++) {
        for (uint32_t layer = 0; layer < c->layers; layer++) {
            struct demo_rows rows = {k + layer * layer_rows, v + layer * layer_rows, c->tokens,
                                     c->kv_heads, c->dim};

            for (uint32_t head = 0; head < c->q_heads; head++) {
                size_t q = ((layer * c->positions + position) * c->q_heads + head) * c->dim;
                size_t o = ((position * c->layers + layer) * c->q_heads + head) * c->dim;

                demo_attention(answers + o, run->q + q, &rows, head / group,
                               run->first + position + 1, run->scratch);
            }
        }
    }
}

/* Relative error of each quantised key's norm. The sink is exact everywhere and left out. */
static int measure_norms(struct demo_decode *run, const float *k, int method)
{
    const struct demo_worker *worker = run->worker;
    const struct demo_capture *c = &worker->capture;
    size_t from = worker->sink_blocks * worker->preset->group;
    size_t to = worker->whole_blocks * worker->preset->group, count = 0;
    double *errors = malloc(c->layers * (to - from) * c->kv_heads * sizeof *errors);

    if (errors == NULL)
        return -1;
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        for (size_t row = from * c->kv_heads; row < to * c->kv_heads; row++) {
            size_t at = (layer * c->tokens * c->kv_heads + row) * c->dim;

            errors[count++] = demo_norm_error(k + at, run->k + at, c->dim);
        }
    }
    run->norm_mean[method] = demo_mean(errors, count);
    run->norm_p99[method] = demo_percentile(errors, count, 0.99);
    free(errors);
    return 0;
}

/* Quantises the tokens that kvarnd keeps as tiles by another method and measures the same things.
 */
static int measure_baseline(struct demo_decode *run, enum demo_method method, int slot)
{
    const struct demo_worker *worker = run->worker;
    const struct demo_capture *c = &worker->capture;
    size_t layer_rows = c->tokens * c->kv_heads * c->dim,
           bytes = c->layers * layer_rows * sizeof(float);
    size_t from = worker->sink_blocks * worker->preset->group;
    size_t count = worker->whole_blocks * worker->preset->group - from;
    float *k = malloc(bytes), *v = malloc(bytes),
          *answers = malloc(demo_answer_count(run) * sizeof *answers);
    int failed = k == NULL || v == NULL || answers == NULL;

    if (!failed) {
        memcpy(k, run->k, bytes);
        memcpy(v, run->v, bytes);
        for (uint32_t layer = 0; layer < c->layers; layer++)
            demo_baseline_apply(method, k + layer * layer_rows, v + layer * layer_rows, from, count,
                                c->kv_heads, c->dim, worker->preset->bits_k,
                                worker->preset->bits_v);
        attend_all(run, k, v, answers);
        demo_error_add(&run->attention[slot], answers, run->exact, demo_answer_count(run));
        failed = measure_norms(run, k, slot) != 0;
    }
    free(k);
    free(v);
    free(answers);
    return failed ? -1 : 0;
}

int demo_measure_errors(struct demo_decode *run, const float *k_back)
{
    attend_all(run, run->k, run->v, run->exact);
    demo_error_add(&run->attention[0], run->got, run->exact, demo_answer_count(run));
    if (measure_norms(run, k_back, 0) != 0 || measure_baseline(run, DEMO_KIVI, 1) != 0 ||
        measure_baseline(run, DEMO_RTN, 2) != 0) {
        fprintf(stderr, "kvarn-demo: out of memory\n");
        return -1;
    }
    return 0;
}
