#include "server/device/bounds.h"

#include "server/core/limits.h"

enum { POSITION_END = 1 << 30 /* beyond every position */ };

bool kvd_bounds_hold(const struct kvd_bounds *bounds, struct kvd_place place, uint64_t bytes)
{
    if (place.region >= KVD_REGIONS)
        return false;
    uint64_t size = bounds->bytes[place.region];
    return size > 0 && place.offset <= size && bytes <= size - place.offset;
}

bool kvd_bounds_hold_rows(const struct kvd_bounds *bounds, struct kvd_place place,
                          const struct kvd_strides *strides, const uint32_t counts[3],
                          uint64_t row_bytes)
{
    const uint64_t steps[3] = {strides->layer, strides->token, strides->head};
    uint64_t end = row_bytes, far;

    for (int i = 0; i < 3; i++)
        if (counts[i] == 0 || __builtin_mul_overflow(steps[i], (uint64_t)counts[i] - 1, &far) ||
            __builtin_add_overflow(end, far, &end))
            return false;
    return kvd_bounds_hold(bounds, place, end);
}

bool kvd_bounds_hold_slot(const struct kvd_bounds *bounds, const struct kvd_job *job,
                          struct kvd_place place, uint32_t kind)
{
    uint64_t cell = kvd_cell_bytes(&job->shape, kind);

    /* layers and heads are bounded, so this cannot overflow */
    return cell != 0 && kvd_bounds_hold(bounds, place, cell * job->layers * job->heads);
}

bool kvd_bounds_hold_spans(const struct kvd_bounds *bounds, const struct kvd_job *job,
                           const struct kvd_job_span *spans, uint32_t count)
{
    uint64_t cells = (uint64_t)job->layers * job->heads, position = 0;
    uint64_t tile = cells * kvd_cell_bytes(&job->shape, KVARN_BLOCK_TILE);
    uint64_t exact = cells * kvd_cell_bytes(&job->shape, KVARN_BLOCK_EXACT);

    for (uint32_t i = 0; i < count; i++) {
        const struct kvd_job_span *span = &spans[i];
        if (span->position < position || span->tokens == 0 || span->tokens > job->shape.group ||
            (span->kind != KVARN_BLOCK_TILE && span->kind != KVARN_BLOCK_EXACT) ||
            !kvd_bounds_hold(bounds, span->slot, span->kind == KVARN_BLOCK_TILE ? tile : exact))
            return false;
        position = (uint64_t)span->position + span->tokens;
    }
    return position < POSITION_END;
}

size_t kvd_job_entry_bytes(uint32_t op)
{
    switch (op) {
    case KVD_JOB_COMPRESS:
        return sizeof(struct kvd_put);
    case KVD_JOB_DECOMPRESS:
        return sizeof(struct kvd_get);
    case KVD_JOB_WRITE_ROWS:
        return sizeof(struct kvd_write);
    case KVD_JOB_ATTEND:
        return sizeof(struct kvd_attend);
    case KVD_JOB_COPY:
    case KVD_JOB_DIGEST:
        return sizeof(struct kvd_copy);
    case KVD_JOB_ZERO:
        return sizeof(struct kvd_zero);
    default:
        return 0;
    }
}

bool kvd_job_shape_is_sound(const struct kvd_job *job)
{
    const char *why;

    return kvk_shape_check(&job->shape, &why) == KVARN_OK && job->layers > 0 && job->heads > 0 &&
           job->layers <= KVD_BOUNDS_LAYERS_MAX && job->heads <= KVD_BOUNDS_HEADS_MAX &&
           job->layer_begin <= job->layers && job->layer_count <= job->layers - job->layer_begin;
}

/* COPY, DIGEST and ZERO may be about bytes that are no slot; what is one is looked at then. */
static bool needs_shape(uint32_t op)
{
    return op != KVD_JOB_COPY && op != KVD_JOB_DIGEST && op != KVD_JOB_ZERO;
}

bool kvd_job_take(struct kvd_taken *taken, const struct kvd_bounds *bounds, uint8_t *staging,
                  uint64_t offset)
{
    struct kvd_place place = {.region = KVD_REGION_STAGING, .offset = offset};

    if (!kvd_bounds_hold(bounds, place, sizeof(*taken->shared)) ||
        offset % _Alignof(struct kvd_job) != 0)
        return false;
    taken->shared = (struct kvd_job *)(void *)(staging + offset);
    taken->copy = *taken->shared;
    taken->planned_ns = 0;
    const struct kvd_job *job = &taken->copy;
    size_t entry_bytes = kvd_job_entry_bytes(job->op);
    bool sound = entry_bytes != 0 && kvd_bounds_hold(bounds, place, job->job_bytes) &&
                 job->job_bytes >= sizeof(*job) &&
                 job->count <= (job->job_bytes - sizeof(*job)) / entry_bytes &&
                 (!needs_shape(job->op) || kvd_job_shape_is_sound(job));
    taken->shared->status = sound ? KVARN_OK : KVARN_INTERNAL;
    return sound;
}

bool kvd_attend_is_sound(const struct kvd_job *job, const struct kvd_attend *attend)
{
    uint64_t spans_bytes = (uint64_t)attend->span_count * sizeof(struct kvd_job_span);

    return attend->q_tokens > 0 && attend->q_tokens <= KVD_Q_TOKENS_MAX && attend->q_heads > 0 &&
           attend->q_heads % job->heads == 0 && attend->q_heads / job->heads <= KVARN_MAX_GQA &&
           job->layer_begin < job->layers && attend->limit <= KVD_SEQUENCE_TOKENS_MAX &&
           kvarn_dtype_bytes((kvarn_dtype)attend->q_dtype) != 0 &&
           kvarn_dtype_bytes((kvarn_dtype)attend->out_dtype) != 0 &&
           attend->span_count <= KVD_BOUNDS_SPANS_MAX && attend->spans_offset <= job->job_bytes &&
           spans_bytes <= job->job_bytes - attend->spans_offset;
}

bool kvd_bounds_hold_attend(const struct kvd_bounds *bounds, const struct kvd_job *job,
                            const struct kvd_attend *attend)
{
    uint64_t rows = (uint64_t)attend->q_tokens * attend->q_heads, dim = job->shape.dim;

    return kvd_bounds_hold(bounds, attend->q,
                           rows * dim * kvarn_dtype_bytes((kvarn_dtype)attend->q_dtype)) &&
           kvd_bounds_hold(bounds, attend->out,
                           rows * dim * kvarn_dtype_bytes((kvarn_dtype)attend->out_dtype)) &&
           kvd_bounds_hold(bounds, attend->lse, rows * sizeof(float));
}
