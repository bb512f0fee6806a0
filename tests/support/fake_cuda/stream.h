/* Inside the stand-in driver: what is queued on streams. */
#ifndef FAKE_CUDA_STREAM_H
#define FAKE_CUDA_STREAM_H

#include "support/fake_cuda/inside.h"

enum fake_op_kind {
    FAKE_OP_KERNEL,
    FAKE_OP_COPY,
    FAKE_OP_SET,
    FAKE_OP_RECORD,
    FAKE_OP_WAIT,
    FAKE_OP_END
};

struct fake_op {
    struct fake_op *next;
    enum fake_op_kind kind;
    const struct fake_kernel *kernel;
    uint32_t grid;
    union {
        struct kvk_cuda_blocks blocks;
        struct kvk_cuda_attend attend;
    } arguments;
    uint64_t to, from, bytes; /* device addresses; bytes of a copy or a set */
    uint8_t *host_to;         /* or host memory */
    const uint8_t *host_from;
    uint8_t *taken; /* the bytes to be copied, taken at the call; owned */
    uint32_t value, value_bytes;
    kvd_cu_event event;
    uint64_t number; /* of the record */
};

struct fake_ops {
    struct fake_op *first, *last;
};

/* Adds a copy of op at the end, with bytes of its own; false without memory. */
bool fake_ops_add(struct fake_ops *ops, const struct fake_op *op);
void fake_ops_free(struct fake_ops *ops);

/* Queues a copy of op on the stream (or keeps it, while that is captured). */
kvd_cu_result fake_stream_queue(kvd_cu_stream stream, const struct fake_op *op);

/* From now on ops are kept instead of queued; what was kept is the caller's. */
kvd_cu_result fake_stream_capture(kvd_cu_stream stream);
kvd_cu_result fake_stream_captured(kvd_cu_stream stream, struct fake_ops *ops);

/* The work of an op, on any thread. */
kvd_cu_result fake_op_run(const struct fake_op *op);

#endif
