/* Covering ranges of strided rows. Gaps between rows travel along: a range per row would cost more
 * in system calls than the bytes of the usual small gaps cost. */
#include "client/rows.h"

#include <string.h>

bool kvc_rows_bytes(const struct kvc_rows *rows, uint64_t *bytes)
{
    return kvc_mul(rows->layers, rows->blocks, bytes) && kvc_mul(*bytes, rows->tokens, bytes) &&
           kvc_mul(*bytes, rows->heads, bytes) && kvc_mul(*bytes, rows->row_bytes, bytes) &&
           *bytes <= SIZE_MAX / 4;
}

bool kvc_rows_strides(const struct kvc_rows *rows, const kvarn_strides *given, kvarn_strides *out)
{
    *out = *given;
    if (!out->head)
        out->head = rows->row_bytes;
    if (!out->token && !kvc_mul(rows->heads, out->head, &out->token))
        return false;
    if (!out->block && !kvc_mul(rows->tokens, out->token, &out->block))
        return false;
    return out->layer || kvc_mul(rows->blocks, out->block, &out->layer);
}

static bool add_extent(uint64_t *span, uint64_t count, uint64_t stride)
{
    uint64_t extent;

    return kvc_mul(count - 1, stride, &extent) && kvc_add(*span, extent, span);
}

/* Bytes from the first row's first byte to the last row's last one. */
static bool span_of(const struct kvc_rows *rows, const kvarn_strides *strides, uint64_t *span)
{
    *span = rows->row_bytes;
    return add_extent(span, rows->layers, strides->layer) &&
           add_extent(span, rows->blocks, strides->block) &&
           add_extent(span, rows->tokens, strides->token) &&
           add_extent(span, rows->heads, strides->head) && *span <= SIZE_MAX / 4;
}

static kvarn_status too_big(struct kvarn_client *client, const char *name)
{
    return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                           "%s: the rows span more bytes than an address space has: check the "
                           "counts and strides",
                           name);
}

static kvarn_status plan_dense(struct kvarn_client *client, const char *name,
                               const struct kvc_rows *rows, const void *k, const void *v,
                               struct kvc_rows_plan *out)
{
    uint64_t bytes;

    if (!kvc_rows_bytes(rows, &bytes))
        return too_big(client, name);
    out->parts[0] = (struct iovec){.iov_base = (void *)(uintptr_t)k, .iov_len = (size_t)bytes};
    out->parts[1] = (struct iovec){.iov_base = (void *)(uintptr_t)v, .iov_len = (size_t)bytes};
    out->part_count = 2;
    return KVARN_OK;
}

kvarn_status kvc_rows_plan(struct kvarn_client *client, const char *name,
                           const struct kvc_rows *rows, const void *k, const void *v,
                           const kvarn_strides *strides, struct kvc_rows_plan *out)
{
    kvarn_strides each;
    uint64_t span;

    memset(out, 0, sizeof *out);
    if (!k || !v)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: %s is NULL", name, k ? "v" : "k");
    if (!strides)
        return plan_dense(client, name, rows, k, v, out);
    if (!kvc_rows_strides(rows, strides, &each) || !span_of(rows, &each, &span))
        return too_big(client, name);
    out->layout = (struct kvw_layout){
        .present = true,
        .layer_stride = each.layer,
        .block_stride = each.block,
        .token_stride = each.token,
        .head_stride = each.head,
    };
    uintptr_t at_k = (uintptr_t)k, at_v = (uintptr_t)v;
    uintptr_t low = at_k < at_v ? at_k : at_v, high = at_k < at_v ? at_v : at_k;
    /* Two ranges, K first. The same memory twice goes twice: offsets 0 and 0 would mean K, then V.
     */
    if (high == low || high - low >= span) {
        out->parts[0] = (struct iovec){.iov_base = (void *)at_k, .iov_len = (size_t)span};
        out->parts[1] = (struct iovec){.iov_base = (void *)at_v, .iov_len = (size_t)span};
        out->part_count = 2;
        out->layout.v_offset = span;
        return KVARN_OK;
    }
    /* One allocation holds both, as [token][K or V][head], say: the union goes once. */
    out->parts[0] = (struct iovec){.iov_base = (void *)low, .iov_len = (size_t)(high - low + span)};
    out->part_count = 1;
    out->layout.k_offset = at_k - low;
    out->layout.v_offset = at_v - low;
    return KVARN_OK;
}

void kvc_rows_pack(const struct kvc_rows *rows, const void *from, const kvarn_strides *strides,
                   uint8_t *out)
{
    const uint8_t *base = from;

    for (uint64_t token = 0; token < rows->tokens; token++) {
        for (uint64_t head = 0; head < rows->heads; head++) {
            memcpy(out, base + token * strides->token + head * strides->head,
                   (size_t)rows->row_bytes);
            out += rows->row_bytes;
        }
    }
}
