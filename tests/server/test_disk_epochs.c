/* The file of the table of epochs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/store/disk_epochs.h"
#include "support/folder.h"

static struct kvd_epochs epochs, back;
static char folder[64], path[96];
static int fd;

static int setup(void **state)
{
    (void)state;
    memset(&epochs, 0, sizeof epochs);
    folder_new(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/epochs", folder);
    fd = open(folder, O_RDONLY | O_DIRECTORY);
    return fd < 0;
}

static int teardown(void **state)
{
    (void)state;
    close(fd);
    folder_remove(folder);
    return 0;
}

static void a_full_table_comes_back(void **state)
{
    uint8_t base[KVARN_FINGERPRINT_BYTES] = {0};

    (void)state;
    assert_int_equal(kvd_disk_epochs_load(&back, fd), KVD_EPOCHS_NONE);
    for (uint32_t i = 0; i < KVD_EPOCHS_MAX; i++) {
        memcpy(base, &i, sizeof i);
        assert_true(kvd_epochs_raise(&epochs, "tenant", base, i + 1));
    }
    assert_int_equal(kvd_disk_epochs_save(&epochs, fd), 0);
    assert_int_equal(kvd_disk_epochs_save(&epochs, fd), 0);
    assert_int_equal(kvd_disk_epochs_load(&back, fd), KVD_EPOCHS_FINE);
    assert_int_equal(back.count, KVD_EPOCHS_MAX);
    assert_memory_equal(back.rows, epochs.rows, sizeof epochs.rows);
}

/* Every bit, every length. */
static void damage_is_seen(void **state)
{
    uint8_t base[KVARN_FINGERPRINT_BYTES] = {5};
    struct stat file;

    (void)state;
    assert_true(kvd_epochs_raise(&epochs, "tenant", base, 3));
    assert_int_equal(kvd_disk_epochs_save(&epochs, fd), 0);
    assert_int_equal(stat(path, &file), 0);
    for (off_t bit = 0; bit < file.st_size * 8; bit++) {
        int one = open(path, O_RDWR);
        uint8_t byte, flipped;

        assert_int_equal(pread(one, &byte, 1, bit / 8), 1);
        flipped = (uint8_t)(byte ^ 1u << bit % 8);
        assert_int_equal(pwrite(one, &flipped, 1, bit / 8), 1);
        assert_int_equal(kvd_disk_epochs_load(&back, fd), KVD_EPOCHS_DAMAGED);
        assert_int_equal(pwrite(one, &byte, 1, bit / 8), 1);
        close(one);
    }
    assert_int_equal(kvd_disk_epochs_load(&back, fd), KVD_EPOCHS_FINE);
    for (off_t size = file.st_size - 1; size >= 0; size--) {
        assert_int_equal(truncate(path, size), 0);
        assert_int_equal(kvd_disk_epochs_load(&back, fd), KVD_EPOCHS_DAMAGED);
        assert_int_equal(back.count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_table_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_seen, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
