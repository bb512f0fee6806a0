/* device/wipes: what is added is told once, in runs, and again when it was lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/core/limits.h"
#include "server/device/wipes.h"
#include "support/fake_device.h"

enum { UNIT = 2 << 20, UNITS = 200, QUEUE = 64 };

static struct kvd_device *device;
static struct kvd_wipes *wipes;
static struct {
    struct kvd_job *job;
    kvd_job_done done;
    void *context;
} queued[QUEUE];
static uint32_t first, last, failures;
static bool full;

static kvarn_status queue(struct kvd_device *of, struct kvd_job *job, kvd_job_done done,
                          void *context)
{
    assert_ptr_equal(of, device);
    if (full)
        return KVARN_RETRY;
    assert_true(last < QUEUE);
    queued[last].job = job;
    queued[last].done = done;
    queued[last++].context = context;
    return KVARN_OK;
}

static void failed(struct kvd_device *of)
{
    assert_ptr_equal(of, device);
    failures++;
}

/* The job's ranges as text: "3+2 9+1", in units. */
static void ranges(const struct kvd_job *job, char *text)
{
    const struct kvd_zero *entries = (const struct kvd_zero *)(const void *)(job + 1);

    assert_int_equal(job->op, KVD_JOB_ZERO);
    assert_int_equal(job->job_bytes, sizeof(*job) + job->count * sizeof(*entries));
    text[0] = '\0';
    for (uint32_t i = 0; i < job->count; i++) {
        assert_int_equal(entries[i].at.region, KVD_REGION_POOL);
        assert_int_equal(entries[i].at.offset % UNIT, 0);
        text += sprintf(text, "%s%u+%u", i ? " " : "", (unsigned)(entries[i].at.offset / UNIT),
                        (unsigned)(entries[i].bytes / UNIT));
    }
}

static void answer(kvarn_status status)
{
    assert_true(first < last);
    first++;
    queued[first - 1].done(queued[first - 1].context, queued[first - 1].job, status);
}

static void add(uint64_t unit, uint64_t units)
{
    kvd_wipes_add(wipes, unit * UNIT, units * UNIT);
}

static int setup(void **state)
{
    const struct kvd_wipes_options options = {
        .unit_bytes = UNIT, .pool_bytes = (uint64_t)UNITS * UNIT, .queue = queue, .failed = failed};
    struct kvd_wipes_options o = options;

    (void)state;
    device = fake_device_new(4096, 1 << 20);
    first = last = failures = 0;
    full = false;
    o.device = device;
    return kvd_wipes_open(&wipes, &o) == KVARN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    while (first < last)
        answer(KVARN_OK);
    assert_int_equal(fake_device_staging_used(device), 0);
    kvd_wipes_close(&wipes);
    assert_null(wipes);
    fake_device_free(device);
    return 0;
}

static void neighbours_are_told_as_one_range(void **state)
{
    char text[256];

    (void)state;
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    assert_int_equal(last, 0);
    add(3, 2);
    add(9, 1);
    add(5, 1);
    add(62, 4);
    add(UNITS - 1, 1);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    assert_int_equal(last, 1);
    ranges(queued[0].job, text);
    assert_string_equal(text, "3+3 9+1 62+4 199+1");
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    assert_int_equal(last, 1);
    answer(KVARN_OK);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    assert_int_equal(last, 1);
}

static void what_was_lost_is_told_again(void **state)
{
    char text[256];

    (void)state;
    add(1, 1);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    add(2, 1);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    add(7, 1);
    answer(KVARN_GPU_LOST);
    answer(KVARN_GPU_LOST);
    assert_int_equal(failures, 0);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    assert_int_equal(last, 3);
    ranges(queued[2].job, text);
    assert_string_equal(text, "1+2 7+1");
}

static void a_worker_that_does_not_do_it_is_told_of(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        add(4, 2);
        assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
        assert_int_equal(last, how + 1);
        if (how == 1)
            queued[how].job->status = KVARN_INTERNAL;
        if (how == 2)
            ((struct kvd_zero *)(void *)(queued[how].job + 1))->status = KVARN_INTERNAL;
        answer(how == 0 ? KVARN_INTERNAL : KVARN_OK);
        assert_int_equal(failures, how + 1);
    }
}

static void it_waits_for_a_place(void **state)
{
    uint8_t *all;

    (void)state;
    add(4, 2);
    full = true;
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_RETRY);
    full = false;
    all = kvd_staging_take(device, kvd_staging_free_bytes(device));
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_RETRY);
    kvd_staging_give(device, all);
    for (uint32_t jobs = 0; jobs < 32; jobs++) {
        add(jobs, 1);
        assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    }
    add(100, 1);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_RETRY); /* so many may be in flight */
    answer(KVARN_OK);
    assert_int_equal(kvd_wipes_flush(wipes), KVARN_OK);
    assert_int_equal(last, 33);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(neighbours_are_told_as_one_range, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_lost_is_told_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_that_does_not_do_it_is_told_of, setup, teardown),
        cmocka_unit_test_setup_teardown(it_waits_for_a_place, setup, teardown),
    };

    return cmocka_run_group_tests_name("wipes", tests, NULL, NULL);
}
