/* device/cuda_driver: every way in which a driver can be missing or refuse, each with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/device/cuda_driver.h"

static struct kvd_cuda_driver driver;
static char why[KVD_CUDA_TEXT_BYTES];

static enum kvd_cuda_found open_stand_in(const char *library, const char *variable,
                                         const char *value)
{
    unsetenv("STAND_IN_VERSION");
    unsetenv("STAND_IN_INIT");
    unsetenv("STAND_IN_DEVICES");
    setenv("KVARN_CUDA_DRIVER", library, 1);
    if (variable != NULL)
        setenv(variable, value, 1);
    memset(&driver, 0xa5, sizeof(driver));
    memset(why, 0, sizeof(why));
    return kvd_cuda_driver_open(&driver, why);
}

/* one line, whole, and nothing left in the table */
static void assert_refused(const char *words)
{
    static const struct kvd_cuda_driver zero;

    if (strstr(why, words) == NULL)
        fail_msg("'%s' does not say '%s'", why, words);
    assert_null(strchr(why, '\n'));
    assert_memory_equal(&driver, &zero, sizeof(zero));
    kvd_cuda_driver_close(&driver);
}

static void fills_the_table(void **state)
{
    int count = 0;

    (void)state;
    assert_int_equal(open_stand_in(STAND_IN, "STAND_IN_DEVICES", "3"), KVD_CUDA_FOUND);
    assert_int_equal(driver.version, KVD_CU_VERSION_MIN);
    assert_int_equal(driver.devices, 3);
#define COUNT(name, symbol, ...) count += driver.name != NULL;
    KVD_CU_FUNCTIONS(COUNT)
    assert_int_equal(count, (sizeof(driver) - offsetof(struct kvd_cuda_driver, init)) /
                                sizeof(driver.init));
    /* a function of each group, reached through its own entry */
    assert_int_equal(driver.device_get(NULL, 0), KVD_CU_NOT_SUPPORTED);
    assert_int_equal(driver.launch(NULL, NULL, NULL, NULL), KVD_CU_NOT_SUPPORTED);
    kvd_cuda_driver_close(&driver);
    assert_null(driver.library);
}

static void says_what_is_missing(void **state)
{
    (void)state;
    assert_int_equal(open_stand_in("/nowhere/libcuda.so.1", NULL, NULL), KVD_CUDA_NO_LIBRARY);
    assert_refused("no CUDA driver: /nowhere/libcuda.so.1");
    assert_int_equal(open_stand_in(STAND_IN_SHORT, NULL, NULL), KVD_CUDA_NO_SYMBOL);
    assert_refused("has no cuLibraryLoadData");
    assert_int_equal(open_stand_in(STAND_IN, "STAND_IN_VERSION", "12080"), KVD_CUDA_OLD_DRIVER);
    assert_refused("supports CUDA 12.8; kvarnd needs one for CUDA 13.0");
    assert_int_equal(open_stand_in(STAND_IN, "STAND_IN_DEVICES", "0"), KVD_CUDA_NO_DEVICE);
    assert_refused("offers no GPU");
    assert_int_equal(open_stand_in(STAND_IN, "STAND_IN_INIT", "100"), KVD_CUDA_NO_DEVICE);
    assert_refused("offers no GPU");
    assert_int_equal(open_stand_in(STAND_IN, "STAND_IN_INIT", "802"), KVD_CUDA_INIT_FAILED);
    assert_refused("does not start: CUDA_ERROR_SYSTEM_NOT_READY (802), system not yet initialized");
    assert_int_equal(open_stand_in(STAND_IN, "STAND_IN_INIT", "12345"), KVD_CUDA_INIT_FAILED);
    assert_refused("unknown CUDA error (12345)");
}

/* The toolkit's stub exports what a driver of its version does, and refuses every call. */
static void a_real_driver_has_every_symbol(void **state)
{
    (void)state;
    if (STUB[0] == '\0')
        skip();
    assert_int_equal(open_stand_in(STUB, NULL, NULL), KVD_CUDA_INIT_FAILED);
    assert_refused("(34)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_the_table),
        cmocka_unit_test(says_what_is_missing),
        cmocka_unit_test(a_real_driver_has_every_symbol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
