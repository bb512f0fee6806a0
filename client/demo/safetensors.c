/*
 * Safetensors reader: maps the file, parses the JSON header with jansson and checks every
 * tensor entry once.  Nothing in the file is trusted before it has been compared with the file
 * size; all arithmetic on numbers from the header is checked for overflow.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX_BYTES     ((size_t)8)
#define MAX_HEADER_BYTES ((size_t)16 << 20)
#define METADATA_KEY     "__metadata__"

/* One checked header entry; begin and end are relative to the data section. */
struct entry {
    const char *name; /* owned by the header object */
    size_t begin;
    size_t end;
    struct demo_st_tensor tensor;
};

struct demo_st_file {
    void *map;
    size_t map_bytes;
    const unsigned char *data;
    size_t data_bytes;
    json_t *header;
    struct entry *entries; /* by name */
    size_t count;
};

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [DEMO_ST_BOOL] = {"BOOL", 1},       [DEMO_ST_U8] = {"U8", 1},
    [DEMO_ST_I8] = {"I8", 1},           [DEMO_ST_F8_E4M3] = {"F8_E4M3", 1},
    [DEMO_ST_F8_E5M2] = {"F8_E5M2", 1}, [DEMO_ST_U16] = {"U16", 2},
    [DEMO_ST_I16] = {"I16", 2},         [DEMO_ST_F16] = {"F16", 2},
    [DEMO_ST_BF16] = {"BF16", 2},       [DEMO_ST_U32] = {"U32", 4},
    [DEMO_ST_I32] = {"I32", 4},         [DEMO_ST_F32] = {"F32", 4},
    [DEMO_ST_U64] = {"U64", 8},         [DEMO_ST_I64] = {"I64", 8},
    [DEMO_ST_F64] = {"F64", 8},
};

#define DTYPE_COUNT (sizeof(dtypes) / sizeof(dtypes[0]))

/* Fills *err; false. A macro, so that the analyser sees the value (its va_list check is confused).
 */
#define fail(err, number, ...)                                                                     \
    ((err)->code = (number), (void)snprintf((err)->text, sizeof((err)->text), __VA_ARGS__), false)

const char *demo_st_dtype_name(enum demo_st_dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

static bool map_file(struct demo_st_file *file, const char *path, struct demo_st_error *err)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return fail(err, DEMO_ST_ERR_IO, "%s", strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)close(fd);
        return fail(err, DEMO_ST_ERR_IO, "not a regular file");
    }
    if (info.st_size < (off_t)PREFIX_BYTES || (uintmax_t)info.st_size > SIZE_MAX) {
        (void)close(fd);
        return fail(err, DEMO_ST_ERR_TRUNCATED,
                    "no safetensors file: %jd bytes are too few for a header length",
                    (intmax_t)info.st_size);
    }
    file->map_bytes = (size_t)info.st_size;
    file->map = mmap(NULL, file->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd);
    if (file->map == MAP_FAILED) {
        file->map = NULL;
        return fail(err, DEMO_ST_ERR_IO, "cannot map: %s", strerror(errno));
    }
    return true;
}

static bool parse_header(struct demo_st_file *file, struct demo_st_error *err)
{
    const unsigned char *bytes = file->map;
    uint64_t length = 0;
    json_error_t problem;

    for (size_t i = 0; i < PREFIX_BYTES; i++) {
        length |= (uint64_t)bytes[i] << (8 * i);
    }
    if (length > file->map_bytes - PREFIX_BYTES) {
        return fail(err, DEMO_ST_ERR_TRUNCATED,
                    "no safetensors file, or cut: a header of %ju bytes does not fit in %zu bytes",
                    (uintmax_t)length, file->map_bytes);
    }
    if (length > MAX_HEADER_BYTES) {
        return fail(err, DEMO_ST_ERR_HEADER,
                    "no safetensors file: a header of %ju bytes is longer than %zu",
                    (uintmax_t)length, MAX_HEADER_BYTES);
    }
    file->data = bytes + PREFIX_BYTES + length;
    file->data_bytes = file->map_bytes - PREFIX_BYTES - (size_t)length;
    file->header = json_loadb((const char *)bytes + PREFIX_BYTES, (size_t)length,
                              JSON_REJECT_DUPLICATES, &problem);
    if (file->header == NULL) {
        return fail(err, DEMO_ST_ERR_JSON,
                    "no safetensors file: its header is not JSON: %s (byte %d)", problem.text,
                    problem.position);
    }
    if (!json_is_object(file->header)) {
        return fail(err, DEMO_ST_ERR_HEADER,
                    "no safetensors file: its header is not a JSON object");
    }
    return true;
}

