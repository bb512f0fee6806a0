/* The folder of the disk tier: recovery of what a daemon left, of whatever else is found there, and
 * what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "server/store/disk_dir.h"
#include "support/folder.h"
#include "support/rng.h"

enum { MANY = 10000, SLOTS = 40 };

struct fixture {
    char folder[64], why[KVD_DISK_WHY_MAX];
    struct kvd_disk *disk;
    struct kvd_disk_dir dir;
    struct kvd_disk_found found;
    uint32_t space;
};

static const struct kvd_disk_identity identity = {
    .tenant = "default", .layers = 2, .heads = 2, .slot_bytes = {9000, 20000}};

static kvarn_status reopen(struct fixture *f, uint64_t capacity)
{
    static const uint64_t secret[2] = {3, 5};
    kvarn_status status;

    if (f->disk)
        kvd_disk_dir_close(&f->dir, f->disk);
    kvd_disk_free(&f->disk);
    f->disk = kvd_disk_new(capacity, secret);
    status = kvd_disk_dir_open(&f->dir, f->folder, f->disk, &f->found, f->why);
    f->space = kvd_disk_space(f->disk, &identity);
    return status;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    folder_new(f->folder, sizeof f->folder);
    *state = f;
    return reopen(f, 64 << 20) == KVARN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    kvd_disk_dir_close(&f->dir, f->disk);
    kvd_disk_free(&f->disk);
    folder_remove(f->folder);
    free(f);
    return 0;
}

static kvarn_key key_of(uint32_t number)
{
    kvarn_key key = {{7}};

    memcpy(key.bytes + 1, &number, sizeof number);
    return key;
}

/* As the daemon does it, without its order: recovery has to do with the outcome. */
static struct kvd_disk_record *put(struct fixture *f, uint32_t number, bool persistent)
{
    kvarn_key key = key_of(number);
    struct kvd_disk_segment *make;
    struct kvd_disk_record *record;
    uint8_t entry[KVD_DISK_ENTRY_BYTES];
    kvarn_status status;

    do {
        status = kvd_disk_claim(f->disk, f->space, &key, KVARN_BLOCK_TILE, &record, &make);
        if (make) {
            assert_int_equal(kvd_disk_dir_make(&f->dir, make), 0);
            kvd_disk_made(f->disk, make, true);
        }
    } while (status == KVARN_RETRY);
    assert_int_equal(status, KVARN_OK);
    record->entry.persistent = persistent;
    record->entry.digest = number * 3;
    kvd_disk_entry_store(entry, &record->entry, record->segment->header.number, record->slot);
    assert_int_equal(pwrite(record->segment->fd, entry, sizeof entry,
                            (off_t)kvd_disk_entry_offset(record->slot)),
                     sizeof entry);
    assert_int_equal(kvd_disk_publish(f->disk, record), KVARN_OK);
    return record;
}

static bool there(struct fixture *f, uint32_t number)
{
    kvarn_key key = key_of(number);
    struct kvd_disk_record *record = kvd_disk_find(f->disk, f->space, &key);

    if (record)
        assert_int_equal(record->entry.digest, number * 3);
    return record != NULL;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void ten_thousand_blocks_come_back_soon(void **state)
{
    struct fixture *f = *state;
    double before;

    assert_int_equal(reopen(f, 256 << 20), KVARN_OK);
    for (uint32_t i = 0; i < MANY; i++)
        put(f, i, i % 3 == 0);
    before = seconds();
    assert_int_equal(reopen(f, 256 << 20), KVARN_OK);
    print_message("recovery of %d blocks: %.1f ms\n", MANY, (seconds() - before) * 1e3);
    assert_true(seconds() - before < 2);
    assert_int_equal(f->found.blocks, MANY);
    assert_int_equal(f->found.quarantined + f->found.entries_damaged, 0);
    for (uint32_t i = 0; i < MANY; i++) {
        kvarn_key key = key_of(i);

        assert_true(there(f, i));
        assert_int_equal(kvd_disk_find(f->disk, f->space, &key)->entry.persistent, i % 3 == 0);
    }
}

static void the_later_of_two_counts(void **state)
{
    struct fixture *f = *state;
    kvarn_key key = key_of(1);
    struct kvd_disk_record *first = put(f, 1, false);
    uint64_t later;

    kvd_disk_remove(f->disk, first); /* and no time to clear its entry */
    put(f, 1, true);
    later = kvd_disk_find(f->disk, f->space, &key)->entry.sequence;
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.blocks, 1);
    assert_int_equal(kvd_disk_find(f->disk, f->space, &key)->entry.sequence, later);
    assert_non_null(kvd_disk_clear_next(f->disk));
    assert_null(kvd_disk_clear_next(f->disk));
}

