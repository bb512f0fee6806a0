/* What operations use: addresses that are proved to lie inside, and memory of the wave. */
#include "server/device/exec.h"

#include "server/device/digest.h"

const struct kvk_table *kvd_exec_table(const struct kvd_executor *executor)
{
    return executor->options.table;
}

uint8_t *kvd_exec_at(const struct kvd_executor *executor, struct kvd_place place, uint64_t bytes)
{
    return kvd_bounds_hold(&executor->bounds, place, bytes)
               ? executor->options.regions[place.region].base + place.offset
               : NULL;
}

uint8_t *kvd_exec_rows(const struct kvd_executor *executor, struct kvd_place place,
                       const struct kvd_strides *strides, const uint32_t counts[3],
                       uint64_t row_bytes)
{
    return kvd_bounds_hold_rows(&executor->bounds, place, strides, counts, row_bytes)
               ? executor->options.regions[place.region].base + place.offset
               : NULL;
}

uint8_t *kvd_exec_slot(const struct kvd_executor *executor, const struct kvd_job *job,
                       struct kvd_place place, uint32_t kind)
{
    return kvd_bounds_hold_slot(&executor->bounds, job, place, kind)
               ? executor->options.regions[place.region].base + place.offset
               : NULL;
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
