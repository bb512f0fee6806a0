/* kernels/cuda/attend_plan.c: pieces cover every row and every visible token once, blocks' lists
 * hold every piece once, parts and counters are numbered without gaps, work is shared out evenly,
 * and `deterministic` cuts do not depend on the batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attend_config.h"
#include "kernels/cuda/attend_plan.h"
#include "kernels/tile.h"
#include "support/rng.h"

enum { MOST = 24, SPANS = 400 };

struct fixture {
    struct kvk_cuda_sequence sequences[MOST];
    struct kvk_cuda_span spans[MOST][SPANS];
    const struct kvk_cuda_span *lists[MOST];
    struct kvk_attend_batch batch;
    struct kvk_attend_plan plan;
    struct kvk_cuda_piece *pieces;
};

static void add_sequence(struct fixture *f, uint32_t sink, uint32_t tiles, uint32_t partial,
                         uint32_t tail, uint32_t q_tokens)
{
    uint32_t i = f->batch.count++, group = f->batch.shape.group, position = 0, count = 0;

    for (uint32_t k = 0; k < tiles + 3; k++) {
        uint32_t tokens = k == 0 ? sink : k <= tiles ? group : k == tiles + 1 ? partial : tail;
        if (tokens == 0)
            continue;
        f->spans[i][count++] = (struct kvk_cuda_span){
            .position = position,
            .tokens = (uint16_t)tokens,
            .kind = k == 0 || k == tiles + 2 ? KVARN_BLOCK_EXACT : KVARN_BLOCK_TILE};
        position += tokens;
    }
    f->lists[i] = f->spans[i];
    f->sequences[i] = (struct kvk_cuda_sequence){
        .spans = i, .span_count = count, .q_tokens = q_tokens, .limit = position, .scale = 1};
}

static struct fixture *make(uint32_t kv_heads, uint32_t group_heads)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->batch = (struct kvk_attend_batch){.shape = {.dim = 128,
                                                   .group = 128,
                                                   .bits_k = 4,
                                                   .bits_v = 2,
                                                   .dtype = KVARN_F16,
                                                   .iterations = 8},
                                         .kv_heads = kv_heads,
                                         .q_heads = kv_heads * group_heads,
                                         .sequences = f->sequences,
                                         .spans = f->lists,
                                         .processors = 132};
    return f;
}

static void plan(struct fixture *f)
{
    struct kvk_attend_plan counted;

    free(f->pieces);
    assert_int_equal(kvk_attend_plan(&f->batch, &counted, NULL), KVARN_OK);
    f->pieces = calloc(counted.pieces + 1, sizeof(*f->pieces));
    assert_non_null(f->pieces);
    memset(f->pieces + counted.pieces, 0xa5, sizeof(*f->pieces));
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, f->pieces), KVARN_OK);
    assert_memory_equal(&counted, &f->plan, sizeof(counted));
    assert_int_equal(((uint8_t *)(f->pieces + counted.pieces))[0], 0xa5);
}

static void drop(struct fixture *f)
{
    free(f->pieces);
    free(f);
}

/* Every piece is in exactly one block's list, and no list is longer than it should be. */
static void check_lists(const struct fixture *f)
{
    uint8_t *met = calloc(f->plan.pieces + 1, 1);

    assert_non_null(met);
    assert_in_range(f->plan.blocks, 1, f->batch.processors);
    for (uint32_t block = 0; block < f->plan.blocks; block++) {
        uint32_t at = block;
        do {
            assert_true(at < f->plan.pieces);
            assert_int_equal(met[at]++, 0);
            at = f->pieces[at].next;
        } while (at != 0);
    }
    for (uint32_t i = 0; i < f->plan.pieces; i++)
        assert_int_equal(met[i], 1);
    free(met);
}

/* Pieces of a row group carry the numbers 0 .. parts - 1, once each, and share nothing with others.
 */
static void check_parts(const struct fixture *f, uint32_t rows)
{
    uint32_t count = 0, joins = 0;

    for (uint32_t i = 0; i < f->plan.pieces; i++) {
        const struct kvk_cuda_piece *a = &f->pieces[i];
        uint32_t same = 0, sum = 0;
        for (uint32_t k = 0; k < f->plan.pieces; k++) {
            const struct kvk_cuda_piece *b = &f->pieces[k];
            if (b->sequence == a->sequence && b->kv_head == a->kv_head &&
                b->row_begin == a->row_begin) {
                same++;
                sum += b->part;
                assert_true(k == i || b->part != a->part);
                assert_true(a->parts == 1 ||
                            (b->join == a->join && b->part_first == a->part_first));
            } else {
                assert_true(a->parts == 1 || b->parts == 1 || b->join != a->join);
            }
        }
        assert_int_equal(a->parts, same);
        assert_int_equal(sum, same * (same - 1) / 2);
        joins += a->parts > 1 && a->part == 0;
        count += a->parts > 1;
    }
    assert_int_equal(f->plan.joins, joins);
    assert_int_equal(f->plan.part_bytes,
                     (size_t)count * KVK_ATTEND_PART_BYTES(f->batch.shape.dim, rows / 4));
}

