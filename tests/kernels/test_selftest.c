/* kernels/selftest.c: a table that is wrong is found, passed over and named; a wrong reference
 * leaves nothing to run.
 *
 * The linker puts __wrap_ functions in front of the compress kernels, so that the tables of
 * dispatch.c themselves are wrong when the test wants it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/tile.h"
#include "kernels/variants.h"

enum { AVX512, AVX2, REF, KINDS };

static const char *const stairs[KINDS] = {"avx512", "avx2", "ref"};
static int broken[KINDS];

/* One bit of one record in a single shape family: the least that can be wrong. */
static kvarn_status after(kvarn_status status, struct kvk_compress *op, int kind)
{
    if (broken[kind] && op->shape.dim == 256 && op->shape.group == 128)
        op->record[kvk_layout_of(256, 128, op->shape.bits_k, op->shape.bits_v).bytes - 1] ^= 1;
    return status;
}

/* clang-format off */
#define WRAP(name, kind)                                                                           \
    kvarn_status __real_##name(struct kvk_compress *op);                                           \
    kvarn_status __wrap_##name(struct kvk_compress *op);                                           \
    kvarn_status __wrap_##name(struct kvk_compress *op) { return after(__real_##name(op), op, kind); }
/* clang-format on */
WRAP(kvk_compress_ref, REF)
#if defined(KVK_HAVE_AVX2)
WRAP(kvk_compress_ref_fma, REF)
WRAP(kvk_compress_avx2, AVX2)
#endif
#if defined(KVK_HAVE_AVX512)
WRAP(kvk_compress_avx512, AVX512)
#endif

static char lines[KINDS + 1][160];
static int line_count;

static void keep(const char *line)
{
    snprintf(lines[line_count < KINDS ? line_count : KINDS], sizeof lines[0], "%s", line);
    line_count++;
}

static int setup(void **state)
{
    (void)state;
    memset(broken, 0, sizeof broken);
    line_count = 0;
    return 0;
}

/* Breaks the variants one after the other; each time the next one is taken, with one line for each
 * that was passed over. */
static void a_wrong_variant_is_passed_over(void **state)
{
    const struct kvk_table *best;

    (void)state;
    for (int kind = AVX512; kind < REF; kind++) {
        if (kvk_cpu_table(stairs[kind]) == NULL)
            continue;
        broken[kind] = 1;
        line_count = 0;
        best = kvk_cpu_best(stairs[kind], keep);
        assert_non_null(best);
        assert_string_equal(best->name, stairs[kind + 1]);
        if (kind == AVX512) {
            assert_int_equal(line_count, 1);
            assert_string_equal(lines[0], "kernels: avx512 skipped: self-test: compress differs "
                                          "from the reference");
        }
        line_count = 0;
        best = kvk_cpu_best(NULL, keep);
        assert_string_equal(best->name, stairs[kind + 1]);
        assert_int_equal(line_count, kind + 1);
        best = kvk_cpu_best(NULL, NULL); /* nobody listens */
        assert_string_equal(best->name, stairs[kind + 1]);
    }
}

static void a_wrong_reference_leaves_nothing(void **state)
{
    (void)state;
    broken[REF] = 1;
    assert_null(kvk_cpu_best(NULL, keep));
    assert_int_equal(line_count, KINDS);
    assert_string_equal(lines[REF],
                        "kernels: ref skipped: self-test: the reference gives other bits than it "
                        "should");
}

static kvarn_status wrong_compress(struct kvk_compress *op)
{
    kvarn_status status = kvk_table_ref.compress(op);

    op->record[3] ^= 1;
    return status;
}

static kvarn_status wrong_decompress(struct kvk_decompress *op)
{
    kvarn_status status = kvk_table_ref.decompress(op);

    if (op->shape.dim == 256)
        *((uint8_t *)op->v + 17) ^= 1;
    return status;
}

static kvarn_status wrong_attend(struct kvk_attend *op)
{
    kvarn_status status = kvk_table_ref.attend(op);

    op->lse[0] += 0.1f;
    return status;
}

static kvarn_status wrong_weights(struct kvk_attend *op)
{
    kvarn_status status = kvk_table_ref.attend(op);

    op->out[op->q_tokens * op->q_heads * op->shape.dim - 1] += 0.05f;
    return status;
}

static kvarn_status refusing_attend(struct kvk_attend *op)
{
    (void)op;
    return KVARN_INVALID_SHAPE;
}

static kvarn_status refusing_decompress(struct kvk_decompress *op)
{
    (void)op;
    return KVARN_INVALID_SHAPE;
}

static void a_wrong_table_is_caught(void **state)
{
    struct kvk_table table = kvk_table_ref;
    const char *why = NULL;

    (void)state;
    assert_true(kvk_selftest_passes(&table, &why));
    assert_null(why);
    table.compress = wrong_compress;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_non_null(strstr(why, "compress"));
    table = kvk_table_ref;
    table.decompress = wrong_decompress;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_non_null(strstr(why, "decompress"));
    table = kvk_table_ref;
    table.attend = wrong_attend;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_string_equal(why, "self-test: attend differs from the reference");
    table.attend = wrong_weights;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_string_equal(why, "self-test: attend differs from the reference");
    table.attend = refusing_attend;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_string_equal(why, "self-test: attend refused a valid call");
    table = kvk_table_ref;
    table.decompress = refusing_decompress;
    assert_false(kvk_selftest_passes(&table, &why));
    assert_string_equal(why, "self-test: a kernel refused a valid tile");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_wrong_variant_is_passed_over),
        TEST(a_wrong_reference_leaves_nothing),
        TEST(a_wrong_table_is_caught),
    };
    return cmocka_run_group_tests_name("selftest", tests, NULL, NULL);
}
