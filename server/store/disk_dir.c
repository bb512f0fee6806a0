/* See disk_dir.h. What is in the folder may be anything: every name is looked at, every byte
 * checked before it is used, and nothing that is found there ends the daemon. */
#include "server/store/disk_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "server/store/disk_epochs.h"
#include "server/store/disk_file.h"

enum { NAME_ROOM = 32, MODE = 0600, STORE_BYTES = 64 };

static const char store_name[] = "store", lock_name[] = "lock", quarantine_name[] = "quarantine",
                  keys_name[] = "keys", epochs_name[] = "epochs";
static const char store_magic[16] = "KVARN-STORE-1";

static void name_of(const struct kvd_disk_segment *segment, const char *end, char out[NAME_ROOM])
{
    snprintf(out, NAME_ROOM, "seg-%016llx%s", (unsigned long long)segment->header.number, end);
}

/* ---- the store's number */

static bool load_store(const struct kvd_disk_dir *dir, struct kvd_disk *disk)
{
    uint8_t bytes[STORE_BYTES];
    uint32_t checksum;
    int fd = openat(dir->fd, store_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool fine = fd >= 0 && kvd_disk_read_all(fd, bytes, sizeof bytes, 0);

    if (fd >= 0)
        close(fd);
    memcpy(&checksum, bytes + STORE_BYTES - 4, 4);
    if (!fine || memcmp(bytes, store_magic, sizeof store_magic) != 0 ||
        checksum != kvk_digest(0, bytes, STORE_BYTES - 4))
        return false;
    memcpy(disk->store, bytes + sizeof store_magic, sizeof disk->store);
    return true;
}

static int save_store(const struct kvd_disk_dir *dir, const struct kvd_disk *disk)
{
    uint8_t bytes[STORE_BYTES] = {0};
    uint32_t checksum;

    memcpy(bytes, store_magic, sizeof store_magic);
    memcpy(bytes + sizeof store_magic, disk->store, sizeof disk->store);
    checksum = kvk_digest(0, bytes, STORE_BYTES - 4);
    memcpy(bytes + STORE_BYTES - 4, &checksum, 4);
    return kvd_disk_replace(dir->fd, "store.tmp", store_name, bytes, sizeof bytes);
}

/* ---- recovery */

/* Out of the way, not away: somebody may want to look at it. What is too much for that goes. False:
 * it is still there, and errno says why. */
static bool quarantine(const struct kvd_disk_dir *dir, const char *name,
                       struct kvd_disk_found *found)
{
    char to[sizeof quarantine_name + 24];

    found->quarantined++;
    (void)mkdirat(dir->fd, quarantine_name, 0700);
    for (int i = 0; i < KVD_DISK_QUARANTINE_MAX; i++) {
        struct stat there;

        snprintf(to, sizeof to, "%s/%d", quarantine_name, i);
        if (fstatat(dir->fd, to, &there, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        if (renameat(dir->fd, name, dir->fd, to) == 0)
            return true;
        break;
    }
    return unlinkat(dir->fd, name, 0) == 0;
}

/* The header of the segment file `name`; NULL, or what is wrong with it. */
static const char *look_at(const struct kvd_disk *disk, const char *name, int fd, bool known,
                           struct kvd_disk_header *header)
{
    uint8_t page[KVD_DISK_PAGE];
    struct stat file;
    char wanted[NAME_ROOM];
    const char *wrong;

    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode))
        return "it is no file";
    if (!kvd_disk_read_all(fd, page, sizeof page, 0))
        return "it is cut short";
    wrong = kvd_disk_header_load(header, page);
    if (wrong)
        return wrong;
    snprintf(wanted, sizeof wanted, "seg-%016llx", (unsigned long long)header->number);
    if (strcmp(wanted, name) != 0)
        return "it is another segment's copy";
    if (known && memcmp(header->store, disk->store, sizeof disk->store) != 0)
        return "it is of another store";
    if ((uint64_t)file.st_size != kvd_disk_file_bytes(header))
        return "it is cut short";
    return NULL;
}

static bool load_table(struct kvd_disk *disk, struct kvd_disk_segment *segment,
                       struct kvd_disk_found *found)
{
    uint64_t count = (uint64_t)segment->header.slots * KVD_DISK_ENTRY_BYTES;
    uint8_t *table = malloc(count);
    bool fine = table && kvd_disk_read_all(segment->fd, table, count, kvd_disk_entry_offset(0));

    for (uint32_t i = 0; fine && i < segment->header.slots; i++) {
        struct kvd_disk_entry entry;
        bool is = kvd_disk_entry_load(&entry, table + (uint64_t)i * KVD_DISK_ENTRY_BYTES,
                                      segment->header.number, i);

        if (kvd_disk_adopt_entry(disk, segment, i, &entry, is) == KVARN_CORRUPT)
            found->entries_damaged++;
    }
    free(table);
    return fine;
}

/* A table that cannot be read leaves a segment without blocks: its entries may be there again next
 * time, so its slots are not used. */
static void shut(struct kvd_disk_segment *segment)
{
    segment->free = NULL;
}

/* False: it is nothing of ours. */
static bool load_segment(const struct kvd_disk_dir *dir, struct kvd_disk *disk, const char *name,
                         bool *known, struct kvd_disk_found *found)
{
    struct kvd_disk_header header;
    struct kvd_disk_segment *segment;
    int fd = openat(dir->fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0) { /* no descriptors, no permission: it may be fine the next time */
        bool ours = errno != ELOOP && errno != ENXIO && errno != EISDIR;

        disk->unseen = disk->unseen || ours;
        return ours;
    }
    if (look_at(disk, name, fd, *known, &header) != NULL) {
        close(fd);
        return false;
    }
    if (!*known) /* `store` was lost: its number is still in here */
        memcpy(disk->store, header.store, sizeof disk->store);
    *known = true;
    segment = kvd_disk_adopt(disk, &header, fd);
    if (!segment) { /* no room in the tables now */
        disk->unseen = true;
        close(fd);
        return true;
    }
    found->segments++;
    if (!load_table(disk, segment, found))
        shut(segment);
    return true;
}

static bool is_own(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, lock_name) == 0 ||
           strcmp(name, store_name) == 0 || strcmp(name, quarantine_name) == 0 ||
           strcmp(name, keys_name) == 0 || strcmp(name, epochs_name) == 0;
}

