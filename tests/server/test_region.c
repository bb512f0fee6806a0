/* Shared memory: sealed, seen by both mappings, zeroed by pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/device/region.h"

enum { BYTES = 8 << 20 };

static void size_is_sealed(void **state)
{
    (void)state;
    struct kvd_memory memory;
    assert_int_equal(kvd_memory_open(&memory, "test", BYTES), KVARN_OK);
    assert_int_equal(ftruncate(memory.fd, BYTES / 2), -1);
    assert_int_equal(ftruncate(memory.fd, BYTES * 2), -1);
    assert_int_equal(fcntl(memory.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_true(fcntl(memory.fd, F_GETFD) & FD_CLOEXEC);
    kvd_memory_close(&memory);
    assert_null(memory.base);
    kvd_memory_close(&memory);
}

static void both_mappings_see_one_memory(void **state)
{
    (void)state;
    struct kvd_memory front, worker;
    assert_int_equal(kvd_memory_open(&front, "test", BYTES), KVARN_OK);
    assert_int_equal(kvd_memory_attach(&worker, dup(front.fd), BYTES), KVARN_OK);
    memset(front.base + 5000, 7, 10000);
    assert_int_equal(worker.base[5000], 7);
    kvd_memory_zero(&front, 8192, 4096);
    assert_int_equal(worker.base[8191], 7);
    assert_int_equal(worker.base[8192], 0);
    assert_int_equal(worker.base[12287], 0);
    assert_int_equal(worker.base[12288], 7);
    kvd_memory_close(&worker);
    kvd_memory_close(&front);
}

static void zeroed_pages_go_back(void **state)
{
    (void)state;
    struct kvd_memory memory;
    struct stat before, after;
    assert_int_equal(kvd_memory_open(&memory, "test", BYTES), KVARN_OK);
    memset(memory.base, 1, BYTES);
    assert_int_equal(fstat(memory.fd, &before), 0);
    kvd_memory_zero(&memory, 0, BYTES);
    assert_int_equal(fstat(memory.fd, &after), 0);
    assert_true(before.st_blocks * 512 >= BYTES);
    assert_int_equal(after.st_blocks, 0);
    kvd_memory_close(&memory);
}

static void strangers_are_refused(void **state)
{
    (void)state;
    struct kvd_memory memory;
    int open_size = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(open_size, BYTES), 0);
    assert_int_equal(kvd_memory_attach(&memory, open_size, BYTES), KVARN_INTERNAL);
    assert_int_equal(fcntl(open_size, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(kvd_memory_attach(&memory, open_size, BYTES + 4096), KVARN_INTERNAL);
    close(open_size);
    assert_int_equal(kvd_memory_attach(&memory, open_size, BYTES), KVARN_INTERNAL);
    assert_int_equal(kvd_memory_open(&memory, "test", 0), KVARN_INTERNAL);
    assert_int_equal(kvd_memory_open(&memory, "test", UINT64_MAX), KVARN_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_is_sealed),
        cmocka_unit_test(both_mappings_see_one_memory),
        cmocka_unit_test(zeroed_pages_go_back),
        cmocka_unit_test(strangers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
