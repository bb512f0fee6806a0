/* device/chunks: descriptors arrive in order, what does not fit is refused and leaks nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/device/chunks.h"

static void open_pair(int pair[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
}

/* The lowest free number: goes up by every descriptor that is left open. */
static int next_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static void descriptors_arrive_in_order(void **state)
{
    int pair[2], fds[KVD_LINK_FDS_MAX], came[KVD_LINK_FDS_MAX];
    struct kvd_link_chunks chunks;
    uint32_t got, count;

    (void)state;
    open_pair(pair);
    for (int i = 0; i < KVD_LINK_FDS_MAX; i++) {
        fds[i] = memfd_create("chunk", MFD_CLOEXEC);
        assert_int_equal(ftruncate(fds[i], 4096 + i), 0);
    }
    assert_int_equal(kvd_chunks_send(pair[0], 506, fds, KVD_LINK_FDS_MAX), KVARN_OK);
    for (int i = 0; i < KVD_LINK_FDS_MAX; i++)
        close(fds[i]);
    assert_int_equal(kvd_chunks_receive(pair[1], &chunks, sizeof(chunks), &got, came, &count),
                     KVARN_OK);
    assert_int_equal(got, sizeof(chunks));
    assert_int_equal(chunks.kind, KVD_LINK_CHUNKS);
    assert_int_equal(chunks.first, 506);
    assert_int_equal(chunks.count, KVD_LINK_FDS_MAX);
    assert_int_equal(count, KVD_LINK_FDS_MAX);
    for (int i = 0; i < KVD_LINK_FDS_MAX; i++) {
        struct stat stat;
        assert_int_equal(fstat(came[i], &stat), 0);
        assert_int_equal(stat.st_size, 4096 + i);
        assert_int_equal(fcntl(came[i], F_GETFD), FD_CLOEXEC);
        close(came[i]);
    }
    close(pair[0]);
    close(pair[1]);
}

static void other_messages_come_without(void **state)
{
    int pair[2], came[KVD_LINK_FDS_MAX];
    struct kvd_link_pool sent = {.kind = KVD_LINK_POOL_MADE, .chunks = 5, .chunk_bytes = 1 << 21};
    struct kvd_link_hello message;
    uint32_t got, count;

    (void)state;
    open_pair(pair);
    assert_int_equal(kvd_chunks_receive(pair[1], &message, sizeof(message), &got, came, &count),
                     KVARN_RETRY);
    assert_int_equal(send(pair[0], &sent, sizeof(sent), 0), sizeof(sent));
    assert_int_equal(kvd_chunks_receive(pair[1], &message, sizeof(message), &got, came, &count),
                     KVARN_OK);
    assert_int_equal(got, sizeof(sent));
    assert_int_equal(count, 0);
    assert_memory_equal(&message, &sent, sizeof(sent));
    close(pair[0]);
    assert_int_equal(kvd_chunks_receive(pair[1], &message, sizeof(message), &got, came, &count),
                     KVARN_OK);
    assert_int_equal(got, 0);
    close(pair[1]);
}

static void what_is_cut_is_refused_and_closed(void **state)
{
    int pair[2], came[KVD_LINK_FDS_MAX], fds[3] = {0, 0, 0}, before;
    uint32_t got, count, word;

    (void)state;
    open_pair(pair);
    before = next_fd();
    assert_int_equal(kvd_chunks_send(pair[0], 0, fds, 3), KVARN_OK);
    assert_int_equal(kvd_chunks_receive(pair[1], &word, sizeof(word), &got, came, &count),
                     KVARN_INTERNAL);
    assert_int_equal(count, 0);
    assert_int_equal(next_fd(), before);
    close(pair[0]);
    close(pair[1]);
}

static void nobody_to_send_to(void **state)
{
    int pair[2], fds[KVD_LINK_FDS_MAX + 1] = {0};

    (void)state;
    open_pair(pair);
    assert_int_equal(kvd_chunks_send(pair[0], 0, fds, 0), KVARN_INTERNAL);
    assert_int_equal(kvd_chunks_send(pair[0], 0, fds, KVD_LINK_FDS_MAX + 1), KVARN_INTERNAL);
    fds[0] = -1;
    assert_int_equal(kvd_chunks_send(pair[0], 0, fds, 1), KVARN_INTERNAL);
    fds[0] = 0;
    kvarn_status status = KVARN_OK;
    for (int i = 0; i < 100000 && status == KVARN_OK; i++)
        status = kvd_chunks_send(pair[0], 0, fds, 1);
    assert_int_equal(status, KVARN_RETRY);
    close(pair[1]);
    assert_int_equal(kvd_chunks_send(pair[0], 0, fds, 1), KVARN_INTERNAL);
    close(pair[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_arrive_in_order),
        cmocka_unit_test(other_messages_come_without),
        cmocka_unit_test(what_is_cut_is_refused_and_closed),
        cmocka_unit_test(nobody_to_send_to),
    };
    return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