/* ---- damage */

static void segment_name(struct fixture *f, char out[128])
{
    assert_true(folder_find(f->folder, "seg-", out, 128));
}

static void flip(const char *name, uint64_t bit)
{
    int fd = open(name, O_RDWR);
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (uint8_t)(1u << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    close(fd);
}

static unsigned quarantined(const struct fixture *f)
{
    char name[128];

    snprintf(name, sizeof name, "%s/quarantine", f->folder);
    return folder_count(name, "");
}

/* Any bit of the header costs the segment, any bit of an entry that block; nothing else. */
static void flipped_bits(void **state)
{
    struct fixture *f = *state;
    struct rng rng = rng_make(rng_seed(7));
    char name[128];

    for (uint32_t i = 0; i < SLOTS; i++)
        put(f, i, false);
    segment_name(f, name);
    for (int round = 0; round < 300; round++) {
        uint32_t bit = rng_below(&rng, SLOTS * KVD_DISK_ENTRY_BYTES * 8);
        uint32_t slot = bit / (KVD_DISK_ENTRY_BYTES * 8), missing = 0;

        flip(name, (uint64_t)KVD_DISK_PAGE * 8 + bit);
        assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
        assert_int_equal(f->found.entries_damaged, 1);
        for (uint32_t i = 0; i < SLOTS; i++)
            missing += !there(f, i);
        assert_int_equal(missing, 1);
        assert_false(there(f, slot));
        assert_non_null(kvd_disk_clear_next(f->disk));
        flip(name, (uint64_t)KVD_DISK_PAGE * 8 + bit);
    }
    flip(name, rng_below(&rng, KVD_DISK_PAGE * 8));
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.segments, 0);
    assert_int_equal(f->found.quarantined, 1);
    assert_int_equal(quarantined(f), 1);
    put(f, 1, false); /* and it goes on, under another name */
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_true(there(f, 1));
}

static void cut_files(void **state)
{
    static const uint64_t left[] = {
        0, 1, 100, KVD_DISK_PAGE - 1, KVD_DISK_PAGE, KVD_DISK_PAGE + 64, 2 * KVD_DISK_PAGE, 500000};
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char name[128];

        put(f, (uint32_t)i, false);
        segment_name(f, name);
        assert_int_equal(truncate(name, (off_t)left[i]), 0);
        assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
        assert_int_equal(f->found.quarantined, 1);
        assert_int_equal(f->found.blocks, 0);
    }
    assert_int_equal(quarantined(f), sizeof left / sizeof *left);
}

