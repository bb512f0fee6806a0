/* The file `epochs`: the table of epochs.h as it must outlive the daemon, for blocks of before a
 * RESET may still stand in segments when the power goes.
 *
 * Made with the store, written anew at every RESET and published as a segment is. Without it
 * nothing is known to be current: if it is damaged or missing, so are all segments. */
#ifndef KVD_DISK_EPOCHS_H
#define KVD_DISK_EPOCHS_H

#include "server/store/epochs.h"

enum kvd_disk_epochs_found { KVD_EPOCHS_NONE, KVD_EPOCHS_FINE, KVD_EPOCHS_DAMAGED };

/* Blocking; of the folder with this descriptor. load: rows and count alone. save: 0 or an errno. */
enum kvd_disk_epochs_found kvd_disk_epochs_load(struct kvd_epochs *epochs, int folder);
int kvd_disk_epochs_save(const struct kvd_epochs *epochs, int folder);

#endif
