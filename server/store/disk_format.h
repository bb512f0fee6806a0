/* What stands in a segment file. All integers little-endian.
 *
 *   page 0       header: which store, tenant, space, shard and kind; how many slots of which size
 *   pages 1..    table: one entry of 128 bytes per slot (zeros: the slot is free)
 *   then         slots, each at a multiple of 4096 bytes: a block in canonical order, or sealed
 *
 * The header never changes after the file got its name. Each entry has a checksum of its own that
 * also covers the segment's number and the slot's, so an entry that was torn, flipped or moved is
 * no entry; it never straddles a sector, so writing one tears no other. */
#ifndef KVD_DISK_FORMAT_H
#define KVD_DISK_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/types.h>

#include "server/store/tenant.h"

enum {
    KVD_DISK_VERSION = 2,
    KVD_DISK_PAGE = 4096,
    KVD_DISK_ENTRY_BYTES = 128,
    KVD_DISK_ID_BYTES = 16,
    KVD_DISK_NONCE_BYTES = 12,
    KVD_DISK_TAG_BYTES = 16,
    KVD_DISK_SLOTS_MAX = 65536,
    KVD_DISK_BOUND_BYTES = KVD_DISK_ID_BYTES + KVD_TENANT_NAME_MAX + KVARN_FINGERPRINT_BYTES + 20 +
                           KVARN_KEY_BYTES + 4,
};

/* What a stored block belongs to; equal in every byte or another space. */
struct kvd_disk_identity {
    char tenant[KVD_TENANT_NAME_MAX]; /* zeros after the name */
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint8_t base[KVARN_FINGERPRINT_BYTES]; /* the fingerprint of epoch 0 */
    uint32_t layer_begin, layers, head_begin, heads;
    uint64_t slot_bytes[2]; /* [kind - 1] */
};

struct kvd_disk_header {
    uint8_t store[KVD_DISK_ID_BYTES];
    struct kvd_disk_identity identity;
    uint32_t kind, slots; /* kvarn_block_kind */
    uint64_t number;      /* of the segment; its name says the same */
    bool sealed;
};

enum kvd_disk_entry_state { KVD_ENTRY_FREE = 0, KVD_ENTRY_BLOCK = 1, KVD_ENTRY_BAD = 2 };

struct kvd_disk_entry {
    uint32_t state; /* BAD: the slot did not give back what it was given; never used again */
    bool persistent;
    uint64_t sequence; /* of two entries with one key the higher counts */
    kvarn_key key;
    uint32_t digest; /* CRC-32C over the block's canonical bytes */
    uint8_t nonce[KVD_DISK_NONCE_BYTES], tag[KVD_DISK_TAG_BYTES]; /* of a sealed slot */
};

void kvd_disk_header_store(uint8_t page[KVD_DISK_PAGE], const struct kvd_disk_header *header);
/* NULL when it is one that we can read, else what is wrong with it. */
const char *kvd_disk_header_load(struct kvd_disk_header *header, const uint8_t page[KVD_DISK_PAGE]);

void kvd_disk_entry_store(uint8_t at[KVD_DISK_ENTRY_BYTES], const struct kvd_disk_entry *entry,
                          uint64_t number, uint32_t slot);
/* False: no entry. */
bool kvd_disk_entry_load(struct kvd_disk_entry *entry, const uint8_t at[KVD_DISK_ENTRY_BYTES],
                         uint64_t number, uint32_t slot);

/* What a sealed block is bound to: put anywhere else it does not open. */
void kvd_disk_bound_to(uint8_t out[KVD_DISK_BOUND_BYTES], const struct kvd_disk_header *header,
                       const struct kvd_disk_entry *entry);

/* Where things stand in the file. */
uint64_t kvd_disk_slot_bytes(const struct kvd_disk_header *header); /* of a block */
uint64_t kvd_disk_entry_offset(uint32_t slot);
uint64_t kvd_disk_slot_offset(const struct kvd_disk_header *header, uint32_t slot);
uint64_t kvd_disk_file_bytes(const struct kvd_disk_header *header);

#endif
