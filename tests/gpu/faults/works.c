/* What the clients ask about blocks, and what must come back. */
#include <math.h>
#include <string.h>

#include "gpu/faults/client.h"

/* ---- DECOMPRESS of some of the model's blocks ---- */

/* Whether the rows of one block, `blocks` of them in all, are the block's. */
static bool same_rows(const struct drill_shape *shape, const uint16_t *rows, uint32_t index,
                      uint32_t blocks, const uint16_t *want)
{
    size_t layer = (size_t)shape->heads * shape->record.dim * shape->record.group;

    for (uint32_t l = 0; l < shape->layers; l++)
        if (memcmp(rows + (l * blocks + index) * layer, want + l * layer, layer * 2) != 0)
            return false;
    return true;
}

void drill_read(struct drill_client *client)
{
    const struct drill_model *model = client->all->model;
    uint32_t count = 1 + rng_below(&client->rng, DRILL_READ_MOST), picks[DRILL_READ_MOST];
    kvarn_decompress_args args = KVARN_DECOMPRESS_INIT;
    kvarn_key keys[DRILL_READ_MOST];

    for (uint32_t i = 0; i < count; i++) {
        picks[i] = rng_below(&client->rng, DRILL_BLOCKS);
        keys[i] = model->blocks[picks[i]].key;
    }
    args.space = client->space;
    args.keys = keys;
    args.count = count;
    args.k = client->k;
    args.v = client->v;
    drill_begin(client);
    if (!drill_answered(client, "decompress", kvarn_decompress(client->client, &args)))
        return;
    for (uint32_t i = 0; i < count; i++) {
        const struct drill_block *block = &model->blocks[picks[i]];
        if (!same_rows(&model->shape, client->k, i, count, block->k) ||
            !same_rows(&model->shape, client->v, i, count, block->v)) {
            drill_wrong(client, "decompress: other rows than the record's, block", picks[i]);
            return;
        }
    }
    drill_good(client);
}

/* ---- ATTEND over all of them ---- */

void drill_attend(struct drill_client *client)
{
    const struct drill_model *model = client->all->model;
    const struct drill_query *query = &model->queries[rng_below(&client->rng, DRILL_QUERIES)];
    size_t count = (size_t)model->shape.q_heads * model->shape.record.dim;
    kvarn_attend_args args = KVARN_ATTEND_INIT;
    kvarn_key keys[DRILL_BLOCKS];
    float *out = (float *)(void *)client->k, *lse = (float *)(void *)client->v, far = 0;

    for (uint32_t b = 0; b < DRILL_BLOCKS; b++)
        keys[b] = model->blocks[b].key;
    args.space = client->space;
    args.layer = query->layer;
    args.keys = keys;
    args.count = DRILL_BLOCKS;
    args.query.q_heads = model->shape.q_heads;
    args.q_tokens = 1;
    args.q = query->q;
    args.out = out;
    args.lse = lse;
    drill_begin(client);
    if (!drill_answered(client, "attend", kvarn_attend(client->client, &args)))
        return;
    for (uint32_t h = 0; h < model->shape.q_heads; h++)
        far = fmaxf(far, fabsf(lse[h] - query->lse[h]));
    double distance = drill_distance_f32(out, query->out, count);
    if (distance < DRILL_ATTEND_DISTANCE_MAX && (double)far < DRILL_LSE_MAX)
        drill_good(client);
    else
        drill_wrong(client, "attend: distance", distance);
}

/* ---- COMPRESS of new blocks, EXPORT of kept ones, DROP ---- */

static void write_block(struct drill_client *client, struct drill_kept *kept, uint64_t number)
{
    const struct drill_shape *shape = &client->all->model->shape;
    kvarn_compress_args args = KVARN_COMPRESS_INIT;
    kvarn_block_result result;

    kept->key = drill_key(1000 + number);
    kept->there = false;
    drill_fill(client->k, drill_block_elements(shape), 5000 + number);
    drill_fill(client->v, drill_block_elements(shape), 6000 + number);
    args.space = client->space;
    args.keys = &kept->key;
    args.count = 1;
    args.k = client->k;
    args.v = client->v;
    args.results = &result;
    drill_begin(client);
    if (!drill_answered(client, "compress", kvarn_compress(client->client, &args)))
        return;
    kept->digest = result.digest;
    kept->there = true;
    drill_good(client);
}

/* A block whose COMPRESS was answered is there, with the bytes of that answer's digest. */
static void check_block(struct drill_client *client, const struct drill_kept *kept)
{
    kvarn_export_args args = KVARN_EXPORT_INIT;
    kvarn_block_result result;

    args.space = client->space;
    args.keys = &kept->key;
    args.count = 1;
    args.bytes = client->k;
    args.bytes_capacity = drill_block_elements(&client->all->model->shape) * 2;
    args.results = &result;
    drill_begin(client);
    if (!drill_answered(client, "export", kvarn_export(client->client, &args)))
        return;
    if (result.digest == kept->digest &&
        kvk_digest(0, (const uint8_t *)client->k, args.bytes_used) == kept->digest)
        drill_good(client);
    else
        drill_wrong(client, "export: not the bytes that were stored, digest", result.digest);
}

static void drop_block(struct drill_client *client, struct drill_kept *kept)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    args.space = client->space;
    args.keys = &kept->key;
    args.count = 1;
    kept->there = false;
    drill_begin(client);
    if (drill_answered(client, "drop", kvarn_drop(client->client, &args)))
        drill_good(client);
}

void drill_write(struct drill_client *client)
{
    struct drill_kept *kept = &client->kept[client->number % DRILL_KEPT];

    if (kept->there)
        drop_block(client, kept);
    write_block(client, kept, client->number++);
    kept = &client->kept[rng_below(&client->rng, DRILL_KEPT)];
    if (kept->there)
        check_block(client, kept);
}
