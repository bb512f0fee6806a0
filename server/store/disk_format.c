/* See disk_format.h. Fields are copied one by one: no struct stands in a file. */
#include "server/store/disk_format.h"

#include <endian.h>
#include <string.h>

#include "kernels/kernels.h"

enum {
    HEADER_CHECKSUM = 12,
    SLOT_BYTES_MAX_LOG2 = 40,

    FLAG_PERSISTENT = 1
};

static const char magic[8] = {'K', 'V', 'A', 'R', 'N', 'S', 'E', 'G'};

static void put32(uint8_t **at, uint32_t value)
{
    value = htole32(value);
    memcpy(*at, &value, 4);
    *at += 4;
}

static void put64(uint8_t **at, uint64_t value)
{
    value = htole64(value);
    memcpy(*at, &value, 8);
    *at += 8;
}

static void put(uint8_t **at, const void *bytes, size_t count)
{
    memcpy(*at, bytes, count);
    *at += count;
}

static uint32_t get32(const uint8_t **at)
{
    uint32_t value;

    memcpy(&value, *at, 4);
    *at += 4;
    return le32toh(value);
}

static uint64_t get64(const uint8_t **at)
{
    uint64_t value;

    memcpy(&value, *at, 8);
    *at += 8;
    return le64toh(value);
}

static void get(const uint8_t **at, void *bytes, size_t count)
{
    memcpy(bytes, *at, count);
    *at += count;
}

/* ---- header */

static uint32_t header_checksum(const uint8_t *page)
{
    uint32_t crc = kvk_digest(0, page, HEADER_CHECKSUM);

    return kvk_digest(crc, page + HEADER_CHECKSUM + 4, KVD_DISK_PAGE - HEADER_CHECKSUM - 4);
}

void kvd_disk_header_store(uint8_t page[KVD_DISK_PAGE], const struct kvd_disk_header *header)
{
    const struct kvd_disk_identity *identity = &header->identity;
    uint8_t *at = page;

    memset(page, 0, KVD_DISK_PAGE);
    put(&at, magic, sizeof magic);
    put32(&at, KVD_DISK_VERSION);
    put32(&at, 0);
    put(&at, header->store, sizeof header->store);
    put(&at, identity->tenant, sizeof identity->tenant);
    put(&at, identity->fingerprint, sizeof identity->fingerprint);
    put(&at, identity->base, sizeof identity->base);
    put32(&at, identity->layer_begin);
    put32(&at, identity->layers);
    put32(&at, identity->head_begin);
    put32(&at, identity->heads);
    put64(&at, identity->slot_bytes[0]);
    put64(&at, identity->slot_bytes[1]);
    put32(&at, header->kind);
    put32(&at, header->slots);
    put64(&at, header->number);
    put32(&at, header->sealed);
    at = page + HEADER_CHECKSUM;
    put32(&at, header_checksum(page));
}

static const char *check(const struct kvd_disk_header *header)
{
    const struct kvd_disk_identity *identity = &header->identity;

    if (!memchr(identity->tenant, 0, sizeof identity->tenant) || !identity->tenant[0])
        return "it names no tenant";
    if (header->kind != KVARN_BLOCK_TILE && header->kind != KVARN_BLOCK_EXACT)
        return "it holds blocks of an unknown kind";
    if (!header->slots || header->slots > KVD_DISK_SLOTS_MAX)
        return "its number of slots is not possible";
    for (int i = 0; i < 2; i++)
        if (!identity->slot_bytes[i] || identity->slot_bytes[i] >> SLOT_BYTES_MAX_LOG2)
            return "the size of its blocks is not possible";
    return NULL;
}

const char *kvd_disk_header_load(struct kvd_disk_header *header, const uint8_t page[KVD_DISK_PAGE])
{
    struct kvd_disk_identity *identity = &header->identity;
    const uint8_t *at = page + sizeof magic;
    uint32_t version, checksum;

    memset(header, 0, sizeof *header);
    if (memcmp(page, magic, sizeof magic) != 0)
        return "it is no segment";
    version = get32(&at);
    checksum = get32(&at);
    if (checksum != header_checksum(page))
        return "its header is damaged";
    if (version != KVD_DISK_VERSION)
        return "it is of another version";
    get(&at, header->store, sizeof header->store);
    get(&at, identity->tenant, sizeof identity->tenant);
    get(&at, identity->fingerprint, sizeof identity->fingerprint);
    get(&at, identity->base, sizeof identity->base);
    identity->layer_begin = get32(&at);
    identity->layers = get32(&at);
    identity->head_begin = get32(&at);
    identity->heads = get32(&at);
    identity->slot_bytes[0] = get64(&at);
    identity->slot_bytes[1] = get64(&at);
    header->kind = get32(&at);
    header->slots = get32(&at);
    header->number = get64(&at);
    header->sealed = get32(&at) != 0;
    return check(header);
}

