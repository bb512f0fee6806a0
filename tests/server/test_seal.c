/* Sealing, and the keys that are kept for it. */
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

#include "server/store/disk_dir.h"
#include "server/store/disk_keys.h"
#include "support/folder.h"

static const uint8_t store[KVD_DISK_ID_BYTES] = {4, 2};

/* Test case 16 of the GCM submission (McGrew and Viega, 2004): AES-256, 96-bit nonce, 20 bytes of
 * associated data. */
static void it_is_aes_256_gcm(void **state)
{
    static const uint8_t key[] = {0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f,
                                  0x94, 0x67, 0x30, 0x83, 0x08, 0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65,
                                  0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08};
    static const uint8_t nonce[] = {0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce,
                                    0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88};
    static const uint8_t with[] = {0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xfe, 0xed,
                                   0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xab, 0xad, 0xda, 0xd2};
    static const uint8_t plain[] = {
        0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5, 0xaf, 0xf5, 0x26,
        0x9a, 0x86, 0xa7, 0xa9, 0x53, 0x15, 0x34, 0xf7, 0xda, 0x2e, 0x4c, 0x30, 0x3d, 0x8a, 0x31,
        0x8a, 0x72, 0x1c, 0x3c, 0x0c, 0x95, 0x95, 0x68, 0x09, 0x53, 0x2f, 0xcf, 0x0e, 0x24, 0x49,
        0xa6, 0xb5, 0x25, 0xb1, 0x6a, 0xed, 0xf5, 0xaa, 0x0d, 0xe6, 0x57, 0xba, 0x63, 0x7b, 0x39};
    static const uint8_t cipher[] = {0x52, 0x2d, 0xc1, 0xf0, 0x99, 0x56, 0x7d, 0x07};
    static const uint8_t wanted[] = {0x76, 0xfc, 0x6e, 0xce, 0x0f, 0x4e, 0x17, 0x68,
                                     0xcd, 0xdf, 0x88, 0x53, 0xbb, 0x2d, 0x55, 0x1b};
    uint8_t bytes[sizeof plain], tag[KVD_SEAL_TAG_BYTES];

    (void)state;
    memcpy(bytes, plain, sizeof plain);
    assert_true(kvd_seal(key, nonce, with, sizeof with, bytes, sizeof bytes, tag));
    assert_memory_equal(bytes, cipher, sizeof cipher);
    assert_memory_equal(tag, wanted, sizeof wanted);
    assert_true(kvd_unseal(key, nonce, with, sizeof with, bytes, sizeof bytes, tag));
    assert_memory_equal(bytes, plain, sizeof plain);
}

