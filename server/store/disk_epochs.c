/* A head of 16 bytes, rows of 72, and a checksum over both. See disk_epochs.h. */
#include "server/store/disk_epochs.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "server/store/disk_file.h"

enum {
    HEAD = 16,
    ROW = 72,
    EPOCH_AT = KVD_TENANT_NAME_MAX + KVARN_FINGERPRINT_BYTES,
    FILE_MAX = HEAD + KVD_EPOCHS_MAX * ROW + 4
};

static const char name[] = "epochs", unfinished[] = "epochs.tmp", magic[12] = "KVARN-EPOCH";

static bool decode(struct kvd_epochs *epochs, const uint8_t *bytes, uint64_t size)
{
    uint32_t count, checksum;

    memcpy(&count, bytes + sizeof magic, 4);
    count = le32toh(count);
    if (memcmp(bytes, magic, sizeof magic) != 0 || count > KVD_EPOCHS_MAX ||
        size != HEAD + (uint64_t)count * ROW + 4)
        return false;
    memcpy(&checksum, bytes + size - 4, 4);
    if (le32toh(checksum) != kvk_digest(0, bytes, size - 4))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = bytes + HEAD + (size_t)i * ROW;
        uint32_t epoch;

        memcpy(epochs->rows[i].tenant, row, KVD_TENANT_NAME_MAX);
        memcpy(epochs->rows[i].base, row + KVD_TENANT_NAME_MAX, KVARN_FINGERPRINT_BYTES);
        memcpy(&epoch, row + EPOCH_AT, 4);
        epochs->rows[i].epoch = le32toh(epoch);
        if (!memchr(epochs->rows[i].tenant, 0, KVD_TENANT_NAME_MAX))
            return false;
    }
    epochs->count = count;
    return true;
}

enum kvd_disk_epochs_found kvd_disk_epochs_load(struct kvd_epochs *epochs, int folder)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat file;
    uint8_t *bytes;
    bool fine;

    epochs->count = 0;
    if (fd < 0)
        return errno == ENOENT ? KVD_EPOCHS_NONE : KVD_EPOCHS_DAMAGED;
    bytes = malloc(FILE_MAX);
    fine = bytes && fstat(fd, &file) == 0 && file.st_size >= HEAD + 4 && file.st_size <= FILE_MAX &&
           kvd_disk_read_all(fd, bytes, (uint64_t)file.st_size, 0) &&
           decode(epochs, bytes, (uint64_t)file.st_size);
    free(bytes);
    close(fd);
    if (!fine)
        epochs->count = 0;
    return fine ? KVD_EPOCHS_FINE : KVD_EPOCHS_DAMAGED;
}

static uint64_t encode(const struct kvd_epochs *epochs, uint8_t *bytes)
{
    uint64_t size = HEAD + (uint64_t)epochs->count * ROW;
    uint32_t count = htole32(epochs->count), checksum;

    memset(bytes, 0, size);
    memcpy(bytes, magic, sizeof magic);
    memcpy(bytes + sizeof magic, &count, 4);
    for (uint32_t i = 0; i < epochs->count; i++) {
        uint8_t *row = bytes + HEAD + (size_t)i * ROW;
        uint32_t epoch = htole32(epochs->rows[i].epoch);

        memcpy(row, epochs->rows[i].tenant, KVD_TENANT_NAME_MAX);
        memcpy(row + KVD_TENANT_NAME_MAX, epochs->rows[i].base, KVARN_FINGERPRINT_BYTES);
        memcpy(row + EPOCH_AT, &epoch, 4);
    }
    checksum = htole32(kvk_digest(0, bytes, size));
    memcpy(bytes + size, &checksum, 4);
    return size + 4;
}

int kvd_disk_epochs_save(const struct kvd_epochs *epochs, int folder)
{
    uint8_t *bytes = malloc(FILE_MAX);
    int failed = ENOMEM;

    if (bytes)
        failed = kvd_disk_replace(folder, unfinished, name, bytes, encode(epochs, bytes));
    free(bytes);
    return failed;
}
