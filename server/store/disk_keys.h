/* Keys of sealed segments. Each tenant has a random one, which stands in the folder's `keys/`
 * sealed by the operator's key (--disk-key); without a tenant's file, and copies of it,
 * nothing of what the tenant has or had in segments can be read again: that is how it is erased.
 *
 * The rows are the loop's; make and erase run on a thread, one at a time per row, while its state
 * is KVD_SECRET_BUSY. */
#ifndef KVD_DISK_KEYS_H
#define KVD_DISK_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

#include "server/core/limits.h"
#include "server/store/disk_format.h"
#include "server/store/seal.h"

enum kvd_secret_state { KVD_SECRET_NONE, KVD_SECRET_BUSY, KVD_SECRET_READY };

struct kvd_disk_secret {
    char tenant[KVD_TENANT_NAME_MAX];
    uint8_t state; /* kvd_secret_state */
    uint8_t key[KVD_SEAL_KEY_BYTES];
};

struct kvd_disk_keys {
    int folder; /* keys/; -1: no encryption */
    uint8_t master[KVD_SEAL_KEY_BYTES], store[KVD_DISK_ID_BYTES];
    uint32_t count;
    struct kvd_disk_secret rows[KVD_TENANTS_MAX];
};

/* path: of a file with 64 hexadecimal digits that nobody else may read. Loads the tenants' keys of
 * the disk's folder. DENIED: others may read it, or it is not the key that sealed them. INTERNAL:
 * no such file, no digits. why (KVD_DISK_WHY_MAX) says which. */
kvarn_status kvd_disk_keys_open(struct kvd_disk_keys *keys, const char *path, int folder,
                                const uint8_t store[KVD_DISK_ID_BYTES], char *why);
void kvd_disk_keys_close(struct kvd_disk_keys *keys);

/* The tenant's row, made when there is none; NULL: the table is full. */
struct kvd_disk_secret *kvd_disk_keys_of(struct kvd_disk_keys *keys, const char *tenant);
/* A new key, synced under its name. 0 or an errno. Blocking. */
int kvd_disk_keys_make(const struct kvd_disk_keys *keys, struct kvd_disk_secret *secret);
/* The key is gone, in memory and on disk. 0 or an errno. Blocking. */
int kvd_disk_keys_erase(const struct kvd_disk_keys *keys, struct kvd_disk_secret *secret);

#endif
