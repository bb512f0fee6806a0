/* How often each model was reset. The epoch is in the fingerprint, so that nothing of before a
 * RESET is found again.
 *
 * One table: the disk's, which outlives the daemon and names tenants as HELLO does, or without a
 * disk one in memory. When it is full, the rows of models of which nothing is left go, oldest
 * first: no space and no segment on disk, so nothing of before can be found. Such a model begins at
 * epoch 0 again, and what a client exported before it was reset and kept is not told apart any
 * more. There can be fewer spaces and segments than rows: a table is full for good only while the
 * folder has segments that could not be opened. */
#ifndef KVD_EPOCHS_H
#define KVD_EPOCHS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/types.h>

#include "server/core/limits.h"
#include "server/store/tenant.h"

struct kvd_epoch {
    char tenant[KVD_TENANT_NAME_MAX];      /* zeros after the name */
    uint8_t base[KVARN_FINGERPRINT_BYTES]; /* the fingerprint of epoch 0 */
    uint32_t epoch;
};

struct kvd_epochs {
    uint32_t count;
    uint32_t limit; /* 0: KVD_EPOCHS_MAX; smaller in tests */
    struct kvd_epoch rows[KVD_EPOCHS_MAX];
    /* is anything of the model left? NULL: of every one */
    bool (*held)(void *context, const struct kvd_epoch *row);
    void *context;
};

/* 0 when the model was never reset. */
uint32_t kvd_epochs_of(const struct kvd_epochs *epochs, const char *tenant,
                       const uint8_t base[KVARN_FINGERPRINT_BYTES]);
/* Never lower than it was. False: the table is full of models of which something is left. */
bool kvd_epochs_raise(struct kvd_epochs *epochs, const char *tenant,
                      const uint8_t base[KVARN_FINGERPRINT_BYTES], uint32_t epoch);

static inline uint32_t kvd_epochs_limit(const struct kvd_epochs *epochs)
{
    return epochs->limit ? epochs->limit : KVD_EPOCHS_MAX;
}

#endif