static void touch(struct fixture *f, const char *name, const char *text)
{
    char path[192];
    int fd;

    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void copy_file(const char *from, const char *to)
{
    static uint8_t bytes[4 << 20];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ssize_t got = read(in, bytes, sizeof bytes);

    assert_true(got > 0);
    assert_int_equal(write(out, bytes, (size_t)got), got);
    close(in);
    close(out);
}

/* Other people's files, links, pipes, folders, copies, segments of another store. */
static void foreign_files(void **state)
{
    struct fixture *f = *state, other = {.folder = ""};
    char name[128], copy[192];

    put(f, 1, false);
    segment_name(f, name);
    touch(f, "notes.txt", "hello");
    touch(f, "seg-zzz", "hello");
    touch(f, "seg-0000000000000abc", "hello");
    touch(f, "half.tmp", "hello");
    snprintf(copy, sizeof copy, "%s/seg-00000000000000ff", f->folder);
    copy_file(name, copy); /* right inside, but not its name */
    snprintf(copy, sizeof copy, "%s/link", f->folder);
    assert_int_equal(symlink(name, copy), 0);
    snprintf(copy, sizeof copy, "%s/pipe", f->folder);
    assert_int_equal(mkfifo(copy, 0600), 0);
    snprintf(copy, sizeof copy, "%s/subfolder", f->folder);
    assert_int_equal(mkdir(copy, 0700), 0);
    folder_new(other.folder, sizeof other.folder);
    assert_int_equal(reopen(&other, 64 << 20), KVARN_OK);
    other.disk->number = 77;
    put(&other, 5, false);
    segment_name(&other, name);
    snprintf(copy, sizeof copy, "%s/seg-000000000000004d", f->folder);
    copy_file(name, copy);
    kvd_disk_dir_close(&other.dir, other.disk);
    kvd_disk_free(&other.disk);
    folder_remove(other.folder);

    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.segments, 1);
    assert_int_equal(f->found.quarantined, 8);
    assert_int_equal(quarantined(f), 8);
    assert_true(there(f, 1));
    assert_false(there(f, 5));
    assert_int_equal(folder_count(f->folder, "half"), 0);
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.quarantined, 0); /* out of the way */
}

static void quarantine_is_bounded(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < KVD_DISK_QUARANTINE_MAX + 10; i++) {
        char name[32];

        snprintf(name, sizeof name, "rubbish-%d", i);
        touch(f, name, "x");
    }
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.quarantined, KVD_DISK_QUARANTINE_MAX + 10);
    assert_int_equal(quarantined(f), KVD_DISK_QUARANTINE_MAX);
    assert_int_equal(folder_count(f->folder, "rubbish"), 0);
}

static void a_lost_store_file_loses_no_block(void **state)
{
    struct fixture *f = *state;

    put(f, 1, false);
    touch(f, "store", "torn");
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_true(there(f, 1));
    put(f, 2, false);
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_true(there(f, 1) && there(f, 2));
}

/* Without the epochs nobody knows which blocks are of before a RESET. */
static void damaged_epochs_take_the_segments_along(void **state)
{
    struct fixture *f = *state;

    put(f, 1, false);
    touch(f, "epochs", "torn");
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_false(there(f, 1));
    assert_int_equal(f->found.quarantined, 2);
    assert_int_equal(folder_count(f->folder, "seg-"), 0);
    put(f, 2, false); /* and it goes on, with new ones */
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.quarantined, 0);
    assert_true(there(f, 2));
}

/* They are made with the store: a folder put together from a copy that lacks them is not current,
 * also when it lacks the store's number too. */
static void missing_epochs_take_the_segments_along(void **state)
{
    static const char *const lost[][2] = {{"epochs", NULL}, {"epochs", "store"}};
    struct fixture *f = *state;

    for (uint32_t i = 0; i < 2; i++) {
        put(f, i, true);
        for (int j = 0; j < 2 && lost[i][j]; j++) {
            char path[128];

            snprintf(path, sizeof path, "%s/%s", f->folder, lost[i][j]);
            assert_int_equal(unlink(path), 0);
        }
        assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
        assert_false(there(f, i));
        assert_int_equal(f->found.segments, 0);
        assert_int_equal(f->found.quarantined, 1);
        assert_int_equal(folder_count(f->folder, "seg-"), 0);
        assert_int_equal(folder_count(f->folder, "epochs"), 1);
        put(f, 10 + i, false);
        assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
        assert_int_equal(f->found.quarantined, 0);
        assert_true(there(f, 10 + i));
    }
}

