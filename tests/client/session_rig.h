/* A session and the pretended daemon, joined in memory: what the session tests share. */
#ifndef TEST_SESSION_RIG_H
#define TEST_SESSION_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/blocks.h"
#include "peer.h"
#include "support/rng.h"

struct rig {
    struct kvarn_client client; /* for its error text alone */
    struct kvc_session *session;
    struct peer peer;
    struct rng rng;
};

/* Sends at most `limit` bytes to the peer, in pieces of at most `piece`. */
static inline void to_peer(struct rig *rig, size_t limit, size_t piece)
{
    struct iovec part;

    while (limit > 0 && kvc_session_pending(rig->session, &part, 1) > 0) {
        size_t count = part.iov_len < piece ? part.iov_len : piece;
        count = count < limit ? count : limit;
        peer_feed(&rig->peer, part.iov_base, count);
        kvc_session_sent(rig->session, count);
        limit -= count;
    }
}

/* Gives the session `count` bytes where it wants them. */
static inline void place(struct rig *rig, const uint8_t *in, size_t count)
{
    while (count > 0) {
        struct iovec parts[4];
        size_t given = 0, parts_count = kvc_session_want(rig->session, parts, 4);

        if (parts_count == 0)
            return;
        for (size_t i = 0; i < parts_count && given < count; i++) {
            size_t one = parts[i].iov_len < count - given ? parts[i].iov_len : count - given;
            memcpy(parts[i].iov_base, in + given, one);
            given += one;
        }
        kvc_session_received(rig->session, given);
        in += given;
        count -= given;
    }
}

/* Delivers what the peer said: pieces of 1..most bytes, random unless most is 1. */
static inline void from_peer(struct rig *rig, size_t most)
{
    size_t at = 0;

    while (at < rig->peer.out.count) {
        size_t piece = 1 + (most > 1 ? (size_t)(rng_next(&rig->rng) % most) : 0);
        if (piece > rig->peer.out.count - at)
            piece = rig->peer.out.count - at;
        place(rig, rig->peer.out.bytes + at, piece);
        at += piece;
    }
    rig->peer.out.count = 0;
    if (rig->peer.ends)
        kvc_session_break(rig->session, KVARN_PEER_LOST, "the daemon closed the connection");
}

static inline void exchange(struct rig *rig, size_t most)
{
    to_peer(rig, SIZE_MAX, most);
    from_peer(rig, most);
}

static inline int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    peer_init(&rig->peer);
    rig->rng = rng_make(rng_seed(1));
    rig->session = kvc_session_new("test", 0);
    rig->client.session = rig->session;
    *state = rig;
    return rig && rig->session ? 0 : -1;
}

static inline int teardown(void **state)
{
    struct rig *rig = *state;

    kvc_session_free(rig->session);
    peer_free(&rig->peer);
    free(rig);
    return 0;
}

static inline void open_session(struct rig *rig)
{
    exchange(rig, 1000);
    assert_int_equal(rig->session->state, KVC_SESSION_OPEN);
}

/* DECOMPRESS of `blocks` blocks into k and v. Keys are zeros. */
static inline struct kvarn_call *start_decompress(struct rig *rig, uint32_t blocks, uint8_t *k,
                                                  uint8_t *v)
{
    static const kvarn_key keys[4];
    struct kvw_blocks meta = {.block_count = blocks, .layer_count = PEER_LAYERS};
    struct kvarn_call *call = NULL;

    assert_true(blocks <= 4);
    assert_int_equal(kvc_blocks_new(&rig->client, KVW_DECOMPRESS, &meta, 0, blocks,
                                    KVW_BLOCK_STATUS_BYTES, &call),
                     KVARN_OK);
    kvc_call_add_part(call, keys, blocks * sizeof keys[0]);
    kvc_call_add_place(call, k, (uint64_t)blocks * PEER_BLOCK_ROWS_BYTES);
    kvc_call_add_place(call, v, (uint64_t)blocks * PEER_BLOCK_ROWS_BYTES);
    assert_int_equal(kvc_session_start(rig->session, call, UINT64_MAX, 0), KVARN_OK);
    return call;
}

/* IMPORT with a payload of `count` bytes: a request that is large to send. */
static inline struct kvarn_call *start_import(struct rig *rig, const uint8_t *bytes, size_t count)
{
    struct kvw_blocks meta = {.block_count = 1};
    struct kvarn_call *call = NULL;

    assert_int_equal(
        kvc_blocks_new(&rig->client, KVW_IMPORT, &meta, 0, 1, KVW_BLOCK_STATUS_BYTES, &call),
        KVARN_OK);
    kvc_call_add_part(call, bytes, count);
    assert_int_equal(kvc_session_start(rig->session, call, UINT64_MAX, 0), KVARN_OK);
    return call;
}

static inline void assert_pattern(const uint8_t *bytes, uint32_t salt, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != peer_pattern(salt, i))
            fail_msg("tensor %u differs at byte %zu", salt, i);
}

#define RIG(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
