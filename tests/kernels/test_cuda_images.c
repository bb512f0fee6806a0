/* kernels/cuda/images.h: as many images as the build says, whole, in order, and of the kind that
 * the driver takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/images.h"

/* How a fatbin begins: magic, version, header bytes, then the bytes that follow the header. */
struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t body_bytes;
};

static void images_are_whole(void **state)
{
    (void)state;
    assert_int_equal(kvk_cuda_image_count, IMAGES);
    for (unsigned i = 0; i < kvk_cuda_image_count; i++) {
        const struct kvk_cuda_image *image = &kvk_cuda_images[i];
        struct fatbin_header header;
        size_t bytes = (size_t)(image->end - image->begin);

        assert_non_null(image->name);
        if (i > 0)
            assert_true(strcmp(kvk_cuda_images[i - 1].name, image->name) < 0);
        assert_int_equal((uintptr_t)image->begin % 64, 0);
        assert_true(bytes > sizeof(header));
        memcpy(&header, image->begin, sizeof(header));
        assert_int_equal(header.magic, 0xba55ed50);
        assert_int_equal(header.header_bytes + header.body_bytes, bytes);
    }
}

static void table_ends(void **state)
{
    (void)state;
    assert_null(kvk_cuda_images[kvk_cuda_image_count].name);
    assert_null(kvk_cuda_images[kvk_cuda_image_count].begin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_whole),
        cmocka_unit_test(table_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
