/* A power cut for one process, as a library to be preloaded.
 *
 * What the process does to files under $KVARN_CUT_FOLDER is written down together with how to undo
 * it, until fsync or fdatasync of the file (its bytes), or fsync of a folder (names), makes it
 * last. At the $KVARN_CUT_AFTER-th such call the power goes: names that were not synced go back
 * from a random point of their order on, bytes that were not synced go back sector by sector at
 * random (so writes are torn), and the process ends at once. $KVARN_CUT_SEED says which.
 *
 * $KVARN_CUT_IGNORE_SYNC: syncs do nothing, as those of a daemon that forgets them. Then what was
 * acknowledged must be lost: a test that finds nothing lost there is no test.
 *
 * io_uring does not come by here: the daemon has to be told to use threads. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { UNDO_MAX = 65536, SECTOR = 512, NAME_ROOM = 512 };
enum what { BYTES, MADE, RENAMED, REMOVED };

struct undo {
    enum what what;
    bool lasting;
    dev_t device; /* BYTES */
    ino_t inode;
    int fd;                       /* BYTES: a copy of the descriptor */
    uint64_t offset, count, size; /* size: of the file before */
    uint8_t *old;
    char from[NAME_ROOM], to[NAME_ROOM]; /* whole paths */
};

static struct undo undos[UNDO_MAX];
static uint32_t undo_count;
static uint64_t calls, cut_after, seed, saved;
static bool ignore_sync;
static char folder[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int (*real_openat)(int, const char *, int, ...);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_fsync)(int), (*real_fdatasync)(int);
static int (*real_renameat2)(int, const char *, int, const char *, unsigned);
static int (*real_renameat)(int, const char *, int, const char *);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_fallocate)(int, off_t, off_t);

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (!found)
        abort();
    return found;
}

__attribute__((constructor)) static void prepare(void)
{
    const char *path = getenv("KVARN_CUT_FOLDER"), *after = getenv("KVARN_CUT_AFTER"),
               *number = getenv("KVARN_CUT_SEED");

    *(void **)&real_openat = real("openat");
    *(void **)&real_pwrite = real("pwrite");
    *(void **)&real_fsync = real("fsync");
    *(void **)&real_fdatasync = real("fdatasync");
    *(void **)&real_renameat2 = real("renameat2");
    *(void **)&real_renameat = real("renameat");
    *(void **)&real_unlinkat = real("unlinkat");
    *(void **)&real_fallocate = real("posix_fallocate");
    if (!path || !after)
        return;
    snprintf(folder, sizeof folder, "%s", path);
    cut_after = strtoull(after, NULL, 10);
    seed = number ? strtoull(number, NULL, 10) * 2654435761u + 1 : 1;
    ignore_sync = getenv("KVARN_CUT_IGNORE_SYNC") != NULL;
}

static uint64_t random_number(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* ---- where */

static bool path_of(int fd, const char *name, char out[NAME_ROOM])
{
    char link[64], base[NAME_ROOM / 2];
    ssize_t got;

    if (!folder[0])
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    got = readlink(link, base, sizeof base - 1);
    base[got > 0 ? got : 0] = '\0';
    snprintf(out, NAME_ROOM, "%s%s%s", base, name ? "/" : "", name ? name : "");
    return strncmp(out, folder, strlen(folder)) == 0;
}

/* ---- the cut */

static void undo_bytes(const struct undo *undo)
{
    for (uint64_t at = 0; at < undo->count; at += SECTOR) {
        uint64_t left = undo->count - at, count = left < SECTOR ? left : SECTOR;

        if (random_number() % 2)
            (void)!real_pwrite(undo->fd, undo->old + at, count, (off_t)(undo->offset + at));
    }
    if (random_number() % 2)
        (void)!ftruncate(undo->fd, (off_t)undo->size);
}

static void undo_name(const struct undo *undo)
{
    switch (undo->what) {
    case MADE:
        (void)real_unlinkat(AT_FDCWD, undo->to, 0);
        break;
    case RENAMED:
        (void)real_renameat(AT_FDCWD, undo->to, AT_FDCWD, undo->from);
        break;
    case REMOVED:
        (void)real_renameat(AT_FDCWD, undo->to, AT_FDCWD, undo->from);
        break;
    default:
        break;
    }
}

static void cut(void)
{
    uint32_t names = 0, kept;

    for (uint32_t i = 0; i < undo_count; i++)
        names += undos[i].what != BYTES && !undos[i].lasting;
    kept = (uint32_t)(random_number() % (names + 1)); /* names last in their order */
    for (uint32_t i = undo_count; i-- > 0;) {
        if (undos[i].lasting)
            continue;
        if (undos[i].what == BYTES)
            undo_bytes(&undos[i]);
        else if (names-- > kept)
            undo_name(&undos[i]);
    }
    _exit(137);
}

/* Called with the lock held. */
static void count_call(void)
{
    if (++calls >= cut_after)
        cut();
}

static struct undo *note(enum what what)
{
    if (undo_count == UNDO_MAX)
        abort();
    undos[undo_count] = (struct undo){.what = what, .fd = -1};
    return &undos[undo_count++];
}

static void note_bytes(int fd, uint64_t offset, uint64_t count)
{
    struct undo *undo = note(BYTES);
    struct stat file;

    if (fstat(fd, &file) != 0)
        abort();
    undo->device = file.st_dev;
    undo->inode = file.st_ino;
    undo->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    undo->offset = offset;
    undo->count = count;
    undo->size = (uint64_t)file.st_size;
    undo->old = calloc(1, count ? count : 1);
    if (!undo->old || undo->fd < 0)
        abort();
    (void)!pread(fd, undo->old, count, (off_t)offset);
}

/* Of a file: its bytes last. Of a folder: names do. */
static void lasts(int fd)
{
    struct stat file;

    if (fstat(fd, &file) != 0)
        return;
    for (uint32_t i = 0; i < undo_count; i++) {
        struct undo *undo = &undos[i];

        if (undo->lasting)
            continue;
        if (S_ISDIR(file.st_mode) ? undo->what == BYTES
                                  : (undo->what != BYTES || undo->device != file.st_dev ||
                                     undo->inode != file.st_ino))
            continue;
        undo->lasting = true;
        if (undo->what == REMOVED)
            (void)real_unlinkat(AT_FDCWD, undo->to, 0);
        if (undo->fd >= 0)
            close(undo->fd);
        free(undo->old);
    }
    while (undo_count && undos[undo_count - 1].lasting)
        undo_count--;
}

/* ---- calls */

EXPORT int openat(int at, const char *name, int flags, ...)
{
    char path[NAME_ROOM];
    struct stat there;
    mode_t mode = 0;
    bool makes;
    int fd;
    va_list values;

    va_start(values, flags);
    if (flags & O_CREAT)
        mode = va_arg(values, mode_t);
    va_end(values);
    if (!(flags & O_CREAT) || !path_of(at, name, path))
        return real_openat(at, name, flags, mode);
    pthread_mutex_lock(&lock);
    count_call();
    makes = fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) != 0;
    fd = real_openat(at, name, flags, mode);
    if (fd >= 0 && makes)
        memcpy(note(MADE)->to, path, sizeof path);
    pthread_mutex_unlock(&lock);
    return fd;
}

