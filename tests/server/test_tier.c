/* The disk tier behind a service: blocks go down, come back after a restart, and are never wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/rpc/tier.h"
#include "support/folder.h"
#include "support/rpc_rig.h"

enum { G = 64, BLOCKS = 20 };

struct fixture {
    char folder[64];
    struct rig rig;
    struct rig_space space;
    struct rig_options options;
    uint32_t kind; /* 0: TILE */
    kvarn_key keys[BLOCKS];
    uint32_t digests[BLOCKS];
};

static void start(struct fixture *f)
{
    f->options.disk_path = f->folder;
    rig_open(&f->rig, &f->options);
    f->space = rig_open_space(&f->rig, NULL);
}

static void stop(struct fixture *f)
{
    rig_disk_settle(&f->rig);
    rig_close(&f->rig);
}

/* Without the walk having come to it, nor anything else. */
static void restart(struct fixture *f)
{
    stop(f);
    start(f);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    folder_new(f->folder, sizeof f->folder);
    for (uint32_t i = 0; i < BLOCKS; i++)
        f->keys[i] = rig_key(i);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    folder_remove(f->folder);
    free(f);
    return 0;
}

static void compress(struct fixture *f, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        uint16_t *rows = rig_rows(&f->space, f->space.layers, G, i + 1);
        struct rig_call *call = rig_compress(&f->rig, &f->space, &f->keys[i], 1,
                                             f->kind ? f->kind : KVARN_BLOCK_TILE, rows);

        assert_int_equal(call->status, KVARN_OK);
        f->digests[i] = rig_block(call, 0).digest;
        rig_free(call);
        free(rows);
    }
}

static struct rig_call *blocks(struct fixture *f, uint8_t op, uint32_t first, uint32_t count)
{
    struct kvw_blocks args = {.space = f->space.handle};
    struct rig_call *call = rig_blocks_start(&f->rig, op, &args, &f->keys[first], count, NULL, 0);

    for (int i = 0; i < 1000 && !call->replied; i++)
        rig_disk_settle(&f->rig);
    assert_true(call->replied);
    return call;
}

static uint32_t status_of(struct fixture *f, uint8_t op, uint32_t i)
{
    struct rig_call *call = blocks(f, op, i, 1);
    uint32_t status = rig_block(call, 0).status;

    rig_free(call);
    return status;
}

/* LOOKUP until they are all there; what comes has the digest it was stored with. */
static void expect_back(struct fixture *f, uint32_t first, uint32_t count)
{
    uint32_t matched = 0;

    for (int i = 0; i < 100 && matched < count; i++) {
        struct rig_call *call = blocks(f, KVW_LOOKUP, first, count);

        matched = rig_blocks_reply(call).matched;
        for (uint32_t k = 0; k < count; k++) {
            struct kvw_block_status row = rig_block(call, k);

            assert_true(row.status == KVARN_OK || row.status == KVARN_RETRY);
            if (row.status == KVARN_OK)
                assert_int_equal(row.digest, f->digests[first + k]);
        }
        rig_free(call);
        rig_disk_settle(&f->rig);
    }
    assert_int_equal(matched, count);
    assert_int_equal(blocks(f, KVW_VERIFY, first, count)->status, KVARN_OK);
}

static void persisted_blocks_come_back(void **state)
{
    struct fixture *f = *state;
    struct rig_call *call;

    start(f);
    compress(f, 0, 4);
    call = blocks(f, KVW_PERSIST, 0, 4);
    assert_int_equal(call->status, KVARN_OK);
    assert_int_equal(rig_blocks_reply(call).matched, 4);
    assert_int_equal(rig_block(call, 2).digest, f->digests[2]);
    assert_int_equal(status_of(f, KVW_PERSIST, 0), KVARN_OK); /* again is nothing new */
    assert_int_equal(status_of(f, KVW_PERSIST, 9), KVARN_NOT_FOUND);
    restart(f);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_blocks"), 4);
    assert_int_equal(status_of(f, KVW_PERSIST, 1), KVARN_OK); /* it is there already */
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_RETRY);
    expect_back(f, 0, 4);
    stop(f);
}

