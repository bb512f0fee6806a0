/* The examples and the table behind codec_cases.h. */
#include "codec_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Examples stand in static storage, where padding is zero, and are copied whole: comparing memory
 * depends on it. */
/* clang-format off */
#define RESULT {KVARN_RETRY, "busy: 4 of 4 slots; \xe2\x82\xac", 1500}
#define LAYOUT {true, 101, 102, 103, 104, UINT64_MAX, 106}
#define QUERY                                                                                      \
    {.present = true, .q_heads = 201, .q_tokens = 202, .q_dtype = KVARN_BF16,                      \
     .out_dtype = KVARN_F32, .window = 205, .scale = 0.125f, .soft_cap = 30.5f, .full = true,      \
     .deterministic = true}
/* clang-format on */

static void fill_hello(union codec_any *out)
{
    static const struct kvw_hello example = {1, 2, UINT64_C(1) << 63, "kvarn-python 0.1.0"};

    memcpy(&out->hello, &example, sizeof example);
}

static void fill_hello_reply(union codec_any *out)
{
    static const struct kvw_hello_reply example = {.result = RESULT,
                                                   .version = 3,
                                                   .features = 4,
                                                   .server = "kvarnd 0.1.0",
                                                   .backend = "cpu/avx512",
                                                   .tenant = "default",
                                                   .payload_max_bytes = UINT64_C(1) << 40,
                                                   .in_flight_max = 9};

    memcpy(&out->hello_reply, &example, sizeof example);
}

static void fill_ping(union codec_any *out)
{
    out->ping.echo = UINT64_MAX;
}

static void fill_ping_reply(union codec_any *out)
{
    static const struct kvw_ping_reply example = {RESULT, 77};

    memcpy(&out->ping_reply, &example, sizeof example);
}

static void fill_open_space(union codec_any *out)
{
    static const struct kvw_open_space example = {.model = "model",
                                                  .revision = "revision",
                                                  .adapter = "adapter",
                                                  .rope = "theta=10000",
                                                  .preset = "kvarn_k4v2_g128",
                                                  .key_algorithm = "sha256_cbor",
                                                  .device = "cuda:0",
                                                  .layers = 31,
                                                  .kv_heads = 32,
                                                  .head_dim = 128,
                                                  .dtype = KVARN_BF16,
                                                  .iterations = 33,
                                                  .sink_tokens = 34,
                                                  .k_rotated = true,
                                                  .v_rotated = true,
                                                  .has_iterations = true,
                                                  .has_sink_tokens = true,
                                                  .layer_begin = 35,
                                                  .layer_count = 36,
                                                  .head_begin = 37,
                                                  .head_count = UINT32_MAX};

    memcpy(&out->open_space, &example, sizeof example);
}

static void fill_fingerprint(uint8_t *out, uint8_t first)
{
    for (size_t i = 0; i < KVARN_FINGERPRINT_BYTES; i++)
        out[i] = (uint8_t)(first + 7 * i);
}

static void fill_open_space_reply(union codec_any *out)
{
    static const struct kvw_open_space_reply example = {.result = RESULT,
                                                        .space = UINT64_C(1) << 50,
                                                        .epoch = 41,
                                                        .group = 128,
                                                        .sink_tokens = 42,
                                                        .record_bytes = 43,
                                                        .tile_block_bytes = 44,
                                                        .exact_block_bytes = 45};

    memcpy(&out->open_space_reply, &example, sizeof example);
    fill_fingerprint(out->open_space_reply.fingerprint, 1);
}

static void fill_blocks(union codec_any *out)
{
    static const struct kvw_blocks example = {.space = 51,
                                              .block_count = KVW_BLOCKS_MAX,
                                              .lease_ms = 52,
                                              .layer_begin = 53,
                                              .layer_count = 54,
                                              .all = true,
                                              .unpin = true,
                                              .limit = 151,
                                              .ranks = 152,
                                              .cursor = UINT64_C(1) << 40,
                                              .group = UINT64_MAX,
                                              .layout = LAYOUT,
                                              .query = QUERY,
                                              .origin = {.present = true,
                                                         .layer_begin = 55,
                                                         .layer_count = 56,
                                                         .head_begin = 57,
                                                         .head_count = 58}};

    memcpy(&out->blocks, &example, sizeof example);
    fill_fingerprint(out->blocks.origin.fingerprint, 3);
}

