/* See model.h. */
#include "gpu/faults/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/tile.h"
#include "support/rng.h"

/* 2 bits on normal data: about 0.35 for K, V alone; anything worse is no reconstruction. */
#define DISTANCE_MAX 0.5

void drill_die(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fputs("drill: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

void drill_must(kvarn_client *client, const char *what, kvarn_status status)
{
    if (status != KVARN_OK)
        drill_die("%s: %s: %s", what, kvarn_status_name(status),
                  client != NULL ? kvarn_client_error(client) : "");
}

static void *memory(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (at == NULL)
        drill_die("no memory");
    return at;
}

size_t drill_token_elements(const struct drill_shape *shape)
{
    return (size_t)shape->layers * shape->heads * shape->record.dim;
}

size_t drill_block_elements(const struct drill_shape *shape)
{
    return drill_token_elements(shape) * shape->record.group;
}

void drill_fill(uint16_t *rows, size_t count, uint64_t seed)
{
    struct rng rng = rng_make(seed);

    for (size_t i = 0; i < count; i++)
        rows[i] = kvk_f16_from_f32((float)rng_normal(&rng));
}

kvarn_key drill_key(uint64_t number)
{
    kvarn_key key = {{0}};

    memcpy(key.bytes, &number, sizeof(number));
    return key;
}

double drill_distance(const uint16_t *got, const uint16_t *want, size_t count)
{
    double difference = 0, size = 0;

    for (size_t i = 0; i < count; i++) {
        double g = (double)kvk_f16_to_f32(got[i]), w = (double)kvk_f16_to_f32(want[i]);
        difference += (g - w) * (g - w);
        size += w * w;
    }
    return sqrt(difference / size);
}

double drill_distance_f32(const float *got, const float *want, size_t count)
{
    double difference = 0, size = 0;

    for (size_t i = 0; i < count; i++) {
        double g = (double)got[i], w = (double)want[i];
        difference += (g - w) * (g - w);
        size += w * w;
    }
    return sqrt(difference / size);
}

/* ---- records ---- */

static size_t record_bytes(const struct kvk_shape *record)
{
    return kvk_layout_of(record->dim, record->group, record->bits_k, record->bits_v).bytes;
}

static size_t cell_bytes(const struct kvk_shape *record, kvarn_block_kind kind)
{
    return kind == KVARN_BLOCK_TILE ? record_bytes(record)
                                    : 4 * (size_t)record->dim * record->group;
}

void drill_decode(const struct drill_shape *shape, kvarn_block_kind kind, const uint8_t *bytes,
                  uint16_t *k, uint16_t *v)
{
    const struct kvk_shape *record = &shape->record;
    size_t row = (size_t)shape->heads * record->dim, dim = record->dim;
    void *scratch = memory(kvk_scratch_bytes(record));

    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t head = 0; head < shape->heads; head++, bytes += cell_bytes(record, kind)) {
            uint16_t *to_k = k + layer * record->group * row + head * dim;
            uint16_t *to_v = v + layer * record->group * row + head * dim;
            struct kvk_decompress op = {.shape = *record,
                                        .record = bytes,
                                        .k = to_k,
                                        .v = to_v,
                                        .k_token_stride_bytes = row * 2,
                                        .v_token_stride_bytes = row * 2,
                                        .scratch = scratch};
            if (kind == KVARN_BLOCK_TILE)
                kvk_table_ref.decompress(&op);
            for (uint32_t t = 0; t < record->group && kind == KVARN_BLOCK_EXACT; t++) {
                memcpy(to_k + t * row, bytes + t * dim * 2, dim * 2);
                memcpy(to_v + t * row, bytes + (record->group + t) * dim * 2, dim * 2);
            }
        }
    }
    free(scratch);
}

/* ---- attention ---- */

static void expect_query(const struct drill_model *model, struct drill_query *query, uint64_t seed)
{
    const struct drill_shape *shape = &model->shape;
    const struct kvk_shape *record = &shape->record;
    uint32_t dim = record->dim, heads = shape->q_heads / shape->heads;
    struct kvk_span spans[DRILL_BLOCKS];

    query->layer = (uint32_t)(seed % shape->layers);
    query->q = memory((size_t)shape->q_heads * dim * 2);
    query->out = memory((size_t)shape->q_heads * dim * sizeof(float));
    query->lse = memory(shape->q_heads * sizeof(float));
    drill_fill(query->q, (size_t)shape->q_heads * dim, 1000 + seed);
    for (uint32_t head = 0; head < shape->heads; head++) {
        for (uint32_t b = 0; b < DRILL_BLOCKS; b++) {
            kvarn_block_kind kind = model->blocks[b].kind;
            const uint8_t *cell = model->blocks[b].bytes +
                                  (query->layer * shape->heads + head) * cell_bytes(record, kind);
            spans[b] = (struct kvk_span){.kind = kind,
                                         .position = b * record->group,
                                         .tokens = record->group,
                                         .data = cell,
                                         .v = cell + (size_t)record->group * dim * 2,
                                         .token_stride_bytes = (size_t)dim * 2};
        }
        struct kvk_attend op = {.shape = *record,
                                .q = query->q + head * heads * dim,
                                .q_dtype = KVARN_F16,
                                .q_tokens = 1,
                                .q_heads = heads,
                                .q_token_stride_bytes = (size_t)shape->q_heads * dim * 2,
                                .q_head_stride_bytes = (size_t)dim * 2,
                                .scale = 1.0f / sqrtf((float)dim),
                                .limit = DRILL_BLOCKS * record->group,
                                .spans = spans,
                                .span_count = DRILL_BLOCKS,
                                .out = query->out + head * heads * dim,
                                .lse = query->lse + head * heads,
                                .scratch = memory(kvk_attend_scratch_bytes(1, heads, dim))};
        if (kvk_table_ref.attend(&op) != KVARN_OK)
            drill_die("the scalar kernel refuses the query");
        free(op.scratch);
    }
}

