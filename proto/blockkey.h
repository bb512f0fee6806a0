/* Block keys and fingerprints: SHA-256 over canonical encodings.
 *
 * Chain: key_i = SHA-256(canonical CBOR of [parent key, token ids, extra keys]), the form that vLLM
 * calls sha256_cbor, so that its published vectors hold and its block hashes can be used as they
 * are. */
#ifndef KVW_BLOCKKEY_H
#define KVW_BLOCKKEY_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

/* Key of the block of `tokens` [count] after `parent` (NULL: the first block, whose parent is the
 * hash of the seed text, vLLM's PYTHONHASHSEED; seed NULL = "0"). salt NULL or "" = none; it enters
 * the first block only, the others get it through the chain. Any count of tokens; seed and salt are
 * UTF-8. INTERNAL when the crypto library fails. */
kvarn_status kvw_blockkey_next(kvarn_key *out, const kvarn_key *parent, const char *seed,
                               const uint32_t *tokens, size_t count, const char *salt);

/* SHA-256 of bytes. */
kvarn_status kvw_sha256(uint8_t out[32], const void *bytes, size_t count);

/* What a fingerprint covers. Strings are borrowed, never NULL. */
struct kvw_fingerprint_input {
    const char *model, *revision, *adapter, *rope, *preset, *key_algorithm;
    uint32_t layers, kv_heads, head_dim, dtype, iterations, balance, range, k_rotated, v_rotated,
        sink_tokens, epoch;
};

/* SHA-256 over a canonical encoding: a version tag, then each field as name, type, length-prefixed
 * value, in a fixed order. k_rotated comes last and only when it is not 0, so that fingerprints
 * from before it was there stay what they were. */
kvarn_status kvw_fingerprint(uint8_t out[KVARN_FINGERPRINT_BYTES],
                             const struct kvw_fingerprint_input *in);

#endif
