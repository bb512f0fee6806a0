/* Headers and entries of segment files: what comes back, and that no flipped bit does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/disk_format.h"

static struct kvd_disk_header header_of(void)
{
    struct kvd_disk_header header = {.store = {1, 2, 3},
                                     .identity = {.tenant = "uid-1000",
                                                  .fingerprint = {9, 8, 7},
                                                  .base = {6, 5},
                                                  .layer_begin = 1,
                                                  .layers = 2,
                                                  .head_begin = 3,
                                                  .heads = 4,
                                                  .slot_bytes = {10000, 70000}},
                                     .kind = KVARN_BLOCK_EXACT,
                                     .slots = 33,
                                     .number = 0x123456789abcull,
                                     .sealed = true};

    return header;
}

static void a_header_comes_back(void **state)
{
    struct kvd_disk_header in = header_of(), out;
    uint8_t page[KVD_DISK_PAGE];

    (void)state;
    kvd_disk_header_store(page, &in);
    assert_null(kvd_disk_header_load(&out, page));
    assert_memory_equal(&out.identity, &in.identity, sizeof in.identity);
    assert_memory_equal(out.store, in.store, sizeof in.store);
    assert_int_equal(out.kind, in.kind);
    assert_int_equal(out.slots, in.slots);
    assert_int_equal(out.number, in.number);
    assert_true(out.sealed);
}

/* Every single bit of the page. */
static void a_flipped_header_is_refused(void **state)
{
    struct kvd_disk_header in = header_of(), out;
    uint8_t page[KVD_DISK_PAGE];

    (void)state;
    kvd_disk_header_store(page, &in);
    for (uint32_t bit = 0; bit < KVD_DISK_PAGE * 8; bit++) {
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_non_null(kvd_disk_header_load(&out, page));
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* A right checksum over values that cannot be. */
static void an_impossible_header_is_refused(void **state)
{
    struct kvd_disk_header in, out;
    uint8_t page[KVD_DISK_PAGE];

    (void)state;
    for (int what = 0; what < 6; what++) {
        in = header_of();
        if (what == 0)
            in.slots = 0;
        if (what == 1)
            in.slots = KVD_DISK_SLOTS_MAX + 1;
        if (what == 2)
            in.kind = 3;
        if (what == 3)
            in.identity.slot_bytes[0] = 0;
        if (what == 4)
            in.identity.slot_bytes[1] = UINT64_MAX;
        if (what == 5)
            memset(in.identity.tenant, 'x', sizeof in.identity.tenant);
        kvd_disk_header_store(page, &in);
        assert_non_null(kvd_disk_header_load(&out, page));
    }
}

static struct kvd_disk_entry entry_of(void)
{
    struct kvd_disk_entry entry = {.state = KVD_ENTRY_BLOCK,
                                   .persistent = true,
                                   .sequence = 77,
                                   .key = {{5, 6}},
                                   .digest = 0xdeadbeef,
                                   .nonce = {1},
                                   .tag = {2}};

    return entry;
}

static void an_entry_comes_back_in_its_place_alone(void **state)
{
    struct kvd_disk_entry in = entry_of(), out;
    uint8_t at[KVD_DISK_ENTRY_BYTES];

    (void)state;
    kvd_disk_entry_store(at, &in, 9, 4);
    assert_true(kvd_disk_entry_load(&out, at, 9, 4));
    assert_int_equal(out.state, in.state);
    assert_true(out.persistent);
    assert_int_equal(out.sequence, in.sequence);
    assert_memory_equal(&out.key, &in.key, sizeof in.key);
    assert_int_equal(out.digest, in.digest);
    assert_memory_equal(out.nonce, in.nonce, sizeof in.nonce);
    assert_memory_equal(out.tag, in.tag, sizeof in.tag);
    assert_false(kvd_disk_entry_load(&out, at, 9, 5));
    assert_false(kvd_disk_entry_load(&out, at, 10, 4));
    for (uint32_t bit = 0; bit < KVD_DISK_ENTRY_BYTES * 8; bit++) {
        at[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(kvd_disk_entry_load(&out, at, 9, 4));
        at[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void a_free_entry_is_zeros(void **state)
{
    struct kvd_disk_entry free_one = {.state = KVD_ENTRY_FREE, .sequence = 3}, out;
    uint8_t at[KVD_DISK_ENTRY_BYTES], zeros[KVD_DISK_ENTRY_BYTES] = {0};

    (void)state;
    kvd_disk_entry_store(at, &free_one, 1, 1);
    assert_memory_equal(at, zeros, sizeof at);
    assert_true(kvd_disk_entry_load(&out, at, 1, 1));
    assert_int_equal(out.state, KVD_ENTRY_FREE);
}

/* Nothing overlaps, and no entry straddles a sector. */
static void places_do_not_overlap(void **state)
{
    struct kvd_disk_header header = header_of();

    (void)state;
    for (uint32_t i = 0; i < header.slots; i++) {
        uint64_t entry = kvd_disk_entry_offset(i), slot = kvd_disk_slot_offset(&header, i);

        assert_true(entry >= KVD_DISK_PAGE);
        assert_int_equal(entry / 512, (entry + KVD_DISK_ENTRY_BYTES - 1) / 512);
        assert_true(slot >= kvd_disk_entry_offset(header.slots));
        assert_int_equal(slot % KVD_DISK_PAGE, 0);
        assert_true(kvd_disk_slot_offset(&header, i + 1) - slot >= kvd_disk_slot_bytes(&header));
    }
    assert_int_equal(kvd_disk_slot_bytes(&header), 70000);
    assert_int_equal(kvd_disk_file_bytes(&header), kvd_disk_slot_offset(&header, 33));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_comes_back),
        cmocka_unit_test(a_flipped_header_is_refused),
        cmocka_unit_test(an_impossible_header_is_refused),
        cmocka_unit_test(an_entry_comes_back_in_its_place_alone),
        cmocka_unit_test(a_free_entry_is_zeros),
        cmocka_unit_test(places_do_not_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
