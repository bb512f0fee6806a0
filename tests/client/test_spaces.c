/* client/spaces: what is sent for a space, what is kept of the answer, and how many are kept. */
#include "session_rig.h"

#include <sys/socket.h>
#include <unistd.h>

#include "proto/arena.h"

static uint8_t arena_memory[KVC_ARENA_BYTES];
static int sent_to; /* the other end of the client's connection */

static int spaces_setup(void **state)
{
    struct rig *rig;
    int pair[2];

    if (setup(state) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    rig = *state;
    open_session(rig);
    rig->client.transport.fd = pair[0];
    rig->client.deadline_ms = 60000;
    sent_to = pair[1];
    return 0;
}

static int spaces_teardown(void **state)
{
    struct rig *rig = *state;

    close(sent_to);
    close(rig->client.transport.fd);
    free(rig->client.spaces);
    return teardown(state);
}

static kvarn_space_options options(void)
{
    kvarn_space_options out = KVARN_SPACE_OPTIONS_INIT;

    out.model = "m";
    out.layers = 4;
    out.kv_heads = 3;
    out.head_dim = 64;
    out.dtype = KVARN_BF16;
    out.preset = "kvarn_k2v2_g64";
    return out;
}

/* Starts the call; the request that the peer would get is decoded into *sent. */
static struct kvarn_call *start_open(struct rig *rig, kvarn_space_options *args,
                                     struct kvw_open_space *sent)
{
    static uint8_t frame[8192];
    struct kvarn_call *call = NULL;
    struct kvw_header header;
    struct kvw_arena arena;
    const char *why = "";

    if (kvarn_open_space_start(&rig->client, args, &call) != KVARN_OK)
        fail_msg("%s", kvarn_client_error(&rig->client));
    assert_true(recv(sent_to, frame, sizeof frame, MSG_DONTWAIT) >= KVW_HEADER_BYTES);
    assert_int_equal(kvw_header_unpack(&header, frame, 0, &why), KVARN_OK);
    assert_int_equal(header.op, KVW_OPEN_SPACE);
    kvw_arena_init(&arena, arena_memory, sizeof arena_memory);
    assert_int_equal(
        kvw_open_space_decode(sent, frame + KVW_HEADER_BYTES, header.metadata_bytes, &arena, &why),
        KVARN_OK);
    return call;
}

/* Answers the call under a handle of the test's choice. */
static void answer(struct rig *rig, struct kvarn_call *call, uint64_t handle, uint32_t group)
{
    struct kvw_open_space_reply reply = {.space = handle,
                                         .group = group,
                                         .sink_tokens = 128,
                                         .record_bytes = 10,
                                         .tile_block_bytes = 100 + handle,
                                         .exact_block_bytes = 200 + handle};
    static uint8_t metadata[1024];
    struct kvw_header header = {.version = 1,
                                .op = KVW_OPEN_SPACE,
                                .flags = KVW_FLAG_REPLY,
                                .request_id = call->request_id};
    struct peer_buffer out = {0};

    header.metadata_bytes =
        (uint32_t)kvw_open_space_reply_encode(metadata, sizeof metadata, &reply);
    peer_frame(&out, &header, metadata, NULL);
    place(rig, out.bytes, out.count);
    free(out.bytes);
}

static void open_one(struct rig *rig, kvarn_space_options *args, uint64_t handle)
{
    struct kvw_open_space sent;
    struct kvarn_call *call = start_open(rig, args, &sent);

    answer(rig, call, handle, 64);
    assert_int_equal(kvarn_call_status(call), KVARN_OK);
    kvarn_call_free(&call);
}

static void everything_is_sent(void **state)
{
    struct rig *rig = *state;
    kvarn_space_options args = options();
    struct kvw_open_space sent;
    struct kvarn_call *call;

    args.revision = "r";
    args.adapter = "a";
    args.rope = "t";
    args.iterations = 3;
    args.k_rotated = 7;
    args.v_rotated = 5;
    args.layer_begin = 1;
    args.layer_count = 2;
    args.head_begin = 2;
    args.head_count = 1;
    call = start_open(rig, &args, &sent);
    assert_string_equal(sent.model, "m");
    assert_string_equal(sent.revision, "r");
    assert_string_equal(sent.adapter, "a");
    assert_string_equal(sent.rope, "t");
    assert_string_equal(sent.preset, "kvarn_k2v2_g64");
    assert_string_equal(sent.key_algorithm, "sha256_cbor");
    assert_int_equal(sent.layers, 4);
    assert_int_equal(sent.kv_heads, 3);
    assert_int_equal(sent.head_dim, 64);
    assert_int_equal(sent.dtype, KVARN_BF16);
    assert_true(sent.has_iterations && sent.k_rotated && sent.v_rotated && !sent.has_sink_tokens);
    assert_int_equal(sent.iterations, 3);
    assert_int_equal(sent.layer_begin, 1);
    assert_int_equal(sent.layer_count, 2);
    assert_int_equal(sent.head_begin, 2);
    assert_int_equal(sent.head_count, 1);
    kvarn_call_free(&call);
    args = options();
    call = start_open(rig, &args, &sent);
    assert_false(sent.has_iterations || sent.k_rotated || sent.v_rotated);
    assert_string_equal(sent.adapter, "");
    kvarn_call_free(&call);
}

/* The shard counts, not the model; opening again replaces what was known. */
static void the_shard_is_remembered(void **state)
{
    struct rig *rig = *state;
    kvarn_space_options args = options();
    const struct kvc_space *known;

    args.layer_begin = 1;
    args.head_begin = 1;
    args.head_count = 1;
    open_one(rig, &args, 9);
    assert_int_equal(args.space, 9);
    assert_int_equal(args.tile_block_bytes, 109);
    assert_int_equal(rig->client.space_count, 1);
    known = &rig->client.spaces[0];
    assert_int_equal(known->layers, 3);
    assert_int_equal(known->kv_heads, 1);
    assert_int_equal(known->head_dim, 64);
    assert_int_equal(known->group, 64);
    assert_int_equal(known->dtype, KVARN_BF16);
    assert_int_equal(known->exact_block_bytes, 209);
    args = options();
    open_one(rig, &args, 9);
    assert_int_equal(rig->client.space_count, 1);
    assert_int_equal(rig->client.spaces[0].layers, 4);
    assert_int_equal(rig->client.spaces[0].kv_heads, 3);
}

static void as_many_as_a_client_keeps(void **state)
{
    struct rig *rig = *state;
    kvarn_space_options args;
    struct kvarn_call *call = NULL;

    for (uint64_t i = 0; i < KVC_CLIENT_SPACES_MAX; i++) {
        args = options();
        open_one(rig, &args, 1000 + i);
        assert_int_equal(rig->client.space_count, i + 1);
    }
    for (uint64_t i = 0; i < KVC_CLIENT_SPACES_MAX; i++)
        assert_int_equal(rig->client.spaces[i].space, 1000 + i);
    args = options();
    assert_int_equal(kvarn_open_space_start(&rig->client, &args, &call), KVARN_TOO_LARGE);
    assert_null(call);
    assert_non_null(strstr(kvarn_client_error(&rig->client), "4096 spaces open"));
}

static void impossible_groups_break_the_session(void **state)
{
    struct rig *rig = *state;
    kvarn_space_options args = options();
    struct kvw_open_space sent;
    struct kvarn_call *call = start_open(rig, &args, &sent);

    answer(rig, call, 9, KVARN_MAX_GROUP + 1);
    assert_int_equal(rig->session->state, KVC_SESSION_BROKEN);
    assert_non_null(strstr(rig->session->why, "impossible group"));
    assert_int_equal(kvarn_call_status(call), KVARN_PEER_LOST);
    assert_int_equal(rig->client.space_count, 0);
    kvarn_call_free(&call);
}

static void no_group_is_impossible_too(void **state)
{
    struct rig *rig = *state;
    kvarn_space_options args = options();
    struct kvw_open_space sent;
    struct kvarn_call *call = start_open(rig, &args, &sent);

    answer(rig, call, 9, 0);
    assert_int_equal(rig->session->state, KVC_SESSION_BROKEN);
    kvarn_call_free(&call);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, spaces_setup, spaces_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(everything_is_sent),         TEST(the_shard_is_remembered),
        TEST(as_many_as_a_client_keeps),  TEST(impossible_groups_break_the_session),
        TEST(no_group_is_impossible_too),
    };
    return cmocka_run_group_tests_name("spaces", tests, NULL, NULL);
}
