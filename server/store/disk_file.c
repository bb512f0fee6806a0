/* See disk_file.h. */
#include "server/store/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { MODE = 0600 };

bool kvd_disk_read_all(int fd, uint8_t *bytes, uint64_t count, uint64_t offset)
{
    while (count) {
        ssize_t got = pread(fd, bytes, count, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        bytes += got;
        count -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

bool kvd_disk_write_all(int fd, const uint8_t *bytes, uint64_t count, uint64_t offset)
{
    while (count) {
        ssize_t got = pwrite(fd, bytes, count, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        bytes += got;
        count -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

int kvd_disk_replace(int folder, const char *unfinished, const char *name, const uint8_t *bytes,
                     uint64_t count)
{
    int fd =
        openat(folder, unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, MODE);
    int failed;

    if (fd < 0)
        return errno;
    failed = kvd_disk_write_all(fd, bytes, count, 0) && fsync(fd) == 0 ? 0 : errno;
    close(fd);
    if (!failed && (renameat(folder, unfinished, folder, name) != 0 || fsync(folder) != 0))
        failed = errno;
    return failed;
}
