/* A capture of a real model; see capture.h. The rows are copied out of the file, layer after layer,
 * so that one set of strides describes all of them. */
#include "client/demo/capture.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/demo/safetensors.h"

enum { LAYERS_MAX = 1024, Q_HEADS_MAX = 64 };

float demo_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 0x3ffu, bits;
    float value;

    if (exponent == 31) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else { /* subnormal: mantissa * 2^-24 */
        value = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t demo_to_half(float value)
{
    uint32_t bits, sign, magnitude, rest, half;

    memcpy(&bits, &value, sizeof bits);
    sign = (bits >> 16) & 0x8000u;
    magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u)
        return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude <
        0x38800000u) { /* below 2^-14: multiples of 2^-24; the addition rounds to even */
        float rounded;

        memcpy(&rounded, &magnitude, sizeof rounded);
        rounded = rounded * 0x1p24f + 0x1p23f;
        memcpy(&half, &rounded, sizeof half);
        return (uint16_t)(sign | (half - 0x4b000000u));
    }
    half = (magnitude - 0x38000000u) >> 13;
    rest = magnitude & 0x1fffu;
    half += rest > 0x1000u || (rest == 0x1000u && (half & 1u) != 0);
    return (uint16_t)(sign | half);
}

/* Tensor layer.{layer}.{name}, which must be F16 of rank 3. */
static bool find_rows(const struct demo_capture *capture, size_t layer, char name,
                      struct demo_st_tensor *tensor, struct demo_st_error *error)
{
    char full[32];

    snprintf(full, sizeof full, "layer.%zu.%c", layer, name);
    return demo_st_expect(capture->file, full, DEMO_ST_F16, 3, tensor, error);
}

static size_t count_layers(const struct demo_capture *capture)
{
    struct demo_st_tensor tensor;
    struct demo_st_error error;
    size_t layers = 0;

    while (layers < LAYERS_MAX && find_rows(capture, layers, 'k', &tensor, &error))
        layers++;
    return layers;
}

static bool read_tokens(struct demo_capture *capture, struct demo_st_error *error)
{
    struct demo_st_tensor tensor;

    if (!demo_st_expect(capture->file, "tokens", DEMO_ST_I32, 1, &tensor, error))
        return false;
    capture->tokens = tensor.shape[0];
    capture->token_ids = malloc(tensor.bytes + 1);
    if (capture->token_ids != NULL)
        memcpy(capture->token_ids, tensor.data, tensor.bytes);
    return true;
}

/* Shapes of layer 0; the other layers must have the same. */
static bool read_shape(struct demo_capture *capture, struct demo_st_error *error)
{
    struct demo_st_tensor k, q;

    capture->layers = (uint32_t)count_layers(capture);
    if (capture->layers == LAYERS_MAX) {
        snprintf(error->text, sizeof error->text, "more than %d layers", LAYERS_MAX - 1);
        return false;
    }
    if (!find_rows(capture, 0, 'k', &k, error) || !find_rows(capture, 0, 'q', &q, error))
        return false;
    capture->kv_heads = (uint32_t)k.shape[1];
    capture->dim = (uint32_t)k.shape[2];
    capture->positions = q.shape[0];
    capture->q_heads = (uint32_t)q.shape[1];
    if (k.shape[0] == capture->tokens && q.shape[2] == k.shape[2] && capture->kv_heads > 0 &&
        capture->q_heads <= Q_HEADS_MAX && capture->q_heads % capture->kv_heads == 0 &&
        capture->positions < capture->tokens)
        return true;
    snprintf(error->text, sizeof error->text,
             "k [%zu, %zu, %zu], q [%zu, %zu, %zu] and %zu tokens do not fit together", k.shape[0],
             k.shape[1], k.shape[2], q.shape[0], q.shape[1], q.shape[2], capture->tokens);
    return false;
}

static bool read_layer(struct demo_capture *capture, size_t layer, char name, uint16_t *to,
                       size_t rows, size_t heads, struct demo_st_error *error)
{
    size_t bytes = rows * heads * capture->dim * sizeof(uint16_t);
    struct demo_st_tensor tensor;

    if (!find_rows(capture, layer, name, &tensor, error))
        return false;
    if (tensor.bytes != bytes || tensor.shape[0] != rows || tensor.shape[1] != heads) {
        snprintf(error->text, sizeof error->text, "layer.%zu.%c has another shape than layer.0",
                 layer, name);
        return false;
    }
    memcpy((char *)to + layer * bytes, tensor.data, bytes);
    return true;
}

static bool read_all(struct demo_capture *capture, struct demo_st_error *error)
{
    size_t kv_row, q_row;

    if (!read_tokens(capture, error) || !read_shape(capture, error))
        return false;
    kv_row = (size_t)capture->kv_heads * capture->dim * sizeof(uint16_t);
    q_row = (size_t)capture->q_heads * capture->dim * sizeof(uint16_t);
    capture->k = malloc(capture->layers * capture->tokens * kv_row + 1);
    capture->v = malloc(capture->layers * capture->tokens * kv_row + 1);
    capture->q = malloc(capture->layers * capture->positions * q_row + 1);
    if (capture->token_ids == NULL || capture->k == NULL || capture->v == NULL ||
        capture->q == NULL) {
        snprintf(error->text, sizeof error->text, "out of memory");
        return false;
    }
    for (size_t layer = 0; layer < capture->layers; layer++) {
        if (!read_layer(capture, layer, 'k', capture->k, capture->tokens, capture->kv_heads,
                        error) ||
            !read_layer(capture, layer, 'v', capture->v, capture->tokens, capture->kv_heads,
                        error) ||
            !read_layer(capture, layer, 'q', capture->q, capture->positions, capture->q_heads,
                        error))
            return false;
    }
    return true;
}

int demo_capture_open(struct demo_capture *capture, const char *path, char *why, size_t why_bytes)
{
    struct demo_st_error error = {0};
    const char *model;

    memset(capture, 0, sizeof *capture);
    capture->file = demo_st_open(path, &error);
    if (capture->file == NULL || !read_all(capture, &error)) {
        snprintf(why, why_bytes, "%s", error.text);
        demo_capture_close(capture);
        return -1;
    }
    model = demo_st_metadata(capture->file, "model");
    snprintf(capture->model, sizeof capture->model, "%s", model != NULL ? model : "unnamed model");
    return 0;
}

void demo_capture_close(struct demo_capture *capture)
{
    demo_st_close(capture->file);
    free(capture->token_ids);
    free(capture->k);
    free(capture->v);
    free(capture->q);
    memset(capture, 0, sizeof *capture);
}
