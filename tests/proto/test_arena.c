/* proto/arena.c: alignment from any base, zeroed memory, an exact end, reuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/arena.h"

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    uint8_t memory[1024];
    struct kvw_arena arena;

    (void)state;
    for (size_t skew = 0; skew < 16; skew++) {
        uint8_t *before = NULL;
        size_t taken = 0;

        memset(memory, 0xa5, sizeof memory);
        kvw_arena_init(&arena, memory + skew, sizeof memory - skew);
        for (size_t size = 1; size < 60; size += 7) {
            uint8_t *at = kvw_arena_take(&arena, size);

            assert_non_null(at);
            assert_int_equal((uintptr_t)at % 16, 0);
            assert_true(at >= memory + skew && at + size <= memory + sizeof memory);
            assert_true(before == NULL || at >= before + taken);
            for (size_t i = 0; i < size; i++)
                assert_int_equal(at[i], 0);
            memset(at, 0xff, size);
            before = at;
            taken = size;
        }
    }
}

static void end_is_exact(void **state)
{
    _Alignas(16) uint8_t memory[64 + 1];
    struct kvw_arena arena;

    (void)state;
    memory[64] = 0xa5;
    kvw_arena_init(&arena, memory, 64);
    assert_null(kvw_arena_take(&arena, 65));
    assert_null(kvw_arena_take(&arena, SIZE_MAX));
    assert_null(kvw_arena_take(&arena, SIZE_MAX - 15));
    assert_ptr_equal(kvw_arena_take(&arena, 48), memory);
    assert_null(kvw_arena_take(&arena, 17));
    assert_ptr_equal(kvw_arena_take(&arena, 16), memory + 48);
    assert_null(kvw_arena_take(&arena, 1));
    assert_int_equal(memory[64], 0xa5);
}

static void reset_starts_over_with_zeroes(void **state)
{
    _Alignas(16) uint8_t memory[64];
    struct kvw_arena arena;
    uint8_t *at;

    (void)state;
    kvw_arena_init(&arena, memory, sizeof memory);
    at = kvw_arena_take(&arena, 64);
    memset(at, 0xff, 64);
    kvw_arena_reset(&arena);
    assert_ptr_equal(kvw_arena_take(&arena, 64), at);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(at[i], 0);
}

static void nothing_at_all(void **state)
{
    struct kvw_arena arena;

    (void)state;
    kvw_arena_init(&arena, NULL, 0);
    assert_null(kvw_arena_take(&arena, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(end_is_exact),
        cmocka_unit_test(reset_starts_over_with_zeroes),
        cmocka_unit_test(nothing_at_all),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
