/* Every bound of the daemon, with the sum that justifies it. What a peer can make grow is listed
 * here. */
#ifndef KVD_LIMITS_H
#define KVD_LIMITS_H

enum {
    KVD_CONNECTIONS_MAX =
        1024, /* each: 64 KiB for metadata, 16 KiB to read into, 1 KiB of state = 81 MiB in all */
    /* unanswered requests of the whole daemon; each: a kvd_work with 16 KiB of arena, 16 KiB of
     * metadata and 16 KiB of iovecs = 50 MiB in all, touched as far as they are used */
    KVD_REQUESTS_MAX = 1024,
    KVD_IN_FLIGHT_MAX = 64,    /* unanswered requests of one connection */
    KVD_DEVICES_MAX = 16,      /* pools, each with a worker of its own */
    KVD_SPACES_MAX = 256,      /* per daemon */
    KVD_SEQUENCES_MAX = 65536, /* per daemon */
    /* of their lists together: 8 per block, 4 per layer */
    KVD_SEQUENCES_BYTES_MAX = 128 << 20,
    KVD_LEASES_MAX = 65536, /* per daemon */
    KVD_OWNER_LISTS = 1024, /* of sequences and of leases, by connection: one each, or nearly so */
    KVD_AGREEMENTS_MAX = 1024,       /* look-ups of groups whose ranks have not all asked */
    KVD_RANKS_MAX = 64,              /* of a group */
    KVD_LEASE_MAX_MS = 600000,       /* longest lease a client may ask for */
    KVD_LEASED_BLOCKS_MAX = 1 << 20, /* of all leases together: 8 MiB of pointers */
    KVD_LAYERS_MAX = 1024,           /* of a shard */
    KVD_HEADS_MAX = 1024,            /* kv heads of a shard */
    KVD_SINK_MAX = 1024,             /* tokens at the head of a sequence that stay EXACT */
    KVD_VERIFY_STEP = 128,           /* blocks that VERIFY of a whole space holds at once */
    /* requests waiting for a sequence or a key that another request works on; the other half of the
     * places is for those that can go on */
    KVD_PARKED_MAX = KVD_REQUESTS_MAX / 2,
    KVD_SEQUENCE_TOKENS_MAX = 1 << 22, /* tokens of one sequence */
    KVD_PENDING_TOKENS_MAX = 8192,     /* appended and not yet committed, per sequence */
    KVD_Q_TOKENS_MAX = 256,            /* query tokens of one sequence in one ATTEND */
    KVD_HEADER_TIMEOUT_MS =
        5000, /* a started frame must complete its header and metadata in this time */
    KVD_WRITE_TIMEOUT_MS =
        10000,                  /* a client that does not read its replies is cut off after this */
    KVD_PROGRESS_BYTES = 65536, /* less than this in one of these times is no progress */
    KVD_PAYLOAD_TIMEOUT_MS = 10000,   /* a started payload must make progress in this time */
    KVD_TURN_FRAMES_MAX = 64,         /* frames of one connection in one loop turn */
    KVD_TURN_BYTES_MAX = 1 << 20,     /* bytes read from one connection in one loop turn */
    KVD_REPLY_QUEUE_BYTES = 32 << 20, /* unsent replies at which a connection is no longer read */
    KVD_READ_BUFFER_BYTES = 16384,    /* per connection; small frames are read many at once */
    KVD_LISTENERS_MAX = 8,
    KVD_TENANTS_MAX = 256,
    KVD_EVENT_WAIT_MAX_MS = 10000,   /* an EVENTS that finds none is answered after this */
    KVD_EVENT_TENANTS_MAX = 32,      /* that watch events; 14 MiB in all */
    KVD_EVENTS_KEPT = 8192,          /* of each of them, 56 bytes each */
    KVD_PINNED_BLOCKS_MAX = 1 << 20, /* of all tenants together */
    KVD_EPOCHS_MAX = 1024,           /* models that were reset; 68 bytes each, three tables */
    KVD_WALK_STEP = 16384,           /* descriptors that one step of a walk looks at */
    KVD_QUOTAS_MAX = 64,             /* that an operator writes */
    KVD_SHARES_MAX = 16,
    KVD_DEADLINE_DEFAULT_MS = 30000,
    KVD_DEADLINE_MAX_MS = 600000, /* a client that asks for more gets this */
    KVD_WORKER_THREADS_MAX = 64,
    KVD_RING_ENTRIES = 1024,                /* jobs in the worker's ring; >= KVD_REQUESTS_MAX */
    KVD_EXTENTS_MAX = 8 * KVD_REQUESTS_MAX, /* of staging: payload, job, reply and room to spare */
    /* of a CUDA pool; each is a descriptor of the front. 256 GiB of 64 MiB */
    KVD_POOL_CHUNKS_MAX = 4096,
    /* of the disk tier, each a descriptor of the front; a new one has a 128th of the quota */
    KVD_DISK_SEGMENTS_MAX = 256,
    KVD_DISK_SPACES_MAX = 1024,       /* that have blocks there; 168 bytes each */
    KVD_WORKER_HELLO_MS = 30000,      /* a worker's self-test takes no longer */
    KVD_WORKER_AGAIN_MS = 3000,       /* nor, if the first took an eighth of it, a later one's */
    KVD_WORKER_STALL_MS = 60000,      /* a worker at work makes progress in this time */
    KVD_GPU_STALL_MS = 2000,          /* a GPU's: no wave of work takes a tenth of it */
    KVD_WORKER_STOP_MS = 2000,        /* from asking a worker to end to SIGKILL */
    KVD_WORKER_START_MS = 250,        /* a worker's usual self-test; a hint to clients */
    KVD_WORKER_SOON_MS = 25,          /* the hint when that time is over */
    KVD_WORKER_STEADY_MS = 60000,     /* a worker that lived so long is started again at once */
    KVD_WORKER_DELAY_MAX_MS = 5000,   /* between a worker's end and the next one's start */
    KVD_WORKER_DELAY_SERVED_MS = 200, /* the same when it had served: back within a second */
};

#define KVD_STAGING_DEFAULT_BYTES (256ull << 20) /* request and reply payloads in flight */
#define KVD_PAYLOAD_MAX_BYTES                                                                      \
    (128ull << 20) /* one request or reply; at most half of the staging                            \
                    */
/* Query rows (tokens x heads) times the tokens that each may see, of one ATTEND or SEQ_ATTEND. At
 * about 4 ns each that is half a minute of one core, the default deadline. */
#define KVD_ATTEND_PAIRS_MAX  (1ull << 33)
#define KVD_CHUNK_BYTES       (64ull << 20) /* a chunk of a pool; smaller in a small pool */
#define KVD_CHUNK_ALIGN_BYTES (2ull << 20)

#endif
