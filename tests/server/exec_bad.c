#include "server/exec_bad.h"

#include <string.h>

struct kvd_job *exec_some_job(struct exec_fixture *f, uint32_t op)
{
    static const size_t entry_bytes[] = {0,
                                         sizeof(struct kvd_put),
                                         sizeof(struct kvd_get),
                                         sizeof(struct kvd_write),
                                         sizeof(struct kvd_attend),
                                         sizeof(struct kvd_copy),
                                         sizeof(struct kvd_copy)};
    struct kvd_job *job = exec_job(f, op, 1, entry_bytes[op], 2 * sizeof(struct kvd_job_span));
    struct kvd_place k = exec_place(f, exec_rows(f, f->layers, f->shape.group));
    struct kvd_place v = exec_place(f, exec_rows(f, f->layers, f->shape.group));
    struct kvd_place tile = exec_place(f, exec_block(f, KVARN_BLOCK_TILE));
    struct kvd_place exact = exec_place(f, exec_block(f, KVARN_BLOCK_EXACT));
    struct kvd_strides strides = exec_strides(f, f->shape.group);
    void *entry = job + 1;

    switch (op) {
    case KVD_JOB_COMPRESS:
        *(struct kvd_put *)entry =
            (struct kvd_put){.k = k, .v = v, .strides = strides, .slot = tile, .kind = 1};
        break;
    case KVD_JOB_DECOMPRESS:
        *(struct kvd_get *)entry =
            (struct kvd_get){.k = k, .v = v, .strides = strides, .slot = tile, .kind = 1};
        break;
    case KVD_JOB_WRITE_ROWS:
        *(struct kvd_write *)entry =
            (struct kvd_write){.k = k, .v = v, .strides = strides, .slot = exact, .tokens = 3};
        break;
    case KVD_JOB_ATTEND: {
        struct kvd_attend *attend = entry;
        struct kvd_job_span *spans = (struct kvd_job_span *)(attend + 1);
        *attend = (struct kvd_attend){.q = k,
                                      .out = v,
                                      .lse = exec_place(f, exec_staging(f, 64)),
                                      .q_tokens = 2,
                                      .q_heads = 4,
                                      .q_dtype = KVARN_F16,
                                      .out_dtype = KVARN_F16,
                                      .scale = 0.1f,
                                      .limit = 128,
                                      .spans_offset = sizeof(*job) + sizeof(*attend),
                                      .span_count = 2};
        spans[0] = (struct kvd_job_span){.slot = exact, .kind = 2, .tokens = f->shape.group};
        spans[1] = (struct kvd_job_span){
            .slot = tile, .kind = 1, .position = f->shape.group, .tokens = f->shape.group};
        break;
    }
    default:
        *(struct kvd_copy *)entry =
            (struct kvd_copy){.dst = tile, .src = k, .bytes = exec_slot_bytes(f, 1)};
    }
    return job;
}

size_t exec_status_offset(uint32_t op)
{
    switch (op) {
    case KVD_JOB_COMPRESS:
        return offsetof(struct kvd_put, status);
    case KVD_JOB_DECOMPRESS:
        return offsetof(struct kvd_get, status);
    case KVD_JOB_WRITE_ROWS:
        return offsetof(struct kvd_write, status);
    case KVD_JOB_ATTEND:
        return offsetof(struct kvd_attend, status);
    default:
        return offsetof(struct kvd_copy, status);
    }
}

static uint64_t odd_number(struct rng *rng)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       63,
                                       255,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       0x100000000,
                                       EXEC_POOL_BYTES - 1,
                                       EXEC_POOL_BYTES,
                                       0x7fffffffffffffff,
                                       0x8000000000000000,
                                       0xffffffffffffffff,
                                       0xfffffffffffffff0};
    return rng_below(rng, 8) == 0 ? rng_next(rng) : numbers[rng_below(rng, 16)];
}

void exec_mutate(struct rng *rng, uint8_t *job, size_t bytes)
{
    for (uint32_t n = 1 + rng_below(rng, 2); n > 0; n--) {
        uint64_t number = odd_number(rng);
        size_t width = 1u << rng_below(rng, 4);
        memcpy(job + rng_below(rng, (uint32_t)(bytes / width)) * width, &number, width);
    }
}
