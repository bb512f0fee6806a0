/* store/ghost against an array that is searched from end to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/ghost.h"
#include "support/rng.h"

enum { HASHES = 3000, OPS = 40000 };

struct list {
    uint64_t items[HASHES * 4];
    uint32_t count; /* with what was taken out, as 0 */
};

static bool list_take(struct list *list, uint64_t hash)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->items[i] == hash) {
            list->items[i] = 0;
            return true;
        }
    }
    return false;
}

static void list_add(struct list *list, uint64_t hash, uint32_t most)
{
    list_take(list, hash);
    while (list->count && list->count >= most)
        memmove(list->items, list->items + 1, --list->count * sizeof list->items[0]);
    if (most)
        list->items[list->count++] = hash;
}

/* Hashes that share their low bits, so that places are fought for. */
static uint64_t hash_of(uint32_t number)
{
    return (uint64_t)number << 20 | (number % 50 + 1);
}

static void test_model(void **state)
{
    static struct list list;
    struct kvd_ghosts ghosts = {0};
    struct rng rng = rng_make(rng_seed(3));
    uint32_t taken = 0;

    (void)state;
    for (uint32_t op = 0; op < OPS; op++) {
        uint32_t most = op % 10000 < 7000 ? 2000 : 40; /* shrinks, too */
        uint64_t hash = hash_of(rng_below(&rng, HASHES));

        if (rng_below(&rng, 3)) {
            kvd_ghosts_add(&ghosts, hash, most);
            list_add(&list, hash, most);
        } else {
            bool was = list_take(&list, hash);

            assert_int_equal(kvd_ghosts_take(&ghosts, hash), was);
            assert_false(kvd_ghosts_take(&ghosts, hash));
            taken += was;
        }
    }
    assert_true(taken > 1000);
    for (uint32_t i = 0; i < HASHES; i++)
        assert_int_equal(kvd_ghosts_take(&ghosts, hash_of(i)), list_take(&list, hash_of(i)));
    kvd_ghosts_free(&ghosts);
}

static void test_none(void **state)
{
    struct kvd_ghosts ghosts = {0};

    (void)state;
    assert_false(kvd_ghosts_take(&ghosts, 1));
    kvd_ghosts_add(&ghosts, 1, 0); /* nothing is to be remembered */
    assert_false(kvd_ghosts_take(&ghosts, 1));
    kvd_ghosts_add(&ghosts, 1, 1);
    kvd_ghosts_add(&ghosts, 2, 1);
    assert_false(kvd_ghosts_take(&ghosts, 1));
    assert_true(kvd_ghosts_take(&ghosts, 2));
    kvd_ghosts_free(&ghosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