static void fill_blocks_reply(union codec_any *out)
{
    static const struct kvw_blocks_reply example = {RESULT, 61, 62, 63, 64, 65, 66, 67};

    memcpy(&out->blocks_reply, &example, sizeof example);
}

static void fill_release(union codec_any *out)
{
    out->release.lease = 66;
}

static void fill_sequences(union codec_any *out)
{
    static const struct kvw_sequences example = {.space = 71,
                                                 .sequence_count = 72,
                                                 .key_count = 73,
                                                 .layer_begin = 74,
                                                 .layer_count = 75,
                                                 .fork_count = 76,
                                                 .layout = LAYOUT,
                                                 .query = QUERY};

    memcpy(&out->sequences, &example, sizeof example);
}

static void fill_sequences_reply(union codec_any *out)
{
    static const struct kvw_sequences_reply example = {RESULT, 77, 78};

    memcpy(&out->sequences_reply, &example, sizeof example);
}

static void fill_stats(union codec_any *out)
{
    out->stats.reset_peaks = true;
}

static struct kvw_metric metrics[KVW_METRICS_MAX];

static void fill_stats_reply(union codec_any *out)
{
    static const struct kvw_stats_reply example = {RESULT, KVW_METRICS_MAX, metrics};

    for (size_t i = 0; i < KVW_METRICS_MAX; i++)
        metrics[i] = (struct kvw_metric){i % 2 != 0 ? "odd" : "even metric", (double)i / 3};
    memcpy(&out->stats_reply, &example, sizeof example);
}

static struct kvw_space_info spaces[KVW_SPACES_MAX];

static void fill_list_reply(union codec_any *out)
{
    static const struct kvw_list_reply example = {RESULT, KVW_SPACES_MAX, spaces};

    for (size_t i = 0; i < KVW_SPACES_MAX; i++) {
        spaces[i] = (struct kvw_space_info){.space = 1000 + i,
                                            .model = "a model with a rather long name",
                                            .preset = "kvarn_k4v2_g128",
                                            .layers = 81,
                                            .kv_heads = 82,
                                            .head_dim = 83,
                                            .dtype = 84,
                                            .tile_blocks = 85,
                                            .exact_blocks = 86,
                                            .bytes = UINT64_C(1) << 42,
                                            .sequences = 87};
        fill_fingerprint(spaces[i].fingerprint, (uint8_t)i);
    }
    memcpy(&out->list_reply, &example, sizeof example);
}

static void fill_drain(union codec_any *out)
{
    out->drain.grace_ms = 91;
}

static void fill_events(union codec_any *out)
{
    static const struct kvw_events example = {.epoch = UINT64_MAX,
                                              .from = 161,
                                              .limit = 162,
                                              .wait_ms = 163,
                                              .snapshot = true,
                                              .cursor = 164};

    memcpy(&out->events, &example, sizeof example);
}

static void fill_events_reply(union codec_any *out)
{
    static const struct kvw_events_reply example = {.result = RESULT,
                                                    .epoch = UINT64_MAX,
                                                    .next = 171,
                                                    .count = 172,
                                                    .lost = true,
                                                    .cursor = 173};

    memcpy(&out->events_reply, &example, sizeof example);
}

