/* What decoding costs: never malloc, never more than KVW_ARENA_BYTES, and a clean refusal when the
 * arena is smaller; with good, dear and random metadata. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec_cases.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTS_MALLOC 0
#endif
#endif
#ifndef COUNTS_MALLOC
#define COUNTS_MALLOC 1
#endif

static size_t allocations;

#if COUNTS_MALLOC
/* glibc's own names for the real ones. These definitions serve libprotobuf-c too. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    allocations++;
    return __libc_realloc(old, size);
}
#endif

static uint64_t seed = UINT64_C(0x2545f4914f6cdd1d);

static uint32_t any(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 32) % below);
}

static uint8_t wire[2 * KVW_METADATA_MAX_BYTES];

static size_t put_bytes(size_t at, uint8_t tag, size_t count)
{
    wire[at++] = tag;
    at += codec_put_varint(wire + at, count);
    memset(wire + at, 'x', count);
    return at + count;
}

static size_t arena_used(const char *name, size_t count)
{
    static uint8_t memory[4 * KVW_ARENA_BYTES];
    struct kvw_arena arena;
    union codec_any out;
    const char *why;

    assert_true(count <= KVW_METADATA_MAX_BYTES);
    kvw_arena_init(&arena, memory, sizeof memory);
    assert_int_equal(codec_case_named(name)->decode(&out, wire, count, &arena, &why), KVARN_OK);
    return arena.used;
}

/* The dearest metadata that passes the pre-scan: full lists of elements with texts, the first of
 * them with so many fields that protobuf-c needs more memory to sort them. */
static void arena_bound_holds(void **state)
{
    size_t count = 0;

    (void)state;
    for (unsigned i = 0; i < 256; i++) {
        size_t start = count, unknown = i < 12 ? 5 : 0;

        count += 3;
        count = put_bytes(count, 0x12, 95 - 4 * unknown);
        count = put_bytes(count, 0x1a, 95);
        count = put_bytes(count, 0x22, 32);
        for (unsigned j = 0; j < unknown; j++)
            count = put_bytes(count, 0x7a, 1);
        for (uint8_t tag = 0x28; tag <= 0x60; tag = (uint8_t)(tag + 8), count += 2) {
            wire[count] = tag;
            wire[count + 1] = 1;
        }
        wire[start] = 0x22;
        wire[start + 1] = (uint8_t)((count - start - 3) | 0x80);
        wire[start + 2] = (uint8_t)((count - start - 3) >> 7);
    }
    assert_true(arena_used("list_reply", count) <= KVW_ARENA_BYTES);

    count = 0;
    for (unsigned i = 0; i < 256; i++) {
        size_t start = count;

        count = put_bytes(count + 3, 0x0a, 240);
        memcpy(wire + count, "\x11\0\0\0\0\0\0\xf0\x3f", 9);
        count += 9;
        wire[start] = 0x22;
        wire[start + 1] = (uint8_t)((count - start - 3) | 0x80);
        wire[start + 2] = (uint8_t)((count - start - 3) >> 7);
    }
    assert_true(arena_used("stats_reply", count) <= KVW_ARENA_BYTES);

    count = 0;
    for (unsigned i = 0; i < KVW_UNKNOWN_FIELDS_MAX; i++)
        count = put_bytes(count, 0x7a, 1000);
    assert_true(arena_used("hello", count) <= KVW_ARENA_BYTES);
}

/* Decoding with less and less memory: refused or fine, and the same bytes decode again after. */
static void small_arenas_refuse(void **state)
{
    static uint8_t memory[KVW_ARENA_BYTES];
    union codec_any example, out;

    (void)state;
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        size_t count, needed, step;
        struct kvw_arena arena;
        const char *why;

        memset(&example, 0, sizeof example);
        test->fill(&example);
        count = test->encode(wire, sizeof wire, &example);
        kvw_arena_init(&arena, memory, sizeof memory);
        assert_int_equal(test->decode(&out, wire, count, &arena, &why), KVARN_OK);
        needed = arena.used;
        step = needed > 4096 ? 251 : 1;
        for (size_t size = 0; size < needed; size += step) {
            kvw_arena_init(&arena, memory, size);
            why = "";
            assert_int_equal(test->decode(&out, wire, count, &arena, &why), KVARN_BAD_FRAME);
            assert_true(why[0] != '\0');
        }
        kvw_arena_init(&arena, memory, needed);
        assert_int_equal(test->decode(&out, wire, count, &arena, &why), KVARN_OK);
    }
}

static void decoding_never_allocates(void **state)
{
    static uint8_t memory[KVW_ARENA_BYTES];
    union codec_any example, out;
    void *volatile counted;

    (void)state;
    if (!COUNTS_MALLOC)
        skip();
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        const struct codec_case *test = codec_case_at(i);
        struct kvw_result result;
        struct kvw_arena arena;
        const char *why;
        size_t count, before;

        memset(&example, 0, sizeof example);
        test->fill(&example);
        before = allocations;
        count = test->encode(wire, sizeof wire, &example);
        kvw_arena_init(&arena, memory, sizeof memory);
        (void)test->decode(&out, wire, count, &arena, &why);
        kvw_arena_init(&arena, memory, 100);
        (void)test->decode(&out, wire, count, &arena, &why);
        kvw_arena_init(&arena, memory, sizeof memory);
        (void)kvw_result_decode(&result, wire, count, &arena, &why);
        assert_int_equal(allocations, before);
    }
    counted = malloc(1); /* the counter counts */
    free(counted);
    assert_true(allocations > 0);
}

/* Random bytes, and examples with random damage: refused or decoded, and what decodes encodes. */
static void random_bytes(void **state)
{
    size_t cases = 0, decoded = 0;
    union codec_any out;

    (void)state;
    while (codec_case_at(cases) != NULL)
        cases++;
    for (unsigned round = 0; round < 200000; round++) {
        const struct codec_case *test = codec_case_at(any((uint32_t)cases));
        size_t count = any(48);

        if (round % 2 == 0) {
            for (size_t i = 0; i < count; i++)
                wire[i] = (uint8_t)any(256);
        } else {
            union codec_any example;

            memset(&example, 0, sizeof example);
            test->fill(&example);
            if (strcmp(test->name, "list_reply") == 0)
                example.list_reply.count = any(4);
            if (strcmp(test->name, "stats_reply") == 0)
                example.stats_reply.count = any(4);
            count = test->encode(wire, KVW_METADATA_MAX_BYTES, &example);
            for (unsigned hits = 1 + any(3); hits > 0; hits--)
                wire[any((uint32_t)count)] = (uint8_t)any(256);
        }
        if (codec_case_decode(test, &out, wire, count) == KVARN_OK) {
            assert_true(test->encode(wire, KVW_METADATA_MAX_BYTES, &out) > 0);
            decoded++;
        }
    }
    assert_true(decoded > 10000 && decoded < 190000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_bound_holds),
        cmocka_unit_test(small_arenas_refuse),
        cmocka_unit_test(decoding_never_allocates),
        cmocka_unit_test(random_bytes),
    };
    return cmocka_run_group_tests_name("codec_memory", tests, NULL, NULL);
}