static void anything_else_does_not_open(void **state)
{
    uint8_t key[KVD_SEAL_KEY_BYTES] = {1}, nonce[KVD_SEAL_NONCE_BYTES] = {2}, with[4] = {3};
    uint8_t sealed[64] = {4}, tag[KVD_SEAL_TAG_BYTES], bytes[64];
    struct {
        uint8_t *at;
        size_t count;
    } parts[] = {{key, sizeof key},
                 {nonce, sizeof nonce},
                 {with, sizeof with},
                 {sealed, sizeof sealed},
                 {tag, sizeof tag}};

    (void)state;
    assert_true(kvd_seal(key, nonce, with, sizeof with, sealed, sizeof sealed, tag));
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
        for (size_t bit = 0; bit < parts[part].count * 8; bit++) {
            parts[part].at[bit / 8] ^= (uint8_t)(1u << bit % 8);
            memcpy(bytes, sealed, sizeof bytes);
            assert_false(kvd_unseal(key, nonce, with, sizeof with, bytes, sizeof bytes, tag));
            parts[part].at[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    memcpy(bytes, sealed, sizeof bytes);
    assert_true(kvd_unseal(key, nonce, with, sizeof with, bytes, sizeof bytes, tag));
}

/* ---- keys */

struct fixture {
    char folder[64], file[96], why[KVD_DISK_WHY_MAX];
    int fd;
    struct kvd_disk_keys keys;
};

static void write_master(const char *path, char digit, mode_t mode)
{
    char text[66];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    memset(text, digit, 64);
    text[64] = '\n';
    assert_int_equal(write(fd, text, 65), 65);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static kvarn_status reopen(struct fixture *f)
{
    kvd_disk_keys_close(&f->keys);
    return kvd_disk_keys_open(&f->keys, f->file, f->fd, store, f->why);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    folder_new(f->folder, sizeof f->folder);
    snprintf(f->file, sizeof f->file, "%s/master", f->folder);
    write_master(f->file, 'a', 0600);
    f->fd = open(f->folder, O_RDONLY | O_DIRECTORY);
    f->keys.folder = -1;
    *state = f;
    return reopen(f) == KVARN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    kvd_disk_keys_close(&f->keys);
    close(f->fd);
    folder_remove(f->folder);
    free(f);
    return 0;
}

static struct kvd_disk_secret make(struct fixture *f, const char *tenant)
{
    struct kvd_disk_secret *row = kvd_disk_keys_of(&f->keys, tenant);

    assert_int_equal(row->state, KVD_SECRET_NONE);
    assert_int_equal(kvd_disk_keys_make(&f->keys, row), 0);
    row->state = KVD_SECRET_READY;
    return *row;
}

static void keys_come_back(void **state)
{
    struct fixture *f = *state;
    struct kvd_disk_secret a = make(f, "uid-1000"), b = make(f, "a.team_with-a.name");

    assert_memory_not_equal(a.key, b.key, sizeof a.key);
    assert_int_equal(reopen(f), KVARN_OK);
    assert_int_equal(f->keys.count, 2);
    assert_memory_equal(kvd_disk_keys_of(&f->keys, "uid-1000")->key, a.key, sizeof a.key);
    assert_memory_equal(kvd_disk_keys_of(&f->keys, b.tenant)->key, b.key, sizeof b.key);
    assert_int_equal(kvd_disk_keys_of(&f->keys, "uid-1000")->state, KVD_SECRET_READY);
}

static void an_erased_key_does_not_come_back(void **state)
{
    struct fixture *f = *state;
    struct kvd_disk_secret before = make(f, "uid-1"), *row = kvd_disk_keys_of(&f->keys, "uid-1");
    uint8_t zeros[KVD_SEAL_KEY_BYTES] = {0};

    assert_int_equal(kvd_disk_keys_erase(&f->keys, row), 0);
    assert_memory_equal(row->key, zeros, sizeof zeros);
    assert_int_equal(kvd_disk_keys_erase(&f->keys, row), 0); /* again */
    assert_int_equal(reopen(f), KVARN_OK);
    assert_int_equal(f->keys.count, 0);
    assert_memory_not_equal(make(f, "uid-1").key, before.key, sizeof before.key);
}

static void another_operators_key_is_refused(void **state)
{
    struct fixture *f = *state;

    write_master(f->file, 'b', 0600);
    assert_int_equal(reopen(f), KVARN_DENIED); /* also before any tenant came */
    assert_non_null(strstr(f->why, "does not open"));
    write_master(f->file, 'a', 0600);
    assert_int_equal(reopen(f), KVARN_OK);
    make(f, "uid-1");
    write_master(f->file, 'b', 0600);
    assert_int_equal(reopen(f), KVARN_DENIED);
}

static void a_bad_file_is_refused(void **state)
{
    struct fixture *f = *state;

    write_master(f->file, 'a', 0640);
    assert_int_equal(reopen(f), KVARN_DENIED);
    assert_non_null(strstr(f->why, "chmod 600"));
    write_master(f->file, 'g', 0600);
    assert_int_equal(reopen(f), KVARN_INTERNAL);
    assert_non_null(strstr(f->why, "64 hexadecimal digits"));
    write_master(f->file, 'a', 0600);
    assert_int_equal(truncate(f->file, 63), 0);
    assert_int_equal(reopen(f), KVARN_INTERNAL);
    unlink(f->file);
    assert_int_equal(reopen(f), KVARN_INTERNAL);
    assert_non_null(strstr(f->why, "No such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_aes_256_gcm),
        cmocka_unit_test(anything_else_does_not_open),
        cmocka_unit_test_setup_teardown(keys_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(an_erased_key_does_not_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(another_operators_key_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bad_file_is_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
