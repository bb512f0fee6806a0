/* Argument checks and query loading of attend: the same scalar code for every variant.
 *
 * q is small beside the cache (dim floats per row against kilobytes per tile), so plain loops do.
 */
#include <math.h>

#include "kernels/attend.h"
#include "kernels/attend_scratch.h"
#include "kernels/half.h"

static bool span_fits(const struct kvk_attend *op, const struct kvk_span *span)
{
    if (span->kind == KVARN_BLOCK_TILE)
        return span->data != NULL && span->tokens <= op->shape.group;
    if (span->kind == KVARN_BLOCK_EXACT)
        return span->tokens == 0 || (span->data != NULL && span->v != NULL);
    return false;
}

kvarn_status kvk_attend_check(const struct kvk_attend *op)
{
    if (op->q_heads == 0 || op->q_heads > KVARN_MAX_GQA)
        return KVARN_INVALID_SHAPE;
    if (op->q_dtype != KVARN_F16 && op->q_dtype != KVARN_BF16 && op->q_dtype != KVARN_F32)
        return KVARN_INVALID_SHAPE;
    for (size_t i = 0; i < op->span_count; i++) {
        if (!span_fits(op, &op->spans[i]))
            return KVARN_INVALID_SHAPE;
    }
    return KVARN_OK;
}

static float load_element(const uint8_t *row, uint8_t dtype, uint32_t channel)
{
    uint16_t half;
    float single;

    if (dtype == KVARN_F32) {
        memcpy(&single, row + 4 * (size_t)channel, sizeof(single));
        return single;
    }
    memcpy(&half, row + 2 * (size_t)channel, sizeof(half));
    return dtype == KVARN_F16 ? kvk_f16_to_f32(half) : kvk_bf16_to_f32(half);
}

kvarn_status kvk_attend_load_q(struct kvk_attend *op, float *dst)
{
    const uint8_t *q = op->q;
    uint32_t rows = op->q_tokens * op->q_heads, dim = op->shape.dim;

    memset(&op->fault, 0, sizeof(op->fault));
    for (uint32_t row = 0; row < rows; row++) {
        const uint8_t *src = q + row / op->q_heads * op->q_token_stride_bytes +
                             row % op->q_heads * op->q_head_stride_bytes;
        for (uint32_t d = 0; d < dim; d++) {
            float x = load_element(src, op->q_dtype, d);
            if (!isfinite(x)) {
                op->fault = (struct kvk_fault){.tensor = 'q', .token = row, .channel = d};
                return KVARN_NON_FINITE;
            }
            dst[(size_t)row * dim + d] = x;
        }
    }
    return KVARN_OK;
}

size_t kvk_attend_scratch_bytes(uint32_t q_tokens, uint32_t q_heads, uint32_t dim)
{
    return kvk_attend_plan_bytes((size_t)q_tokens * q_heads, dim);
}
