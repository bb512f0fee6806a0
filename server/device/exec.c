/* What operations use: addresses that are proved to lie inside, and memory of the wave. */
#include "server/device/exec.h"

#include "server/device/digest.h"

const struct kvk_table *kvd_exec_table(const struct kvd_executor *executor)
{
    return executor->options.table;
}

uint8_t *kvd_exec_at(const struct kvd_executor *executor, struct kvd_place place, uint64_t bytes)
{
    if (place.region >= KVD_REGIONS || executor->options.regions[place.region].base == NULL)
        return NULL;
    uint64_t size = executor->options.regions[place.region].bytes;
    if (place.offset > size || bytes > size - place.offset)
        return NULL;
    return executor->options.regions[place.region].base + place.offset;
}

uint8_t *kvd_exec_rows(const struct kvd_executor *executor, struct kvd_place place,
                       const struct kvd_strides *strides, const uint32_t counts[3],
                       uint64_t row_bytes)
{
    const uint64_t steps[3] = {strides->layer, strides->token, strides->head};
    uint64_t end = row_bytes, far;

    for (int i = 0; i < 3; i++)
        if (counts[i] == 0 || __builtin_mul_overflow(steps[i], (uint64_t)counts[i] - 1, &far) ||
            __builtin_add_overflow(end, far, &end))
            return NULL;
    return kvd_exec_at(executor, place, end);
}

uint8_t *kvd_exec_slot(const struct kvd_executor *executor, const struct kvd_job *job,
                       struct kvd_place place, uint32_t kind)
{
    uint64_t cell = kvd_exec_cell_bytes(&job->shape, kind);

    /* layers and heads are bounded, so this cannot overflow */
    return cell == 0 ? NULL : kvd_exec_at(executor, place, cell * job->layers * job->heads);
}

uint32_t kvd_exec_item_index(const struct kvd_executor *executor, const struct kvd_exec_item *item)
{
    return (uint32_t)(item - executor->items);
}

float *kvd_exec_parts(struct kvd_executor *executor, uint64_t floats)
{
    if (floats > KVD_EXEC_PARTS_FLOATS - executor->parts_used)
        return NULL;
    float *at = executor->parts + executor->parts_used;
    executor->parts_used += (floats + 15) / 16 * 16; /* lines of their own */
    if (executor->parts_used > KVD_EXEC_PARTS_FLOATS)
        executor->parts_used = KVD_EXEC_PARTS_FLOATS;
    return at;
}

struct kvd_job_span *kvd_exec_spans(struct kvd_executor *executor, uint64_t count)
{
    if (count > KVD_EXEC_WAVE_SPANS - executor->spans_used)
        return NULL;
    executor->spans_used += count;
    return executor->spans + executor->spans_used - count;
}

void kvd_exec_join_digest(struct kvd_exec_item *item, uint32_t digest, uint64_t after)
{
    atomic_fetch_xor_explicit(&item->digest, kvd_digest_advance(digest, after),
                              memory_order_relaxed);
}
