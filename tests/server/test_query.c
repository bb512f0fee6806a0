/* rpc/query: defaults, every refusal, the limits that an entry gets, and which blocks a window
 * leaves out, against a count token by token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "server/rpc/query.h"
#include "server/rpc/work.h"
#include "support/rng.h"

static struct kvd_work work;
static struct kvd_service service; /* with one device, which nobody asks for anything */
static struct kvd_space space;
static struct kvd_query query;

/* A shard of 3 kv heads, 64 wide, bf16. */
static kvarn_status resolve(struct kvw_query in)
{
    memset(&work, 0, sizeof work);
    space.heads = 3;
    space.shape = (struct kvk_shape){.dim = 64, .group = 64, .dtype = KVARN_BF16};
    work.space = &space;
    work.request.service = &service;
    return kvd_query_resolve(&work, &in, &query);
}

static void defaults(void **state)
{
    (void)state;
    assert_int_equal(resolve((struct kvw_query){.q_heads = 6}), KVARN_OK);
    assert_int_equal(query.q_dtype, KVARN_BF16);
    assert_int_equal(query.out_dtype, KVARN_F32);
    assert_true(query.scale == 0.125f);
    assert_true(query.soft_cap == 0.0f);
    assert_int_equal(query.q_token_bytes, 6 * 64 * 2);
    assert_int_equal(query.out_token_bytes, 6 * 64 * 4);
    assert_int_equal(query.lse_token_bytes, 6 * 4);
}

static void what_is_asked_for(void **state)
{
    (void)state;
    assert_int_equal(resolve((struct kvw_query){.q_heads = 3,
                                                .q_dtype = KVARN_F32,
                                                .out_dtype = KVARN_F16,
                                                .scale = 0.5f,
                                                .soft_cap = 30,
                                                .window = 7,
                                                .full = true,
                                                .deterministic = true}),
                     KVARN_OK);
    assert_int_equal(query.q_token_bytes, 3 * 64 * 4);
    assert_int_equal(query.out_token_bytes, 3 * 64 * 2);
    assert_true(query.scale == 0.5f && query.soft_cap == 30.0f);
    assert_true(query.window == 7 && query.full && query.deterministic);
    assert_int_equal(resolve((struct kvw_query){.q_heads = 3 * KVARN_MAX_GQA}), KVARN_OK);
}

static void refuses(struct kvw_query in, kvarn_status status, const char *says)
{
    if (resolve(in) != status || work.request.status != status ||
        strstr(work.request.text, says) == NULL)
        fail_msg("not '%s': %s", says, work.request.text);
}

static void refusals(void **state)
{
    (void)state;
    refuses((struct kvw_query){.q_heads = 0}, KVARN_INVALID_SHAPE, "q_heads = 0");
    refuses((struct kvw_query){.q_heads = 4}, KVARN_INVALID_SHAPE, "multiple of the shard's 3");
    refuses((struct kvw_query){.q_heads = 2}, KVARN_INVALID_SHAPE, "q_heads = 2");
    refuses((struct kvw_query){.q_heads = 3 * (KVARN_MAX_GQA + 1)}, KVARN_INVALID_SHAPE, "q_heads");
    refuses((struct kvw_query){.q_heads = UINT32_MAX}, KVARN_INVALID_SHAPE, "q_heads");
    refuses((struct kvw_query){.q_heads = 3, .q_dtype = 4}, KVARN_UNSUPPORTED, "q_dtype = 4");
    refuses((struct kvw_query){.q_heads = 3, .out_dtype = 9}, KVARN_UNSUPPORTED, "out_dtype = 9");
    refuses((struct kvw_query){.q_heads = 3, .scale = -1}, KVARN_INVALID_SHAPE, "scale = -1");
    refuses((struct kvw_query){.q_heads = 3, .scale = NAN}, KVARN_INVALID_SHAPE, "scale");
    refuses((struct kvw_query){.q_heads = 3, .scale = INFINITY}, KVARN_INVALID_SHAPE, "scale");
    refuses((struct kvw_query){.q_heads = 3, .soft_cap = -1}, KVARN_INVALID_SHAPE, "soft_cap = -1");
    refuses((struct kvw_query){.q_heads = 3, .soft_cap = NAN}, KVARN_INVALID_SHAPE, "soft_cap");
}

/* Query token j of n over a context of c tokens sees what stands before it: c - n + 1 + j tokens.
 */
static void limits_of_an_entry(void **state)
{
    struct kvd_attend entry = {0};

    (void)state;
    assert_int_equal(resolve((struct kvw_query){.q_heads = 3, .window = 9, .soft_cap = 2}),
                     KVARN_OK);
    kvd_query_fill(&query, &entry, 4, 100);
    assert_int_equal(entry.limit, 97);
    assert_int_equal(entry.full, 0);
    assert_int_equal(entry.q_tokens, 4);
    assert_int_equal(entry.q_heads, 3);
    assert_int_equal(entry.window, 9);
    assert_int_equal(entry.q_dtype, KVARN_BF16);
    assert_int_equal(entry.out_dtype, KVARN_F32);
    assert_true(entry.scale == 0.125f && entry.soft_cap == 2.0f);
    kvd_query_fill(&query, &entry, 100, 100);
    assert_int_equal(entry.limit, 1);
    query.full = 1;
    kvd_query_fill(&query, &entry, 4, 100);
    assert_int_equal(entry.limit, 100);
    assert_int_equal(entry.full, 1);
    query.full = 0; /* nothing is there: no token before the first */
    kvd_query_fill(&query, &entry, 4, 0);
    assert_int_equal(entry.limit, 0);
    assert_int_equal(entry.full, 1);
}

/* The first block with a token that any query row sees. */
static uint32_t first_seen(uint32_t window, uint32_t q_tokens, uint32_t context, uint32_t group)
{
    for (uint32_t p = 0; p < context; p++)
        for (uint32_t j = 0; j < q_tokens; j++) {
            uint32_t limit = context - q_tokens + 1 + j;

            if (p < limit && (!window || p + window >= limit))
                return p / group;
        }
    return 0;
}

static void blocks_before_the_window(void **state)
{
    struct rng rng = rng_make(rng_seed(2));

    (void)state;
    for (int round = 0; round < 3000; round++) {
        uint32_t group = rng_below(&rng, 2) ? 64 : 128, context = 1 + rng_below(&rng, 600);
        uint32_t q_tokens = 1 + rng_below(&rng, context < 8 ? context : 8);
        uint32_t window = rng_below(&rng, 3) ? 1 + rng_below(&rng, 300) : 0;

        query = (struct kvd_query){.window = window};
        assert_int_equal(kvd_query_first_block(&query, q_tokens, context, group),
                         first_seen(window, q_tokens, context, group));
    }
    query = (struct kvd_query){.window = 1, .full = 1};
    assert_int_equal(kvd_query_first_block(&query, 1, 600, 64), 0);
    query = (struct kvd_query){.window = 1};
    assert_int_equal(kvd_query_first_block(&query, 1, 0, 64), 0);
    assert_int_equal(kvd_query_first_block(&query, 1, 65, 64), 1);
    assert_int_equal(kvd_query_first_block(&query, 1, 64, 64), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(what_is_asked_for),
        cmocka_unit_test(refusals),
        cmocka_unit_test(limits_of_an_entry),
        cmocka_unit_test(blocks_before_the_window),
    };
    return cmocka_run_group_tests_name("query", tests, NULL, NULL);
}
