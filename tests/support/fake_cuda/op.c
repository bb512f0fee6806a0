/* Copies, fills and kernels: queued at the call, done later by the stream's thread. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/fake_cuda/stream.h"

/* ---- later ---- */

static kvd_cu_result run_copy(const struct fake_op *op)
{
    uint8_t *to = op->host_to != NULL ? op->host_to : fake_at(op->to, op->bytes);
    const uint8_t *from = op->taken;

    if (from == NULL)
        from = op->host_from != NULL ? op->host_from : fake_at(op->from, op->bytes);
    if (to == NULL || from == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    memmove(to, from, op->bytes);
    return KVD_CU_SUCCESS;
}

static kvd_cu_result run_set(const struct fake_op *op)
{
    uint8_t *to = fake_at(op->to, op->bytes);

    if (to == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    if (op->value_bytes == 1)
        memset(to, (int)op->value, op->bytes);
    for (uint64_t i = 0; op->value_bytes == 4 && i < op->bytes; i += 4)
        memcpy(to + i, &op->value, 4);
    return KVD_CU_SUCCESS;
}

static kvd_cu_result run_kernel(const struct fake_op *op)
{
    kvd_cu_result result = fake_kernel_fault(fake_kernel_name(op->kernel));

    if (result == FAKE_CUDA_HANG) {
        atomic_fetch_add(&fake_control->hanging, 1);
        for (;;)
            pause();
    }
    if (result == FAKE_CUDA_IDLE)
        return KVD_CU_SUCCESS;
    if (result == KVD_CU_SUCCESS)
        result = fake_kernel_run(op->kernel, &op->arguments, op->grid);
    if (result == KVD_CU_SUCCESS)
        atomic_fetch_add(&fake_control->kernels, 1);
    return result;
}

kvd_cu_result fake_op_run(const struct fake_op *op)
{
    switch (op->kind) {
    case FAKE_OP_KERNEL:
        return run_kernel(op);
    case FAKE_OP_COPY:
        return run_copy(op);
    case FAKE_OP_SET:
        return run_set(op);
    default: /* marks: the stream's own */
        return KVD_CU_SUCCESS;
    }
}

/* ---- at the call ---- */

/* Bytes from memory that is not pinned are taken now, as the real driver does; from pinned memory
 * they are read when the copy runs. */
kvd_cu_result cuMemcpyHtoDAsync_v2(kvd_cu_address to, const void *from, size_t bytes,
                                   kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_op op = {.kind = FAKE_OP_COPY, .to = to, .host_from = from, .bytes = bytes};

    if (result != KVD_CU_SUCCESS)
        return result;
    if (fake_at((uint64_t)(uintptr_t)from, bytes) == NULL) {
        op.taken = malloc(bytes + 1);
        if (op.taken == NULL)
            return KVD_CU_OUT_OF_MEMORY;
        memcpy(op.taken, from, bytes);
    }
    result = fake_stream_queue(stream, &op);
    free(op.taken);
    return result;
}

kvd_cu_result cuMemcpyDtoHAsync_v2(void *to, kvd_cu_address from, size_t bytes,
                                   kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_op op = {.kind = FAKE_OP_COPY, .host_to = to, .from = from, .bytes = bytes};

    return result == KVD_CU_SUCCESS ? fake_stream_queue(stream, &op) : result;
}

kvd_cu_result cuMemcpyDtoDAsync_v2(kvd_cu_address to, kvd_cu_address from, size_t bytes,
                                   kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_op op = {.kind = FAKE_OP_COPY, .to = to, .from = from, .bytes = bytes};

    return result == KVD_CU_SUCCESS ? fake_stream_queue(stream, &op) : result;
}

kvd_cu_result cuMemsetD8Async(kvd_cu_address at, unsigned char value, size_t count,
                              kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_op op = {
        .kind = FAKE_OP_SET, .to = at, .value = value, .value_bytes = 1, .bytes = count};

    return result == KVD_CU_SUCCESS ? fake_stream_queue(stream, &op) : result;
}

kvd_cu_result cuMemsetD32Async(kvd_cu_address at, unsigned value, size_t count,
                               kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_op op = {
        .kind = FAKE_OP_SET, .to = at, .value = value, .value_bytes = 4, .bytes = count * 4};

    if (result == KVD_CU_SUCCESS && at % 4 != 0)
        return KVD_CU_INVALID_VALUE;
    return result == KVD_CU_SUCCESS ? fake_stream_queue(stream, &op) : result;
}
