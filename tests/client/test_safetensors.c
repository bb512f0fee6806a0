/*
 * Tests of the safetensors reader: sound files are read, damaged ones are refused with the
 * right error code.  Every case writes a small file of its own; a capture from tests/data is
 * opened too.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "client/demo/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define NAME_SIZE 64

static void write_raw(char path[NAME_SIZE], uint64_t length, const char *header, size_t data_bytes)
{
    unsigned char prefix[8];
    (void)snprintf(path, NAME_SIZE, "/tmp/test_safetensors.XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *out = fdopen(fd, "wb");
    assert_non_null(out);
    for (size_t i = 0; i < sizeof(prefix); i++) {
        prefix[i] = (unsigned char)(length >> (8 * i));
    }
    assert_int_equal(fwrite(prefix, 1, sizeof(prefix), out), sizeof(prefix));
    assert_int_equal(fwrite(header, 1, strlen(header), out), strlen(header));
    for (size_t i = 0; i < data_bytes; i++) {
        assert_int_not_equal(fputc((int)(i & 0xff), out), EOF);
    }
    assert_int_equal(fclose(out), 0);
}

/* Pads the header to a multiple of eight bytes, as writers do, then opens the file. */
static struct demo_st_file *open_made(const char *header, size_t data_bytes,
                                      struct demo_st_error *err)
{
    char path[NAME_SIZE];
    char padded[2048];
    (void)snprintf(padded, sizeof(padded), "%s%*s", header, (int)((8 - strlen(header) % 8) % 8),
                   "");
    write_raw(path, strlen(padded), padded, data_bytes);
    struct demo_st_file *file = demo_st_open(path, err);
    assert_int_equal(unlink(path), 0);
    return file;
}

static void expect_refused(const char *header, size_t data_bytes, enum demo_st_code code)
{
    struct demo_st_error err;
    struct demo_st_file *file = open_made(header, data_bytes, &err);
    if (file != NULL || err.code != code) {
        print_error("header %s: code %d, text '%s'\n", header, (int)err.code, err.text);
    }
    assert_null(file);
    assert_int_equal(err.code, code);
    assert_true(strlen(err.text) > 0);
}

