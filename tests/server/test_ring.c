/* The ring: order, bounds, hand-over between two threads and between two processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/core/ring.h"

enum { HAND_OVER = 200000 };

struct pair {
    struct kvd_ring *there, *back;
    struct kvd_ring_producer there_end, back_end;
    int there_bell, back_bell;
};

static struct kvd_ring *shared_ring(void)
{
    return mmap(NULL, sizeof(struct kvd_ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
}

static void pair_open(struct pair *pair)
{
    pair->there = shared_ring();
    pair->back = shared_ring();
    pair->there_bell = kvd_bell_open();
    pair->back_bell = kvd_bell_open();
    kvd_ring_reset(pair->there, false);
    kvd_ring_reset(pair->back, false);
}

static void pair_close(struct pair *pair)
{
    munmap(pair->there, sizeof(struct kvd_ring));
    munmap(pair->back, sizeof(struct kvd_ring));
    close(pair->there_bell);
    close(pair->back_bell);
}

static void take_or_block(struct kvd_ring *ring, int bell, struct kvd_ring_entry *entry)
{
    while (!kvd_ring_pop(ring, entry)) {
        if (!kvd_ring_sleep(ring))
            continue;
        struct pollfd wait = {.fd = bell, .events = POLLIN};
        poll(&wait, 1, -1);
        kvd_bell_clear(bell);
        kvd_ring_wake(ring);
    }
}

/* Sends everything back; the other side sees order and content. */
static void echo(struct pair *pair)
{
    for (uint64_t i = 0; i < HAND_OVER; i++) {
        struct kvd_ring_entry entry;
        take_or_block(pair->there, pair->there_bell, &entry);
        if (entry.cookie != i || entry.job != i * 64)
            abort();
        entry.job++;
        if (!kvd_ring_push(pair->back, &pair->back_end, entry))
            abort(); /* the sender keeps the ring's bound */
        if (kvd_ring_publish(pair->back, &pair->back_end))
            kvd_bell_ring(pair->back_bell);
    }
}

static void *echo_thread(void *pair)
{
    echo(pair);
    return NULL;
}

static void drive(struct pair *pair)
{
    uint64_t sent = 0, received = 0;
    while (received < HAND_OVER) {
        /* bursts of changing length, never more than the ring holds */
        uint64_t burst = 1 + sent % 37;
        while (burst-- > 0 && sent < HAND_OVER && sent - received < KVD_RING_ENTRIES) {
            assert_true(kvd_ring_push(pair->there, &pair->there_end,
                                      (struct kvd_ring_entry){sent * 64, sent}));
            sent++;
        }
        if (kvd_ring_publish(pair->there, &pair->there_end))
            kvd_bell_ring(pair->there_bell);
        struct kvd_ring_entry entry;
        take_or_block(pair->back, pair->back_bell, &entry);
        do {
            assert_int_equal(entry.cookie, received);
            assert_int_equal(entry.job, received * 64 + 1);
            received++;
        } while (kvd_ring_pop(pair->back, &entry));
    }
}

static void two_threads_hand_over(void **state)
{
    (void)state;
    struct pair pair = {0};
    pthread_t thread;
    pair_open(&pair);
    assert_int_equal(pthread_create(&thread, NULL, echo_thread, &pair), 0);
    drive(&pair);
    pthread_join(thread, NULL);
    pair_close(&pair);
}

static void two_processes_hand_over(void **state)
{
    (void)state;
    struct pair pair = {0};
    int ended;
    pair_open(&pair);
    pid_t child = fork();
    if (child == 0) {
        echo(&pair);
        _exit(0);
    }
    drive(&pair);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    pair_close(&pair);
}

static void nothing_is_seen_before_publish(void **state)
{
    (void)state;
    struct kvd_ring *ring = shared_ring();
    struct kvd_ring_producer producer = {0};
    struct kvd_ring_entry entry;
    kvd_ring_reset(ring, true);
    assert_true(kvd_ring_push(ring, &producer, (struct kvd_ring_entry){1, 2}));
    assert_false(kvd_ring_pop(ring, &entry));
    assert_true(kvd_ring_publish(ring, &producer));  /* asleep: ring */
    assert_false(kvd_ring_publish(ring, &producer)); /* nothing new: do not */
    assert_int_equal(kvd_ring_count(ring), 1);
    assert_false(kvd_ring_sleep(ring));
    assert_true(kvd_ring_pop(ring, &entry));
    assert_int_equal(entry.job, 1);
    assert_int_equal(entry.cookie, 2);
    assert_true(kvd_ring_sleep(ring));
    kvd_ring_wake(ring);
    assert_true(kvd_ring_push(ring, &producer, entry));
    assert_false(kvd_ring_publish(ring, &producer)); /* awake: no need */
    munmap(ring, sizeof(*ring));
}

static void full_ring_refuses(void **state)
{
    (void)state;
    struct kvd_ring *ring = shared_ring();
    struct kvd_ring_producer producer = {0};
    struct kvd_ring_entry entry = {0, 0};
    kvd_ring_reset(ring, false);
    for (int lap = 0; lap < 3; lap++) {
        for (uint64_t i = 0; i < KVD_RING_ENTRIES; i++)
            assert_true(kvd_ring_push(ring, &producer, (struct kvd_ring_entry){i, i}));
        assert_false(kvd_ring_push(ring, &producer, entry));
        kvd_ring_publish(ring, &producer);
        assert_int_equal(kvd_ring_count(ring), KVD_RING_ENTRIES);
        for (uint64_t i = 0; i < KVD_RING_ENTRIES; i++) {
            assert_true(kvd_ring_pop(ring, &entry));
            assert_int_equal(entry.job, i);
        }
        assert_int_equal(kvd_ring_count(ring), 0);
    }
    atomic_store(&ring->tail, 5 * KVD_RING_ENTRIES);
    assert_int_equal(kvd_ring_count(ring), -1);
    munmap(ring, sizeof(*ring));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_seen_before_publish),
        cmocka_unit_test(full_ring_refuses),
        cmocka_unit_test(two_threads_hand_over),
        cmocka_unit_test(two_processes_hand_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
