/* A sequence that grows token by token, and attention over it. */
#include <math.h>

#include "gpu/faults/client.h"
#include "kernels/half.h"

enum { SEQUENCE_MOST = 48 /* tokens, less than a block: all exact */ };

static bool sequence_open(struct drill_client *client)
{
    kvarn_seq seq = {.position = KVARN_AT_END};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = client->space;
    args.seqs = &seq;
    args.count = 1;
    drill_begin(client);
    if (!drill_answered(client, "sequence open", kvarn_sequence_open(client->client, &args)))
        return false;
    client->sequence = seq.sequence;
    client->tokens = 0;
    return true;
}

static void sequence_close(struct drill_client *client)
{
    kvarn_seq seq = {.sequence = client->sequence};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = client->space;
    args.seqs = &seq;
    args.count = 1;
    client->sequence = 0;
    drill_begin(client);
    drill_answered(client, "sequence release", kvarn_sequence_release(client->client, &args));
}

/* One token more, in all layers. When its answer is lost nobody knows whether it counts. */
static bool sequence_grow(struct drill_client *client)
{
    const struct drill_shape *shape = &client->all->model->shape;
    size_t row = (size_t)shape->heads * shape->record.dim;
    kvarn_strides strides = {.layer = SEQUENCE_MOST * row * 2};
    kvarn_seq seq = {.sequence = client->sequence, .position = KVARN_AT_END, .tokens = 1};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = client->space;
    args.seqs = &seq;
    args.count = 1;
    args.k = client->k + client->tokens * row;
    args.v = client->v + client->tokens * row;
    args.strides = &strides;
    drill_begin(client);
    if (!drill_answered(client, "append", kvarn_sequence_append(client->client, &args)))
        return false;
    drill_begin(client);
    if (!drill_answered(client, "commit", kvarn_sequence_commit(client->client, &args)))
        return false;
    client->tokens++;
    if (seq.committed == client->tokens)
        drill_good(client);
    else
        drill_wrong(client, "commit: length", (double)seq.committed);
    return true;
}

/* Attention of head `head` over the rows of `layer` so far. */
static void expect_tail(const struct drill_client *client, uint32_t layer, uint32_t head,
                        const uint16_t *q, float *out)
{
    const struct drill_shape *shape = &client->all->model->shape;
    uint32_t dim = shape->record.dim, kv = head / (shape->q_heads / shape->heads);
    size_t row = (size_t)shape->heads * dim, at = layer * SEQUENCE_MOST * row + kv * dim;
    double weights[SEQUENCE_MOST], total = 0;

    for (uint32_t t = 0; t < client->tokens; t++) {
        double dot = 0;
        for (uint32_t d = 0; d < dim; d++)
            dot +=
                (double)kvk_f16_to_f32(q[d]) * (double)kvk_f16_to_f32(client->k[at + t * row + d]);
        weights[t] = exp(dot / sqrt(dim));
        total += weights[t];
    }
    for (uint32_t d = 0; d < dim; d++) {
        double sum = 0;
        for (uint32_t t = 0; t < client->tokens; t++)
            sum += weights[t] * (double)kvk_f16_to_f32(client->v[at + t * row + d]);
        out[d] = (float)(sum / total);
    }
}

/* True unless the sequence is of no use any more. */
static bool sequence_attend(struct drill_client *client)
{
    const struct drill_shape *shape = &client->all->model->shape;
    const struct drill_query *query =
        &client->all->model->queries[rng_below(&client->rng, DRILL_QUERIES)];
    size_t count = (size_t)shape->q_heads * shape->record.dim;
    kvarn_seq seq = {.sequence = client->sequence, .position = KVARN_AT_END, .q_tokens = 1};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;
    float *out = client->out, *want = client->out + count;

    args.space = client->space;
    args.seqs = &seq;
    args.count = 1;
    args.layer_begin = query->layer;
    args.q = query->q;
    args.query.q_heads = shape->q_heads;
    args.out = out;
    drill_begin(client);
    kvarn_status status = kvarn_sequence_attend(client->client, &args);
    if (!drill_answered(client, "sequence attend", status))
        return status != KVARN_STALE;
    for (uint32_t h = 0; h < shape->q_heads; h++)
        expect_tail(client, query->layer, h, query->q + h * shape->record.dim,
                    want + h * shape->record.dim);
    double distance = drill_distance_f32(out, want, count);
    if (distance < DRILL_ATTEND_DISTANCE_MAX)
        drill_good(client);
    else
        drill_wrong(client, "sequence attend: distance", distance);
    return true;
}

void drill_sequence(struct drill_client *client)
{
    if (client->sequence == 0 && !sequence_open(client))
        return;
    if (client->tokens == SEQUENCE_MOST || !sequence_grow(client) || !sequence_attend(client))
        sequence_close(client);
}
