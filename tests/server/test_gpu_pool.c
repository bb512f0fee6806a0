/* device/gpu_pool: what the first worker sends is kept, and nothing else is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/core/limits.h"
#include "server/device/chunks.h"
#include "server/device/gpu_pool.h"

enum { CHUNKS = 300 };

/* The lowest free number: goes up by every descriptor that is left open. */
static int next_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static void make_fds(int *fds, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fds[i] = memfd_create("chunk", MFD_CLOEXEC);
        assert_int_equal(ftruncate(fds[i], 4096 + (off_t)(first + i)), 0);
    }
}

static kvarn_status say_pool(struct kvd_gpu_pool *pool, uint32_t chunks, uint64_t chunk_bytes)
{
    struct kvd_link_pool said = {
        .kind = KVD_LINK_POOL_MADE, .chunks = chunks, .chunk_bytes = chunk_bytes};

    return kvd_gpu_pool_take(pool, &said, sizeof(said), NULL, 0);
}

static kvarn_status say_chunks(struct kvd_gpu_pool *pool, uint32_t first, uint32_t count,
                               uint32_t sent)
{
    struct kvd_link_chunks said = {.kind = KVD_LINK_CHUNKS, .first = first, .count = count};
    int fds[KVD_LINK_FDS_MAX];

    make_fds(fds, first, sent);
    return kvd_gpu_pool_take(pool, &said, sizeof(said), fds, sent);
}

static void a_later_worker_gets_what_the_first_one_sent(void **state)
{
    struct kvd_gpu_pool pool = {0};
    int before = next_fd(), pair[2], fds[KVD_LINK_FDS_MAX];
    uint32_t seen = 0;

    (void)state;
    assert_false(kvd_gpu_pool_complete(&pool));
    assert_int_equal(say_pool(&pool, CHUNKS, 64 << 20), KVARN_OK);
    assert_int_equal(say_chunks(&pool, 0, 200, 200), KVARN_OK);
    assert_false(kvd_gpu_pool_complete(&pool));
    assert_int_equal(say_chunks(&pool, 200, 100, 100), KVARN_OK);
    assert_true(kvd_gpu_pool_complete(&pool));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    for (int life = 0; life < 2; life++) {
        assert_int_equal(kvd_gpu_pool_send(&pool, pair[0]), KVARN_OK);
        for (seen = 0; seen < CHUNKS;) {
            struct kvd_link_chunks said;
            uint32_t got, count;

            assert_int_equal(kvd_chunks_receive(pair[1], &said, sizeof(said), &got, fds, &count),
                             KVARN_OK);
            assert_int_equal(said.first, seen);
            for (uint32_t i = 0; i < count; i++) {
                struct stat stat;
                assert_int_equal(fstat(fds[i], &stat), 0);
                assert_int_equal(stat.st_size, 4096 + seen++);
                close(fds[i]);
            }
        }
    }
    close(pair[1]);
    assert_int_equal(kvd_gpu_pool_send(&pool, pair[0]), KVARN_INTERNAL);
    close(pair[0]);
    kvd_gpu_pool_close(&pool);
    assert_int_equal(next_fd(), before);
}

static void nonsense_is_refused_and_leaks_nothing(void **state)
{
    struct kvd_gpu_pool pool = {0};
    struct kvd_link_pool said = {
        .kind = KVD_LINK_POOL_MADE, .chunks = 4, .chunk_bytes = KVD_CHUNK_ALIGN_BYTES};
    int before = next_fd(), fd;

    (void)state;
    assert_int_equal(say_chunks(&pool, 0, 1, 1), KVARN_INTERNAL); /* of no pool */
    assert_int_equal(say_pool(&pool, 0, 2 << 20), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, KVD_POOL_CHUNKS_MAX + 1, 2 << 20), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, 4, 0), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, 4, 4096), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, 4, UINT64_MAX / 2 + 1), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, 1, UINT64_C(1) << 62), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, 4, KVD_CHUNK_BYTES + KVD_CHUNK_ALIGN_BYTES), KVARN_INTERNAL);
    assert_int_equal(kvd_gpu_pool_take(&pool, &said, sizeof(said) - 1, NULL, 0), KVARN_INTERNAL);
    assert_int_equal(kvd_gpu_pool_take(&pool, &said, 3, NULL, 0), KVARN_INTERNAL);
    make_fds(&fd, 0, 1);
    assert_int_equal(kvd_gpu_pool_take(&pool, &said, sizeof(said), &fd, 1), KVARN_INTERNAL);
    assert_int_equal(say_pool(&pool, 4, 2 << 20), KVARN_OK);
    assert_int_equal(say_pool(&pool, 4, 2 << 20), KVARN_INTERNAL); /* a second time */
    assert_int_equal(say_chunks(&pool, 1, 1, 1), KVARN_INTERNAL);
    assert_int_equal(say_chunks(&pool, 0, 2, 1), KVARN_INTERNAL);
    assert_int_equal(say_chunks(&pool, 0, 5, 5), KVARN_INTERNAL);
    assert_int_equal(say_chunks(&pool, 0, 3, 3), KVARN_OK);
    assert_int_equal(say_chunks(&pool, 3, 2, 2), KVARN_INTERNAL);
    assert_false(kvd_gpu_pool_complete(&pool));
    kvd_gpu_pool_close(&pool);
    assert_int_equal(next_fd(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_worker_gets_what_the_first_one_sent),
        cmocka_unit_test(nonsense_is_refused_and_leaks_nothing),
    };

    return cmocka_run_group_tests_name("gpu_pool", tests, NULL, NULL);
}
