/* What the front and a worker agree on: inherited descriptors, the rings' memory, the greeting.
 *
 * The control socket (SOCK_SEQPACKET) carries these messages and then only its end: a front that
 * closes it, or dies, ends the worker. Both come from one build, so there is no version to
 * negotiate; a message of another size is refused. Every message begins with its kind.
 *
 *   CPU worker:                  worker -> front: HELLO
 *   CUDA worker, first start:    worker -> front: POOL, CHUNKS ..., HELLO
 *   CUDA worker, later starts:   front -> worker: CHUNKS ...       worker -> front: HELLO
 *
 * A CUDA worker is started with --device cuda:N and, when it has to make the pool, with
 * --pool-bytes or --pool-percent (of the memory free then); else with --pool-chunks and
 * --chunk-bytes, and it waits for the descriptors of so many. Its pool is not inherited
 * (KVD_LINK_POOL means nothing to it). A worker that cannot serve greets with a refusal, whatever
 * it sent before. */
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

/* Exit codes of a worker. */
enum {
    KVD_LINK_EXIT_OK = 0,
    KVD_LINK_EXIT_REFUSED = 1,
    KVD_LINK_EXIT_USAGE = 2,
    KVD_LINK_EXIT_GPU_LOST = 3 /* the device failed under a job, which was not answered */
};

/* Why a worker does not serve. */
enum kvd_link_refusal {
    KVD_LINK_READY = 0,
    KVD_LINK_BAD_MEMORY, /* a descriptor is not what the command line says */
    KVD_LINK_BAD_CPU,    /* no such variant as --cpu asks for */
    KVD_LINK_NO_THREADS, /* threads or their scratch memory cannot be had */
    KVD_LINK_NO_DRIVER,  /* libcuda cannot be loaded, or lacks what is needed */
    KVD_LINK_OLD_DRIVER, /* older than the kernels */
    KVD_LINK_NO_DEVICE,  /* no GPU of that number */
    KVD_LINK_NO_KERNELS, /* this build has none for that GPU */
    KVD_LINK_NO_GPU_MEMORY,
    KVD_LINK_BAD_GPU /* it does not do what it should: any other error, or the self-test failed */
};

enum kvd_link_kind { KVD_LINK_HELLO = 1, KVD_LINK_POOL_MADE, KVD_LINK_CHUNKS };

struct kvd_link_hello {
    uint32_t kind;
    uint32_t refusal; /* kvd_link_refusal */
    uint32_t threads; /* of a CPU worker */
    uint32_t reserved;
    char backend[32]; /* "cpu/avx512", "cuda/sm_90" */
    char text[256];   /* of a refusal: one line that says what is missing; may be empty */
};

/* A pool was made: chunk i is bytes [i, i + 1) * chunk_bytes of it. `chunks` descriptors follow. */
struct kvd_link_pool {
    uint32_t kind;
    uint32_t chunks;      /* 1..KVD_POOL_CHUNKS_MAX */
    uint64_t chunk_bytes; /* a multiple of KVD_CHUNK_ALIGN_BYTES, up to KVD_CHUNK_BYTES */
};

enum { KVD_LINK_FDS_MAX = 253 }; /* of one message: the system's own bound */

/* With the descriptors (SCM_RIGHTS) of chunks [first, first + count), in order. The front keeps
 * them: the memory lives as long as they do, whatever becomes of the worker. */
struct kvd_link_chunks {
    uint32_t kind;
    uint32_t first, count;
    uint32_t reserved;
};

#endif
