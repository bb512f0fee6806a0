/* Every check is made on what is there, under the lock; nothing is followed through a link.
 *
 * The lock file is removed at the end, so who takes it makes sure that the file locked is still the
 * one at the path. */
#include "server/net/unix_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_TRIES = 8 };

static kvarn_status too_open(const char *directory, const char *name, mode_t mode, char *why,
                             size_t room)
{
    int used = snprintf(why, room, "others may write to the directory %s (mode %04o); ", directory,
                        (unsigned)mode & 07777u);

    if (used < 0 || (size_t)used >= room)
        return KVARN_DENIED;
    if ((mode & (S_ISVTX | S_IWOTH)) != 0) /* a shared one, as /tmp */
        snprintf(why + used, room - (size_t)used,
                 "use a folder of its own, such as unix:%s/kvarn/%s", directory, name);
    else
        snprintf(why + used, room - (size_t)used, "mend it: chmod go-w %s", directory);
    return KVARN_DENIED;
}

static kvarn_status check_directory(const char *path, uid_t own_uid, char *why, size_t room)
{
    char directory[108];
    const char *slash = strrchr(path, '/');
    struct stat is;

    snprintf(directory, sizeof directory, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
        snprintf(why, room, "cannot make the directory %s: %s; use --listen or set XDG_RUNTIME_DIR",
                 directory, strerror(errno));
        return KVARN_DENIED;
    }
    if (lstat(directory, &is) != 0 || !S_ISDIR(is.st_mode)) {
        snprintf(why, room, "%s is not a directory (a link is not followed)", directory);
        return KVARN_DENIED;
    }
    if (is.st_uid != own_uid) {
        snprintf(why, room,
                 "the directory %s belongs to uid %lu, not to the daemon's uid %lu; use a folder "
                 "of its own, such as unix:%s/kvarn/%s",
                 directory, (unsigned long)is.st_uid, (unsigned long)own_uid, directory, slash + 1);
        return KVARN_DENIED;
    }
    if ((is.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return too_open(directory, slash + 1, is.st_mode, why, room);
    return KVARN_OK;
}

/* "pid 1234" as the holder wrote it, or "another process". */
static void name_holder(int lock_fd, char *out, size_t room)
{
    char text[24];
    ssize_t got = pread(lock_fd, text, sizeof text - 1, 0);
    long pid;

    text[got > 0 ? got : 0] = '\0';
    pid = strtol(text, NULL, 10);
    if (pid > 0)
        snprintf(out, room, "pid %ld", pid);
    else
        snprintf(out, room, "another process");
}

static kvarn_status take_lock(struct kvd_unix_path *it, char *why, size_t room)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        struct stat held, there;
        int fd = open(it->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

        if (fd < 0) {
            snprintf(why, room, "cannot open the lock file %s: %s", it->lock_path, strerror(errno));
            return KVARN_DENIED;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            char holder[40];

            name_holder(fd, holder, sizeof holder);
            snprintf(why, room, "a daemon is already listening at %s: %s", it->path, holder);
            close(fd);
            return KVARN_EXISTS;
        }
        if (fstat(fd, &held) == 0 && lstat(it->lock_path, &there) == 0 &&
            held.st_ino == there.st_ino && held.st_dev == there.st_dev) {
            it->lock_fd = fd;
            return KVARN_OK;
        }
        close(fd); /* its last holder removed it in between */
    }
    snprintf(why, room, "the lock file %s keeps changing", it->lock_path);
    return KVARN_INTERNAL;
}

static kvarn_status write_pid(const struct kvd_unix_path *it)
{
    char text[24];
    int bytes = snprintf(text, sizeof text, "%ld\n", (long)getpid());

    if (ftruncate(it->lock_fd, 0) != 0 || pwrite(it->lock_fd, text, (size_t)bytes, 0) != bytes)
        return KVARN_INTERNAL;
    return KVARN_OK;
}

static kvarn_status clear_place(const struct kvd_unix_path *it, char *why, size_t room)
{
    struct stat is;

    if (lstat(it->path, &is) != 0) {
        if (errno == ENOENT)
            return KVARN_OK;
        snprintf(why, room, "cannot look at %s: %s", it->path, strerror(errno));
        return KVARN_DENIED;
    }
    if (!S_ISSOCK(is.st_mode)) {
        snprintf(why, room, "%s is there and is %s; it is not replaced", it->path,
                 S_ISLNK(is.st_mode) ? "a link" : "not a socket");
        return KVARN_DENIED;
    }
    if (unlink(it->path) != 0) {
        snprintf(why, room, "cannot remove the old socket %s: %s", it->path, strerror(errno));
        return KVARN_DENIED;
    }
    return KVARN_OK;
}

kvarn_status kvd_unix_path_check(const char *path, char *why, size_t why_room)
{
    size_t most = sizeof(((struct kvd_unix_path *)NULL)->path) - 1;

    if (path[0] != '/') {
        snprintf(why, why_room,
                 "unix:%s is refused: the path is absolute, as unix:/run/kvarnd/kvarnd.sock; a "
                 "name without a file could be reached from other containers",
                 path);
        return KVARN_INVALID_SHAPE;
    }
    if (strlen(path) > most) {
        snprintf(why, why_room, "the path has %zu bytes, a Unix socket takes at most %zu",
                 strlen(path), most);
        return KVARN_INVALID_SHAPE;
    }
    return KVARN_OK;
}

kvarn_status kvd_unix_path_claim(struct kvd_unix_path *it, const char *path, uid_t own_uid,
                                 char *why, size_t why_room)
{
    kvarn_status status = kvd_unix_path_check(path, why, why_room);

    it->lock_fd = -1;
    if (status != KVARN_OK)
        return status;
    snprintf(it->path, sizeof it->path, "%s", path);
    snprintf(it->lock_path, sizeof it->lock_path, "%s.lock", path);
    status = check_directory(path, own_uid, why, why_room);
    if (status == KVARN_OK)
        status = take_lock(it, why, why_room);
    if (status != KVARN_OK)
        return status;
    status = clear_place(it, why, why_room);
    if (status == KVARN_OK && write_pid(it) != KVARN_OK) {
        snprintf(why, why_room, "cannot write to %s: %s", it->lock_path, strerror(errno));
        status = KVARN_INTERNAL;
    }
    if (status != KVARN_OK) {
        unlink(it->lock_path);
        close(it->lock_fd);
        it->lock_fd = -1;
    }
    return status;
}

void kvd_unix_path_release(struct kvd_unix_path *it)
{
    if (it->lock_fd < 0)
        return;
    unlink(it->path);
    unlink(it->lock_path);
    close(it->lock_fd);
    it->lock_fd = -1;
}
