/* See gpu_known.h. */
#include "tests/e2e/gpu_known.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <time.h>
#include <unistd.h>

kvarn_status gpu_known_attend(struct gpu_known *known, float *out, float *lse)
{
    kvarn_seq seq = {.sequence = known->sequence, .position = KVARN_AT_END, .q_tokens = 1};
    kvarn_seq_args args = KVARN_SEQ_ARGS_INIT;

    args.space = known->space;
    args.seqs = &seq;
    args.count = 1;
    args.layer_begin = 1;
    args.q = known->model->q[1][0];
    args.query.q_heads = MODEL_Q_HEADS;
    args.out = out;
    args.lse = lse;
    return kvarn_sequence_attend(known->client, &args);
}

kvarn_status gpu_known_decompress(struct gpu_known *known, size_t count, uint16_t *k, uint16_t *v)
{
    kvarn_decompress_args args = KVARN_DECOMPRESS_INIT;

    args.space = known->space;
    args.keys = known->model->keys;
    args.count = count;
    args.k = k;
    args.v = v;
    return kvarn_decompress(known->client, &args);
}

void gpu_known_fill(struct gpu_known *known, const struct gpu_rig *rig, const struct model *model,
                    const char *name, const char *device)
{
    static float k[MODEL_TOKENS][MODEL_ROW], v[MODEL_TOKENS][MODEL_ROW];
    double want[MODEL_Q_ROW];
    uint32_t blocks;
    size_t tokens = 5 * MODEL_GROUP + 7;

    known->model = model;
    known->client = model_connect(rig->daemon.unix_address);
    known->space = gpu_rig_space(known->client, name, device);
    model_expect(known->client, model_put(known->client, known->space, known->model, 4, NULL),
                 KVARN_OK, "compress");
    known->sequence = model_sequence(known->client, known->space, known->model, 4, &blocks);
    assert_int_equal(blocks, 4);
    model_extend(known->client, known->space, known->model, known->sequence, 4 * MODEL_GROUP,
                 tokens - 4 * MODEL_GROUP);
    model_expect(known->client, gpu_known_decompress(known, 5, known->k, known->v), KVARN_OK,
                 "decompress");
    model_expect(known->client, gpu_known_attend(known, known->out, known->lse), KVARN_OK,
                 "attend");
    /* right in itself: attention over the rows that are stored */
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < MODEL_ROW; i++) {
            size_t at = (5 * MODEL_GROUP + t) * MODEL_ROW + i;
            bool stored = t < 5 * MODEL_GROUP;
            k[t][i] = model_half(stored ? known->k[at] : (&known->model->k[1][t][0][0])[i]);
            v[t][i] = model_half(stored ? known->v[at] : (&known->model->v[1][t][0][0])[i]);
        }
    model_attention(k[0], v[0], known->model->q[1][0][0], tokens, want);
    for (size_t i = 0; i < MODEL_Q_ROW; i++)
        assert_true(fabs((double)known->out[i] - want[i]) < 2e-3);
}

void gpu_known_unharmed(struct gpu_known *known)
{
    static uint16_t k[GPU_KNOWN_ROWS], v[GPU_KNOWN_ROWS];
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];

    model_expect(known->client, gpu_known_decompress(known, 5, k, v), KVARN_OK, "decompress");
    assert_memory_equal(k, known->k, sizeof(uint16_t) * 5 * GPU_KNOWN_ROWS / MODEL_BLOCKS);
    assert_memory_equal(v, known->v, sizeof(uint16_t) * 5 * GPU_KNOWN_ROWS / MODEL_BLOCKS);
    model_expect(known->client, gpu_known_attend(known, out, lse), KVARN_OK, "attend");
    assert_memory_equal(out, known->out, sizeof out);
    assert_memory_equal(lse, known->lse, sizeof lse);
}

unsigned gpu_known_until_back(struct gpu_known *known)
{
    time_t limit = time(NULL) + GPU_RIG_DEADLINE_S;
    float out[MODEL_Q_ROW], lse[MODEL_Q_HEADS];
    unsigned lost = 0;
    kvarn_status status;

    do {
        status = gpu_known_attend(known, out, lse);
        if (status == KVARN_RETRY)
            usleep(kvarn_client_retry_after_us(known->client)); /* as the daemon asks */
        else if (status != KVARN_GPU_LOST)
            model_expect(known->client, status, KVARN_OK, "attend");
        lost += status == KVARN_GPU_LOST;
        assert_true(time(NULL) < limit);
    } while (status != KVARN_OK);
    return lost;
}