static void what_the_walk_wrote_comes_back(void **state)
{
    struct fixture *f = *state;

    start(f);
    compress(f, 0, BLOCKS);
    rig_disk_settle(&f->rig);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_stored_total"), BLOCKS);
    restart(f);
    expect_back(f, 0, BLOCKS);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_loaded_total"), BLOCKS);
    rig_disk_settle(&f->rig);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_stored_total"), 0); /* not written again */
    stop(f);
}

static void a_gpus_blocks_go_down_and_up_too(void **state)
{
    struct fixture *f = *state;

    f->options.gpu = true;
    what_the_walk_wrote_comes_back(state);
}

static void threads_do_the_same(void **state)
{
    struct fixture *f = *state;

    f->options.disk_io = KVD_FILES_THREADS;
    what_the_walk_wrote_comes_back(state);
}

/* Another space, another tenant: nothing of it is theirs. */
static void nobody_else_finds_them(void **state)
{
    struct fixture *f = *state;
    struct kvw_open_space other = rig_space_options();
    struct rig_space mine;

    start(f);
    compress(f, 0, 2);
    restart(f);
    mine = f->space;
    other.revision = "r2";
    f->space = rig_open_space(&f->rig, &other);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    f->space = mine;
    expect_back(f, 0, 2);
    stop(f);
}

static void a_dropped_block_stays_away(void **state)
{
    struct fixture *f = *state;
    struct kvw_blocks args;
    struct rig_call *call;

    start(f);
    compress(f, 0, 3);
    rig_free(blocks(f, KVW_PERSIST, 0, 1));
    assert_int_equal(status_of(f, KVW_DROP, 0), KVARN_OK);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    /* one whose entry is being marked at that moment, and one that is on its way down */
    compress(f, 3, 1);
    args = (struct kvw_blocks){.space = f->space.handle};
    for (uint32_t i = 1; i <= 3; i += 2) {
        call = rig_blocks_start(&f->rig, KVW_PERSIST, &args, &f->keys[i], 1, NULL, 0);
        rig_run(&f->rig);
        assert_int_equal(status_of(f, KVW_DROP, i), KVARN_OK);
        rig_disk_settle(&f->rig);
        assert_true(call->replied);
        assert_int_equal(call->status, KVARN_NOT_FOUND);
    }
    restart(f);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    assert_int_equal(status_of(f, KVW_LOOKUP, 1), KVARN_NOT_FOUND);
    assert_int_equal(status_of(f, KVW_LOOKUP, 3), KVARN_NOT_FOUND);
    assert_int_equal(status_of(f, KVW_DROP, 2), KVARN_OK); /* on disk alone */
    assert_int_equal(status_of(f, KVW_DROP, 2), KVARN_NOT_FOUND);
    stop(f);
}

/* RESET holds beyond the daemon: neither it nor the next ones find a block of before, also of a
 * shard that nobody had opened; what was stored after it comes back. */
static void a_reset_outlives_the_daemon(void **state)
{
    struct fixture *f = *state;
    struct kvw_open_space options = rig_space_options();
    struct rig_space whole;

    start(f);
    compress(f, 0, 2);
    rig_free(blocks(f, KVW_PERSIST, 0, 2));
    whole = f->space;
    options.layer_count = 1;
    f->space = rig_open_space(&f->rig, &options);
    compress(f, 2, 1);
    rig_free(blocks(f, KVW_PERSIST, 2, 1));
    f->space = whole;
    for (int round = 0; round < 3; round++) {
        struct kvw_blocks args;
        struct rig_call *call;

        restart(f); /* the shard is not opened */
        args = (struct kvw_blocks){.space = f->space.handle};
        call = rig_blocks_start(&f->rig, KVW_RESET, &args, NULL, 0, NULL, 0);
        assert_false(call->replied); /* it waits until that stands on disk */
        rig_disk_settle(&f->rig);
        assert_true(call->replied);
        assert_int_equal(call->status, KVARN_OK);
        f->space = rig_open_space(&f->rig, NULL);
        assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
        assert_int_equal(rig_metric(&f->rig, "kvarn_disk_blocks"), 0);
        compress(f, 0, 1);
        rig_free(blocks(f, KVW_PERSIST, 0, 1));
        restart(f);
        expect_back(f, 0, 1);
        assert_int_equal(status_of(f, KVW_LOOKUP, 1), KVARN_NOT_FOUND);
        f->space = rig_open_space(&f->rig, &options);
        assert_int_equal(status_of(f, KVW_LOOKUP, 2), KVARN_NOT_FOUND);
    }
    stop(f);
}