/* ---- entries */

static uint32_t entry_checksum(const uint8_t *at, uint64_t number, uint32_t slot)
{
    uint8_t place[12], *next = place;

    put64(&next, number);
    put32(&next, slot);
    return kvk_digest(kvk_digest(0, place, sizeof place), at + 4, KVD_DISK_ENTRY_BYTES - 4);
}

void kvd_disk_entry_store(uint8_t at[KVD_DISK_ENTRY_BYTES], const struct kvd_disk_entry *entry,
                          uint64_t number, uint32_t slot)
{
    uint8_t *next = at + 4;

    memset(at, 0, KVD_DISK_ENTRY_BYTES);
    if (entry->state == KVD_ENTRY_FREE)
        return;
    put32(&next, entry->state);
    put32(&next, entry->persistent ? FLAG_PERSISTENT : 0);
    put64(&next, entry->sequence);
    put(&next, entry->key.bytes, KVARN_KEY_BYTES);
    put32(&next, entry->digest);
    put(&next, entry->nonce, sizeof entry->nonce);
    put(&next, entry->tag, sizeof entry->tag);
    next = at;
    put32(&next, entry_checksum(at, number, slot));
}

static bool all_zero(const uint8_t *at, size_t count)
{
    uint8_t any = 0;

    for (size_t i = 0; i < count; i++)
        any |= at[i];
    return any == 0;
}

bool kvd_disk_entry_load(struct kvd_disk_entry *entry, const uint8_t at[KVD_DISK_ENTRY_BYTES],
                         uint64_t number, uint32_t slot)
{
    const uint8_t *next = at;

    memset(entry, 0, sizeof *entry);
    if (all_zero(at, KVD_DISK_ENTRY_BYTES))
        return true;
    if (get32(&next) != entry_checksum(at, number, slot))
        return false;
    entry->state = get32(&next);
    entry->persistent = (get32(&next) & FLAG_PERSISTENT) != 0;
    entry->sequence = get64(&next);
    get(&next, entry->key.bytes, KVARN_KEY_BYTES);
    entry->digest = get32(&next);
    get(&next, entry->nonce, sizeof entry->nonce);
    get(&next, entry->tag, sizeof entry->tag);
    return (entry->state == KVD_ENTRY_BLOCK || entry->state == KVD_ENTRY_BAD) &&
           all_zero(next, KVD_DISK_ENTRY_BYTES - (size_t)(next - at));
}

void kvd_disk_bound_to(uint8_t out[KVD_DISK_BOUND_BYTES], const struct kvd_disk_header *header,
                       const struct kvd_disk_entry *entry)
{
    const struct kvd_disk_identity *identity = &header->identity;
    uint8_t *at = out;

    put(&at, header->store, sizeof header->store);
    put(&at, identity->tenant, sizeof identity->tenant);
    put(&at, identity->fingerprint, sizeof identity->fingerprint);
    put32(&at, identity->layer_begin);
    put32(&at, identity->layers);
    put32(&at, identity->head_begin);
    put32(&at, identity->heads);
    put32(&at, header->kind);
    put(&at, entry->key.bytes, KVARN_KEY_BYTES);
    put32(&at, entry->digest);
}

/* ---- places */

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + KVD_DISK_PAGE - 1) / KVD_DISK_PAGE * KVD_DISK_PAGE;
}

uint64_t kvd_disk_slot_bytes(const struct kvd_disk_header *header)
{
    return header->identity.slot_bytes[header->kind - 1];
}

uint64_t kvd_disk_entry_offset(uint32_t slot)
{
    return KVD_DISK_PAGE + (uint64_t)slot * KVD_DISK_ENTRY_BYTES;
}

uint64_t kvd_disk_slot_offset(const struct kvd_disk_header *header, uint32_t slot)
{
    return KVD_DISK_PAGE + whole_pages((uint64_t)header->slots * KVD_DISK_ENTRY_BYTES) +
           slot * whole_pages(kvd_disk_slot_bytes(header));
}

uint64_t kvd_disk_file_bytes(const struct kvd_disk_header *header)
{
    return kvd_disk_slot_offset(header, header->slots);
}