static bool visible(const struct kvk_cuda_sequence *s, const struct kvk_cuda_span *span)
{
    uint64_t last = s->limit + s->q_tokens - 1;

    return span->position < last &&
           (s->window == 0 || (uint64_t)span->position + span->tokens + s->window > s->limit);
}

static void check_cover(const struct fixture *f, uint32_t rows)
{
    uint32_t heads = f->batch.q_heads / f->batch.kv_heads;

    for (uint32_t i = 0; i < f->batch.count; i++) {
        const struct kvk_cuda_sequence *s = &f->sequences[i];
        for (uint32_t head = 0; head < f->batch.kv_heads; head++) {
            for (uint32_t row = 0; row < s->q_tokens * heads; row += rows) {
                uint8_t met[SPANS] = {0};
                uint32_t found = 0;
                for (uint32_t k = 0; k < f->plan.pieces; k++) {
                    const struct kvk_cuda_piece *p = &f->pieces[k];
                    if (p->sequence != i || p->kv_head != head || p->row_begin != row)
                        continue;
                    found++;
                    assert_memory_equal(&p->of, s, sizeof(*s));
                    for (uint32_t n = p->span_begin; n < p->span_end; n++) {
                        bool tile = n >= p->span_begin + p->lead && n < p->span_end - p->trail;
                        met[n]++;
                        assert_int_equal(f->spans[i][n].kind,
                                         tile ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT);
                    }
                    uint32_t exact = p->lead + (uint32_t)p->trail;
                    assert_int_equal(p->units, p->span_end - p->span_begin + exact * 7);
                }
                assert_true(found > 0);
                for (uint32_t n = 0; n < s->span_count; n++) {
                    assert_in_range(met[n], 0, 1);
                    assert_true(met[n] == 1 || !visible(s, &f->spans[i][n]));
                }
            }
        }
    }
}

static void check(struct fixture *f, uint32_t rows)
{
    plan(f);
    check_lists(f);
    check_parts(f, rows);
    check_cover(f, rows);
}

/* Units of the block with least and of that with most. */
static void check_even(const struct fixture *f, uint32_t blocks, uint32_t least, uint32_t most)
{
    assert_int_equal(f->plan.blocks, blocks);
    for (uint32_t block = 0; block < blocks; block++) {
        uint32_t units = 0, at = block;
        do {
            units += f->pieces[at].units;
            at = f->pieces[at].next;
        } while (at != 0);
        assert_in_range(units, least, most);
    }
}

static void even(void **state)
{
    struct fixture *f = make(8, 4);

    (void)state;
    for (int i = 0; i < 16; i++)
        add_sequence(f, 0, 128, 0, 0, 1);
    check(f, 4);
    assert_string_equal(f->plan.image, "attend_d128");
    assert_string_equal(f->plan.kernel, "kvk_cuda_attend_128_128_k4v2_n1");
    check_even(f, 128, 128, 128); /* whole rows */
    assert_int_equal(f->plan.joins, 0);
    add_sequence(f, 0, 129, 0, 0, 1);
    check(f, 4);
    check_even(f, 132, 131, 133); /* 17416 tiles: 131.9 */
    drop(f);
}

/* A whole row in a block: sink, tiles and tail in one piece. */
static void exact_beside_tiles(void **state)
{
    struct fixture *f = make(8, 4);

    (void)state;
    for (int i = 0; i < 16; i++)
        add_sequence(f, 128, 128, 0, 77, 1);
    check(f, 4);
    check_even(f, 128, 144, 144); /* 8 stretches of 16 rows, 128 tiles, 8 stretches */
    assert_int_equal(f->plan.pieces, 128);
    drop(f);
}

/* One sequence: every block has part of one head. */
static void one_sequence(void **state)
{
    struct fixture *f = make(8, 4);

    (void)state;
    add_sequence(f, 0, 256, 0, 0, 1);
    check(f, 4);
    check_even(f, 128, 16, 16);
    assert_int_equal(f->plan.pieces, 128);
    assert_int_equal(f->plan.joins, 8);
    drop(f);
}

