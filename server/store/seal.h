/* AES-256-GCM over bytes in place, and random bytes. Any thread. */
#ifndef KVD_SEAL_H
#define KVD_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVD_SEAL_KEY_BYTES = 32, KVD_SEAL_NONCE_BYTES = 12, KVD_SEAL_TAG_BYTES = 16 };

/* A nonce is used once with a key: take random ones, for at most 2^32 messages of a key. `with` is
 * bound to the message but not in it. False: out of memory. */
bool kvd_seal(const uint8_t key[KVD_SEAL_KEY_BYTES], const uint8_t nonce[KVD_SEAL_NONCE_BYTES],
              const uint8_t *with, size_t with_count, uint8_t *bytes, uint64_t count,
              uint8_t tag[KVD_SEAL_TAG_BYTES]);
/* False: not what was sealed; bytes then hold nothing of use. */
bool kvd_unseal(const uint8_t key[KVD_SEAL_KEY_BYTES], const uint8_t nonce[KVD_SEAL_NONCE_BYTES],
                const uint8_t *with, size_t with_count, uint8_t *bytes, uint64_t count,
                const uint8_t tag[KVD_SEAL_TAG_BYTES]);

/* Of the system. False: there are none. */
bool kvd_seal_random(uint8_t *bytes, size_t count);
/* Zeros that no compiler leaves out. */
void kvd_seal_wipe(void *bytes, size_t count);

#endif
