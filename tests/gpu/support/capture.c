/* See capture.h. Of a file's header only what is asked for is looked at: name, shape, offsets. */
#include "gpu/support/capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/support/gpu.h"

enum { MAX_HEADER = 1 << 20 };

struct tensor {
    unsigned long shape[3], begin, end;
};

/* What stands in the header behind "layer.<layer>.<side>". */
static bool find_tensor(const char *header, uint32_t layer, char side, struct tensor *tensor)
{
    char name[32];
    const char *at, *shape, *offsets;

    snprintf(name, sizeof name, "\"layer.%u.%c\"", (unsigned)layer, side);
    at = strstr(header, name);
    if (at == NULL)
        return false;
    shape = strstr(at, "\"shape\"");
    offsets = strstr(at, "\"data_offsets\"");
    if (shape == NULL || offsets == NULL ||
        sscanf(shape, "\"shape\": [%lu, %lu, %lu]", &tensor->shape[0], &tensor->shape[1],
               &tensor->shape[2]) +
                sscanf(offsets, "\"data_offsets\": [%lu, %lu]", &tensor->begin, &tensor->end) !=
            5)
        gpu_fail("no shape or place of %s", name);
    return true;
}

static void read_at(FILE *file, size_t offset, void *to, size_t bytes, const char *name)
{
    if (fseek(file, (long)offset, SEEK_SET) != 0 || fread(to, 1, bytes, file) != bytes)
        gpu_fail("%s is too short", name);
}

static void read_layers(struct capture *capture, FILE *file, const char *header, size_t data,
                        const char *name)
{
    size_t bytes = capture_matrix_bytes(capture);
    struct tensor tensor;

    capture->k = malloc(bytes * capture->layers);
    capture->v = malloc(bytes * capture->layers);
    if (capture->k == NULL || capture->v == NULL)
        gpu_fail("no memory");
    for (uint32_t i = 0; i < 2 * capture->layers; i++) {
        if (!find_tensor(header, i / 2, i % 2 ? 'v' : 'k', &tensor) ||
            tensor.end - tensor.begin != bytes)
            gpu_fail("%s: layer %u", name, (unsigned)(i / 2));
        read_at(file, data + tensor.begin, (i % 2 ? capture->v : capture->k) + i / 2 * bytes, bytes,
                name);
    }
}

bool capture_open(struct capture *capture, const char *name)
{
    const char *folder = getenv("KVARN_DATA");
    char path[512], *header = malloc(MAX_HEADER + 1);
    uint64_t length = 0;
    struct tensor tensor;
    FILE *file;

    snprintf(path, sizeof path, "%s/capture_%s.safetensors", folder ? folder : "tests/data", name);
    file = fopen(path, "rb");
    if (file == NULL || header == NULL) {
        free(header);
        return false;
    }
    read_at(file, 0, &length, sizeof length, path);
    if (length > MAX_HEADER)
        gpu_fail("%s: header of %llu bytes", path, (unsigned long long)length);
    read_at(file, sizeof length, header, length, path);
    header[length] = 0;
    *capture = (struct capture){0};
    while (find_tensor(header, capture->layers, 'k', &tensor))
        capture->layers++;
    if (capture->layers == 0)
        gpu_fail("%s: no layers", path);
    capture->tokens = (uint32_t)tensor.shape[0];
    capture->heads = (uint32_t)tensor.shape[1];
    capture->dim = (uint32_t)tensor.shape[2];
    read_layers(capture, file, header, sizeof length + length, path);
    fclose(file);
    free(header);
    return true;
}

void capture_close(struct capture *capture)
{
    free(capture->k);
    free(capture->v);
}

size_t capture_matrix_bytes(const struct capture *capture)
{
    return (size_t)2 * capture->tokens * capture->heads * capture->dim;
}