static void without_a_disk_persist_is_refused(void **state)
{
    struct rig rig;
    struct rig_space space;
    struct kvw_blocks args;
    struct rig_call *call;
    kvarn_key key = rig_key(1);

    (void)state;
    rig_open(&rig, NULL);
    space = rig_open_space(&rig, NULL);
    args = (struct kvw_blocks){.space = space.handle};
    call = rig_blocks(&rig, KVW_PERSIST, &args, &key, 1, NULL, 0);
    assert_int_equal(call->status, KVARN_UNSUPPORTED);
    assert_non_null(strstr(call->text, "--disk"));
    rig_close(&rig);
}

/* What was compressed first stays: the block of the disk comes back in place of a new one. */
static void a_key_on_disk_exists(void **state)
{
    struct fixture *f = *state;
    uint16_t *rows;
    struct rig_call *call;

    start(f);
    compress(f, 0, 1);
    restart(f);
    rows = rig_rows(&f->space, f->space.layers, G, 77); /* others */
    call = rig_compress_start(&f->rig, &f->space, &f->keys[0], 1, KVARN_BLOCK_TILE, rows);
    rig_disk_settle(&f->rig);
    assert_true(call->replied);
    assert_int_equal(rig_block(call, 0).status, KVARN_EXISTS);
    assert_int_equal(rig_block(call, 0).digest, f->digests[0]);
    free(rows);
    stop(f);
}

/* ---- damage */

