/* proto/blockkey.c against SHA-256's published vectors, against keys made by Python's cbor2 as vLLM
 * makes them (tests/data/make_blockkeys.py), and for the properties a fingerprint must have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/blockkey.h"

static unsigned nibble(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a') + 10;
}

static size_t from_hex(uint8_t *out, size_t room, const char *hex)
{
    size_t count = strlen(hex) / 2;

    assert_true(count <= room);
    for (size_t i = 0; i < count; i++)
        out[i] = (uint8_t)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
    return count;
}

static void assert_digest(const uint8_t digest[32], const char *hex)
{
    uint8_t expected[32];

    assert_int_equal(from_hex(expected, sizeof expected, hex), 32);
    assert_memory_equal(digest, expected, 32);
}

/* FIPS 180-4 examples and the long vector of NIST's example set. */
static void sha256_matches_the_standard(void **state)
{
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    uint8_t digest[32];
    uint8_t *million = malloc(1000000);

    (void)state;
    assert_int_equal(kvw_sha256(digest, "abc", 3), KVARN_OK);
    assert_digest(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(kvw_sha256(digest, "", 0), KVARN_OK);
    assert_digest(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(kvw_sha256(digest, NULL, 0), KVARN_OK);
    assert_digest(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(kvw_sha256(digest, two_blocks, sizeof two_blocks - 1), KVARN_OK);
    assert_digest(digest, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_non_null(million);
    memset(million, 'a', 1000000);
    assert_int_equal(kvw_sha256(digest, million, 1000000), KVARN_OK);
    assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

struct vector {
    char seed[256], salt[1024];
    size_t count;
    uint32_t tokens[1024];
    char key[65];
};

static void text_of(char *out, size_t room, const char *column)
{
    size_t count = strcmp(column, "-") == 0 || strcmp(column, "+") == 0
                       ? 0
                       : from_hex((uint8_t *)out, room - 1, column);

    out[count] = '\0';
}

/* Takes a line apart. True when it starts a chain. */
static int parse(struct vector *vector, char *line)
{
    char *rest = NULL, *seed = strtok_r(line, " ", &rest), *salt = strtok_r(NULL, " ", &rest),
         *tokens = strtok_r(NULL, " ", &rest), *key = strtok_r(NULL, " \n", &rest), *inner = NULL;

    assert_non_null(key);
    text_of(vector->seed, sizeof vector->seed, seed);
    text_of(vector->salt, sizeof vector->salt, salt);
    assert_int_equal(strlen(key), 64);
    memcpy(vector->key, key, 65);
    vector->count = 0;
    if (strcmp(tokens, "-") != 0) {
        for (char *one = strtok_r(tokens, ",", &inner); one; one = strtok_r(NULL, ",", &inner))
            vector->tokens[vector->count++] = (uint32_t)strtoul(one, NULL, 10);
    }
    return strcmp(seed, "+") != 0;
}

static void keys_match_vllm(void **state)
{
    static struct vector vector;
    static char line[16384];
    FILE *file = fopen("tests/data/blockkeys.txt", "r");
    kvarn_key key, before;
    int lines = 0;

    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        int first = parse(&vector, line);

        before = key;
        assert_int_equal(kvw_blockkey_next(&key, first ? NULL : &before, vector.seed, vector.tokens,
                                           vector.count, vector.salt),
                         KVARN_OK);
        assert_digest(key.bytes, vector.key);
        lines++;
    }
    assert_int_equal(fclose(file), 0);
    assert_true(lines >= 20);
}

/* A caller may pass the same seed and salt with every block and write over the parent. */
static void defaults_and_aliases(void **state)
{
    static const uint32_t tokens[3] = {1, 2, 3};
    kvarn_key a, b;

    (void)state;
    assert_int_equal(kvw_blockkey_next(&a, NULL, NULL, tokens, 3, NULL), KVARN_OK);
    assert_int_equal(kvw_blockkey_next(&b, NULL, "0", tokens, 3, ""), KVARN_OK);
    assert_memory_equal(a.bytes, b.bytes, KVARN_KEY_BYTES);
    assert_int_equal(kvw_blockkey_next(&a, &a, NULL, tokens, 3, NULL), KVARN_OK);
    assert_int_equal(kvw_blockkey_next(&b, &b, "other", tokens, 3, "salt"), KVARN_OK);
    assert_memory_equal(a.bytes, b.bytes, KVARN_KEY_BYTES);
    assert_int_equal(kvw_blockkey_next(&b, NULL, "0", tokens, 3, "salt"), KVARN_OK);
    assert_int_equal(kvw_blockkey_next(&a, NULL, "0", tokens, 3, "salu"), KVARN_OK);
    assert_memory_not_equal(a.bytes, b.bytes, KVARN_KEY_BYTES);
}

static const struct kvw_fingerprint_input example = {
    .model = "m",
    .revision = "r",
    .adapter = "",
    .rope = "theta=10000",
    .preset = "kvarn_k4v2_g128",
    .key_algorithm = "sha256_cbor",
    .layers = 30,
    .kv_heads = 3,
    .head_dim = 64,
    .dtype = KVARN_BF16,
    .iterations = 8,
    .balance = 0,
    .range = 0,
    .k_rotated = 0,
    .v_rotated = 0,
    .sink_tokens = 128,
    .epoch = 1,
};

/* Every field matters, and moving a character from one text to its neighbour does too. */
static void fingerprint_covers_every_field(void **state)
{
    struct kvw_fingerprint_input in = example;
    uint8_t seen[20][32];
    size_t count = 0;

    (void)state;
#define WITH(field, value)                                                                         \
    in = example;                                                                                  \
    in.field = value;                                                                              \
    assert_int_equal(kvw_fingerprint(seen[count++], &in), KVARN_OK);
    WITH(model, "m")
    WITH(model, "mr")
    WITH(revision, "")
    WITH(adapter, "r")
    WITH(rope, "theta=10001")
    WITH(preset, "kvarn_k4v2_g64")
    WITH(key_algorithm, "")
    WITH(layers, 31)
    WITH(kv_heads, 4)
    WITH(head_dim, 128)
    WITH(dtype, KVARN_F16)
    WITH(iterations, 9)
    WITH(balance, 1)
    WITH(range, 1)
    WITH(k_rotated, 1)
    WITH(v_rotated, 1)
    WITH(sink_tokens, 0)
    WITH(epoch, 2)
    in = example;
    in.model = "mr";
    in.revision = "";
    assert_int_equal(kvw_fingerprint(seen[count++], &in), KVARN_OK);
#undef WITH
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(seen[i], seen[j], 32);
    }
}

/* Stored blocks carry it, so it must not drift between releases. */
static void fingerprint_is_frozen(void **state)
{
    uint8_t print[32];

    (void)state;
    assert_int_equal(kvw_fingerprint(print, &example), KVARN_OK);
    assert_digest(print, "aa38e7133505ab4530c22be356b723fab9061040377a78f855a7a2dd0ae1e238");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_matches_the_standard),
        cmocka_unit_test(keys_match_vllm),
        cmocka_unit_test(defaults_and_aliases),
        cmocka_unit_test(fingerprint_covers_every_field),
        cmocka_unit_test(fingerprint_is_frozen),
    };
    return cmocka_run_group_tests_name("blockkey", tests, NULL, NULL);
}
