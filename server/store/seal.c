/* See seal.h. */
#include "server/store/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

enum { PIECE = 1 << 30 }; /* OpenSSL counts in int */

static bool run(EVP_CIPHER_CTX *context, bool sealing, const uint8_t *key, const uint8_t *nonce,
                const uint8_t *with, size_t with_count, uint8_t *bytes, uint64_t count)
{
    int got;

    if (EVP_CipherInit_ex2(context, EVP_aes_256_gcm(), key, nonce, sealing, NULL) != 1 ||
        EVP_CipherUpdate(context, NULL, &got, with, (int)with_count) != 1)
        return false;
    while (count) {
        int piece = count < PIECE ? (int)count : PIECE;

        if (EVP_CipherUpdate(context, bytes, &got, bytes, piece) != 1 || got != piece)
            return false;
        bytes += piece;
        count -= (uint64_t)piece;
    }
    return true;
}

bool kvd_seal(const uint8_t key[KVD_SEAL_KEY_BYTES], const uint8_t nonce[KVD_SEAL_NONCE_BYTES],
              const uint8_t *with, size_t with_count, uint8_t *bytes, uint64_t count,
              uint8_t tag[KVD_SEAL_TAG_BYTES])
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    uint8_t end[16];
    int got;
    bool fine = context && run(context, true, key, nonce, with, with_count, bytes, count) &&
                EVP_CipherFinal_ex(context, end, &got) == 1 &&
                EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, KVD_SEAL_TAG_BYTES, tag) == 1;

    EVP_CIPHER_CTX_free(context);
    return fine;
}

bool kvd_unseal(const uint8_t key[KVD_SEAL_KEY_BYTES], const uint8_t nonce[KVD_SEAL_NONCE_BYTES],
                const uint8_t *with, size_t with_count, uint8_t *bytes, uint64_t count,
                const uint8_t tag[KVD_SEAL_TAG_BYTES])
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    uint8_t end[16], wanted[KVD_SEAL_TAG_BYTES];
    int got;
    bool fine;

    for (int i = 0; i < KVD_SEAL_TAG_BYTES; i++)
        wanted[i] = tag[i];
    fine = context && run(context, false, key, nonce, with, with_count, bytes, count) &&
           EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, KVD_SEAL_TAG_BYTES, wanted) == 1 &&
           EVP_CipherFinal_ex(context, end, &got) == 1;
    EVP_CIPHER_CTX_free(context);
    return fine;
}

bool kvd_seal_random(uint8_t *bytes, size_t count)
{
    return RAND_bytes(bytes, (int)count) == 1;
}

void kvd_seal_wipe(void *bytes, size_t count)
{
    OPENSSL_cleanse(bytes, count);
}
