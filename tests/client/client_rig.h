/* A client connected to the pretended daemon, with one space open: what the client tests share. */
#ifndef TEST_CLIENT_RIG_H
#define TEST_CLIENT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/client.h>

#include "fake_daemon.h"
struct rig {
    struct fake_daemon daemon;
    kvarn_client *client;
    uint64_t space;
};

static kvarn_key keys[4];

static inline void open_space(struct rig *rig)
{
    kvarn_space_options options = KVARN_SPACE_OPTIONS_INIT;

    options.model = "m";
    options.layers = PEER_LAYERS;
    options.kv_heads = PEER_HEADS;
    options.head_dim = PEER_DIM;
    options.dtype = KVARN_F16;
    options.preset = "kvarn_k2v2_g64";
    assert_int_equal(kvarn_open_space(rig->client, &options), KVARN_OK);
    assert_int_equal(options.group, PEER_GROUP);
    assert_int_equal(options.fingerprint[2], 3);
    rig->space = options.space;
}

static inline int start(void **state, int tcp)
{
    struct rig *rig = calloc(1, sizeof *rig);

    fake_daemon_start(&rig->daemon, tcp);
    *state = rig;
    if (kvarn_connect(&rig->client, rig->daemon.address, NULL) != KVARN_OK)
        return -1;
    open_space(rig);
    return 0;
}

static inline int setup(void **state)
{
    return start(state, 0);
}

static inline int setup_tcp(void **state)
{
    return start(state, 1);
}

static inline int teardown(void **state)
{
    struct rig *rig = *state;

    kvarn_close(&rig->client);
    assert_null(rig->client);
    fake_daemon_stop(&rig->daemon);
    free(rig);
    return 0;
}

static inline void assert_pattern(const void *bytes, uint32_t salt, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (((const uint8_t *)bytes)[i] != peer_pattern(salt, i))
            fail_msg("tensor %u differs at byte %zu", salt, i);
}

#define RIG(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