static void good_file(void **state)
{
    (void)state;
    struct demo_st_error err;
    struct demo_st_tensor t;
    struct demo_st_file *file =
        open_made("{\"__metadata__\":{\"model\":\"m\"},"
                  "\"b\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                  "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                  "\"none\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
                  "\"one\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]}}",
                  21, &err);
    assert_non_null(file);
    assert_true(demo_st_expect(file, "b", DEMO_ST_F16, 2, &t, &err));
    assert_int_equal(t.bytes, 12);
    assert_int_equal(t.shape[0], 2);
    assert_int_equal(t.shape[1], 3);
    assert_int_equal(((const unsigned char *)t.data)[0], 8);
    assert_true(demo_st_find(file, "none", &t, &err));
    assert_int_equal(t.bytes, 0);
    assert_true(demo_st_expect(file, "one", DEMO_ST_U8, 0, &t, &err));
    assert_int_equal(t.bytes, 1);
    assert_string_equal(demo_st_metadata(file, "model"), "m");
    assert_null(demo_st_metadata(file, "absent"));

    assert_false(demo_st_find(file, "absent", &t, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_NOT_FOUND);
    assert_false(demo_st_find(file, "__metadata__", &t, &err));
    assert_false(demo_st_expect(file, "a", DEMO_ST_F16, 1, &t, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_DTYPE);
    assert_string_equal(err.text, "tensor a is F32, expected F16");
    assert_false(demo_st_expect(file, "a", DEMO_ST_F32, 2, &t, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_SHAPE);
    demo_st_close(file);
}

static void no_metadata(void **state)
{
    (void)state;
    struct demo_st_error err;
    struct demo_st_file *file = open_made("{}", 0, &err);
    assert_non_null(file);
    assert_null(demo_st_metadata(file, "model"));
    demo_st_close(file);
    demo_st_close(NULL);
}

static void truncated(void **state)
{
    (void)state;
    struct demo_st_error err;
    char path[NAME_SIZE];
    const uint64_t lengths[] = {3, UINT64_C(1) << 20, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        write_raw(path, lengths[i], "{}", 0);
        assert_null(demo_st_open(path, &err));
        assert_int_equal(err.code, DEMO_ST_ERR_TRUNCATED);
        assert_int_equal(unlink(path), 0);
    }
    write_raw(path, 2, "{}", 0);
    assert_int_equal(truncate(path, 7), 0);
    assert_null(demo_st_open(path, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_TRUNCATED);
    assert_int_equal(truncate(path, 0), 0);
    assert_null(demo_st_open(path, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_TRUNCATED);
    assert_int_equal(unlink(path), 0);
    assert_null(demo_st_open(path, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_IO);
    assert_null(demo_st_open("/tmp", &err));
    assert_int_equal(err.code, DEMO_ST_ERR_IO);
}

static void not_json(void **state)
{
    (void)state;
    expect_refused("", 0, DEMO_ST_ERR_JSON);
    expect_refused("model", 0, DEMO_ST_ERR_JSON);
    expect_refused("{\"a\":", 0, DEMO_ST_ERR_JSON);
    expect_refused("{} {}", 0, DEMO_ST_ERR_JSON);
    expect_refused("{\"a\":{},\"a\":{}}", 0, DEMO_ST_ERR_JSON);
    expect_refused("[1]", 0, DEMO_ST_ERR_HEADER);
    expect_refused("{\"a\":1}", 0, DEMO_ST_ERR_HEADER);
    expect_refused("{\"__metadata__\":1}", 0, DEMO_ST_ERR_HEADER);
    expect_refused("{\"__metadata__\":{\"a\":1}}", 0, DEMO_ST_ERR_HEADER);
}

static void bad_range(void **state)
{
    (void)state;
#define PAIR(first, second)                                                                        \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" first "},"                          \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" second "}}"
    struct demo_st_error err;
    struct demo_st_file *file = open_made(PAIR("[4,8]", "[0,4]"), 8, &err);
    assert_non_null(file);
    demo_st_close(file);
    expect_refused(PAIR("[0,4]", "[2,6]"), 6, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[0,4]"), 4, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[5,9]"), 9, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[4,8]"), 7, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[4,8]"), 9, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[8,4]"), 8, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[4,7]"), 7, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[-4,0]"), 8, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[4]"), 8, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[4.0,8.0]"), 8, DEMO_ST_ERR_RANGE);
    expect_refused(PAIR("[0,4]", "[9223372036854775803,9223372036854775807]"), 8,
                   DEMO_ST_ERR_RANGE);
#undef PAIR
}

static void bad_shape(void **state)
{
    (void)state;
#define SHAPE(shape) "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0,8]}}"
    expect_refused(SHAPE("[4294967296,4294967296]"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("[4611686018427387906]"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("[0,4294967296,4294967296]"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("[-2]"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("[2.0]"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("2"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("[1,1,1,1,1,1,1,1,2]"), 8, DEMO_ST_ERR_SHAPE);
    expect_refused(SHAPE("[3]"), 8, DEMO_ST_ERR_RANGE);
#undef SHAPE
}

static void bad_dtype(void **state)
{
    (void)state;
    expect_refused("{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                   DEMO_ST_ERR_DTYPE);
    expect_refused("{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                   DEMO_ST_ERR_DTYPE);
    expect_refused("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, DEMO_ST_ERR_DTYPE);
    expect_refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                   DEMO_ST_ERR_RANGE);
}

static void misaligned(void **state)
{
    (void)state;
    struct demo_st_error err;
    struct demo_st_tensor t;
    struct demo_st_file *file =
        open_made("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                  "\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[1,3]}}",
                  3, &err);
    assert_non_null(file);
    assert_true(demo_st_find(file, "a", &t, &err));
    assert_false(demo_st_find(file, "b", &t, &err));
    assert_int_equal(err.code, DEMO_ST_ERR_ALIGN);
    demo_st_close(file);
}

static void sample_file(void **state)
{
    (void)state;
    struct demo_st_error err;
    struct demo_st_tensor t;
    struct demo_st_file *file = demo_st_open("tests/data/capture_smollm2_135m.safetensors", &err);
    assert_non_null(file);
    assert_true(demo_st_expect(file, "layer.0.k", DEMO_ST_F16, 3, &t, &err));
    assert_int_equal(t.bytes, 2 * t.shape[0] * t.shape[1] * t.shape[2]);
    assert_non_null(demo_st_metadata(file, "model"));
    demo_st_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file), cmocka_unit_test(no_metadata), cmocka_unit_test(truncated),
        cmocka_unit_test(not_json),  cmocka_unit_test(bad_range),   cmocka_unit_test(bad_shape),
        cmocka_unit_test(bad_dtype), cmocka_unit_test(misaligned),  cmocka_unit_test(sample_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