/* ---- the model ---- */

uint64_t drill_open(kvarn_client *client, const struct drill_shape *shape)
{
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;

    space.model = "drill";
    space.rope = "theta=10000";
    space.layers = shape->layers;
    space.kv_heads = shape->heads;
    space.head_dim = shape->record.dim;
    space.dtype = KVARN_F16;
    space.preset = shape->preset;
    space.device = shape->device;
    drill_must(client, "open space", kvarn_open_space(client, &space));
    if (space.group != shape->record.group || space.record_bytes != record_bytes(&shape->record))
        drill_die("%s is not what the drill takes it for", shape->preset);
    return space.space;
}

static void put_block(struct drill_model *model, struct drill_block *block, kvarn_client *client,
                      uint64_t space, const uint16_t *k, const uint16_t *v)
{
    const struct drill_shape *shape = &model->shape;
    kvarn_compress_args put = KVARN_COMPRESS_INIT;
    kvarn_export_args out = KVARN_EXPORT_INIT;

    put.space = out.space = space;
    put.keys = out.keys = &block->key;
    put.kinds = &block->kind;
    put.count = out.count = 1;
    put.k = k;
    put.v = v;
    drill_must(client, "compress", kvarn_compress(client, &put));
    block->byte_count = cell_bytes(&shape->record, block->kind) * shape->layers * shape->heads;
    block->bytes = memory(block->byte_count);
    out.bytes = block->bytes;
    out.bytes_capacity = block->byte_count;
    out.results = &block->stored;
    drill_must(client, "export", kvarn_export(client, &out));
    model->origin = out.origin;
    if (out.bytes_used != block->byte_count || block->stored.kind != block->kind ||
        block->stored.digest != kvk_digest(0, block->bytes, block->byte_count))
        drill_die("export: not the bytes that the digest is of");
}

void drill_model_make(struct drill_model *model, kvarn_client *client, uint64_t space)
{
    const struct drill_shape *shape = &model->shape;
    size_t count = drill_block_elements(shape);
    uint16_t *k = memory(count * 2), *v = memory(count * 2);

    for (uint32_t b = 0; b < DRILL_BLOCKS; b++) {
        struct drill_block *block = &model->blocks[b];
        block->key = drill_key(b + 1);
        block->kind = b == 0 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE;
        drill_fill(k, count, 2 * b);
        drill_fill(v, count, 2 * b + 1);
        put_block(model, block, client, space, k, v);
        block->k = memory(count * 2);
        block->v = memory(count * 2);
        drill_decode(shape, block->kind, block->bytes, block->k, block->v);
        double far = fmax(drill_distance(block->k, k, count), drill_distance(block->v, v, count));
        if (!(far < (b == 0 ? 1e-9 : DISTANCE_MAX)))
            drill_die("block %u comes back at a distance of %g", b, far);
    }
    for (uint32_t i = 0; i < DRILL_QUERIES; i++)
        expect_query(model, &model->queries[i], i);
    free(k);
    free(v);
}

void drill_model_give(const struct drill_model *model, kvarn_client *client, uint64_t space)
{
    for (uint32_t b = 0; b < DRILL_BLOCKS; b++) {
        const struct drill_block *block = &model->blocks[b];
        kvarn_import_args in = KVARN_IMPORT_INIT;

        in.space = space;
        in.keys = &block->key;
        in.blocks = &block->stored;
        in.count = 1;
        in.bytes = block->bytes;
        in.bytes_count = block->byte_count;
        in.origin = &model->origin;
        drill_must(client, "import", kvarn_import_blocks(client, &in));
    }
}

void drill_model_free(struct drill_model *model)
{
    for (uint32_t b = 0; b < DRILL_BLOCKS; b++) {
        free(model->blocks[b].bytes);
        free(model->blocks[b].k);
        free(model->blocks[b].v);
    }
    for (uint32_t i = 0; i < DRILL_QUERIES; i++) {
        free(model->queries[i].q);
        free(model->queries[i].out);
        free(model->queries[i].lse);
    }
}
