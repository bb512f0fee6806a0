/* device/stall: a hang is seen, long work is not one. Times are lower bounds; nothing here fails
 * because the machine is slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/core/clock.h"
#include "server/core/loop.h"
#include "server/device/stall.h"

enum { STALL_MS = 80 };

static struct {
    struct uv_loop_s *loop;
    struct kvd_stall *stall;
    bool busy, moving;
    uint64_t moved;
    uint32_t looks, stalls;
} it;

static bool busy(void *context)
{
    assert_ptr_equal(context, &it);
    it.looks++;
    return it.busy;
}

static uint64_t moved(void *context)
{
    assert_ptr_equal(context, &it);
    it.moved += it.moving;
    return it.moved;
}

static void stalled(void *context)
{
    assert_ptr_equal(context, &it);
    it.stalls++;
}

static int setup(void **state)
{
    const struct kvd_stall_options options = {
        .stall_ms = STALL_MS, .busy = busy, .moved = moved, .stalled = stalled, .context = &it};
    struct kvd_stall_options o = options;

    (void)state;
    it.loop = kvd_loop_new();
    it.busy = true;
    it.moving = false;
    it.looks = it.stalls = 0;
    o.loop = it.loop;
    return kvd_stall_open(&it.stall, &o) == KVARN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvd_stall_close(&it.stall);
    assert_null(it.stall);
    kvd_loop_free(&it.loop);
    return 0;
}

static void what_stands_still_stalls(void **state)
{
    uint64_t start = kvd_now_ns();

    (void)state;
    kvd_stall_watch(it.stall);
    kvd_stall_watch(it.stall); /* goes on as it was */
    while (it.stalls == 0)
        kvd_loop_turn(it.loop);
    assert_true(kvd_now_ns() - start >= STALL_MS * 1000000ull);
    assert_int_equal(it.looks, 4);
    while (it.stalls == 1) /* whoever does not go is told of again */
        kvd_loop_turn(it.loop);
    assert_int_equal(it.looks, 8);
}

static void what_moves_does_not(void **state)
{
    (void)state;
    it.moving = true;
    kvd_stall_watch(it.stall);
    while (it.looks < 12)
        kvd_loop_turn(it.loop);
    assert_int_equal(it.stalls, 0);
    it.moving = false; /* now it hangs */
    while (it.stalls == 0)
        kvd_loop_turn(it.loop);
    assert_int_equal(it.looks, 16);
}

static void it_ends_with_the_work(void **state)
{
    (void)state;
    it.busy = false;
    kvd_stall_watch(it.stall);
    kvd_loop_run(it.loop); /* ends: nothing waits for anything */
    assert_int_equal(it.looks, 1);
    it.busy = true;
    kvd_stall_watch(it.stall);
    kvd_stall_rest(it.stall);
    kvd_loop_run(it.loop);
    assert_int_equal(it.looks, 1);
    assert_int_equal(it.stalls, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_stands_still_stalls, setup, teardown),
        cmocka_unit_test_setup_teardown(what_moves_does_not, setup, teardown),
        cmocka_unit_test_setup_teardown(it_ends_with_the_work, setup, teardown),
    };

    return cmocka_run_group_tests_name("stall", tests, NULL, NULL);
}
