/* SHA-256, the CBOR of a block's tokens, and the fingerprint's encoding.
 *
 * The CBOR form is the canonical one (RFC 8949, 4.2: shortest heads, definite lengths) of the
 * three-element array [parent key, token ids, extra keys]: a byte string, an array of unsigned
 * integers, and null or an array with the salt as text. It is streamed through a small buffer into
 * the hash and never stands in memory as a whole. */
#include "proto/blockkey.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include <openssl/evp.h>

#include "proto/bytes.h"

/* Looking an algorithm up takes locks and walks providers, so it is done once and kept until the
 * process ends. */
static pthread_once_t fetched = PTHREAD_ONCE_INIT;
static EVP_MD *sha256;

static void fetch(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

struct stream {
    EVP_MD_CTX *context;
    size_t fill;
    bool failed;
    uint8_t buffer[512];
};

static bool stream_begin(struct stream *stream)
{
    (void)pthread_once(&fetched, fetch);
    stream->fill = 0;
    stream->failed = false;
    stream->context = sha256 != NULL ? EVP_MD_CTX_new() : NULL;
    if (stream->context == NULL)
        return false;
    stream->failed = EVP_DigestInit_ex2(stream->context, sha256, NULL) != 1;
    return true;
}

static void stream_flush(struct stream *stream)
{
    if (stream->fill > 0 && EVP_DigestUpdate(stream->context, stream->buffer, stream->fill) != 1)
        stream->failed = true;
    stream->fill = 0;
}

static void stream_put(struct stream *stream, const void *bytes, size_t count)
{
    if (count > sizeof stream->buffer - stream->fill)
        stream_flush(stream);
    if (count > sizeof stream->buffer) {
        if (EVP_DigestUpdate(stream->context, bytes, count) != 1)
            stream->failed = true;
        return;
    }
    if (count > 0)
        memcpy(stream->buffer + stream->fill, bytes, count);
    stream->fill += count;
}

static kvarn_status stream_end(struct stream *stream, uint8_t out[32])
{
    stream_flush(stream);
    if (EVP_DigestFinal_ex(stream->context, out, NULL) != 1)
        stream->failed = true;
    EVP_MD_CTX_free(stream->context);
    return stream->failed ? KVARN_INTERNAL : KVARN_OK;
}

kvarn_status kvw_sha256(uint8_t out[32], const void *bytes, size_t count)
{
    struct stream stream;

    if (!stream_begin(&stream))
        return KVARN_INTERNAL;
    stream_put(&stream, bytes, count);
    return stream_end(&stream, out);
}

enum cbor_major { CBOR_UINT = 0, CBOR_BYTES = 2, CBOR_TEXT = 3, CBOR_ARRAY = 4 };
static const uint8_t cbor_null = 0xf6;

/* Head of an item: the shortest of the five forms. */
static void cbor_head(struct stream *stream, enum cbor_major major, uint64_t value)
{
    uint8_t head[9];
    unsigned size = value < 24 ? 0 : value <= 0xff ? 1 : value <= 0xffff ? 2 : 4;
    uint8_t code = 24;

    if (value > UINT32_MAX)
        size = 8;
    for (unsigned i = size; i > 1; i /= 2)
        code++;
    head[0] = (uint8_t)((unsigned)major << 5 | (size == 0 ? (unsigned)value : code));
    for (unsigned i = 0; i < size; i++)
        head[1 + i] = (uint8_t)(value >> (8 * (size - 1 - i)) & 0xff);
    stream_put(stream, head, 1 + size);
}

static void cbor_string(struct stream *stream, enum cbor_major major, const void *bytes,
                        size_t count)
{
    cbor_head(stream, major, count);
    stream_put(stream, bytes, count);
}

/* What stands in the parent's place at the first block: the hash of the seed as CBOR text. */
static kvarn_status seed_key(kvarn_key *out, const char *seed)
{
    struct stream stream;

    if (!stream_begin(&stream))
        return KVARN_INTERNAL;
    cbor_string(&stream, CBOR_TEXT, seed, strlen(seed));
    return stream_end(&stream, out->bytes);
}

kvarn_status kvw_blockkey_next(kvarn_key *out, const kvarn_key *parent, const char *seed,
                               const uint32_t *tokens, size_t count, const char *salt)
{
    struct stream stream;
    kvarn_key before;
    kvarn_status status = KVARN_OK;

    if (parent != NULL)
        before = *parent;
    else
        status = seed_key(&before, seed != NULL ? seed : "0");
    if (status != KVARN_OK || !stream_begin(&stream))
        return KVARN_INTERNAL;
    cbor_head(&stream, CBOR_ARRAY, 3);
    cbor_string(&stream, CBOR_BYTES, before.bytes, sizeof before.bytes);
    cbor_head(&stream, CBOR_ARRAY, count);
    for (size_t i = 0; i < count; i++)
        cbor_head(&stream, CBOR_UINT, tokens[i]);
    if (parent == NULL && salt != NULL && salt[0] != '\0') {
        cbor_head(&stream, CBOR_ARRAY, 1);
        cbor_string(&stream, CBOR_TEXT, salt, strlen(salt));
    } else {
        stream_put(&stream, &cbor_null, 1);
    }
    return stream_end(&stream, out->bytes);
}

/* One field: name, type, value, each length-prefixed, so that no two inputs share an encoding. */
static void print_field(struct stream *stream, const char *name, char type, const void *value,
                        size_t count)
{
    uint8_t length[4];

    kvw_le32_store(length, (uint32_t)strlen(name));
    stream_put(stream, length, sizeof length);
    stream_put(stream, name, strlen(name));
    stream_put(stream, &type, 1);
    kvw_le32_store(length, (uint32_t)count);
    stream_put(stream, length, sizeof length);
    stream_put(stream, value, count);
}

static void print_text(struct stream *stream, const char *name, const char *value)
{
    print_field(stream, name, 's', value, strlen(value));
}

static void print_number(struct stream *stream, const char *name, uint32_t value)
{
    uint8_t bytes[4];

    kvw_le32_store(bytes, value);
    print_field(stream, name, 'u', bytes, sizeof bytes);
}

kvarn_status kvw_fingerprint(uint8_t out[KVARN_FINGERPRINT_BYTES],
                             const struct kvw_fingerprint_input *in)
{
    struct stream stream;

    if (!stream_begin(&stream))
        return KVARN_INTERNAL;
    print_text(&stream, "tag", "kvarn fingerprint 1");
    print_text(&stream, "model", in->model);
    print_text(&stream, "revision", in->revision);
    print_text(&stream, "adapter", in->adapter);
    print_text(&stream, "rope", in->rope);
    print_text(&stream, "preset", in->preset);
    print_text(&stream, "key_algorithm", in->key_algorithm);
    print_number(&stream, "layers", in->layers);
    print_number(&stream, "kv_heads", in->kv_heads);
    print_number(&stream, "head_dim", in->head_dim);
    print_number(&stream, "dtype", in->dtype);
    print_number(&stream, "iterations", in->iterations);
    print_number(&stream, "balance", in->balance);
    print_number(&stream, "range", in->range);
    print_number(&stream, "v_rotated", in->v_rotated);
    print_number(&stream, "sink_tokens", in->sink_tokens);
    print_number(&stream, "epoch", in->epoch);
    if (in->k_rotated)
        print_number(&stream, "k_rotated", in->k_rotated);
    return stream_end(&stream, out);
}
