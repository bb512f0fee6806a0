/* device/digest: pieces joined are the whole, at lengths that no buffer has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "server/device/digest.h"
#include "support/rng.h"

static void digest_of_pieces_is_the_digest(void **state)
{
    (void)state;
    struct rng rng = rng_make(rng_seed(5));
    uint8_t bytes[5000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)rng_next(&rng);
    for (int round = 0; round < 200; round++) {
        size_t count = rng_below(&rng, sizeof(bytes)), at = 0;
        uint32_t joined = 0;
        while (at < count) {
            size_t piece = 1 + rng_below(&rng, (uint32_t)(count - at));
            joined ^= kvd_digest_advance(kvk_digest(0, bytes + at, piece), count - at - piece);
            at += piece;
        }
        assert_int_equal(joined, kvk_digest(0, bytes, count));
    }
}

static void pieces_of_one_length_join(void **state)
{
    (void)state;
    struct rng rng = rng_make(rng_seed(7));
    struct kvd_digest_joiner joiner;
    uint8_t bytes[5000];
    uint32_t digests[5000];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)rng_next(&rng);
    for (int round = 0; round < 100; round++) {
        size_t piece = 1 + rng_below(&rng, 700), count = rng_below(&rng, 5000 / 700 + 1);

        kvd_digest_joiner_init(&joiner, piece);
        for (size_t i = 0; i < count; i++)
            digests[i] = kvk_digest(0, bytes + i * piece, piece);
        assert_int_equal(kvd_digest_join(&joiner, digests, count),
                         kvk_digest(0, bytes, count * piece));
    }
}

/* Advancing in two steps is advancing once. */
static void any_length_can_be_advanced(void **state)
{
    struct rng rng = rng_make(rng_seed(6));

    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint32_t digest = (uint32_t)rng_next(&rng);
        uint64_t a = rng_next(&rng) >> (1 + rng_below(&rng, 62));
        uint64_t b = rng_next(&rng) >> (1 + rng_below(&rng, 62));

        assert_int_equal(kvd_digest_advance(kvd_digest_advance(digest, a), b),
                         kvd_digest_advance(digest, a + b));
        assert_int_equal(kvd_digest_advance(digest, 0), digest);
        assert_int_equal(kvd_digest_advance(0, a), 0);
    }
    assert_int_equal(kvd_digest_advance(1, UINT64_MAX),
                     kvd_digest_advance(kvd_digest_advance(1, UINT64_MAX - 9), 9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_of_pieces_is_the_digest),
        cmocka_unit_test(pieces_of_one_length_join),
        cmocka_unit_test(any_length_can_be_advanced),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