/* current: what is in a segment may be of today; else none of them is one of ours. */
static int recover(const struct kvd_disk_dir *dir, struct kvd_disk *disk, bool current, bool *known,
                   struct kvd_disk_found *found)
{
    int copy = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *at;
    int failed = 0;

    if (!list) {
        failed = errno;
        if (copy >= 0)
            close(copy);
        return failed;
    }
    while ((at = readdir(list)) != NULL) {
        size_t length = strlen(at->d_name);

        if (is_own(at->d_name))
            continue;
        if (length > 4 && strcmp(at->d_name + length - 4, ".tmp") == 0)
            (void)unlinkat(dir->fd, at->d_name, 0); /* never got its name */
        else if (current && load_segment(dir, disk, at->d_name, known, found))
            continue;
        else if (!quarantine(dir, at->d_name, found) && !current && errno != EISDIR)
            failed = errno; /* the next start would take it for current */
    }
    closedir(list);
    found->blocks = disk->count;
    return failed;
}

/* ---- opening */

static kvarn_status say(char *why, kvarn_status status, const char *path, const char *what)
{
    snprintf(why, KVD_DISK_WHY_MAX, "%.200s: %s", path, what);
    return status;
}

static kvarn_status enter(struct kvd_disk_dir *dir, const char *path, char *why)
{
    struct stat folder;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return say(why, KVARN_INTERNAL, path, strerror(errno));
    dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0 || fstat(dir->fd, &folder) != 0)
        return say(why, KVARN_INTERNAL, path, strerror(errno));
    if (folder.st_uid != geteuid())
        return say(why, KVARN_DENIED, path, "the folder belongs to another user");
    if (folder.st_mode & 077)
        return say(why, KVARN_DENIED, path,
                   "others may enter the folder, and prompts stand in it; chmod 700 it");
    dir->lock = openat(dir->fd, lock_name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (dir->lock < 0)
        return say(why, KVARN_INTERNAL, path, strerror(errno));
    if (flock(dir->lock, LOCK_EX | LOCK_NB) != 0)
        return say(why, KVARN_RETRY, path, "another kvarnd uses the folder; give each its own");
    return KVARN_OK;
}

