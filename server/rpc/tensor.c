/* Checked layouts. See tensor.h. */
#include "server/rpc/tensor.h"

#include <stdbool.h>
#include <stdio.h>

/* *sum += count * stride; false when it wraps. */
static bool add(uint64_t *sum, uint64_t count, uint64_t stride)
{
    uint64_t product;

    return !__builtin_mul_overflow(count, stride, &product) &&
           !__builtin_add_overflow(*sum, product, sum);
}

static bool dense(struct kvd_tensor *t)
{
    if (!t->strides.head)
        t->strides.head = t->row_bytes;
    if (!t->strides.token && __builtin_mul_overflow(t->heads, t->strides.head, &t->strides.token))
        return false;
    if (!t->block_stride && __builtin_mul_overflow(t->tokens, t->strides.token, &t->block_stride))
        return false;
    return t->strides.layer ||
           !__builtin_mul_overflow(t->blocks, t->block_stride, &t->strides.layer);
}

/* One past the last byte of the tensor that begins at `first`. */
static bool end_of(const struct kvd_tensor *t, uint64_t first, uint64_t *end)
{
    *end = first;
    return add(end, t->layers - 1, t->strides.layer) && add(end, t->blocks - 1, t->block_stride) &&
           add(end, t->tokens - 1, t->strides.token) && add(end, t->heads - 1, t->strides.head) &&
           add(end, 1, t->row_bytes);
}

kvarn_status kvd_tensor_resolve(struct kvd_tensor *tensor, const struct kvw_layout *layout,
                                uint64_t available, char *text, size_t room)
{
    bool given = layout && layout->present;
    unsigned long long tokens = tensor->blocks * tensor->tokens;
    uint64_t k_end, v_end;

    tensor->k = given ? layout->k_offset : 0;
    tensor->v = given ? layout->v_offset : 0;
    tensor->block_stride = given ? layout->block_stride : 0;
    tensor->strides = given ? (struct kvd_strides){layout->layer_stride, layout->token_stride,
                                                   layout->head_stride}
                            : (struct kvd_strides){0, 0, 0};
    if (!dense(tensor) || !end_of(tensor, tensor->k, &k_end))
        goto wraps;
    if (!tensor->k && !tensor->v)
        tensor->v = k_end; /* V right after K */
    if (!end_of(tensor, tensor->v, &v_end))
        goto wraps;
    if (k_end > available || v_end > available || (!given && v_end != available)) {
        snprintf(text, room,
                 "K and V rows need %llu bytes after the tables, the payload has %llu; send "
                 "[layers=%llu][tokens=%llu][heads=%llu] rows of %llu bytes for K, then for V",
                 (unsigned long long)(k_end > v_end ? k_end : v_end), (unsigned long long)available,
                 (unsigned long long)tensor->layers, tokens, (unsigned long long)tensor->heads,
                 (unsigned long long)tensor->row_bytes);
        return KVARN_INVALID_SHAPE;
    }
    return KVARN_OK;
wraps:
    snprintf(text, room,
             "offsets and strides of the layout exceed 64 bits; check their units: bytes");
    return KVARN_INVALID_SHAPE;
}
