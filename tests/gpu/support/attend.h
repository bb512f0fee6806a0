/* Attend launches for checks and benchmarks: a batch on the host becomes pieces, scratch,
 * arguments. */
#ifndef GPU_SUPPORT_ATTEND_H
#define GPU_SUPPORT_ATTEND_H

#include "gpu/support/gpu.h"
#include "kernels/cuda/attend_plan.h"

struct gpu_attend {
    struct kvk_attend_plan plan;
    struct kvk_cuda_attend args;
    uint32_t count; /* sequences */
};

/* sequences hold device addresses, except spans, which are copied from spans[i]. Scratch is
 * poisoned, counters are 0, faults (one a sequence) KVK_CUDA_NO_FAULT. */
void gpu_attend_make(struct gpu *gpu, struct gpu_attend *attend, struct kvk_attend_batch *batch,
                     struct kvk_cuda_sequence *sequences, kvarn_dtype q_dtype,
                     kvarn_dtype out_dtype);
void gpu_attend_free(struct gpu *gpu, struct gpu_attend *attend);
void gpu_attend_launch(struct gpu *gpu, const struct gpu_attend *attend);

/* Every counter 0 again? */
bool gpu_attend_rests(struct gpu *gpu, const struct gpu_attend *attend);

#endif
