/* The table of epochs: numbers only rise, and room is made of what nobody holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/epochs.h"

static struct kvd_epochs epochs;
static bool kept[KVD_EPOCHS_MAX + 8]; /* by number */

static const uint8_t *base_of(uint32_t number)
{
    static uint8_t base[KVARN_FINGERPRINT_BYTES];

    memcpy(base, &number, sizeof number);
    return base;
}

static bool held(void *context, const struct kvd_epoch *row)
{
    uint32_t number;

    memcpy(&number, row->base, sizeof number);
    return ((const bool *)context)[number];
}

static int setup(void **state)
{
    (void)state;
    memset(&epochs, 0, sizeof epochs);
    memset(kept, 0, sizeof kept);
    epochs.held = held;
    epochs.context = kept;
    return 0;
}

static void numbers_only_rise(void **state)
{
    (void)state;
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(1)), 0);
    assert_true(kvd_epochs_raise(&epochs, "x", base_of(1), 2));
    assert_true(kvd_epochs_raise(&epochs, "x", base_of(1), 1));
    assert_true(kvd_epochs_raise(&epochs, "y", base_of(1), 7));
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(1)), 2);
    assert_int_equal(kvd_epochs_of(&epochs, "y", base_of(1)), 7);
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(2)), 0);
}

static void fill(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        kept[i] = true;
        assert_true(kvd_epochs_raise(&epochs, "x", base_of(i), i + 1));
    }
}

static void a_full_table_of_held_rows_is_full(void **state)
{
    (void)state;
    fill(KVD_EPOCHS_MAX);
    assert_false(kvd_epochs_raise(&epochs, "x", base_of(KVD_EPOCHS_MAX), 1));
    assert_int_equal(epochs.count, KVD_EPOCHS_MAX);
    assert_true(kvd_epochs_raise(&epochs, "x", base_of(5), 99)); /* it has a row */
    for (uint32_t i = 0; i < KVD_EPOCHS_MAX; i++)
        assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(i)), i == 5 ? 99 : i + 1);
    epochs.held = NULL;
    assert_false(kvd_epochs_raise(&epochs, "x", base_of(KVD_EPOCHS_MAX), 1));
}

static void the_oldest_that_nobody_holds_goes(void **state)
{
    (void)state;
    epochs.limit = 6;
    fill(6);
    kept[2] = kept[4] = false;
    assert_true(kvd_epochs_raise(&epochs, "x", base_of(6), 9));
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(2)), 0);
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(4)), 5);
    kept[6] = true;
    assert_true(kvd_epochs_raise(&epochs, "x", base_of(7), 9));
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(4)), 0);
    kept[7] = true;
    assert_false(kvd_epochs_raise(&epochs, "x", base_of(8), 9));
    assert_int_equal(epochs.count, 6);
    for (uint32_t i = 0; i < 6; i += i == 1 || i == 3 ? 2 : 1)
        assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(i)), i + 1);
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(6)), 9);
}

/* One that was written by a daemon with room for more. */
static void a_table_over_its_limit_shrinks(void **state)
{
    (void)state;
    fill(8);
    epochs.limit = 4;
    memset(kept, 0, sizeof kept);
    assert_true(kvd_epochs_raise(&epochs, "x", base_of(9), 1));
    assert_int_equal(epochs.count, 4);
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(4)), 0);
    assert_int_equal(kvd_epochs_of(&epochs, "x", base_of(5)), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(numbers_only_rise, setup),
        cmocka_unit_test_setup(a_full_table_of_held_rows_is_full, setup),
        cmocka_unit_test_setup(the_oldest_that_nobody_holds_goes, setup),
        cmocka_unit_test_setup(a_table_over_its_limit_shrinks, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
