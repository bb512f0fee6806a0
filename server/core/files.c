/* Two queues: one of operations that wait for a thread, one of those that are done. What io_uring
 * has no room for waits in a third until something comes back. See files.h. */
#include "server/core/files.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/core/files_uring.h"
#include "server/core/loop.h"

enum { THREADS = 4 };

struct list {
    struct kvd_file_op *first, *last;
};

struct kvd_files {
    struct kvd_watch *watch;
    int bell;
    bool ringed; /* the io_uring backend is used */
    struct kvd_uring ring;
    struct list backlog; /* for the ring; loop thread */
    pthread_t threads[THREADS];
    uint32_t thread_count;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wanted;
    struct list queue, ready;
    bool ending;
};

static void append(struct list *list, struct kvd_file_op *op)
{
    op->next = NULL;
    if (list->last)
        list->last->next = op;
    else
        list->first = op;
    list->last = op;
}

static struct kvd_file_op *pop(struct list *list)
{
    struct kvd_file_op *op = list->first;

    if (op) {
        list->first = op->next;
        if (!list->first)
            list->last = NULL;
    }
    return op;
}

/* ---- threads */

static int move(struct kvd_file_op *op)
{
    while (op->moved < op->count) {
        uint8_t *at = op->bytes + op->moved;
        uint64_t left = op->count - op->moved;
        off_t offset = (off_t)(op->offset + op->moved);
        ssize_t got = op->what == KVD_FILE_READ ? pread(op->fd, at, left, offset)
                                                : pwrite(op->fd, at, left, offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            return EIO;
        op->moved += (uint64_t)got;
    }
    return 0;
}

static int perform(struct kvd_file_op *op)
{
    switch (op->what) {
    case KVD_FILE_CALL:
        return op->call(op->context);
    case KVD_FILE_SYNC:
        return fdatasync(op->fd) == 0 ? 0 : errno;
    default:
        return move(op);
    }
}

static void *work(void *context)
{
    struct kvd_files *files = context;
    const uint64_t one = 1;

    pthread_mutex_lock(&files->lock);
    for (;;) {
        struct kvd_file_op *op = pop(&files->queue);

        if (!op && files->ending)
            break;
        if (!op) {
            pthread_cond_wait(&files->wanted, &files->lock);
            continue;
        }
        pthread_mutex_unlock(&files->lock);
        op->failed = perform(op);
        pthread_mutex_lock(&files->lock);
        append(&files->ready, op);
        /* the counter cannot overflow: an operation comes once */
        (void)!write(files->bell, &one, sizeof one);
    }
    pthread_mutex_unlock(&files->lock);
    return NULL;
}

static void to_thread(struct kvd_files *files, struct kvd_file_op *op)
{
    pthread_mutex_lock(&files->lock);
    append(&files->queue, op);
    pthread_cond_signal(&files->wanted);
    pthread_mutex_unlock(&files->lock);
}

/* ---- both */

static void feed_ring(struct kvd_files *files)
{
    while (files->backlog.first && kvd_uring_start(&files->ring, files->backlog.first))
        pop(&files->backlog);
}

void kvd_files_start(struct kvd_files *files, struct kvd_file_op *op)
{
    op->moved = 0;
    op->failed = 0;
    if (op->what == KVD_FILE_CALL || !files->ringed) {
        to_thread(files, op);
        return;
    }
    append(&files->backlog, op);
    feed_ring(files);
    /* nothing in flight would ever wake us for it */
    if (files->backlog.first && files->ring.in_flight == 0)
        to_thread(files, pop(&files->backlog));
}

/* What came back from the ring goes on when it was short. */
static bool came_back(struct kvd_files *files, struct kvd_file_op *op, int32_t result)
{
    if (op->what == KVD_FILE_SYNC || result < 0) {
        if (result == -EINTR || result == -EAGAIN) {
            append(&files->backlog, op);
            return false;
        }
        op->failed = result < 0 ? -result : 0;
        return true;
    }
    op->moved += (uint64_t)result;
    if (result == 0 && op->moved < op->count)
        op->failed = EIO;
    if (op->failed || op->moved == op->count)
        return true;
    append(&files->backlog, op);
    return false;
}

static void on_bell(void *context, unsigned events)
{
    struct kvd_files *files = context;
    struct kvd_file_op *op;
    uint64_t count;
    int32_t result;

    (void)events;
    (void)!read(files->bell, &count, sizeof count);
    while (files->ringed && (op = kvd_uring_take(&files->ring, &result, false)) != NULL) {
        bool over = came_back(files, op, result);

        feed_ring(files);
        if (over)
            op->done(op->context, op->failed);
    }
    for (;;) {
        pthread_mutex_lock(&files->lock);
        op = pop(&files->ready);
        pthread_mutex_unlock(&files->lock);
        if (!op)
            break;
        op->done(op->context, op->failed);
    }
}

/* Signals are the loop's. */
static bool start_threads(struct kvd_files *files)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (files->thread_count < THREADS &&
           pthread_create(&files->threads[files->thread_count], NULL, work, files) == 0)
        files->thread_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return files->thread_count > 0;
}

kvarn_status kvd_files_open(struct kvd_files **out, struct uv_loop_s *loop,
                            enum kvd_files_kind kind)
{
    struct kvd_files *files = calloc(1, sizeof *files);

    *out = NULL;
    if (!files)
        return KVARN_INTERNAL;
    pthread_mutex_init(&files->lock, NULL);
    pthread_cond_init(&files->wanted, NULL);
    files->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *out = files;
    if (files->bell < 0 ||
        kvd_watch_open(&files->watch, loop, files->bell, on_bell, files) != KVARN_OK ||
        !start_threads(files)) {
        kvd_files_close(out);
        return KVARN_INTERNAL;
    }
    if (kind != KVD_FILES_THREADS)
        files->ringed = kvd_uring_open(&files->ring, files->bell);
    if (kind == KVD_FILES_URING && !files->ringed) {
        kvd_files_close(out);
        return KVARN_UNSUPPORTED;
    }
    kvd_watch_set(files->watch, KVD_READABLE);
    return KVARN_OK;
}

void kvd_files_close(struct kvd_files **out)
{
    struct kvd_files *files = *out;
    int32_t result;

    if (!files)
        return;
    pthread_mutex_lock(&files->lock);
    files->ending = true;
    pthread_cond_broadcast(&files->wanted);
    pthread_mutex_unlock(&files->lock);
    for (uint32_t i = 0; i < files->thread_count; i++)
        pthread_join(files->threads[i], NULL);
    while (files->ringed && files->ring.in_flight)
        (void)kvd_uring_take(&files->ring, &result, true);
    if (files->ringed)
        kvd_uring_close(&files->ring);
    kvd_watch_close(&files->watch);
    if (files->bell >= 0)
        close(files->bell);
    pthread_cond_destroy(&files->wanted);
    pthread_mutex_destroy(&files->lock);
    free(files);
    *out = NULL;
}

const char *kvd_files_backend(const struct kvd_files *files)
{
    return files->ringed ? "io_uring" : "threads";
}
