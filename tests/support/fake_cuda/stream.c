/* Streams and events: a thread per stream that does what was queued, in order. Once the context is
 * broken nothing more is done; whoever asks or waits is told. */
#include "support/fake_cuda/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct kvd_cu_stream_tag {
    struct kvd_cu_stream_tag *next; /* of all streams */
    struct fake_ops queue, captured;
    uint64_t queued, done;
    bool capturing;
};

struct kvd_cu_event_tag {
    uint64_t recorded, reached; /* numbers of records */
    uint64_t ns;                /* of the last one reached */
    uint32_t users;             /* ops that name it, and the caller */
};

/* One lock and one condition for all: there are few streams. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct kvd_cu_stream_tag *streams;

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void event_drop(kvd_cu_event event)
{
    if (event != NULL && --event->users == 0)
        free(event);
}

/* With the lock held. */
static void op_free(struct fake_op *op)
{
    event_drop(op->event);
    free(op->taken);
    free(op);
}

void fake_streams_wake(void)
{
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- the thread ---- */

/* With the lock held. */
static void pass_mark(const struct fake_op *op)
{
    if (op->kind == FAKE_OP_RECORD && op->event->reached < op->number) {
        op->event->reached = op->number;
        op->event->ns = now_ns();
    }
    while (op->kind == FAKE_OP_WAIT && op->event->reached < op->number &&
           fake_broken() == KVD_CU_SUCCESS)
        pthread_cond_wait(&changed, &lock);
}

static void *serve(void *context)
{
    struct kvd_cu_stream_tag *stream = context;
    bool ends = false;

    pthread_mutex_lock(&lock);
    while (!ends) {
        struct fake_op *op = stream->queue.first;

        if (op == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        stream->queue.first = op->next;
        if (fake_broken() == KVD_CU_SUCCESS) {
            pthread_mutex_unlock(&lock);
            kvd_cu_result result = fake_op_run(op);
            if (result != KVD_CU_SUCCESS)
                fake_break(result);
            pthread_mutex_lock(&lock);
            if (result == KVD_CU_SUCCESS)
                pass_mark(op);
        }
        ends = op->kind == FAKE_OP_END;
        stream->done++;
        op_free(op);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    free(stream);
    return NULL;
}

/* ---- streams ---- */

kvd_cu_result cuStreamCreate(kvd_cu_stream *stream, unsigned flags)
{
    kvd_cu_result result = fake_enter_allocation(__func__);
    pthread_t thread;

    if (result != KVD_CU_SUCCESS)
        return result;
    if (flags > KVD_CU_STREAM_NON_BLOCKING)
        return KVD_CU_INVALID_VALUE;
    struct kvd_cu_stream_tag *made = calloc(1, sizeof(*made));
    if (made == NULL || pthread_create(&thread, NULL, serve, made) != 0) {
        free(made);
        return KVD_CU_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    pthread_mutex_lock(&lock);
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&lock);
    *stream = made;
    return KVD_CU_SUCCESS;
}

/* With the lock held. The default stream is not there: nothing of ours uses it. */
static bool is_stream(kvd_cu_stream stream)
{
    for (struct kvd_cu_stream_tag *known = streams; known != NULL; known = known->next)
        if (known == stream)
            return true;
    return false;
}

/* With the lock held. */
static kvd_cu_result queue(kvd_cu_stream stream, const struct fake_op *op)
{
    if (!is_stream(stream))
        return KVD_CU_INVALID_HANDLE;
    if (stream->capturing && op->event != NULL)
        return KVD_CU_NOT_SUPPORTED; /* events are no part of our graphs */
    if (!fake_ops_add(stream->capturing ? &stream->captured : &stream->queue, op))
        return KVD_CU_OUT_OF_MEMORY;
    if (op->event != NULL)
        op->event->users++;
    stream->queued += !stream->capturing;
    pthread_cond_broadcast(&changed);
    return KVD_CU_SUCCESS;
}

kvd_cu_result fake_stream_queue(kvd_cu_stream stream, const struct fake_op *op)
{
    pthread_mutex_lock(&lock);
    kvd_cu_result result = queue(stream, op);
    pthread_mutex_unlock(&lock);
    return result;
}

kvd_cu_result fake_stream_capture(kvd_cu_stream stream)
{
    pthread_mutex_lock(&lock);
    bool can = is_stream(stream) && !stream->capturing;
    if (can)
        stream->capturing = true;
    pthread_mutex_unlock(&lock);
    return can ? KVD_CU_SUCCESS : KVD_CU_INVALID_HANDLE;
}

kvd_cu_result fake_stream_captured(kvd_cu_stream stream, struct fake_ops *ops)
{
    pthread_mutex_lock(&lock);
    bool can = is_stream(stream) && stream->capturing;
    if (can) {
        *ops = stream->captured;
        stream->captured = (struct fake_ops){0};
        stream->capturing = false;
    }
    pthread_mutex_unlock(&lock);
    return can ? KVD_CU_SUCCESS : KVD_CU_INVALID_HANDLE;
}

/* The stream's work goes on to its end; the thread frees it. */
kvd_cu_result cuStreamDestroy_v2(kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_op end = {.kind = FAKE_OP_END};
    struct kvd_cu_stream_tag **link = &streams;

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    result = queue(stream, &end);
    while (result == KVD_CU_SUCCESS && *link != stream)
        link = &(*link)->next;
    if (result == KVD_CU_SUCCESS)
        *link = stream->next;
    pthread_mutex_unlock(&lock);
    return result;
}

kvd_cu_result cuStreamQuery(kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    bool known = is_stream(stream), idle = known && stream->done == stream->queued;
    pthread_mutex_unlock(&lock);
    if (fake_broken() != KVD_CU_SUCCESS)
        return fake_broken();
    return !known ? KVD_CU_INVALID_HANDLE : idle ? KVD_CU_SUCCESS : KVD_CU_NOT_READY;
}

/* With the lock held. */
static void wait_for(kvd_cu_stream stream)
{
    uint64_t until = stream->queued;

    while (stream->done < until && fake_broken() == KVD_CU_SUCCESS)
        pthread_cond_wait(&changed, &lock);
}

kvd_cu_result cuStreamSynchronize(kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    bool known = is_stream(stream);
    if (known)
        wait_for(stream);
    pthread_mutex_unlock(&lock);
    return known ? fake_broken() : KVD_CU_INVALID_HANDLE;
}

kvd_cu_result cuCtxSynchronize(void)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    for (struct kvd_cu_stream_tag *stream = streams; stream != NULL; stream = stream->next)
        wait_for(stream);
    pthread_mutex_unlock(&lock);
    return fake_broken();
}

/* ---- events ---- */

kvd_cu_result cuEventCreate(kvd_cu_event *event, unsigned flags)
{
    kvd_cu_result result = fake_enter_allocation(__func__);

    (void)flags; /* how to wait, and whether to take the time: the same here */
    if (result != KVD_CU_SUCCESS)
        return result;
    *event = calloc(1, sizeof(**event));
    if (*event == NULL)
        return KVD_CU_OUT_OF_MEMORY;
    (*event)->users = 1;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuEventDestroy_v2(kvd_cu_event event)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    event_drop(event);
    pthread_mutex_unlock(&lock);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuEventRecord(kvd_cu_event event, kvd_cu_stream stream)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    struct fake_op op = {.kind = FAKE_OP_RECORD, .event = event, .number = event->recorded + 1};
    result = queue(stream, &op);
    event->recorded += result == KVD_CU_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

kvd_cu_result cuStreamWaitEvent(kvd_cu_stream stream, kvd_cu_event event, unsigned flags)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    struct fake_op op = {.kind = FAKE_OP_WAIT, .event = event, .number = event->recorded};
    result = flags == 0 ? queue(stream, &op) : KVD_CU_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

kvd_cu_result cuEventQuery(kvd_cu_event event)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    bool reached = event->reached == event->recorded;
    pthread_mutex_unlock(&lock);
    if (fake_broken() != KVD_CU_SUCCESS)
        return fake_broken();
    return reached ? KVD_CU_SUCCESS : KVD_CU_NOT_READY;
}

kvd_cu_result cuEventSynchronize(kvd_cu_event event)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    uint64_t until = event->recorded;
    while (event->reached < until && fake_broken() == KVD_CU_SUCCESS)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return fake_broken();
}

kvd_cu_result cuEventElapsedTime(float *milliseconds, kvd_cu_event begin, kvd_cu_event end)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    bool recorded = begin->recorded > 0 && end->recorded > 0;
    bool reached = begin->reached == begin->recorded && end->reached == end->recorded;
    *milliseconds = (float)((double)(int64_t)(end->ns - begin->ns) * 1e-6);
    pthread_mutex_unlock(&lock);
    return !recorded ? KVD_CU_INVALID_HANDLE : reached ? KVD_CU_SUCCESS : KVD_CU_NOT_READY;
}
