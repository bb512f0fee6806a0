/* The index against a slow model, and its hash against known answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/block.h"
#include "server/store/index.h"
#include "support/rng.h"

enum { KEYS = 700, OPS = 100000 };

static const uint64_t secret[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};

/* 100,000 random calls; every answer is that of an array that is searched from end to end. */
static void test_model(void **state)
{
    struct kvd_block *blocks = calloc(KEYS, sizeof *blocks), *slab = blocks, *found[KEYS];
    kvarn_key *keys = calloc(KEYS, sizeof *keys);
    struct rng rng = rng_make(rng_seed(7));
    bool *in = calloc(KEYS, sizeof *in);
    struct kvd_index index;
    size_t count = 0;

    (void)state;
    kvd_index_init(&index, secret, &slab);
    for (uint32_t i = 0; i < KEYS; i++) {
        /* the first half in long runs: keys that differ in one byte only */
        memset(blocks[i].key.bytes, 9, KVARN_KEY_BYTES);
        memcpy(blocks[i].key.bytes + (i % 2 ? 28 : 0), &i, sizeof i);
        blocks[i].id = i;
        keys[i] = blocks[i].key;
    }
    for (uint32_t op = 0; op < OPS; op++) {
        /* phases that fill and phases that empty, so that it grows and thins out */
        uint32_t i = rng_below(&rng, KEYS), bias = op / 5000 % 2 ? 6 : 2;

        if (rng_below(&rng, 8) < bias) {
            assert_int_equal(kvd_index_add(&index, &blocks[i]), in[i] ? KVARN_EXISTS : KVARN_OK);
            count += !in[i];
            in[i] = true;
        } else if (in[i]) {
            kvd_index_remove(&index, &blocks[i]);
            in[i] = false;
            count--;
        }
        i = rng_below(&rng, KEYS);
        assert_ptr_equal(kvd_index_find(&index, &blocks[i].key), in[i] ? &blocks[i] : NULL);
        assert_int_equal(index.count, count);
    }
    kvd_index_find_many(&index, keys->bytes, sizeof *keys, KEYS, found);
    for (uint32_t i = 0; i < KEYS; i++) {
        assert_ptr_equal(kvd_index_find(&index, &blocks[i].key), in[i] ? &blocks[i] : NULL);
        assert_ptr_equal(found[i], in[i] ? &blocks[i] : NULL);
    }
    kvd_index_free(&index);
    kvd_index_find_many(&index, keys->bytes, sizeof *keys, KEYS, found);
    for (uint32_t i = 0; i < KEYS; i++)
        assert_null(found[i]);
    free(keys);
    free(blocks);
    free(in);
}

/* Every place wraps around the end of the table sooner or later; here on purpose. */
static void test_wrap(void **state)
{
    struct kvd_block blocks[40], *slab = blocks;
    struct kvd_index index;
    uint32_t found = 0;

    (void)state;
    kvd_index_init(&index, secret, &slab);
    memset(blocks, 0, sizeof blocks);
    for (uint32_t n = 0; found < 40; n++) {
        kvarn_key key = {{0}};

        memcpy(key.bytes, &n, sizeof n);
        if ((kvd_index_hash(secret, &key) & 63) < 60)
            continue;
        blocks[found].key = key;
        blocks[found].id = found;
        assert_int_equal(kvd_index_add(&index, &blocks[found++]), KVARN_OK);
    }
    assert_int_equal(index.capacity, 64);
    for (uint32_t i = 0; i < 40; i += 2)
        kvd_index_remove(&index, &blocks[i]);
    for (uint32_t i = 0; i < 40; i++)
        assert_ptr_equal(kvd_index_find(&index, &blocks[i].key), i % 2 ? &blocks[i] : NULL);
    kvd_index_free(&index);
}

/* Keys whose halves of the hash are alike: only the keys themselves tell them apart, in find_many
 * too, which looks at one candidate first. */
static void test_alike(void **state)
{
    struct kvd_block *blocks = calloc(2, sizeof *blocks), *slab = blocks, *found[3];
    struct kvd_index index;
    kvarn_key keys[3] = {{{1}}, {{2}}, {{3}}};

    (void)state;
    kvd_index_init(&index, secret, &slab);
    for (uint32_t i = 0; i < 2; i++) {
        blocks[i].key = keys[i];
        blocks[i].id = i;
        assert_int_equal(kvd_index_add(&index, &blocks[i]), KVARN_OK);
    }
    for (size_t at = 0; at < index.capacity;
         at++) { /* all of them: as far as the first empty one */
        uint32_t hash = (uint32_t)kvd_index_hash(secret, &keys[2]);

        index.entries[(hash + at) & (index.capacity - 1)] =
            at < 2 ? (struct kvd_index_entry){hash, (uint32_t)at + 1}
                   : (struct kvd_index_entry){0, 0};
    }
    blocks[1].key = keys[2];
    kvd_index_find_many(&index, keys[2].bytes, 0, 3, found);
    assert_ptr_equal(found[0], &blocks[1]);
    assert_ptr_equal(kvd_index_find(&index, &keys[2]), &blocks[1]);
    blocks[1].key = keys[1];
    kvd_index_find_many(&index, keys[2].bytes, 0, 1, found);
    assert_null(found[0]);
    kvd_index_free(&index);
    free(blocks);
}

static void test_hash(void **state)
{
    const uint64_t other[2] = {secret[0] + 1, secret[1]};
    uint32_t bits = 0;

    (void)state;
    for (uint32_t n = 0; n < 256; n++) { /* one key bit turns about half of the hash bits */
        kvarn_key a = {{1, 2, 3}}, b = a;

        b.bytes[n / 8] = (uint8_t)(b.bytes[n / 8] ^ 1 << n % 8);
        bits +=
            (uint32_t)__builtin_popcountll(kvd_index_hash(secret, &a) ^ kvd_index_hash(secret, &b));
        assert_int_not_equal(kvd_index_hash(secret, &a), kvd_index_hash(other, &a));
    }
    assert_in_range(bits, 256 * 28, 256 * 36);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_hash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