static bool check_metadata(const json_t *metadata, struct demo_st_error *err)
{
    if (!json_is_object(metadata)) {
        return fail(err, DEMO_ST_ERR_HEADER, METADATA_KEY " is not an object");
    }
    /* jansson iterates through a non-const pointer but does not change the object. */
    json_t *object = (json_t *)(uintptr_t)metadata;
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        if (!json_is_string(json_object_iter_value(at))) {
            return fail(err, DEMO_ST_ERR_HEADER, METADATA_KEY " entry %.80s is not a string",
                        json_object_iter_key(at));
        }
    }
    return true;
}

static bool to_size(const json_t *value, size_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uintmax_t)json_integer_value(value) > SIZE_MAX) {
        return false;
    }
    *out = (size_t)json_integer_value(value);
    return true;
}

static bool read_dtype(struct entry *e, const json_t *spec, struct demo_st_error *err)
{
    const char *text = json_string_value(json_object_get(spec, "dtype"));

    if (text == NULL) {
        return fail(err, DEMO_ST_ERR_DTYPE, "tensor %.80s has no dtype", e->name);
    }
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            e->tensor.dtype = (enum demo_st_dtype)i;
            return true;
        }
    }
    return fail(err, DEMO_ST_ERR_DTYPE, "tensor %.80s has unknown dtype %.20s", e->name, text);
}

static bool read_shape(struct entry *e, const json_t *spec, struct demo_st_error *err)
{
    const json_t *shape = json_object_get(spec, "shape");
    size_t product = dtypes[e->tensor.dtype].size;
    bool empty = false;

    if (!json_is_array(shape) || json_array_size(shape) > DEMO_ST_MAX_RANK) {
        return fail(err, DEMO_ST_ERR_SHAPE, "tensor %.80s: shape is not an array of at most %d",
                    e->name, DEMO_ST_MAX_RANK);
    }
    e->tensor.rank = json_array_size(shape);
    for (size_t i = 0; i < e->tensor.rank; i++) {
        size_t n;

        if (!to_size(json_array_get(shape, i), &n)) {
            return fail(err, DEMO_ST_ERR_SHAPE, "tensor %.80s: dimension %zu is not a size",
                        e->name, i);
        }
        e->tensor.shape[i] = n;
        if (n == 0) {
            empty = true;
        } else if (product > SIZE_MAX / n) {
            return fail(err, DEMO_ST_ERR_SHAPE, "tensor %.80s: shape overflows", e->name);
        } else {
            product *= n;
        }
    }
    e->tensor.bytes = empty ? 0 : product;
    return true;
}

static bool read_range(struct entry *e, const struct demo_st_file *file, const json_t *spec,
                       struct demo_st_error *err)
{
    const json_t *range = json_object_get(spec, "data_offsets");

    if (!json_is_array(range) || json_array_size(range) != 2 ||
        !to_size(json_array_get(range, 0), &e->begin) ||
        !to_size(json_array_get(range, 1), &e->end)) {
        return fail(err, DEMO_ST_ERR_RANGE, "tensor %.80s: data_offsets is not a pair of sizes",
                    e->name);
    }
    if (e->begin > e->end || e->end > file->data_bytes) {
        return fail(err, DEMO_ST_ERR_RANGE,
                    "tensor %.80s: offsets %zu..%zu are outside the %zu data bytes", e->name,
                    e->begin, e->end, file->data_bytes);
    }
    if (e->end - e->begin != e->tensor.bytes) {
        return fail(err, DEMO_ST_ERR_RANGE,
                    "tensor %.80s: %zu bytes in the file, %zu by dtype and shape", e->name,
                    e->end - e->begin, e->tensor.bytes);
    }
    e->tensor.data = file->data + e->begin;
    return true;
}

