/* kvarnctl bench: what is asked (bench.c), the requests (bench_work.c), the loop (bench_run.c). */
#ifndef KVC_CTL_BENCH_H
#define KVC_CTL_BENCH_H

#include "client/ctl/ctl.h"
#include "client/ctl/histogram.h"

enum bench_op {
    BENCH_PING,
    BENCH_COMPRESS,
    BENCH_DECOMPRESS,
    BENCH_ATTEND,
    BENCH_LOOKUP,
    BENCH_IMPORT,
    BENCH_OPS
};

struct bench_options {
    enum bench_op op;
    uint32_t clients;
    uint64_t requests, warmup; /* requests 0: until time_s */
    double time_s;             /* 0: until `requests` */
    uint32_t layers, kv_heads, q_heads, head_dim, context;
    const char *preset;
    uint64_t seed;
};

/* One connection with at most one call in flight. */
struct bench_client {
    kvarn_client *client;
    uint64_t space, begin_ns;
    uint64_t tile_bytes, exact_bytes; /* of one block in the pool */
    kvarn_call *call;
    kvarn_key *keys; /* [blocks]; fresh ones of COMPRESS and IMPORT */
    void *k, *v;     /* outputs */
    float *lse;
    union {
        kvarn_ping_args ping;
        kvarn_compress_args compress;
        kvarn_decompress_args decompress;
        kvarn_attend_args attend;
        kvarn_blocks_args blocks;
        kvarn_import_args import;
    } args;
};

/* Inputs that all connections share. */
struct bench_work {
    const struct bench_options *options;
    uint32_t group, blocks;     /* blocks of one request */
    size_t rows_bytes, q_bytes; /* K (or V) of one request */
    kvarn_key *keys;            /* the stored context */
    kvarn_block_kind *kinds;    /* of the context */
    void *k, *v, *q, *exported;
    kvarn_block_result *results; /* of the export */
    size_t exported_bytes;
    kvarn_origin origin; /* of exported */
    uint64_t fresh;      /* keys handed out so far */
    uint64_t attended;   /* ATTEND walks through the layers */
};

/* Opens the space on one connection and makes its buffers. */
kvarn_status bench_client_open(const struct bench_work *work, struct bench_client *client);
void bench_client_close(struct bench_client *client);

/* Makes keys and sizes; fill makes the random rows, which a context that is too large never needs.
 * False without memory. Then store puts the context into the daemon through `client` (CANCELLED
 * when ^C came in between), remove takes all away that store and the requests put there. again:
 * some requests got no answer and may be carried out later, so look more than once. */
bool bench_work_make(struct bench_work *work, const struct bench_options *options);
bool bench_work_fill(struct bench_work *work);
kvarn_status bench_work_store(struct bench_work *work, struct bench_client *client);
void bench_work_remove(struct bench_work *work, struct bench_client *client, bool again);
/* Keys of this run: kind 'c' of the context, 'f' of one request each. */
kvarn_key bench_work_key(const struct bench_work *work, char kind, uint64_t number);
/* Bytes of the pool that the context takes (COMPRESS, IMPORT: one request's blocks). */
uint64_t bench_work_pool_bytes(const struct bench_work *work, const struct bench_client *client);
void bench_work_free(struct bench_work *work);
kvarn_status bench_work_start(struct bench_work *work, struct bench_client *client);
/* Of one request: payload bytes both ways, and tokens that it stores, gives back or reads. */
uint64_t bench_work_bytes(const struct bench_work *work);
uint64_t bench_work_tokens(const struct bench_work *work);

struct bench_result {
    struct ctl_histogram times;
    uint64_t done, failed, device_ns;
    double seconds;
    kvarn_status first_failure;
    char failure[256];
};

/* Closed loop over all connections, warm-up first. */
void bench_run(struct bench_work *work, struct bench_client *clients, struct bench_result *result);

#endif
