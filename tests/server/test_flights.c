/* device/flights: every job is told once; made-up, doubled and outdated cookies are told from real
 * ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/device/flights.h"
#include "support/rng.h"

static struct kvd_flights flights;
static struct kvd_job jobs[KVD_RING_ENTRIES];
static uint64_t cookies[KVD_RING_ENTRIES];
static unsigned told[KVD_RING_ENTRIES];
static kvarn_status last_status;

static int clear(void **state)
{
    (void)state;
    kvd_flights_init(&flights);
    memset(told, 0, sizeof told);
    return 0;
}

static void done(void *context, struct kvd_job *job, kvarn_status status)
{
    assert_ptr_equal(context, &flights);
    told[job - jobs]++;
    last_status = status;
}

static bool add(uint32_t i)
{
    return kvd_flights_add(&flights, &jobs[i], done, &flights, &cookies[i]);
}

static void the_table_fills_and_empties(void **state)
{
    uint64_t cookie = 77;

    (void)state;
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++)
        assert_true(add(i));
    assert_false(kvd_flights_add(&flights, &jobs[0], done, &flights, &cookie));
    assert_int_equal(cookie, 77);
    assert_int_equal(flights.in_flight, KVD_RING_ENTRIES);
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++)
        assert_true(kvd_flights_end(&flights, cookies[(i * 37 + 5) % KVD_RING_ENTRIES], KVARN_OK));
    assert_int_equal(flights.in_flight, 0);
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++)
        assert_int_equal(told[i], 1);
    for (uint32_t i = 0; i < KVD_RING_ENTRIES; i++) /* and all places are free again */
        assert_true(add(i));
}

static void foreign_cookies_are_refused(void **state)
{
    const uint64_t count = (uint64_t)1 << 32;
    uint64_t old;

    (void)state;
    assert_false(kvd_flights_end(&flights, 0, KVARN_OK)); /* a place that never had a job */
    assert_true(add(3));
    old = cookies[3];
    assert_false(kvd_flights_end(&flights, old + count, KVARN_OK));
    assert_false(kvd_flights_end(&flights, old - count, KVARN_OK));
    assert_false(kvd_flights_end(&flights, old + 1, KVARN_OK));
    assert_false(kvd_flights_end(&flights, (old & ~0xffffffffull) | KVD_RING_ENTRIES, KVARN_OK));
    assert_false(kvd_flights_end(&flights, old | 0xffffffffull, KVARN_OK));
    assert_int_equal(told[3], 0);
    assert_true(kvd_flights_end(&flights, old, KVARN_GPU_LOST));
    assert_int_equal(last_status, KVARN_GPU_LOST);
    assert_false(kvd_flights_end(&flights, old, KVARN_OK)); /* the second answer to one job */
    assert_int_equal(told[3], 1);
    assert_true(add(4)); /* has the same place */
    assert_int_equal((uint32_t)cookies[4], (uint32_t)old);
    assert_false(kvd_flights_end(&flights, old, KVARN_OK));
    assert_int_equal(told[4], 0);
    assert_true(kvd_flights_end(&flights, cookies[4], KVARN_OK));
}

static void taking_makes_no_call(void **state)
{
    struct kvd_flight flight;

    (void)state;
    assert_true(add(9));
    assert_true(kvd_flights_take(&flights, cookies[9], &flight));
    assert_ptr_equal(flight.job, &jobs[9]);
    assert_ptr_equal(flight.context, &flights);
    assert_int_equal(told[9], 0);
    assert_int_equal(flights.in_flight, 0);
    assert_false(kvd_flights_take(&flights, cookies[9], &flight));
}

static unsigned again;

/* Told that its job is lost, an owner may hand in the next one at once. */
static void starts_another(void *context, struct kvd_job *job, kvarn_status status)
{
    done(context, job, status);
    if (again < 5) {
        again++;
        assert_true(
            kvd_flights_add(&flights, &jobs[100 + again], done, &flights, &cookies[100 + again]));
    }
}

static void ending_all_tells_everyone_once(void **state)
{
    (void)state;
    again = 0;
    for (uint32_t i = 0; i < 20; i++)
        assert_true(kvd_flights_add(&flights, &jobs[i], starts_another, &flights, &cookies[i]));
    assert_true(kvd_flights_end(&flights, cookies[7], KVARN_OK));
    kvd_flights_end_all(&flights, KVARN_GPU_LOST);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(told[i], 1);
    assert_int_equal(last_status, KVARN_GPU_LOST);
}

/* Random traffic against a plain table of who is in flight. */
static void random_traffic(void **state)
{
    static bool in_flight[KVD_RING_ENTRIES];
    struct rng rng = rng_make(rng_seed(4));
    uint32_t count = 0;

    (void)state;
    for (int round = 0; round < 50000; round++) {
        uint32_t i = rng_below(&rng, 300);

        if (in_flight[i]) {
            told[i] = 0;
            assert_true(kvd_flights_end(&flights, cookies[i], KVARN_OK));
            assert_int_equal(told[i], 1);
            count--;
        } else {
            assert_true(add(i));
            count++;
        }
        in_flight[i] = !in_flight[i];
        assert_int_equal(flights.in_flight, count);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_table_fills_and_empties),
        TEST(foreign_cookies_are_refused),
        TEST(taking_makes_no_call),
        TEST(ending_all_tells_everyone_once),
        TEST(random_traffic),
    };
    return cmocka_run_group_tests_name("flights", tests, NULL, NULL);
}