/* Segment files without a place in the tables may hold blocks of anybody. */
static void what_is_not_seen_may_be_anybodys(void **state)
{
    struct fixture *f = *state;
    struct kvd_disk_header header = put(f, 1, false)->segment->header;
    uint8_t page[KVD_DISK_PAGE], base[KVARN_FINGERPRINT_BYTES] = {1};

    assert_true(kvd_disk_holds(f->disk, identity.tenant, identity.base));
    assert_false(kvd_disk_holds(f->disk, "another", identity.base));
    assert_false(kvd_disk_holds(f->disk, identity.tenant, base));
    header.slots = 1;
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        char path[192];
        int fd;

        header.number = 1000 + i;
        kvd_disk_header_store(page, &header);
        snprintf(path, sizeof path, "%s/seg-%016llx", f->folder, (unsigned long long)header.number);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_int_equal(write(fd, page, sizeof page), sizeof page);
        assert_int_equal(ftruncate(fd, (off_t)kvd_disk_file_bytes(&header)), 0);
        close(fd);
    }
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
    assert_int_equal(f->found.segments, KVD_DISK_SEGMENTS_MAX);
    assert_int_equal(f->found.quarantined, 0);
    assert_true(kvd_disk_holds(f->disk, "another", base));
}

/* ---- what is refused, and names that go */

static void a_second_daemon_is_refused(void **state)
{
    struct fixture *f = *state, second = {.folder = ""};

    memcpy(second.folder, f->folder, sizeof second.folder);
    assert_int_equal(reopen(&second, 64 << 20), KVARN_RETRY);
    assert_non_null(strstr(second.why, "another kvarnd"));
    kvd_disk_free(&second.disk);
}

static void an_open_folder_is_refused(void **state)
{
    struct fixture *f = *state;

    kvd_disk_dir_close(&f->dir, f->disk);
    assert_int_equal(chmod(f->folder, 0750), 0);
    assert_int_equal(reopen(f, 64 << 20), KVARN_DENIED);
    assert_non_null(strstr(f->why, "chmod 700"));
    assert_int_equal(chmod(f->folder, 0700), 0);
    assert_int_equal(reopen(f, 64 << 20), KVARN_OK);
}

static void a_dropped_segment_has_no_file(void **state)
{
    struct fixture *f = *state;
    struct kvd_disk_segment *segment = put(f, 1, false)->segment;

    assert_int_equal(folder_count(f->folder, "seg-"), 1);
    assert_int_equal(kvd_disk_dir_drop(&f->dir, segment), 0);
    assert_int_equal(folder_count(f->folder, "seg-"), 0);
}

/* A name that recovery left alone is not written over. */
static void making_never_replaces(void **state)
{
    struct fixture *f = *state;
    char name[32];
    kvarn_key key = key_of(1);
    struct kvd_disk_segment *make;
    struct kvd_disk_record *record;

    snprintf(name, sizeof name, "seg-%016llx", (unsigned long long)f->disk->number);
    touch(f, name, "somebody's");
    assert_int_equal(kvd_disk_claim(f->disk, f->space, &key, 1, &record, &make), KVARN_RETRY);
    assert_int_equal(kvd_disk_dir_make(&f->dir, make), EEXIST);
    kvd_disk_made(f->disk, make, false);
    assert_int_equal(folder_count(f->folder, "seg-"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ten_thousand_blocks_come_back_soon, setup, teardown),
        cmocka_unit_test_setup_teardown(the_later_of_two_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(flipped_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(cut_files, setup, teardown),
        cmocka_unit_test_setup_teardown(foreign_files, setup, teardown),
        cmocka_unit_test_setup_teardown(quarantine_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lost_store_file_loses_no_block, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_epochs_take_the_segments_along, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_epochs_take_the_segments_along, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_seen_may_be_anybodys, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_daemon_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(an_open_folder_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dropped_segment_has_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(making_never_replaces, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
