/* device/exec: the last byte of a region is inside, the next one is not, and nothing wraps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/device/exec.h"
#include "server/exec_fixture.h"

static struct exec_fixture *f;

static int setup(void **state)
{
    (void)state;
    f = exec_open(1, 1);
    return f != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    exec_close(f);
    return 0;
}

static struct kvd_place pool(uint64_t offset)
{
    return (struct kvd_place){KVD_REGION_POOL, 0, offset};
}

static void bytes_lie_in_their_region(void **state)
{
    const uint64_t size = EXEC_POOL_BYTES;

    (void)state;
    assert_ptr_equal(kvd_exec_at(f->executor, pool(0), size), f->pool);
    assert_ptr_equal(kvd_exec_at(f->executor, pool(size - 8), 8), f->pool + size - 8);
    assert_ptr_equal(kvd_exec_at(f->executor, pool(size), 0), f->pool + size);
    assert_null(kvd_exec_at(f->executor, pool(0), size + 1));
    assert_null(kvd_exec_at(f->executor, pool(size - 8), 9));
    assert_null(kvd_exec_at(f->executor, pool(size), 1));
    assert_null(kvd_exec_at(f->executor, pool(size + 1), 0));
    assert_null(kvd_exec_at(f->executor, pool(UINT64_MAX), 2)); /* their sum is 1 */
    assert_null(kvd_exec_at(f->executor, pool(8), UINT64_MAX));
    assert_null(kvd_exec_at(f->executor, (struct kvd_place){KVD_REGIONS, 0, 0}, 1));
    assert_null(kvd_exec_at(f->executor, (struct kvd_place){UINT32_MAX, 0, 0}, 1));
}

/* 3 layers, 5 tokens, 2 heads of 100 bytes: the last row ends 2 * 5000 + 4 * 300 + 100 + 100 bytes
 * after the first byte. */
static void strided_rows_end_where_the_last_one_does(void **state)
{
    const struct kvd_strides strides = {.layer = 5000, .token = 300, .head = 100};
    const uint32_t counts[3] = {3, 5, 2};
    const uint64_t span = 2 * 5000 + 4 * 300 + 100 + 100, size = EXEC_POOL_BYTES;

    (void)state;
    assert_ptr_equal(kvd_exec_rows(f->executor, pool(size - span), &strides, counts, 100),
                     f->pool + size - span);
    assert_null(kvd_exec_rows(f->executor, pool(size - span + 1), &strides, counts, 100));
    assert_null(kvd_exec_rows(f->executor, pool(size - span), &strides, counts, 101));
    for (int i = 0; i < 3; i++) {
        uint32_t none[3] = {3, 5, 2};

        none[i] = 0;
        assert_null(kvd_exec_rows(f->executor, pool(0), &strides, none, 100));
    }
}

static void strides_do_not_wrap(void **state)
{
    const uint64_t odd[] = {UINT64_MAX, UINT64_MAX / 2 + 1, UINT64_MAX / 4, 1ull << 62};
    const uint32_t counts[3] = {5, 5, 5}, ones[3] = {1, 1, 1};

    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct kvd_strides layer = {.layer = odd[i]}, token = {.token = odd[i]},
                           head = {.head = odd[i]}, all = {odd[i], odd[i], odd[i]};

        assert_null(kvd_exec_rows(f->executor, pool(0), &layer, counts, 8));
        assert_null(kvd_exec_rows(f->executor, pool(0), &token, counts, 8));
        assert_null(kvd_exec_rows(f->executor, pool(0), &head, counts, 8));
        /* a stride that is never taken means nothing */
        assert_ptr_equal(kvd_exec_rows(f->executor, pool(0), &all, ones, 8), f->pool);
    }
}

static void slots_are_whole(void **state)
{
    const struct kvd_job job = {.shape = f->shape, .layers = 3, .heads = 2};
    const uint32_t kinds[] = {KVARN_BLOCK_TILE, KVARN_BLOCK_EXACT};

    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = exec_cell_bytes(f, kinds[i]) * 3 * 2, last = EXEC_POOL_BYTES - bytes;

        assert_ptr_equal(kvd_exec_slot(f->executor, &job, pool(last), kinds[i]), f->pool + last);
        assert_null(kvd_exec_slot(f->executor, &job, pool(last + 1), kinds[i]));
    }
    assert_null(kvd_exec_slot(f->executor, &job, pool(0), 0));
    assert_null(kvd_exec_slot(f->executor, &job, pool(0), 3));
}

static void memory_of_a_wave_runs_out(void **state)
{
    float *first, *second;
    struct kvd_job_span *spans;

    (void)state;
    first = kvd_exec_parts(f->executor, 1);
    second = kvd_exec_parts(f->executor, KVD_EXEC_PARTS_FLOATS - 16);
    assert_non_null(first);
    assert_ptr_equal(second, first + 16); /* lines of their own */
    assert_null(kvd_exec_parts(f->executor, 1));
    f->executor->parts_used = 0;
    assert_null(kvd_exec_parts(f->executor, (uint64_t)KVD_EXEC_PARTS_FLOATS + 1));
    assert_ptr_equal(kvd_exec_parts(f->executor, KVD_EXEC_PARTS_FLOATS), first);
    assert_null(kvd_exec_parts(f->executor, UINT64_MAX));
    spans = kvd_exec_spans(f->executor, KVD_EXEC_WAVE_SPANS - 1);
    assert_ptr_equal(kvd_exec_spans(f->executor, 1), spans + KVD_EXEC_WAVE_SPANS - 1);
    assert_null(kvd_exec_spans(f->executor, 1));
    assert_null(kvd_exec_spans(f->executor, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_lie_in_their_region),
        cmocka_unit_test(strided_rows_end_where_the_last_one_does),
        cmocka_unit_test(strides_do_not_wrap),
        cmocka_unit_test(slots_are_whole),
        cmocka_unit_test(memory_of_a_wave_runs_out),
    };
    return cmocka_run_group_tests_name("exec", tests, setup, teardown);
}
