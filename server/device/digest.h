/* The digest of a whole from the digests of its pieces, so that pieces can be digested in parallel.
 *
 * CRC-32C is linear: the digest of A then B is the digest of A, advanced over |B| zero bytes, xor
 * the digest of B. So every piece adds (xor) its digest, advanced over what follows it. */
#ifndef KVD_DIGEST_H
#define KVD_DIGEST_H

#include <stdint.h>

/* The part that a piece of this digest has in a whole that goes on for `after` bytes. */
uint32_t kvd_digest_advance(uint32_t digest, uint64_t after);

/* For many pieces of one length: a table in place of the microseconds that an advance takes. */
struct kvd_digest_joiner {
    uint32_t table[4][256];
};

void kvd_digest_joiner_init(struct kvd_digest_joiner *joiner, uint64_t piece_bytes);
/* Of `count` pieces of that length, one after the other. */
uint32_t kvd_digest_join(const struct kvd_digest_joiner *joiner, const uint32_t *digests,
                         uint64_t count);

#endif
