/* CRC-32C of record bytes (the Castagnoli polynomial of iSCSI; "123456789" gives E3069283).
 *
 * The library's routine works on the bare register; the standard form starts from and ends with
 * all ones, which also lets a digest be continued from its last value. */
#include <limits.h>

#include <isa-l/crc.h>

#include "kernels/kernels.h"

uint32_t kvk_digest(uint32_t crc, const void *bytes, size_t count)
{
    /* the library takes a pointer to non-const and an int, but only reads */
    unsigned char *at = (unsigned char *)(uintptr_t)bytes;

    crc = ~crc;
    while (count > 0) {
        size_t part = count < INT_MAX ? count : INT_MAX;

        crc = crc32_iscsi(at, (int)part, crc);
        at += part;
        count -= part;
    }
    return ~crc;
}