EXPORT ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    char path[NAME_ROOM];
    ssize_t got;

    if (!path_of(fd, NULL, path))
        return real_pwrite(fd, bytes, count, offset);
    pthread_mutex_lock(&lock);
    count_call();
    note_bytes(fd, (uint64_t)offset, count);
    got = real_pwrite(fd, bytes, count, offset);
    pthread_mutex_unlock(&lock);
    return got;
}

EXPORT int posix_fallocate(int fd, off_t offset, off_t count)
{
    char path[NAME_ROOM];
    int failed;

    if (!path_of(fd, NULL, path))
        return real_fallocate(fd, offset, count);
    pthread_mutex_lock(&lock);
    count_call();
    note_bytes(fd, 0, 0);
    failed = real_fallocate(fd, offset, count);
    pthread_mutex_unlock(&lock);
    return failed;
}

static int sync_with(int fd, int (*way)(int))
{
    char path[NAME_ROOM];

    if (!path_of(fd, NULL, path))
        return way(fd);
    pthread_mutex_lock(&lock);
    count_call();
    if (!ignore_sync)
        lasts(fd);
    pthread_mutex_unlock(&lock);
    return 0; /* the cut is ours alone, so nothing has to reach the medium */
}

EXPORT int fsync(int fd)
{
    return sync_with(fd, real_fsync);
}

EXPORT int fdatasync(int fd)
{
    return sync_with(fd, real_fdatasync);
}

EXPORT int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    char from_path[NAME_ROOM], to_path[NAME_ROOM];
    int failed;

    if (!path_of(from_at, from, from_path) || !path_of(to_at, to, to_path))
        return real_renameat2(from_at, from, to_at, to, flags);
    pthread_mutex_lock(&lock);
    count_call();
    failed = real_renameat2(from_at, from, to_at, to, flags);
    if (failed == 0) {
        struct undo *undo = note(RENAMED);

        memcpy(undo->from, from_path, sizeof from_path);
        memcpy(undo->to, to_path, sizeof to_path);
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

EXPORT int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return renameat2(from_at, from, to_at, to, 0);
}

/* It stays beside the folder until its removal lasts. */
EXPORT int unlinkat(int at, const char *name, int flags)
{
    char path[NAME_ROOM], aside[NAME_ROOM];
    int failed;

    if (flags || !path_of(at, name, path))
        return real_unlinkat(at, name, flags);
    pthread_mutex_lock(&lock);
    count_call();
    snprintf(aside, sizeof aside, "%.200s.removed-%d-%llu", folder, (int)getpid(),
             (unsigned long long)saved++);
    failed = real_renameat(AT_FDCWD, path, AT_FDCWD, aside);
    if (failed == 0) {
        struct undo *undo = note(REMOVED);

        memcpy(undo->from, path, sizeof path);
        memcpy(undo->to, aside, sizeof aside);
    }
    pthread_mutex_unlock(&lock);
    return failed;
}
