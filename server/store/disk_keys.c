/* See disk_keys.h. A key's file is called by the tenant's name in hexadecimal, which is a name
 * everywhere. */
#include "server/store/disk_keys.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/store/disk_dir.h"
#include "server/store/disk_file.h"

enum {
    MAGIC = 12,
    NONCE_AT = MAGIC,
    TAG_AT = NONCE_AT + KVD_SEAL_NONCE_BYTES,
    KEY_AT = TAG_AT + KVD_SEAL_TAG_BYTES,
    FILE_BYTES = KEY_AT + KVD_SEAL_KEY_BYTES,
    NAME_ROOM = 2 * KVD_TENANT_NAME_MAX + 8,
    DIGITS = 2 * KVD_SEAL_KEY_BYTES
};

static const char magic[MAGIC] = "KVARN-KEY-1", folder_name[] = "keys";
/* A file of the empty name: whether the operator's key is the right one, before any tenant came. */
static const char nobody[KVD_TENANT_NAME_MAX] = "";

static void name_of(const char *tenant, const char *end, char out[NAME_ROOM])
{
    int used = snprintf(out, NAME_ROOM, "k");

    for (; *tenant; tenant++)
        used += snprintf(out + used, NAME_ROOM - (size_t)used, "%02x", (uint8_t)*tenant);
    snprintf(out + used, NAME_ROOM - (size_t)used, "%s", end);
}

static bool tenant_of(const char *name, char out[KVD_TENANT_NAME_MAX])
{
    size_t length = strlen(name);
    char again[NAME_ROOM];

    memset(out, 0, KVD_TENANT_NAME_MAX);
    if (length % 2 == 0 || length / 2 >= KVD_TENANT_NAME_MAX)
        return false;
    for (size_t i = 0; i < length / 2; i++) {
        unsigned byte;

        if (sscanf(name + 1 + 2 * i, "%2x", &byte) != 1)
            return false;
        out[i] = (char)byte;
    }
    name_of(out, "", again);
    return strcmp(again, name) == 0;
}

/* What a key is bound to: this store and this tenant. */
static void bound_to(const struct kvd_disk_keys *keys, const char tenant[KVD_TENANT_NAME_MAX],
                     uint8_t out[KVD_DISK_ID_BYTES + KVD_TENANT_NAME_MAX])
{
    memcpy(out, keys->store, KVD_DISK_ID_BYTES);
    memcpy(out + KVD_DISK_ID_BYTES, tenant, KVD_TENANT_NAME_MAX);
}

static int save(const struct kvd_disk_keys *keys, const char tenant[KVD_TENANT_NAME_MAX],
                const uint8_t key[KVD_SEAL_KEY_BYTES])
{
    uint8_t file[FILE_BYTES], with[KVD_DISK_ID_BYTES + KVD_TENANT_NAME_MAX];
    char name[NAME_ROOM], unfinished[NAME_ROOM];

    memcpy(file, magic, MAGIC);
    memcpy(file + KEY_AT, key, KVD_SEAL_KEY_BYTES);
    bound_to(keys, tenant, with);
    if (!kvd_seal_random(file + NONCE_AT, KVD_SEAL_NONCE_BYTES) ||
        !kvd_seal(keys->master, file + NONCE_AT, with, sizeof with, file + KEY_AT,
                  KVD_SEAL_KEY_BYTES, file + TAG_AT)) {
        kvd_seal_wipe(file, sizeof file);
        return EIO;
    }
    name_of(tenant, "", name);
    name_of(tenant, ".tmp", unfinished);
    return kvd_disk_replace(keys->folder, unfinished, name, file, sizeof file);
}

