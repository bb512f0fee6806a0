/* Little-endian integers at any alignment, written out by shifts.
 *
 * The wire is little-endian whatever the host is, and payload bytes may stand at odd addresses, so
 * nothing on the wire is ever cast to a struct. Compilers turn each of these into one move. */
#ifndef KVW_BYTES_H
#define KVW_BYTES_H

#include <stdint.h>

static inline uint16_t kvw_le16_load(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t kvw_le32_load(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t kvw_le64_load(const uint8_t *at)
{
    return (uint64_t)kvw_le32_load(at) | (uint64_t)kvw_le32_load(at + 4) << 32;
}

static inline void kvw_le16_store(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value & 0xff);
    at[1] = (uint8_t)(value >> 8);
}

static inline void kvw_le32_store(uint8_t *at, uint32_t value)
{
    kvw_le16_store(at, (uint16_t)(value & 0xffff));
    kvw_le16_store(at + 2, (uint16_t)(value >> 16));
}

static inline void kvw_le64_store(uint8_t *at, uint64_t value)
{
    kvw_le32_store(at, (uint32_t)(value & 0xffffffff));
    kvw_le32_store(at + 4, (uint32_t)(value >> 32));
}

#endif
