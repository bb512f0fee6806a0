/* Attend launches; see attend.h. */
#include "gpu/support/attend.h"

#include <stdlib.h>

static uint64_t zeroed(struct gpu *gpu, size_t bytes, int value)
{
    uint64_t at = gpu_alloc(gpu, bytes > 0 ? bytes : 16);

    gpu_must(gpu, gpu->cu.set_bytes(at, (unsigned char)value, bytes > 0 ? bytes : 16, gpu->stream),
             "fill");
    return at;
}

void gpu_attend_make(struct gpu *gpu, struct gpu_attend *attend, struct kvk_attend_batch *batch,
                     struct kvk_cuda_sequence *sequences, kvarn_dtype q_dtype,
                     kvarn_dtype out_dtype)
{
    struct kvk_cuda_piece *pieces;

    for (uint32_t i = 0; i < batch->count; i++)
        sequences[i].spans =
            gpu_put(gpu, batch->spans[i], (sequences[i].span_count + 1) * sizeof(**batch->spans));
    batch->sequences = sequences;
    if (batch->processors == 0)
        batch->processors = gpu->multiprocessors;
    if (kvk_attend_plan(batch, &attend->plan, NULL) != KVARN_OK)
        gpu_fail("attend: no plan for this batch");
    pieces = calloc(attend->plan.pieces, sizeof(*pieces));
    if (pieces == NULL || kvk_attend_plan(batch, &attend->plan, pieces) != KVARN_OK)
        gpu_fail("attend: no plan for this batch");
    attend->count = batch->count;
    attend->args = (struct kvk_cuda_attend){
        .shape = batch->shape,
        .kv_heads = batch->kv_heads,
        .q_heads = batch->q_heads,
        .q_dtype = q_dtype,
        .out_dtype = out_dtype,
        .blocks = attend->plan.blocks,
        .piece_count = attend->plan.pieces,
        .pieces = gpu_put(gpu, pieces, attend->plan.pieces * sizeof(*pieces)),
        .parts = gpu_alloc(gpu, attend->plan.part_bytes + 16),
        .joins = zeroed(gpu, attend->plan.joins * sizeof(uint32_t), 0),
        .faults = zeroed(gpu, batch->count * sizeof(uint64_t), 0xff)};
    free(pieces);
}

void gpu_attend_free(struct gpu *gpu, struct gpu_attend *attend)
{
    gpu_free(gpu, attend->args.pieces);
    gpu_free(gpu, attend->args.parts);
    gpu_free(gpu, attend->args.joins);
    gpu_free(gpu, attend->args.faults);
}

void gpu_attend_launch(struct gpu *gpu, const struct gpu_attend *attend)
{
    gpu_launch(gpu, attend->plan.kernel, attend->plan.blocks, attend->plan.threads,
               attend->plan.shared_bytes, &attend->args);
}

bool gpu_attend_rests(struct gpu *gpu, const struct gpu_attend *attend)
{
    uint32_t *counters = malloc((attend->plan.joins + 1) * sizeof(*counters));
    bool rests = counters != NULL;

    if (rests && attend->plan.joins > 0)
        gpu_read(gpu, counters, attend->args.joins, attend->plan.joins * sizeof(*counters));
    for (uint32_t i = 0; rests && i < attend->plan.joins; i++)
        rests = counters[i] == 0;
    free(counters);
    return rests;
}
