/* attend over parts of a context, joined by kvk_merge, equals attention over the whole.
 *
 * Spans are dealt to parts at random (exact spans cut at any token first), parts may stay empty and
 * are joined in shuffled order. KVARN_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "support/attend_case.h"

enum { MAX_SPANS = 64, MAX_PARTS = 7 };

static uint64_t seed;

/* Exact spans in random pieces, tiles whole; returns their number. */
static size_t cut(const struct attend_case *c, struct rng *rng, struct kvk_span *pieces)
{
    size_t count = 0;

    for (size_t i = 0; i < c->op.span_count; i++) {
        struct kvk_span rest = c->op.spans[i];
        while (rest.kind == KVARN_BLOCK_EXACT && rest.tokens > 1 && count < MAX_SPANS / 2) {
            uint32_t tokens = 1 + rng_below(rng, rest.tokens - 1);
            pieces[count] = rest;
            pieces[count++].tokens = tokens;
            rest.position += tokens;
            rest.tokens -= tokens;
            rest.data = (const uint8_t *)rest.data + tokens * rest.token_stride_bytes;
            rest.v = (const uint8_t *)rest.v + tokens * rest.token_stride_bytes;
        }
        pieces[count++] = rest;
    }
    return count;
}

static void join_parts(const struct attend_case *c, const struct kvk_table *table, struct rng *rng)
{
    struct kvk_span pieces[MAX_SPANS + 8], mine[MAX_SPANS + 8];
    uint32_t part_of[MAX_SPANS + 8], parts = 1 + rng_below(rng, MAX_PARTS);
    size_t count = cut(c, rng, pieces), rows = (size_t)c->op.q_tokens * c->op.q_heads;
    size_t dim = c->op.shape.dim;
    float *out = calloc((parts + 1) * rows * dim, sizeof(float));
    float *lse = calloc((parts + 1) * rows, sizeof(float));
    void *scratch = aligned_alloc(
        64,
        (kvk_attend_scratch_bytes(c->op.q_tokens, c->op.q_heads, (uint32_t)dim) + 63) / 64 * 64);
    struct attend_error error = {0};

    for (size_t i = 0; i < count; i++)
        part_of[i] = rng_below(rng, parts);
    for (uint32_t part = 0; part < parts; part++) {
        struct kvk_attend op = c->op;
        op.span_count = 0;
        for (size_t i = 0; i < count; i++) {
            if (part_of[i] == part)
                mine[op.span_count++] = pieces[i];
        }
        op.spans = mine;
        op.out = out + part * rows * dim;
        op.lse = lse + part * rows;
        op.scratch = scratch;
        assert_int_equal(table->attend(&op), KVARN_OK);
    }
    float *whole = out + parts * rows * dim, *whole_lse = lse + parts * rows;
    kvk_merge(whole, whole_lse, out, lse, parts, rows, dim);
    const char *broken = attend_case_compare(c, whole, whole_lse, &error);
    double allowed = (double)KVK_ATTEND_TOLERANCE * fmax(1.0, c->spread / 8);
    if (broken != NULL || error.out > allowed || error.lse > allowed)
        fail_msg("%s, %u parts, seed %llu: %s; output %.3g, lse %.3g", table->name, parts,
                 (unsigned long long)seed, broken ? broken : "error too large", error.out,
                 error.lse);
    free(out);
    free(lse);
    free(scratch);
}

static void parts_join_to_the_whole(void **state)
{
    static const char *const names[] = {"ref", "avx2", "avx512"};

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct rng rng = rng_make(++seed);
        struct attend_plan plan = {.group = i % 2 ? 64 : 128,
                                   .bits_k = i % 3 ? 2 : 4,
                                   .q_tokens = 1 + rng_below(&rng, 3),
                                   .q_heads = 1 + rng_below(&rng, 6),
                                   .sink = rng_below(&rng, 129),
                                   .tiles = rng_below(&rng, 6),
                                   .partial = rng_below(&rng, 63),
                                   .tail = rng_below(&rng, 129),
                                   .window = i % 5 == 0 ? 100 : 0,
                                   .q_gain = i % 7 == 0 ? 32 : 1};
        struct attend_case *c = attend_case_make(&plan, seed);
        for (size_t t = 0; t < 3; t++) {
            const struct kvk_table *table = kvk_cpu_table(names[t]);
            if (table != NULL)
                join_parts(c, table, &rng);
        }
        attend_case_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_join_to_the_whole),
    };
    seed = rng_seed(20260604);
    print_message("KVARN_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("attend_split", tests, NULL, NULL);
}