static void ragged(void **state)
{
    struct rng rng = rng_make(rng_seed(11));

    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t group_heads = 1 + rng_below(&rng, 9);
        uint32_t q_tokens = 1 + rng_below(&rng, 3);
        struct fixture *f = make(1 + rng_below(&rng, 3), group_heads);
        for (uint32_t i = 0, n = 1 + rng_below(&rng, 6); i < n; i++) {
            add_sequence(f, rng_below(&rng, 2) * 128, rng_below(&rng, 4) ? rng_below(&rng, 60) : 0,
                         rng_below(&rng, 128), rng_below(&rng, 129), q_tokens);
            struct kvk_cuda_sequence *s = &f->sequences[i];
            if (rng_below(&rng, 3) == 0)
                s->window = 1 + rng_below(&rng, 3000);
            if (rng_below(&rng, 3) == 0)
                s->limit = rng_below(&rng, s->limit + 1);
        }
        f->batch.deterministic = rng_below(&rng, 2);
        check(f, group_heads * q_tokens <= 4 ? 4 : 8);
        drop(f);
    }
}

static void masked_pieces(void **state)
{
    struct fixture *f = make(1, 4);

    (void)state;
    f->batch.processors = 4;
    add_sequence(f, 0, 40, 0, 0, 2);
    plan(f);
    for (uint32_t i = 0; i < f->plan.pieces;
         i++) /* limit is past the end for the first token too */
        assert_int_equal(f->pieces[i].masked, 0);
    f->sequences[0].limit -= 1;
    plan(f);
    for (uint32_t i = 0; i < f->plan.pieces; i++)
        assert_int_equal(f->pieces[i].masked, f->pieces[i].span_end == 40);
    drop(f);
}

/* What a sequence is cut into is the same alone and beside others. */
static void deterministic_cuts(void **state)
{
    struct fixture *alone = make(2, 4), *batch = make(2, 4);

    (void)state;
    alone->batch.deterministic = batch->batch.deterministic = true;
    add_sequence(alone, 128, 300, 0, 5, 1);
    plan(alone);
    for (int i = 0; i < 7; i++)
        add_sequence(batch, 128, i == 3 ? 300 : 17 * (uint32_t)i, 0, 5, 1);
    plan(batch);
    for (uint32_t i = 0; i < alone->plan.pieces; i++) {
        const struct kvk_cuda_piece *a = &alone->pieces[i];
        uint32_t same = 0;
        for (uint32_t k = 0; k < batch->plan.pieces; k++) {
            const struct kvk_cuda_piece *b = &batch->pieces[k];
            same += b->sequence == 3 && b->kv_head == a->kv_head && b->part == a->part &&
                    b->parts == a->parts && b->span_begin == a->span_begin &&
                    b->span_end == a->span_end && b->turn == 0 && a->turn == 0;
        }
        assert_int_equal(same, 1);
    }
    drop(alone);
    drop(batch);
}

static void refusals(void **state)
{
    struct fixture *f = make(2, 4);

    (void)state;
    add_sequence(f, 0, 3, 0, 0, 1);
    f->batch.q_heads = 7;
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, NULL), KVARN_INVALID_SHAPE);
    f->batch.q_heads = 2 * (KVARN_MAX_GQA + 1);
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, NULL), KVARN_INVALID_SHAPE);
    f->batch.q_heads = 8;
    f->spans[0][1].kind = 7;
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, NULL), KVARN_INVALID_SHAPE);
    f->spans[0][1].kind = KVARN_BLOCK_TILE;
    f->spans[0][1].tokens = 129;
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, NULL), KVARN_INVALID_SHAPE);
    f->spans[0][1].tokens = 128;
    f->batch.shape.dim = 96;
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, NULL), KVARN_INVALID_SHAPE);
    f->batch.shape.dim = 128;
    assert_int_equal(kvk_attend_plan(&f->batch, &f->plan, NULL), KVARN_OK);
    drop(f);
}

/* No variant asks for more shared memory than there is, or has fewer warps than the kernel wants.
 */
static void every_variant_fits(void **state)
{
    static const int bits[3][2] = {{2, 2}, {4, 2}, {4, 4}};

    (void)state;
    for (int d = 64; d <= 256; d *= 2) {
        for (int g = 64; g <= 128; g *= 2) {
            for (int i = 0; i < 6; i++) {
                int kb = bits[i / 2][0], vb = bits[i / 2][1], nt = 1 + i % 2;
                assert_in_range(KVK_ATTEND_SHARED(d, g, kb, vb, nt), 1, KVK_ATTEND_SHARED_MAX);
                assert_in_range(KVK_ATTEND_WARPS(d, g, kb, vb, nt), 4, 16);
                assert_in_range(KVK_ATTEND_STAGES(d, g, kb, vb, nt), 1, 4);
                assert_int_equal(
                    KVK_ATTEND_K_BYTES(d, g, kb),
                    kvk_layout_of((uint32_t)d, (uint32_t)g, (uint32_t)kb, (uint32_t)vb).v_codes);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even),
        cmocka_unit_test(one_sequence),
        cmocka_unit_test(exact_beside_tiles),
        cmocka_unit_test(ragged),
        cmocka_unit_test(masked_pieces),
        cmocka_unit_test(deterministic_cuts),
        cmocka_unit_test(refusals),
        cmocka_unit_test(every_variant_fits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
