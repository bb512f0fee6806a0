/*
 * Read-only access to a safetensors file that is mapped into memory.
 *
 * The whole header is checked when the file is opened, so a tensor handed out later is known
 * to lie inside the file, to have as many bytes as its shape says, and to share none of them.
 * The file must not shrink while it is open.  One open file may be read by many threads.
 */
#ifndef DEMO_SAFETENSORS_H
#define DEMO_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>

#define DEMO_ST_MAX_RANK 8

enum demo_st_dtype {
    DEMO_ST_BOOL,
    DEMO_ST_U8,
    DEMO_ST_I8,
    DEMO_ST_F8_E4M3,
    DEMO_ST_F8_E5M2,
    DEMO_ST_U16,
    DEMO_ST_I16,
    DEMO_ST_F16,
    DEMO_ST_BF16,
    DEMO_ST_U32,
    DEMO_ST_I32,
    DEMO_ST_F32,
    DEMO_ST_U64,
    DEMO_ST_I64,
    DEMO_ST_F64,
};

enum demo_st_code {
    DEMO_ST_OK,
    DEMO_ST_ERR_IO,        /* the file cannot be opened or mapped */
    DEMO_ST_ERR_TRUNCATED, /* the file ends before its header does */
    DEMO_ST_ERR_JSON,      /* the header is not JSON */
    DEMO_ST_ERR_HEADER,    /* the header is JSON of the wrong form */
    DEMO_ST_ERR_DTYPE,     /* unknown element type, or not the one asked for */
    DEMO_ST_ERR_SHAPE,     /* impossible shape, or not the one asked for */
    DEMO_ST_ERR_RANGE,     /* offsets outside the file, overlapping or with gaps */
    DEMO_ST_ERR_ALIGN,     /* data not aligned to its element size */
    DEMO_ST_ERR_NOT_FOUND, /* no tensor of that name */
    DEMO_ST_ERR_MEMORY,
};

struct demo_st_error {
    enum demo_st_code code;
    char text[240];
};

struct demo_st_tensor {
    const void *data; /* aligned to the element size, valid until demo_st_close() */
    size_t bytes;
    enum demo_st_dtype dtype;
    size_t rank;
    size_t shape[DEMO_ST_MAX_RANK];
};

struct demo_st_file;

/* Returns NULL and fills *err (code and one line of text without the path) when the file is not
 * sound. */
struct demo_st_file *demo_st_open(const char *path, struct demo_st_error *err);

/* NULL is allowed. */
void demo_st_close(struct demo_st_file *file);

/* Fills *out, or returns false and fills *err. */
bool demo_st_find(const struct demo_st_file *file, const char *name, struct demo_st_tensor *out,
                  struct demo_st_error *err);

/* As demo_st_find(), and fails unless the tensor has this element type and rank. */
bool demo_st_expect(const struct demo_st_file *file, const char *name, enum demo_st_dtype dtype,
                    size_t rank, struct demo_st_tensor *out, struct demo_st_error *err);

/* Value of a metadata entry, owned by the file; NULL when there is none. */
const char *demo_st_metadata(const struct demo_st_file *file, const char *key);

const char *demo_st_dtype_name(enum demo_st_dtype dtype);

#endif