/* One bit of the bytes at `offset` of the only segment. */
static void flip(struct fixture *f, uint64_t offset)
{
    char name[128];
    uint8_t byte;
    int fd;

    assert_true(folder_find(f->folder, "seg-", name, sizeof name));
    fd = open(name, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static void a_flipped_bit_is_a_missing_block(void **state)
{
    struct fixture *f = *state;
    char name[128];
    struct stat file;

    start(f);
    compress(f, 0, 3);
    rig_free(blocks(f, KVW_PERSIST, 0, 3));
    stop(f);
    assert_true(folder_find(f->folder, "seg-", name, sizeof name));
    assert_int_equal(stat(name, &file), 0);
    /* the first slot begins after the table; find it by its content: not zero */
    for (uint64_t page = 4096; page < (uint64_t)file.st_size; page += 4096) {
        uint8_t bytes[4096];
        int fd = open(name, O_RDONLY);
        bool table = true;

        assert_int_equal(pread(fd, bytes, sizeof bytes, (off_t)page), 4096);
        close(fd);
        /* an entry ends in zeros, a block does not */
        for (int i = 0; i < 32; i++)
            table = table && memcmp(bytes + 128 * i + 88, (uint8_t[40]){0}, 40) == 0;
        if (table)
            continue;
        flip(f, page + 17);
        break;
    }
    start(f);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_RETRY);
    rig_disk_settle(&f->rig);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    assert_int_equal(rig_metric(&f->rig, "kvarn_integrity_failures_total"), 1);
    expect_back(f, 1, 2);
    restart(f);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    assert_int_equal(rig_metric(&f->rig, "kvarn_integrity_failures_total"), 0); /* put away */
    compress(f, 0, 1);
    expect_back(f, 0, 3);
    stop(f);
}

/* ---- encryption */

static char key_file[96];

static void give_key(struct fixture *f)
{
    char text[64];
    int fd;

    snprintf(key_file, sizeof key_file, "%s.key", f->folder);
    fd = open(key_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    memset(text, '5', sizeof text);
    assert_int_equal(write(fd, text, sizeof text), sizeof text);
    close(fd);
    f->options.disk_key = key_file;
}

/* Are these bytes anywhere in a segment? */
static bool stands_in_a_file(struct fixture *f, const uint8_t *bytes, size_t count)
{
    char name[128];
    struct stat file;
    uint8_t *all;
    bool found;
    int fd;

    assert_true(folder_find(f->folder, "seg-", name, sizeof name));
    assert_int_equal(stat(name, &file), 0);
    all = malloc((size_t)file.st_size);
    fd = open(name, O_RDONLY);
    assert_int_equal(read(fd, all, (size_t)file.st_size), file.st_size);
    close(fd);
    found = memmem(all, (size_t)file.st_size, bytes, count) != NULL;
    free(all);
    return found;
}

static bool first_block_in_a_file(struct fixture *f)
{
    struct rig_call *call = blocks(f, KVW_EXPORT, 0, 1);
    bool found;

    assert_int_equal(call->status, KVARN_OK);
    found = stands_in_a_file(f, call->payload + KVW_PUT_ROW_BYTES, 64);
    rig_free(call);
    return found;
}

static void sealed_blocks_come_back_and_are_not_to_be_read(void **state)
{
    struct fixture *f = *state;

    start(f);
    compress(f, 0, 1);
    rig_free(blocks(f, KVW_PERSIST, 0, 1));
    assert_true(first_block_in_a_file(f)); /* so the search below would find it */
    stop(f);
    folder_remove(f->folder);
    give_key(f);
    start(f);
    compress(f, 0, BLOCKS);
    rig_free(blocks(f, KVW_PERSIST, 0, BLOCKS));
    assert_false(first_block_in_a_file(f));
    restart(f);
    expect_back(f, 0, BLOCKS);
    stop(f);
    unlink(key_file);
}

static void without_the_key_it_does_not_start(void **state)
{
    struct fixture *f = *state;
    struct kvd_service_options options = {0};
    struct kvd_service *service;
    struct kvd_device *device = fake_device_new(16 << 20, 16 << 20);
    const char *why;

    give_key(f);
    start(f);
    compress(f, 0, 1);
    rig_free(blocks(f, KVW_PERSIST, 0, 1));
    stop(f);
    options.devices = &device;
    options.device_count = 1;
    options.disk_path = f->folder;
    options.disk_bytes = 64 << 20;
    assert_int_equal(kvd_service_open(&service, &options, &why), KVARN_DENIED);
    assert_non_null(strstr(why, "--disk-key"));
    fake_device_free(device);
    start(f);
    expect_back(f, 0, 1);
    stop(f);
    unlink(key_file);
}

/* What was written before there was a key stays readable; what comes now is sealed. */
static void encryption_may_begin_later(void **state)
{
    struct fixture *f = *state;

    start(f);
    compress(f, 0, 2);
    rig_free(blocks(f, KVW_PERSIST, 0, 2));
    stop(f);
    give_key(f);
    start(f);
    compress(f, 2, 2);
    rig_free(blocks(f, KVW_PERSIST, 2, 2));
    restart(f);
    expect_back(f, 0, 4);
    stop(f);
    unlink(key_file);
}

static void a_flipped_bit_breaks_the_seal(void **state)
{
    give_key(*state);
    a_flipped_bit_is_a_missing_block(state);
    unlink(key_file);
}

static void erase(struct fixture *f)
{
    uint8_t meta[64];
    struct kvw_ping ping = {.echo = 7};
    size_t bytes = kvw_ping_encode(meta, sizeof meta, &ping);
    struct rig_call *call = rig_start(&f->rig, KVW_ERASE, meta, bytes, NULL, 0);

    rig_disk_settle(&f->rig);
    assert_true(call->replied);
    assert_int_equal(call->status, KVARN_OK);
    rig_free(call);
}

/* A copy of its segments from before, and the operator's key: nothing is to be had. */
static void an_erased_tenant_is_gone_from_copies_too(void **state)
{
    struct fixture *f = *state;
    char name[128], copy[160];

    give_key(f);
    start(f);
    compress(f, 0, 3);
    rig_free(blocks(f, KVW_PERSIST, 0, 3));
    assert_true(folder_find(f->folder, "seg-", name, sizeof name));
    snprintf(copy, sizeof copy, "%s.copy", f->folder);
    assert_int_equal(link(name, copy), 0);
    erase(f);
    assert_int_equal(folder_count(f->folder, "seg-"), 0);
    stop(f);
    assert_int_equal(rename(copy, name), 0);
    start(f); /* no key any more: its segments go */
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_blocks"), 0);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    rig_disk_settle(&f->rig);
    assert_int_equal(folder_count(f->folder, "seg-"), 0);
    compress(f, 5, 1); /* it may go on, with another key */
    rig_free(blocks(f, KVW_PERSIST, 5, 1));
    restart(f);
    expect_back(f, 5, 1);
    stop(f);
    unlink(key_file);
}

/* With the new key the old blocks are damaged ones. */
static void another_key_does_not_open_them(void **state)
{
    struct fixture *f = *state;
    char name[128], copy[160], epochs[128], epochs_copy[160];

    give_key(f);
    start(f);
    compress(f, 0, 1);
    rig_free(blocks(f, KVW_PERSIST, 0, 1));
    assert_true(folder_find(f->folder, "seg-", name, sizeof name));
    snprintf(copy, sizeof copy, "%s.copy", f->folder);
    assert_int_equal(link(name, copy), 0);
    snprintf(epochs, sizeof epochs, "%s/epochs", f->folder);
    snprintf(epochs_copy, sizeof epochs_copy, "%s.epochs", f->folder);
    assert_int_equal(link(epochs, epochs_copy), 0);
    erase(f);
    f->space = rig_open_space(&f->rig, NULL);
    compress(f, 5, 1);
    rig_free(blocks(f, KVW_PERSIST, 5, 1));
    stop(f);
    assert_int_equal(rename(copy, name), 0);
    start(f);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_blocks"), 2);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND); /* of before the erasure */
    expect_back(f, 5, 1);
    stop(f);
    /* and with the epochs of before, for the new ones only forbid to look */
    assert_int_equal(rename(epochs_copy, epochs), 0);
    start(f);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_RETRY);
    rig_disk_settle(&f->rig);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    assert_int_equal(rig_metric(&f->rig, "kvarn_integrity_failures_total"), 1);
    stop(f);
    unlink(key_file);
}

static void erase_without_encryption_or_disk(void **state)
{
    struct fixture *f = *state;

    start(f);
    compress(f, 0, 3);
    rig_free(blocks(f, KVW_PERSIST, 0, 3));
    erase(f);
    assert_int_equal(folder_count(f->folder, "seg-"), 0);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_blocks"), 0);
    stop(f);
    rig_open(&f->rig, NULL);
    f->space = rig_open_space(&f->rig, NULL);
    compress(f, 0, 1);
    erase(f);
    f->space = rig_open_space(&f->rig, NULL);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    rig_close(&f->rig);
}

/* ---- room */

static void a_small_quota_keeps_the_latest(void **state)
{
    struct fixture *f = *state;
    uint32_t there = 0;

    f->options.disk_bytes = 4 << 20; /* segments of 1 MiB: some 15 slots each */
    f->kind = KVARN_BLOCK_EXACT;
    start(f);
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < BLOCKS; i++)
            f->keys[i] = rig_key(round * BLOCKS + i);
        compress(f, 0, BLOCKS);
        rig_disk_settle(&f->rig);
    }
    assert_true(rig_metric(&f->rig, "kvarn_disk_used_bytes") <= 4 << 20);
    assert_true(rig_metric(&f->rig, "kvarn_disk_evictions_total") > 0);
    restart(f);
    expect_back(f, 0, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        f->keys[i] = rig_key(i);
    for (uint32_t i = 0; i < BLOCKS; i++)
        there += status_of(f, KVW_LOOKUP, i) != KVARN_NOT_FOUND;
    assert_int_equal(there, 0);
    stop(f);
}

