/* Connections over socket pairs, with a stub service and a clock that the test moves. */
#ifndef TEST_CONN_RIG_H
#define TEST_CONN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/arena.h"
#include "proto/codec.h"
#include "server/net/conn.h"
#include "stub_service.h"

enum { CLIENTS_MAX = 4 };

struct rig {
    struct uv_loop_s *loop;
    struct kvd_deferred *nudge;
    struct kvd_conns *conns;
    struct kvd_metrics *metrics;
    struct kvd_service service;
    uint64_t now_ns;
    uint8_t *reply; /* bytes of frames that came, not yet taken */
    size_t reply_bytes;
    int fds; /* open descriptors at the start */
};

int open_fds(void);
/* Turns of the loop until nothing more happens. An armed call keeps a turn from waiting. */
void settle(struct rig *rig);
int rig_setup(void **state);
int rig_teardown(void **state);
int join(struct rig *rig);
size_t frame(uint8_t *out, uint8_t op, uint64_t id, const void *metadata, size_t bytes,
             uint64_t payload_bytes, uint32_t deadline_us);
size_t ping_frame(uint8_t *out, uint64_t id);
void put(int fd, const void *bytes, size_t count);
/* Reads what is there. False at the end of the stream. */
bool drink(struct rig *rig, int fd);
/* Takes one reply frame out of what was read; false when none is whole. */
bool take_reply(struct rig *rig, struct kvw_header *header, kvarn_status *status, uint64_t *echo);
void expect(struct rig *rig, int fd, uint64_t id, kvarn_status want);
void expect_nothing(struct rig *rig, int fd);
void expect_end(struct rig *rig, int fd);
void hello(struct rig *rig, int fd);
void ping(struct rig *rig, int fd, uint64_t id);
double metric(struct rig *rig, enum kvd_metric which);
void pass_ms(struct rig *rig, uint64_t ms);

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

/* libuv keeps descriptors from a process's first loop on; they are no leak of a test. */
int conn_rig_run(const char *name, const struct CMUnitTest *tests, size_t count);

#endif
