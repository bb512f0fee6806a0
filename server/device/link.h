/* What the front and a worker agree on: inherited descriptors, the rings' memory, the greeting.
 *
 * The control socket (SOCK_SEQPACKET) carries one message, the worker's greeting, and then only its
 * end: a front that closes it, or dies, ends the worker. Both come from one build, so there is no
 * version to negotiate; a greeting of another size is refused. */
#ifndef KVD_LINK_H
#define KVD_LINK_H

#include <stdint.h>

#include "server/core/ring.h"

enum kvd_link_fd {
    KVD_LINK_STAGING = 3,
    KVD_LINK_POOL,
    KVD_LINK_RINGS,
    KVD_LINK_JOBS_BELL,
    KVD_LINK_DONE_BELL,
    KVD_LINK_CONTROL,
    KVD_LINK_FDS_END
};

/* A done entry whose job offset is this: the worker could not read the job at all. */
#define KVD_LINK_REFUSED UINT64_MAX

struct kvd_link_rings {
    struct kvd_ring jobs; /* front -> worker */
    struct kvd_ring done; /* worker -> front: the entry of the job, same cookie */
    /* worker: units of work done; a worker that is at a long job is told from one that hangs */
    _Alignas(64) _Atomic uint32_t progress;
};

enum { KVD_LINK_RINGS_BYTES = (sizeof(struct kvd_link_rings) + 4095) / 4096 * 4096 };

/* Why a worker does not serve. */
enum kvd_link_refusal {
    KVD_LINK_READY = 0,
    KVD_LINK_BAD_MEMORY, /* a descriptor is not what the command line says */
    KVD_LINK_BAD_CPU,    /* no such variant as --cpu asks for */
    KVD_LINK_NO_THREADS  /* threads or their scratch memory cannot be had */
};

struct kvd_link_hello {
    uint32_t refusal; /* kvd_link_refusal */
    uint32_t threads;
    char backend[32]; /* "cpu/avx512" */
};

#endif