static void a_quota_full_of_persistent_blocks_says_so(void **state)
{
    struct fixture *f = *state;
    uint32_t status = KVARN_OK;
    uint32_t kept = 0;

    f->options.disk_bytes = 4 << 20;
    f->kind = KVARN_BLOCK_EXACT;
    start(f);
    for (uint32_t round = 0; round < 400 && status == KVARN_OK; round++) {
        f->keys[0] = rig_key(1000 + round);
        compress(f, 0, 1);
        status = status_of(f, KVW_PERSIST, 0);
        kept += status == KVARN_OK;
    }
    assert_int_equal(status, KVARN_NO_SPACE);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_OK); /* the pool still has it */
    f->keys[1] = rig_key(1000);
    assert_int_equal(status_of(f, KVW_DROP, 1), KVARN_OK);
    rig_disk_settle(&f->rig);
    assert_int_equal(status_of(f, KVW_PERSIST, 0), KVARN_OK);
    restart(f);
    for (uint32_t i = 1; i <= kept; i++) {
        f->keys[0] = rig_key(1000 + i);
        assert_int_equal(status_of(f, KVW_PERSIST, 0), KVARN_OK);
    }
    stop(f);
}

/* The file system has no room for a segment: PERSIST says so, the pool keeps its blocks, no half
 * file stays; when there is room again, it goes on by itself. */