#define FORWARD(name)                                                                              \
    static kvarn_status decode_##name(union codec_any *out, const uint8_t *in, size_t count,       \
                                      struct kvw_arena *arena, const char **why)                   \
    {                                                                                              \
        return kvw_##name##_decode(&out->name, in, count, arena, why);                             \
    }                                                                                              \
    static size_t encode_##name(uint8_t *out, size_t room, const union codec_any *in)              \
    {                                                                                              \
        return kvw_##name##_encode(out, room, &in->name);                                          \
    }                                                                                              \
    static const ProtobufCMessageDescriptor *descriptor_##name(void)                               \
    {                                                                                              \
        return kvw_codec_descriptor(#name);                                                        \
    }
KVW_MESSAGES(FORWARD)
#undef FORWARD

#define AT(message, field) offsetof(struct kvw_##message, field)
static const size_t texts_hello[] = {AT(hello, client), SIZE_MAX};
static const size_t texts_hello_reply[] = {AT(hello_reply, result.text), AT(hello_reply, server),
                                           AT(hello_reply, backend), AT(hello_reply, tenant),
                                           SIZE_MAX};
static const size_t texts_open_space[] = {AT(open_space, model),   AT(open_space, revision),
                                          AT(open_space, adapter), AT(open_space, rope),
                                          AT(open_space, preset),  AT(open_space, key_algorithm),
                                          AT(open_space, device),  SIZE_MAX};
static const size_t texts_none[] = {SIZE_MAX};
static const size_t texts_result[] = {AT(ping_reply, result.text), SIZE_MAX};
#undef AT

/* A result stands first in every reply, so one offset serves them all. */
#define texts_ping             texts_none
#define texts_ping_reply       texts_result
#define texts_open_space_reply texts_result
#define texts_blocks           texts_none
#define texts_blocks_reply     texts_result
#define texts_release          texts_none
#define texts_sequences        texts_none
#define texts_sequences_reply  texts_result
#define texts_stats            texts_none
#define texts_stats_reply      texts_result
#define texts_list_reply       texts_result
#define texts_drain            texts_none
#define texts_events           texts_none
#define texts_events_reply     texts_result

const struct codec_case *codec_case_at(size_t index)
{
#define ROW(name)                                                                                  \
    {#name,         sizeof(struct kvw_##name), fill_##name, decode_##name,                         \
     encode_##name, descriptor_##name,         texts_##name},
    static const struct codec_case cases[] = {KVW_MESSAGES(ROW)};
#undef ROW

    return index < sizeof cases / sizeof cases[0] ? &cases[index] : NULL;
}

const struct codec_case *codec_case_named(const char *name)
{
    for (size_t i = 0; codec_case_at(i) != NULL; i++) {
        if (strcmp(codec_case_at(i)->name, name) == 0)
            return codec_case_at(i);
    }
    fail_msg("no message %s", name);
    return NULL;
}

size_t codec_put_varint(uint8_t *out, uint64_t value)
{
    size_t count = 0;

    for (; value > 0x7f; value >>= 7)
        out[count++] = (uint8_t)((value & 0x7f) | 0x80);
    out[count++] = (uint8_t)value;
    return count;
}

kvarn_status codec_case_decode(const struct codec_case *test, union codec_any *out,
                               const uint8_t *in, size_t count)
{
    static uint8_t memory[KVW_ARENA_BYTES];
    struct kvw_arena arena;
    const char *why = NULL;
    kvarn_status status;

    memset(out, 0, sizeof *out);
    kvw_arena_init(&arena, memory, sizeof memory);
    status = test->decode(out, in, count, &arena, &why);
    if (status != KVARN_OK) {
        assert_int_equal(status, KVARN_BAD_FRAME);
        assert_true(why != NULL && why[0] != '\0');
    }
    return status;
}

static void assert_lists_equal(const struct codec_case *test, const union codec_any *a,
                               const union codec_any *b)
{
    if (test->fill == fill_stats_reply) {
        assert_int_equal(a->stats_reply.count, b->stats_reply.count);
        for (size_t i = 0; i < a->stats_reply.count; i++) {
            assert_string_equal(a->stats_reply.metrics[i].name, b->stats_reply.metrics[i].name);
            assert_true(a->stats_reply.metrics[i].value == b->stats_reply.metrics[i].value);
        }
    }
    if (test->fill == fill_list_reply) {
        assert_int_equal(a->list_reply.count, b->list_reply.count);
        for (size_t i = 0; i < a->list_reply.count; i++) {
            struct kvw_space_info one = a->list_reply.spaces[i], other = b->list_reply.spaces[i];

            assert_string_equal(one.model, other.model);
            assert_string_equal(one.preset, other.preset);
            other.model = one.model;
            other.preset = one.preset;
            assert_memory_equal(&one, &other, sizeof one);
        }
    }
}

/* Texts are compared as texts, lists as lists; then the pointers are made equal, and the rest must
 * be equal byte for byte (both structs were zeroed before, so padding is too). */
void codec_case_assert_equal(const struct codec_case *test, const union codec_any *a,
                             const union codec_any *b)
{
    union codec_any copy;

    memcpy(&copy, b, sizeof copy);
    for (const size_t *at = test->texts; *at != SIZE_MAX; at++) {
        const char *one, *other;

        memcpy(&one, (const uint8_t *)a + *at, sizeof one);
        memcpy(&other, (const uint8_t *)b + *at, sizeof other);
        assert_string_equal(one, other);
        memcpy((uint8_t *)&copy + *at, &one, sizeof one);
    }
    assert_lists_equal(test, a, b);
    if (test->fill == fill_stats_reply)
        copy.stats_reply.metrics = a->stats_reply.metrics;
    if (test->fill == fill_list_reply)
        copy.list_reply.spaces = a->list_reply.spaces;
    assert_memory_equal(a, &copy, test->size);
}
