/* kernels/cuda/launch.c: every shape fits a multiprocessor, the work bounds the grid, no work is no
 * launch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/compress_plan.h"

enum { PROCESSORS = 132, LAUNCHES = 5 };

typedef struct kvk_cuda_launch (*describe)(const struct kvk_cuda_blocks *args, uint32_t processors);

static const describe launches[LAUNCHES] = {kvk_cuda_decompress_launch, kvk_cuda_read_launch,
                                            kvk_cuda_digest_launch, kvk_cuda_export_launch,
                                            kvk_cuda_import_launch};

static struct kvk_cuda_blocks blocks_of(int shape, uint32_t count)
{
    const uint16_t dims[] = {64, 128, 256};

    return (struct kvk_cuda_blocks){.shape = {.dim = dims[shape % 3],
                                              .group = shape / 3 % 2 ? 128 : 64,
                                              .bits_k = shape / 6 % 2 ? 4 : 2,
                                              .bits_v = shape / 12 % 2 ? 4 : 2,
                                              .dtype = KVARN_BF16,
                                              .iterations = 8},
                                    .layers = 40,
                                    .heads = 8,
                                    .layer_count = 36,
                                    .count = count};
}

static void every_shape_fits(void **state)
{
    (void)state;
    for (int shape = 0; shape < 24; shape++) {
        struct kvk_cuda_blocks many = blocks_of(shape, 1000);

        for (size_t i = 0; i < LAUNCHES; i++) {
            struct kvk_cuda_launch launch = launches[i](&many, PROCESSORS);

            assert_true(launch.grid > 0 && launch.grid % PROCESSORS == 0);
            assert_true(launch.shared_bytes <= KVK_CUDA_SHARED_MAX);
            assert_true(launch.block % 32 == 0 && launch.block <= 1024);
        }
    }
}

static void work_bounds_the_grid(void **state)
{
    struct kvk_cuda_blocks none = blocks_of(0, 0), one = blocks_of(4, 1);

    (void)state;
    one.layer_count = 1;
    one.heads = 5;
    for (size_t i = 0; i < LAUNCHES; i++)
        assert_int_equal(launches[i](&none, PROCESSORS).grid, 0);
    assert_int_equal(kvk_cuda_decompress_launch(&one, PROCESSORS).grid, 5);
    assert_int_equal(kvk_cuda_read_launch(&one, PROCESSORS).grid, 10);
    assert_int_equal(kvk_cuda_digest_launch(&one, PROCESSORS).grid, 5);
    assert_int_equal(kvk_cuda_digest_launch(&one, 3).grid, 3); /* two cells each */
    assert_int_equal(kvk_cuda_decompress_launch(&one, 1).grid, 1);
}

static void kernels_have_names(void **state)
{
    static const char *const images[LAUNCHES] = {"decompress", "read", "convert", "convert",
                                                 "convert"};
    static const char *const names[LAUNCHES] = {"kvk_cuda_decompress_256", "kvk_cuda_read",
                                                "kvk_cuda_digest", "kvk_cuda_export",
                                                "kvk_cuda_import"};
    struct kvk_cuda_blocks args = blocks_of(2, 3);

    (void)state;
    for (size_t i = 0; i < LAUNCHES; i++) {
        struct kvk_cuda_launch launch = launches[i](&args, PROCESSORS);

        assert_string_equal(launch.image, images[i]);
        assert_string_equal(launch.name, names[i]);
    }
    args.shape.dim = 64;
    assert_string_equal(kvk_cuda_decompress_launch(&args, PROCESSORS).name,
                        "kvk_cuda_decompress_64");
    assert_string_equal(kvk_cuda_compress_launch(&args).name, "kvk_cuda_compress_64_64");
    args.shape.range = KVARN_RANGE_TIGHT;
    assert_string_equal(kvk_cuda_compress_launch(&args).name, "kvk_cuda_compress_64_64_tight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_fits),
        cmocka_unit_test(work_bounds_the_grid),
        cmocka_unit_test(kernels_have_names),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