static void a_full_file_system_says_so(void **state)
{
    struct fixture *f = *state;
    struct rlimit before, small;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100000;
    start(f);
    compress(f, 0, 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(status_of(f, KVW_PERSIST, 0), KVARN_NO_SPACE);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_OK);
    assert_int_equal(status_of(f, KVW_VERIFY, 0), KVARN_OK);
    assert_int_equal(folder_count(f->folder, "seg-"), 0);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_used_bytes"), 0);
    for (int tick = 0; tick < 200; tick++) { /* 20 s of the clock */
        f->rig.now_ns += 100000000;
        kvd_service_tick(f->rig.service);
    }
    rig_disk_settle(&f->rig);
    assert_int_equal(status_of(f, KVW_PERSIST, 0), KVARN_OK);
    restart(f);
    expect_back(f, 0, 2);
    stop(f);
    signal(SIGXFSZ, handler);
}

/* ---- what the walk may do */

static void the_bandwidth_bounds_the_walk(void **state)
{
    struct fixture *f = *state;
    double written = 0;

    start(f);
    compress(f, 0, BLOCKS);
    f->options.disk_bandwidth = 10 * f->space.tile_bytes;
    rig_close(&f->rig);
    start(f);
    compress(f, 0, BLOCKS);
    for (int tick = 1; tick <= 10; tick++) { /* a second of the clock */
        f->rig.now_ns += 100000000;
        kvd_service_tick(f->rig.service);
        for (int i = 0; i < 100 && kvd_tier_figures(f->rig.service).moves; i++) {
            rig_run(&f->rig);
            if (kvd_tier_figures(f->rig.service).moves)
                kvd_loop_turn(f->rig.loop);
        }
        written = rig_metric(&f->rig, "kvarn_disk_stored_total");
        assert_true(written <= tick + 2); /* a tenth of a second is one block; a burst is another */
    }
    assert_true(written >= 5);
    assert_true(written < BLOCKS);
    stop(f);
    start(f);
    expect_back(f, 0, BLOCKS);
    stop(f);
}

/* The digest is checked before a byte is written: what is wrong in memory does not spread. */
static void a_block_damaged_in_memory_stays_off_the_disk(void **state)
{
    struct fixture *f = *state;
    struct kvd_block *block;

    start(f);
    compress(f, 0, 1);
    block = kvd_block_at(&f->rig.service->blocks, 0);
    fake_device_memory(f->rig.device)[block->offset + 9] ^= 4;
    rig_disk_settle(&f->rig);
    assert_int_equal(rig_metric(&f->rig, "kvarn_disk_blocks"), 0);
    assert_int_equal(rig_metric(&f->rig, "kvarn_integrity_failures_total"), 1);
    assert_int_equal(status_of(f, KVW_LOOKUP, 0), KVARN_NOT_FOUND);
    stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(persisted_blocks_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(what_the_walk_wrote_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gpus_blocks_go_down_and_up_too, setup, teardown),
        cmocka_unit_test_setup_teardown(threads_do_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_else_finds_them, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dropped_block_stays_away, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reset_outlives_the_daemon, setup, teardown),
        cmocka_unit_test(without_a_disk_persist_is_refused),
        cmocka_unit_test_setup_teardown(a_key_on_disk_exists, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flipped_bit_is_a_missing_block, setup, teardown),
        cmocka_unit_test_setup_teardown(sealed_blocks_come_back_and_are_not_to_be_read, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(without_the_key_it_does_not_start, setup, teardown),
        cmocka_unit_test_setup_teardown(encryption_may_begin_later, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flipped_bit_breaks_the_seal, setup, teardown),
        cmocka_unit_test_setup_teardown(an_erased_tenant_is_gone_from_copies_too, setup, teardown),
        cmocka_unit_test_setup_teardown(another_key_does_not_open_them, setup, teardown),
        cmocka_unit_test_setup_teardown(erase_without_encryption_or_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_small_quota_keeps_the_latest, setup, teardown),
        cmocka_unit_test_setup_teardown(a_quota_full_of_persistent_blocks_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_file_system_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(the_bandwidth_bounds_the_walk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_block_damaged_in_memory_stays_off_the_disk, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
