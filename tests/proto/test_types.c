/* proto/types.c: the table of presets, and sizes exactly as the method states them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/types.h>

struct size_row {
    uint32_t head_dim, group;
    uint32_t per_token[3]; /* K2V2, K4V2, K4V4: bytes per token and kv head */
    uint32_t per_tile[3];
};

static const struct size_row sizes[] = {
    {64, 64, {44, 60, 76}, {2816, 3840, 4864}},
    {64, 128, {41, 57, 73}, {5248, 7296, 9344}},
    {128, 64, {82, 114, 146}, {5248, 7296, 9344}},
    {128, 128, {76, 108, 140}, {9728, 13824, 17920}},
    {256, 64, {158, 222, 286}, {10112, 14208, 18304}},
    {256, 128, {146, 210, 274}, {18688, 26880, 35072}},
};

/* The per-token figures of the method are rounded up where a tile does not divide evenly. */
static void record_bytes_are_the_published_ones(void **state)
{
    static const char *const families[] = {"kvarn", "scalefree", "tight"};
    static const char *const forms[] = {"k2v2", "k4v2", "k4v4"};

    (void)state;
    for (size_t f = 0; f < 3; f++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (size_t p = 0; p < 3; p++) {
                const struct size_row *row = &sizes[i];
                char name[64];
                const kvarn_preset *preset;

                (void)snprintf(name, sizeof name, "%s_%s_g%u", families[f], forms[p], row->group);
                preset = kvarn_preset_find(name);
                assert_non_null(preset);
                assert_int_equal(kvarn_record_bytes(preset, row->head_dim), row->per_tile[p]);
                assert_int_equal((row->per_tile[p] + row->group - 1) / row->group,
                                 row->per_token[p]);
            }
        }
    }
}

static void odd_head_dims_have_no_record(void **state)
{
    static const uint32_t dims[] = {0, 1, 32, 63, 65, 96, 127, 192, 255, 257, 512, UINT32_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        assert_int_equal(kvarn_record_bytes(kvarn_preset_at(0), dims[i]), 0);
}

static void presets_are_listed_and_found(void **state)
{
    size_t count = 0;

    (void)state;
    for (const kvarn_preset *preset; (preset = kvarn_preset_at(count)) != NULL; count++) {
        int public_form = strncmp(preset->name, "kvarn_", 6) == 0;
        int tight = strncmp(preset->name, "tight_", 6) == 0;
        char name[64];

        assert_ptr_equal(kvarn_preset_find(preset->name), preset);
        (void)snprintf(name, sizeof name, "%s_k%uv%u_g%u",
                       public_form ? "kvarn"
                       : tight     ? "tight"
                                   : "scalefree",
                       preset->bits_k, preset->bits_v, preset->group);
        assert_string_equal(preset->name, name);
        assert_int_equal(preset->balance,
                         public_form ? KVARN_BALANCE_PUBLIC : KVARN_BALANCE_SCALE_FREE);
        assert_int_equal(preset->range, tight ? KVARN_RANGE_TIGHT : KVARN_RANGE_MINMAX);
    }
    assert_int_equal(count, 18);
    assert_null(kvarn_preset_at(SIZE_MAX));
    assert_null(kvarn_preset_find(""));
    assert_null(kvarn_preset_find("kvarn_k2v2_g12"));
    assert_null(kvarn_preset_find("kvarn_k2v2_g1288"));
    assert_null(kvarn_preset_find("KVARN_K2V2_G128"));
}

static void dtypes(void **state)
{
    (void)state;
    assert_int_equal(kvarn_dtype_bytes(KVARN_F16), 2);
    assert_int_equal(kvarn_dtype_bytes(KVARN_BF16), 2);
    assert_int_equal(kvarn_dtype_bytes(KVARN_F32), 4);
    assert_int_equal(kvarn_dtype_bytes((kvarn_dtype)0), 0);
    assert_int_equal(kvarn_dtype_bytes((kvarn_dtype)4), 0);
    assert_string_equal(kvarn_dtype_name(KVARN_F16), "f16");
    assert_string_equal(kvarn_dtype_name(KVARN_BF16), "bf16");
    assert_string_equal(kvarn_dtype_name(KVARN_F32), "f32");
    assert_null(kvarn_dtype_name((kvarn_dtype)0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_bytes_are_the_published_ones),
        cmocka_unit_test(odd_head_dims_have_no_record),
        cmocka_unit_test(presets_are_listed_and_found),
        cmocka_unit_test(dtypes),
    };
    return cmocka_run_group_tests_name("types", tests, NULL, NULL);
}
