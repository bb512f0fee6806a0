/* How often each model was reset, as it must outlive the daemon: blocks of before a RESET may still
 * stand in segments when the power goes, and are not found again because the epoch is in the
 * fingerprint.
 *
 * One file, `epochs`, written anew at every RESET and published as a segment is. Without it nothing
 * is known to be current: if it is damaged, so are all segments. */
#ifndef KVD_DISK_EPOCHS_H
#define KVD_DISK_EPOCHS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/types.h>

#include "server/core/limits.h"
#include "server/store/tenant.h"

struct kvd_disk_epochs {
    uint32_t count;
    struct {
        char tenant[KVD_TENANT_NAME_MAX];
        uint8_t base[KVARN_FINGERPRINT_BYTES]; /* the fingerprint of epoch 0 */
        uint32_t epoch;
    } rows[KVD_EPOCHS_MAX];
};

enum kvd_disk_epochs_found { KVD_EPOCHS_NONE, KVD_EPOCHS_FINE, KVD_EPOCHS_DAMAGED };

uint32_t kvd_disk_epochs_of(const struct kvd_disk_epochs *epochs, const char *tenant,
                            const uint8_t base[KVARN_FINGERPRINT_BYTES]);
/* Never lower than it was. False: the table is full. */
bool kvd_disk_epochs_set(struct kvd_disk_epochs *epochs, const char *tenant,
                         const uint8_t base[KVARN_FINGERPRINT_BYTES], uint32_t epoch);

/* Blocking; of the folder with this descriptor. save: 0 or an errno. */
enum kvd_disk_epochs_found kvd_disk_epochs_load(struct kvd_disk_epochs *epochs, int folder);
int kvd_disk_epochs_save(const struct kvd_disk_epochs *epochs, int folder);

#endif
