/* The ring itself, of files.c alone: plain system calls, no library. Completions are told by an
 * eventfd. One thread. */
#ifndef KVD_FILES_URING_H
#define KVD_FILES_URING_H

#include <stdbool.h>
#include <stdint.h>

struct kvd_file_op;

enum { KVD_URING_ENTRIES = 64 };

struct kvd_uring {
    int fd;
    void *rings; /* both, in one mapping */
    uint64_t rings_bytes, entries_bytes;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *results;
    uint32_t *sq_tail, *sq_array, *cq_head, *cq_tail;
    uint32_t sq_mask, cq_mask, in_flight;
};

/* False: the system has none, or not the operations that we want (or forbids them, as the default
 * profile of containers does). */
bool kvd_uring_open(struct kvd_uring *ring, int eventfd);
void kvd_uring_close(struct kvd_uring *ring);
/* False: all entries are in flight. */
bool kvd_uring_start(struct kvd_uring *ring, struct kvd_file_op *op);
/* The next operation that came back, *result as of the system call; NULL: none now. wait: for one,
 * when any is in flight. */
struct kvd_file_op *kvd_uring_take(struct kvd_uring *ring, int32_t *result, bool wait);

#endif
