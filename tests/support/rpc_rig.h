/* A service over a fake device and a fake clock, driven the way net does it.
 *
 * A rig_call is one request; its reply is copied out before done is called. What a rig gave out
 * must be back when it closes: slots, staging, references; rig_close asserts it. */
#ifndef TEST_RPC_RIG_H
#define TEST_RPC_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

#include "proto/codec.h"
#include "server/core/files.h"
#include "server/core/loop.h"
#include "server/rpc/work.h"
#include "support/fake_device.h"
#include "support/rng.h"

struct rig_call {
    struct rig *rig;
    struct kvd_request *request; /* NULL when done */
    bool replied, waited;        /* waited: begin said WAIT and nothing was sent */
    kvarn_status status;
    char text[KVD_TEXT_MAX];
    uint32_t retry_after_us;
    uint8_t *payload; /* of the reply */
    uint64_t payload_bytes;
    uint8_t meta[KVW_METADATA_MAX_BYTES];
    uint32_t meta_bytes;
    uint64_t number; /* order of the replies */
    struct rig_call *next;
};

struct rig {
    struct kvd_device *device, *second; /* second: NULL when not asked for */
    struct kvd_service *service;
    struct uv_loop_s *loop; /* of the disk; NULL: none */
    struct kvd_files *files;
    uint64_t now_ns, replies;
    uint64_t conn_id;
    uint32_t tenant;
    bool same_uid, hold; /* hold: done is not called by the reply */
    bool late;           /* replies reach nobody any more */
    uint32_t deadline_ms, room_calls, drained_ms;
    struct rig_call *calls;
    uint8_t arena_memory[KVW_ARENA_BYTES];
    struct kvw_arena arena;
};

struct rig_options {
    uint64_t pool_bytes, staging_bytes; /* 0: 16 MiB, 16 MiB */
    bool gpu;                           /* the device is cuda:0, else host */
    uint64_t second_bytes;              /* pool of a second device, host; 0: there is none */
    uint32_t requests_max, sequences_max, leases_max, parked_max, epochs_max;
    uint64_t payload_max_bytes;
    const char *disk_key;
    const char *disk_path;               /* NULL: no disk */
    uint64_t disk_bytes, disk_bandwidth; /* 0: 64 MiB, 1 GiB */
    enum kvd_files_kind disk_io;
    enum kvd_evict_policy eviction;
    const struct kvd_quota *quotas; /* [quota_count], of tenants 0, 1, ... */
    uint32_t quota_count;
};

void rig_open(struct rig *rig, const struct rig_options *options);
void rig_close(struct rig *rig);
/* No request, no staging; the pool holds what is indexed and nothing else. */
void rig_assert_quiet(struct rig *rig);

/* Sends; the call is done when replied (after rig_run, perhaps). metadata from the encoders. */
struct rig_call *rig_start(struct rig *rig, uint8_t op, const uint8_t *metadata, size_t meta_bytes,
                           const void *payload, uint64_t payload_bytes);
void rig_run(struct rig *rig); /* all jobs of all devices */
/* Jobs, file operations and ticks (the clock goes on) until the disk tier has nothing to do. */
void rig_disk_settle(struct rig *rig);
/* start, run, assert that it was answered */
struct rig_call *rig_call(struct rig *rig, uint8_t op, const uint8_t *metadata, size_t meta_bytes,
                          const void *payload, uint64_t payload_bytes);
void rig_done(struct rig_call *call); /* of a held call */
void rig_free(struct rig_call *call);
/* The connection goes: requests are detached, then the service is told. */
void rig_hang_up(struct rig *rig, uint64_t conn_id);

/* ---- the operations */
struct rig_space {
    uint64_t handle;
    uint32_t layers, heads, dim, group, sink;
    uint64_t tile_bytes, exact_bytes, row_bytes;
};
struct kvw_open_space rig_space_options(void); /* 2 layers, 2 kv heads, 64 wide, k2v2_g64 */
struct rig_call *rig_open_space_call(struct rig *rig, const struct kvw_open_space *options);
struct rig_space rig_open_space(struct rig *rig, const struct kvw_open_space *options);

/* Of the space with this handle: what IMPORT wants. */
struct kvw_origin rig_origin(struct rig *rig, uint64_t handle);

kvarn_key rig_key(uint32_t number);
/* Finite f16 rows [layers][tokens][heads][dim], K then V; the same for the same seed. */
uint16_t *rig_rows(const struct rig_space *space, uint32_t layers, uint32_t tokens, uint64_t seed);
uint64_t rig_rows_bytes(const struct rig_space *space, uint32_t layers, uint32_t tokens);

struct rig_call *rig_blocks_start(struct rig *rig, uint8_t op, const struct kvw_blocks *args,
                                  const kvarn_key *keys, uint32_t count, const void *more,
                                  uint64_t more_bytes);
struct rig_call *rig_blocks(struct rig *rig, uint8_t op, const struct kvw_blocks *args,
                            const kvarn_key *keys, uint32_t count, const void *more,
                            uint64_t more_bytes);
struct rig_call *rig_compress_start(struct rig *rig, const struct rig_space *space,
                                    const kvarn_key *keys, uint32_t count, uint32_t kind,
                                    const uint16_t *rows);
struct rig_call *rig_compress(struct rig *rig, const struct rig_space *space, const kvarn_key *keys,
                              uint32_t count, uint32_t kind, const uint16_t *rows);
struct kvw_block_status rig_block(const struct rig_call *call, uint32_t i);
struct kvw_blocks_reply rig_blocks_reply(struct rig_call *call);

struct rig_call *rig_sequences_start(struct rig *rig, uint8_t op, const struct kvw_sequences *args,
                                     const struct kvw_seq_row *rows, uint32_t count,
                                     const void *more, uint64_t more_bytes);
struct rig_call *rig_sequences(struct rig *rig, uint8_t op, const struct kvw_sequences *args,
                               const struct kvw_seq_row *rows, uint32_t count, const void *more,
                               uint64_t more_bytes);
struct kvw_seq_status rig_seq(const struct rig_call *call, uint32_t i);

uint64_t rig_seq_open(struct rig *rig, const struct rig_space *space, const kvarn_key *keys,
                      uint32_t count, uint32_t *found);
/* All layers; the rows of rig_rows(tokens). Gives the row's status. */
kvarn_status rig_seq_append(struct rig *rig, const struct rig_space *space, uint64_t sequence,
                            uint64_t position, uint32_t tokens, const uint16_t *rows);
struct kvw_seq_status rig_seq_commit(struct rig *rig, const struct rig_space *space,
                                     uint64_t sequence, uint32_t tokens, const kvarn_key *keys,
                                     uint32_t key_count);
kvarn_status rig_seq_release(struct rig *rig, const struct rig_space *space, uint64_t sequence);

double rig_metric(struct rig *rig, const char *name);

#endif
