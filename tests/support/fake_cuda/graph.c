/* Lists of ops, and graphs, which are nothing else. */
#include <stdlib.h>
#include <string.h>

#include "support/fake_cuda/stream.h"

struct kvd_cu_graph_tag {
    struct fake_ops ops;
};

struct kvd_cu_graph_exec_tag {
    struct fake_ops ops;
};

bool fake_ops_add(struct fake_ops *ops, const struct fake_op *op)
{
    struct fake_op *copy = malloc(sizeof(*copy));

    if (copy == NULL)
        return false;
    *copy = *op;
    copy->next = NULL;
    if (op->taken != NULL) {
        copy->taken = malloc(op->bytes + 1);
        if (copy->taken == NULL) {
            free(copy);
            return false;
        }
        memcpy(copy->taken, op->taken, op->bytes);
    }
    if (ops->first == NULL)
        ops->first = copy;
    else
        ops->last->next = copy;
    ops->last = copy;
    return true;
}

void fake_ops_free(struct fake_ops *ops)
{
    for (struct fake_op *op = ops->first, *next; op != NULL; op = next) {
        next = op->next;
        free(op->taken);
        free(op);
    }
    *ops = (struct fake_ops){0};
}

kvd_cu_result cuStreamBeginCapture_v2(kvd_cu_stream stream, uint32_t mode)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    return mode == KVD_CU_CAPTURE_THREAD_LOCAL ? fake_stream_capture(stream) : KVD_CU_INVALID_VALUE;
}

kvd_cu_result cuStreamEndCapture(kvd_cu_stream stream, kvd_cu_graph *graph)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    struct kvd_cu_graph_tag *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return KVD_CU_OUT_OF_MEMORY;
    result = fake_stream_captured(stream, &made->ops);
    if (result != KVD_CU_SUCCESS) {
        free(made);
        return result;
    }
    *graph = made;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuGraphInstantiateWithFlags(kvd_cu_graph_exec *exec, kvd_cu_graph graph,
                                          unsigned long long flags)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    struct kvd_cu_graph_exec_tag *made = calloc(1, sizeof(*made));
    bool whole = made != NULL && flags == 0;
    for (const struct fake_op *op = graph->ops.first; op != NULL && whole; op = op->next)
        whole = fake_ops_add(&made->ops, op);
    if (!whole) {
        if (made != NULL)
            fake_ops_free(&made->ops);
        free(made);
        return KVD_CU_OUT_OF_MEMORY;
    }
    *exec = made;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuGraphLaunch(kvd_cu_graph_exec exec, kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    for (const struct fake_op *op = exec->ops.first; op != NULL && result == KVD_CU_SUCCESS;
         op = op->next)
        result = fake_stream_queue(stream, op);
    return result;
}

kvd_cu_result cuGraphExecDestroy(kvd_cu_graph_exec exec)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result == KVD_CU_SUCCESS) {
        fake_ops_free(&exec->ops);
        free(exec);
    }
    return result;
}

kvd_cu_result cuGraphDestroy(kvd_cu_graph graph)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result == KVD_CU_SUCCESS) {
        fake_ops_free(&graph->ops);
        free(graph);
    }
    return result;
}
