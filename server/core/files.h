/* File I/O that does not hold up the loop: io_uring where the system lets us, else threads.
 *
 * An operation is the caller's struct; it lies still from start to done, so starting never fails
 * and nothing is allocated. Reads and writes are whole: a short one goes on, and a read past the
 * end of the file is EIO. Operations in flight run in no promised order; who wants an order starts
 * the next one in the `done` of the one before. A CALL runs on a thread with either backend: what
 * has no io_uring form (making a segment) or would hold up the loop (a cipher). */
#ifndef KVD_FILES_H
#define KVD_FILES_H

#include <stdint.h>

#include <kvarn/status.h>

struct uv_loop_s;
struct kvd_files;

enum kvd_files_kind { KVD_FILES_AUTO, KVD_FILES_URING, KVD_FILES_THREADS };
enum kvd_file_what {
    KVD_FILE_READ,
    KVD_FILE_WRITE,
    KVD_FILE_SYNC, /* fdatasync */
    KVD_FILE_CALL
};

struct kvd_file_op {
    enum kvd_file_what what;
    int fd;
    uint8_t *bytes;
    uint64_t count, offset;
    int (*call)(void *context);              /* CALL: 0 or an errno; on a thread */
    void (*done)(void *context, int failed); /* on the loop; 0 or an errno */
    void *context;
    /* files' own */
    struct kvd_file_op *next;
    uint64_t moved;
    int failed;
};

/* UNSUPPORTED: URING was asked for and the system refuses it. INTERNAL without memory, descriptors
 * or threads. */
kvarn_status kvd_files_open(struct kvd_files **files, struct uv_loop_s *loop,
                            enum kvd_files_kind kind);
/* Waits for what is in flight; done is not called any more. Sets *files to NULL. */
void kvd_files_close(struct kvd_files **files);

void kvd_files_start(struct kvd_files *files, struct kvd_file_op *op);

/* "io_uring", "threads" */
const char *kvd_files_backend(const struct kvd_files *files);

#endif
