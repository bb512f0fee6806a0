/* The table of epochs. See epochs.h. */
#include "server/store/epochs.h"

#include <assert.h>
#include <string.h>

_Static_assert(KVD_SPACES_MAX + KVD_DISK_SEGMENTS_MAX < KVD_EPOCHS_MAX,
               "some row can be given back");

static int find(const struct kvd_epochs *epochs, const char *tenant,
                const uint8_t base[KVARN_FINGERPRINT_BYTES])
{
    for (uint32_t i = 0; i < epochs->count; i++)
        if (strcmp(epochs->rows[i].tenant, tenant) == 0 &&
            memcmp(epochs->rows[i].base, base, KVARN_FINGERPRINT_BYTES) == 0)
            return (int)i;
    return -1;
}

uint32_t kvd_epochs_of(const struct kvd_epochs *epochs, const char *tenant,
                       const uint8_t base[KVARN_FINGERPRINT_BYTES])
{
    int at = find(epochs, tenant, base);

    return at < 0 ? 0 : epochs->rows[at].epoch;
}

/* The oldest row that nothing holds; false: there is none. */
static bool give_back(struct kvd_epochs *epochs)
{
    for (uint32_t i = 0; epochs->held && i < epochs->count; i++) {
        struct kvd_epoch *row = &epochs->rows[i];

        if (epochs->held(epochs->context, row))
            continue;
        epochs->count--;
        memmove(row, row + 1, (epochs->count - i) * sizeof *row);
        return true;
    }
    return false;
}

bool kvd_epochs_raise(struct kvd_epochs *epochs, const char *tenant,
                      const uint8_t base[KVARN_FINGERPRINT_BYTES], uint32_t epoch)
{
    int at = find(epochs, tenant, base);

    assert(strlen(tenant) < KVD_TENANT_NAME_MAX);
    if (at < 0) {
        while (epochs->count >= kvd_epochs_limit(epochs))
            if (!give_back(epochs))
                return false;
        at = (int)epochs->count++;
        memset(&epochs->rows[at], 0, sizeof epochs->rows[at]);
        memcpy(epochs->rows[at].tenant, tenant, strlen(tenant));
        memcpy(epochs->rows[at].base, base, KVARN_FINGERPRINT_BYTES);
    }
    if (epochs->rows[at].epoch < epoch)
        epochs->rows[at].epoch = epoch;
    return true;
}