static bool load(const struct kvd_disk_keys *keys, const char tenant[KVD_TENANT_NAME_MAX],
                 uint8_t key[KVD_SEAL_KEY_BYTES])
{
    uint8_t file[FILE_BYTES], with[KVD_DISK_ID_BYTES + KVD_TENANT_NAME_MAX];
    char name[NAME_ROOM];
    bool fine;
    int fd;

    name_of(tenant, "", name);
    fd = openat(keys->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    fine = kvd_disk_read_all(fd, file, sizeof file, 0);
    close(fd);
    bound_to(keys, tenant, with);
    fine = fine && memcmp(file, magic, MAGIC) == 0 &&
           kvd_unseal(keys->master, file + NONCE_AT, with, sizeof with, file + KEY_AT,
                      KVD_SEAL_KEY_BYTES, file + TAG_AT);
    if (fine)
        memcpy(key, file + KEY_AT, KVD_SEAL_KEY_BYTES);
    kvd_seal_wipe(file, sizeof file);
    return fine;
}

/* ---- opening */

static kvarn_status say(char *why, kvarn_status status, const char *path, const char *what)
{
    snprintf(why, KVD_DISK_WHY_MAX, "--disk-key %.200s: %s", path, what);
    return status;
}

static int digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

static kvarn_status read_master(struct kvd_disk_keys *keys, const char *path, char *why)
{
    char text[DIGITS + 2] = "";
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, DIGITS + 1);
    kvarn_status status = KVARN_OK;

    if (fd < 0 || fstat(fd, &file) != 0 || got < 0)
        status = say(why, KVARN_INTERNAL, path, strerror(errno));
    else if (file.st_mode & 077)
        status = say(why, KVARN_DENIED, path, "others may read the key; chmod 600 it");
    else if (strspn(text, "0123456789abcdefABCDEF") != DIGITS ||
             (text[DIGITS] && text[DIGITS] != '\n'))
        status = say(why, KVARN_INTERNAL, path,
                     "the file must hold 64 hexadecimal digits; openssl rand -hex 32 makes them");
    if (fd >= 0)
        close(fd);
    for (size_t i = 0; status == KVARN_OK && i < KVD_SEAL_KEY_BYTES; i++)
        keys->master[i] = (uint8_t)(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
    kvd_seal_wipe(text, sizeof text);
    return status;
}

/* All keys that the operator's opens. What is none of ours, or damaged, stays where it is. */
static void load_all(struct kvd_disk_keys *keys)
{
    int copy = openat(keys->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *at;

    if (!list && copy >= 0)
        close(copy);
    while (list && (at = readdir(list)) != NULL && keys->count < KVD_TENANTS_MAX) {
        struct kvd_disk_secret *row = &keys->rows[keys->count];

        if (!tenant_of(at->d_name, row->tenant) || !row->tenant[0] ||
            !load(keys, row->tenant, row->key))
            continue;
        row->state = KVD_SECRET_READY;
        keys->count++;
    }
    if (list)
        closedir(list);
}

kvarn_status kvd_disk_keys_open(struct kvd_disk_keys *keys, const char *path, int folder,
                                const uint8_t store[KVD_DISK_ID_BYTES], char *why)
{
    uint8_t ignored[KVD_SEAL_KEY_BYTES] = {0};
    struct stat there;
    char name[NAME_ROOM];
    kvarn_status status;
    int failed = 0;

    memset(keys, 0, sizeof *keys);
    keys->folder = -1;
    memcpy(keys->store, store, KVD_DISK_ID_BYTES);
    status = read_master(keys, path, why);
    if (status != KVARN_OK)
        return status;
    if (mkdirat(folder, folder_name, 0700) != 0 && errno != EEXIST)
        return say(why, KVARN_INTERNAL, path, strerror(errno));
    keys->folder = openat(folder, folder_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (keys->folder < 0 || fsync(folder) != 0)
        return say(why, KVARN_INTERNAL, path, strerror(errno));
    load_all(keys);
    name_of(nobody, "", name);
    if (keys->count || load(keys, nobody, ignored))
        return KVARN_OK;
    if (fstatat(keys->folder, name, &there, AT_SYMLINK_NOFOLLOW) == 0) {
        kvd_disk_keys_close(keys);
        return say(why, KVARN_DENIED, path,
                   "this key does not open the keys of the disk; give the one it was used with");
    }
    failed = save(keys, nobody, ignored);
    return failed ? say(why, KVARN_INTERNAL, path, strerror(failed)) : KVARN_OK;
}

void kvd_disk_keys_close(struct kvd_disk_keys *keys)
{
    if (keys->folder >= 0)
        close(keys->folder);
    kvd_seal_wipe(keys, sizeof *keys);
    keys->folder = -1;
}

/* ---- tenants */

struct kvd_disk_secret *kvd_disk_keys_of(struct kvd_disk_keys *keys, const char *tenant)
{
    struct kvd_disk_secret *row;

    for (uint32_t i = 0; i < keys->count; i++)
        if (strcmp(keys->rows[i].tenant, tenant) == 0)
            return &keys->rows[i];
    if (keys->count == KVD_TENANTS_MAX || strlen(tenant) >= KVD_TENANT_NAME_MAX)
        return NULL;
    row = &keys->rows[keys->count++];
    memset(row, 0, sizeof *row);
    memcpy(row->tenant, tenant, strlen(tenant));
    return row;
}

int kvd_disk_keys_make(const struct kvd_disk_keys *keys, struct kvd_disk_secret *secret)
{
    if (!kvd_seal_random(secret->key, sizeof secret->key))
        return EIO;
    return save(keys, secret->tenant, secret->key);
}

int kvd_disk_keys_erase(const struct kvd_disk_keys *keys, struct kvd_disk_secret *secret)
{
    static const uint8_t zeros[FILE_BYTES];
    char name[NAME_ROOM];
    int fd, failed = 0;

    kvd_seal_wipe(secret->key, sizeof secret->key);
    name_of(secret->tenant, "", name);
    fd = openat(keys->folder, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : errno;
    /* Over the old bytes, where the medium writes in place; then without a name. */
    if (!kvd_disk_write_all(fd, zeros, sizeof zeros, 0) || fsync(fd) != 0)
        failed = errno;
    close(fd);
    if (unlinkat(keys->folder, name, 0) != 0 || fsync(keys->folder) != 0)
        failed = errno;
    return failed;
}
