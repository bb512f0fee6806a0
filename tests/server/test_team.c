/* The team: every unit once, whatever the number of threads and units; start and end in a hurry. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "server/device/team.h"

enum { UNITS = 300, THREADS = 8 };

struct work {
    uint8_t done[UNITS]; /* plain: a unit is one thread's alone */
    uint64_t sum[THREADS];
    _Atomic uint32_t wrong;
};

static void do_unit(void *context, uint32_t thread, uint64_t unit)
{
    struct work *work = context;
    if (thread >= THREADS || unit >= UNITS || work->done[unit] != 0)
        atomic_fetch_add(&work->wrong, 1);
    work->done[unit]++;
    work->sum[thread] += unit + 1;
}

static void every_unit_is_done_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= THREADS; threads++) {
        struct kvd_team *team = NULL;
        assert_int_equal(kvd_team_open(&team, threads), KVARN_OK);
        assert_int_equal(kvd_team_threads(team), threads);
        for (uint32_t round = 0; round < 600; round++) {
            uint64_t units = round % UNITS, sum = 0;
            struct work work;
            memset(&work, 0, sizeof(work));
            kvd_team_run(team, units, do_unit, &work);
            for (uint32_t t = 0; t < THREADS; t++)
                sum += work.sum[t];
            assert_int_equal(sum, units * (units + 1) / 2);
            assert_int_equal(atomic_load(&work.wrong), 0);
        }
        kvd_team_close(&team);
        assert_null(team);
    }
}

static void a_team_may_end_before_it_worked(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct kvd_team *team = NULL;
        assert_int_equal(kvd_team_open(&team, 4), KVARN_OK);
        kvd_team_close(&team);
    }
    assert_in_range(kvd_cpus_available(), 1, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_is_done_once),
        cmocka_unit_test(a_team_may_end_before_it_worked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
