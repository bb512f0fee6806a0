/* File I/O beside the loop: both backends do the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "server/core/files.h"
#include "server/core/loop.h"

enum { MANY = 300, BYTES = 8192 };

struct fixture {
    struct uv_loop_s *loop;
    struct kvd_files *files;
    int fd;
    uint32_t done, failed, called;
};

static void open_with(struct fixture *f, enum kvd_files_kind kind)
{
    char name[] = "/tmp/kvarn-files-XXXXXX";

    memset(f, 0, sizeof *f);
    f->loop = kvd_loop_new();
    f->fd = mkstemp(name);
    assert_true(f->fd >= 0);
    unlink(name);
    assert_int_equal(kvd_files_open(&f->files, f->loop, kind), KVARN_OK);
}

static void close_all(struct fixture *f)
{
    kvd_files_close(&f->files);
    assert_null(f->files);
    close(f->fd);
    kvd_loop_free(&f->loop);
}

static void done(void *context, int failed)
{
    struct fixture *f = context;

    f->done++;
    if (failed)
        f->failed = (uint32_t)failed;
}

static void wait_for(struct fixture *f, uint32_t count)
{
    while (f->done < count)
        kvd_loop_turn(f->loop);
}

static struct kvd_file_op op_of(struct fixture *f, enum kvd_file_what what, uint8_t *bytes,
                                uint64_t count, uint64_t offset)
{
    return (struct kvd_file_op){.what = what,
                                .fd = f->fd,
                                .bytes = bytes,
                                .count = count,
                                .offset = offset,
                                .done = done,
                                .context = f};
}

/* More than the ring holds at once. */
static void what_is_written_is_read(struct fixture *f)
{
    static struct kvd_file_op ops[MANY];
    static uint8_t out[MANY][BYTES], in[MANY][BYTES];

    for (uint32_t i = 0; i < MANY; i++) {
        memset(out[i], (int)(i * 7 + 1), BYTES);
        ops[i] = op_of(f, KVD_FILE_WRITE, out[i], BYTES, (uint64_t)(MANY - 1 - i) * BYTES);
        kvd_files_start(f->files, &ops[i]);
    }
    wait_for(f, MANY);
    ops[0] = op_of(f, KVD_FILE_SYNC, NULL, 0, 0);
    kvd_files_start(f->files, &ops[0]);
    wait_for(f, MANY + 1);
    for (uint32_t i = 0; i < MANY; i++) {
        ops[i] = op_of(f, KVD_FILE_READ, in[i], BYTES, (uint64_t)(MANY - 1 - i) * BYTES);
        kvd_files_start(f->files, &ops[i]);
    }
    wait_for(f, 2 * MANY + 1);
    assert_int_equal(f->failed, 0);
    assert_memory_equal(in, out, sizeof in);
}

/* A read past the end fails, and does not go on for ever; a closed descriptor names its error. */
static void failures_are_told(struct fixture *f)
{
    uint8_t bytes[256];
    struct kvd_file_op op = op_of(f, KVD_FILE_WRITE, memset(bytes, 1, sizeof bytes), 100, 0);

    kvd_files_start(f->files, &op);
    wait_for(f, 1);
    assert_int_equal(f->failed, 0);
    op = op_of(f, KVD_FILE_READ, bytes, sizeof bytes, 0);
    kvd_files_start(f->files, &op);
    wait_for(f, 2);
    assert_int_equal(f->failed, EIO);
    assert_int_equal(op.moved, 100);
    op = op_of(f, KVD_FILE_SYNC, NULL, 0, 0);
    op.fd = -1;
    kvd_files_start(f->files, &op);
    wait_for(f, 3);
    assert_int_equal(f->failed, EBADF);
}

static int call(void *context)
{
    ((struct fixture *)context)->called++;
    return ENOSPC;
}

static void a_call_runs_on_a_thread(struct fixture *f)
{
    struct kvd_file_op op = {.what = KVD_FILE_CALL, .call = call, .done = done, .context = f};

    kvd_files_start(f->files, &op);
    wait_for(f, 1);
    assert_int_equal(f->called, 1);
    assert_int_equal(f->failed, ENOSPC);
}

/* Closing with operations in flight waits for them: their memory may go afterwards. */
static void closing_waits(enum kvd_files_kind kind)
{
    static struct kvd_file_op ops[MANY];
    struct fixture f;
    uint8_t *bytes = malloc(BYTES), check;

    open_with(&f, kind);
    memset(bytes, 9, BYTES);
    for (uint32_t i = 0; i < MANY; i++) {
        ops[i] = op_of(&f, KVD_FILE_WRITE, bytes, BYTES, (uint64_t)i * BYTES);
        kvd_files_start(f.files, &ops[i]);
    }
    kvd_files_close(&f.files);
    free(bytes);
    assert_int_equal(pread(f.fd, &check, 1, 0), 1);
    assert_int_equal(check, 9);
    assert_int_equal(f.done, 0);
    close_all(&f);
}

static void all_with(enum kvd_files_kind kind, const char *name)
{
    void (*const tests[])(struct fixture *) = {what_is_written_is_read, failures_are_told,
                                               a_call_runs_on_a_thread};

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        struct fixture f;

        open_with(&f, kind);
        assert_string_equal(kvd_files_backend(f.files), name);
        tests[i](&f);
        close_all(&f);
    }
    closing_waits(kind);
}

static void threads(void **state)
{
    (void)state;
    all_with(KVD_FILES_THREADS, "threads");
}

static void io_uring(void **state)
{
    struct uv_loop_s *loop = kvd_loop_new();
    struct kvd_files *files;
    kvarn_status status = kvd_files_open(&files, loop, KVD_FILES_URING);

    (void)state;
    kvd_files_close(&files);
    kvd_loop_free(&loop);
    if (status == KVARN_UNSUPPORTED)
        skip(); /* the system forbids it: AUTO then takes threads */
    assert_int_equal(status, KVARN_OK);
    all_with(KVD_FILES_URING, "io_uring");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads), cmocka_unit_test(io_uring)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