static bool read_entries(struct demo_st_file *file, struct demo_st_error *err)
{
    size_t room = json_object_size(file->header);
    const char *name;
    json_t *spec;

    file->entries = calloc(room + 1, sizeof(*file->entries));
    if (file->entries == NULL) {
        return fail(err, DEMO_ST_ERR_MEMORY, "no memory for %zu tensors", room);
    }
    json_object_foreach(file->header, name, spec)
    {
        struct entry *e = &file->entries[file->count];

        if (strcmp(name, METADATA_KEY) == 0) {
            if (!check_metadata(spec, err)) {
                return false;
            }
            continue;
        }
        e->name = name;
        if (!json_is_object(spec)) {
            return fail(err, DEMO_ST_ERR_HEADER, "tensor %.80s is not an object", name);
        }
        if (!read_dtype(e, spec, err) || !read_shape(e, spec, err) ||
            !read_range(e, file, spec, err)) {
            return false;
        }
        file->count++;
    }
    return true;
}

static int by_offset(const void *left, const void *right)
{
    const struct entry *a = left;
    const struct entry *b = right;

    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    return (a->end > b->end) - (a->end < b->end);
}

static int by_name(const void *left, const void *right)
{
    const struct entry *a = left;
    const struct entry *b = right;

    return strcmp(a->name, b->name);
}

/* The format allows neither shared bytes nor bytes that belong to no tensor. */
static bool check_layout(struct demo_st_file *file, struct demo_st_error *err)
{
    size_t end = 0;

    qsort(file->entries, file->count, sizeof(*file->entries), by_offset);
    for (size_t i = 0; i < file->count; i++) {
        const struct entry *e = &file->entries[i];

        if (e->begin != end) {
            return fail(err, DEMO_ST_ERR_RANGE, "tensor %.80s: data %s the tensor before it",
                        e->name, e->begin < end ? "overlaps" : "leaves a gap after");
        }
        end = e->end;
    }
    if (end != file->data_bytes) {
        return fail(err, DEMO_ST_ERR_RANGE, "%zu bytes after the last tensor",
                    file->data_bytes - end);
    }
    qsort(file->entries, file->count, sizeof(*file->entries), by_name);
    return true;
}

struct demo_st_file *demo_st_open(const char *path, struct demo_st_error *err)
{
    struct demo_st_file *file = calloc(1, sizeof(*file));

    err->code = DEMO_ST_OK;
    err->text[0] = '\0';
    if (file == NULL) {
        (void)fail(err, DEMO_ST_ERR_MEMORY, "no memory");
        return NULL;
    }
    if (!map_file(file, path, err) || !parse_header(file, err) || !read_entries(file, err) ||
        !check_layout(file, err)) {
        demo_st_close(file);
        return NULL;
    }
    return file;
}

void demo_st_close(struct demo_st_file *file)
{
    if (file == NULL) {
        return;
    }
    json_decref(file->header);
    free(file->entries);
    if (file->map != NULL) {
        (void)munmap(file->map, file->map_bytes);
    }
    free(file);
}

bool demo_st_find(const struct demo_st_file *file, const char *name, struct demo_st_tensor *out,
                  struct demo_st_error *err)
{
    const struct entry key = {.name = name};
    const struct entry *e =
        bsearch(&key, file->entries, file->count, sizeof(*file->entries), by_name);

    if (e == NULL) {
        return fail(err, DEMO_ST_ERR_NOT_FOUND, "no tensor named %.80s", name);
    }
    /* The format does not promise alignment, but callers read elements in place. */
    if ((uintptr_t)e->tensor.data % dtypes[e->tensor.dtype].size != 0) {
        return fail(err, DEMO_ST_ERR_ALIGN, "tensor %.80s: data not aligned for %s", name,
                    demo_st_dtype_name(e->tensor.dtype));
    }
    *out = e->tensor;
    return true;
}

bool demo_st_expect(const struct demo_st_file *file, const char *name, enum demo_st_dtype dtype,
                    size_t rank, struct demo_st_tensor *out, struct demo_st_error *err)
{
    struct demo_st_tensor found;

    if (!demo_st_find(file, name, &found, err)) {
        return false;
    }
    if (found.dtype != dtype) {
        return fail(err, DEMO_ST_ERR_DTYPE, "tensor %.80s is %s, expected %s", name,
                    demo_st_dtype_name(found.dtype), demo_st_dtype_name(dtype));
    }
    if (found.rank != rank) {
        return fail(err, DEMO_ST_ERR_SHAPE, "tensor %.80s has %zu dimensions, expected %zu", name,
                    found.rank, rank);
    }
    *out = found;
    return true;
}

const char *demo_st_metadata(const struct demo_st_file *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, METADATA_KEY), key));
}