kvarn_status kvd_disk_dir_open(struct kvd_disk_dir *dir, const char *path, struct kvd_disk *disk,
                               struct kvd_disk_found *found, char *why)
{
    enum kvd_disk_epochs_found epochs;
    bool stored, known;
    kvarn_status status;
    int failed;

    *dir = (struct kvd_disk_dir){-1, -1};
    memset(found, 0, sizeof *found);
    status = enter(dir, path, why);
    if (status == KVARN_OK) {
        stored = known = load_store(dir, disk);
        epochs = kvd_disk_epochs_load(&disk->epochs, dir->fd);
        if (epochs == KVD_EPOCHS_DAMAGED)
            (void)quarantine(dir, epochs_name, found);
        failed = recover(dir, disk, epochs == KVD_EPOCHS_FINE, &known, found);
        if (!failed && epochs != KVD_EPOCHS_FINE) /* not before all segments are out of the way */
            failed = kvd_disk_epochs_save(&disk->epochs, dir->fd);
        if (!known && getrandom(disk->store, sizeof disk->store, 0) != sizeof disk->store)
            failed = EIO;
        if (!failed && !stored)
            failed = save_store(dir, disk);
        if (failed)
            status = say(why, KVARN_INTERNAL, path, strerror(failed));
    }
    if (status != KVARN_OK)
        kvd_disk_dir_close(dir, disk);
    return status;
}

void kvd_disk_dir_close(struct kvd_disk_dir *dir, struct kvd_disk *disk)
{
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        struct kvd_disk_segment *segment = &disk->segments[i];

        if (segment->used && segment->fd >= 0)
            close(segment->fd);
        segment->fd = -1;
    }
    if (dir->lock >= 0)
        close(dir->lock);
    if (dir->fd >= 0)
        close(dir->fd);
    *dir = (struct kvd_disk_dir){-1, -1};
}

/* ---- segments */

static int fill(int fd, const struct kvd_disk_header *header)
{
    uint8_t page[KVD_DISK_PAGE];
    int failed = posix_fallocate(fd, 0, (off_t)kvd_disk_file_bytes(header));

    if (failed)
        return failed;
    kvd_disk_header_store(page, header);
    if (!kvd_disk_write_all(fd, page, sizeof page, 0) || fsync(fd) != 0)
        return errno ? errno : EIO;
    return 0;
}

/* Never over a file that is there: recovery may have left one alone. */
static int publish(const struct kvd_disk_dir *dir, const char *from, const char *to)
{
    if (renameat2(dir->fd, from, dir->fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL ? renameat(dir->fd, from, dir->fd, to) : -1; /* an old file system */
}

int kvd_disk_dir_make(const struct kvd_disk_dir *dir, struct kvd_disk_segment *segment)
{
    char name[NAME_ROOM], unfinished[NAME_ROOM];
    int fd, failed;

    name_of(segment, "", name);
    name_of(segment, ".tmp", unfinished);
    fd = openat(dir->fd, unfinished, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (fd < 0)
        return errno;
    failed = fill(fd, &segment->header);
    if (!failed && publish(dir, unfinished, name) != 0)
        failed = errno;
    if (failed) {
        (void)unlinkat(dir->fd, unfinished, 0);
    } else if (fsync(dir->fd) != 0) {
        failed = errno;
        (void)unlinkat(dir->fd, name, 0);
    }
    if (failed) {
        close(fd);
        return failed;
    }
    segment->fd = fd;
    return 0;
}

int kvd_disk_dir_drop(const struct kvd_disk_dir *dir, struct kvd_disk_segment *segment)
{
    char name[NAME_ROOM];
    int failed = 0;

    name_of(segment, "", name);
    close(segment->fd);
    segment->fd = -1;
    if (unlinkat(dir->fd, name, 0) != 0 || fsync(dir->fd) != 0)
        failed = errno;
    return failed;
}
