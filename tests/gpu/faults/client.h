/* Inside the drill: one client, and how its works say what came of a call. */
#ifndef DRILL_CLIENT_H
#define DRILL_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu/faults/clients.h"
#include "support/rng.h"

/* Kernels round q and p to 16 bits; a wrong block or row is off by more than 0.1. */
#define DRILL_ATTEND_DISTANCE_MAX 5e-3
#define DRILL_LSE_MAX             5e-3

enum {
    DRILL_KEPT = 6,     /* blocks of the writer */
    DRILL_READ_MOST = 4 /* blocks of one DECOMPRESS */
};

/* A block that was stored. */
struct drill_kept {
    kvarn_key key;
    uint32_t digest;
    bool there;
};

struct drill_client {
    struct drill_clients *all;
    enum drill_work work;
    pthread_t thread;
    kvarn_client *client;
    uint64_t space;
    struct rng rng;
    uint64_t call_ns;                   /* of the call under way */
    uint16_t *k, *v;                    /* room for DRILL_READ_MOST blocks; the sequence's rows */
    float *out;                         /* of two answers */
    struct drill_kept kept[DRILL_KEPT]; /* of the writer */
    uint64_t number;                    /* of its next block */
    uint64_t sequence;                  /* 0: none */
    uint32_t tokens;
    /* under the lock */
    struct drill_count count;
    uint64_t good_call_ns, lost_ns; /* call of the last good answer; the last loss */
};

struct drill_clients {
    const struct drill_model *model;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic bool stop;
    _Atomic uint32_t told;
    struct drill_client clients[DRILL_WORKS];
};

/* Before a call. */
void drill_begin(struct drill_client *client);
/* After it. True: its answer counts and is to be looked at. */
bool drill_answered(struct drill_client *client, const char *what, kvarn_status status);
void drill_good(struct drill_client *client);
void drill_wrong(struct drill_client *client, const char *what, double value);

/* One call, or a few that belong together, of each work. */
void drill_read(struct drill_client *client);
void drill_attend(struct drill_client *client);
void drill_write(struct drill_client *client);
void drill_sequence(struct drill_client *client);

#endif
