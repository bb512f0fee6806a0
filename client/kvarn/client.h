/* libkvarn-client: compress, share and attend over KV caches held by a kvarnd daemon.
 *
 * Threads: a client and its calls belong to one thread at a time and may be handed on; no locks
 * inside, no threads are made, nothing is global, so clients on different threads are independent.
 * kvarn_version(), kvarn_block_key() and the functions of types.h and status.h may run anywhere. A
 * child of fork() leaves its parent's clients alone.
 *
 * Ownership words: a pointer is borrowed for the call unless the text says keeps (until when),
 * takes or gives.
 *
 * Errors: every call returns a kvarn_status; kvarn_client_error() has the sentence that goes with
 * the last failure.
 *
 * A lost connection: once a call ended with PEER_LOST (and kvarn_client_fd() is -1) the client
 * stays lost; there is no reconnect. kvarn_close() it and kvarn_connect() again. Spaces have to be
 * opened again; sequences and leases of the old connection are gone; stored blocks stay, for LOOKUP
 * to find.
 *
 * A pointer to memory that cannot be read (inputs) or written (outputs) is found by the kernel when
 * the call is half sent or received: the call ends with INVALID_SHAPE, and the connection with it.
 *
 * Bounds of the daemon, beside those of kvarn_client_info(): 8192 tokens appended and not yet
 * committed per sequence, 256 query tokens of one sequence in one ATTEND, leases of 10 minutes, 64
 * query heads per kv head. What is larger is refused with a sentence that names the bound; a longer
 * lease is cut.
 *
 * Two forms of each operation: kvarn_<op>() blocks until the answer, the deadline or a lost
 * connection (a call that ends so may have happened all the same, see kvarn/status.h);
 * kvarn_<op>_start() sends and gives a kvarn_call. The args struct and all memory that it points to
 * (inputs and outputs) is then kept until the call is done or freed.
 *
 * Shapes: K and V rows [tokens, kv_heads, head_dim] per layer, post-RoPE, un-rotated, in the
 * space's dtype. Structs begin with `size`, set by their _INIT macro, so that later versions can
 * append fields. Compiles alone as C99 and as C++. */
#ifndef KVARN_CLIENT_H
#define KVARN_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

#if defined(__GNUC__)
#define KVARN_API __attribute__((visibility("default")))
#else
#define KVARN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvarn_client kvarn_client;
typedef struct kvarn_call kvarn_call;

/* ------------------------------------------------------------------ connection */

typedef struct kvarn_connect_options {
    size_t size;
    uint32_t connect_timeout_ms; /* 0 = 5000 */
    uint32_t deadline_ms;        /* default deadline of calls; 0 = 30000 */
    const char *name;            /* shown in the daemon's log; NULL = program name */
    const char *kvarnd_path;     /* spawn: only; NULL = "kvarnd" beside the library, then on PATH */
    const char *spawn_pool;      /* spawn: only; NULL = "host:256MiB" */
} kvarn_connect_options;
#define KVARN_CONNECT_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(kvarn_connect_options), 0, 0, NULL, NULL, NULL                                      \
    }

/* address: "unix:/run/kvarnd/kvarnd.sock", "tcp://127.0.0.1:7070" or "spawn:" (a private kvarnd on
 * a socket pair that ends with this client). NULL = $KVARN_ADDRESS, then
 * unix:$XDG_RUNTIME_DIR/kvarnd/kvarnd.sock, then unix:/run/kvarnd/kvarnd.sock. Gives *client also
 * on failure (so that kvarn_client_error() can be read); NULL only without memory. */
KVARN_API kvarn_status kvarn_connect(kvarn_client **client, const char *address,
                                     const kvarn_connect_options *options);

/* Ends the connection, frees the client and sets *client to NULL. Calls not done are abandoned,
 * freed and must not be used any more; done ones stay good until kvarn_call_free(). Accepts NULL
 * and a pointer to NULL. */
KVARN_API void kvarn_close(kvarn_client **client);

/* What was wrong, the value seen and how to mend it, of the last call that failed. Valid until the
 * next call on this client. Never NULL. */
KVARN_API const char *kvarn_client_error(const kvarn_client *client);

/* How long the daemon asked to wait, of the last call that failed; 0 when it said nothing. */
KVARN_API uint32_t kvarn_client_retry_after_us(const kvarn_client *client);

typedef struct kvarn_server_info {
    uint32_t version;    /* protocol version in use */
    uint64_t features;   /* what both sides can: 1 = sequences; other bits mean nothing so far */
    const char *server;  /* "kvarnd 0.1.0"; these strings live as long as the client */
    const char *backend; /* "cpu/avx512" */
    const char *tenant;
    uint64_t payload_max_bytes;
    uint32_t in_flight_max; /* calls; one more: RETRY from _start, a wait in the blocking form */
} kvarn_server_info;
KVARN_API kvarn_status kvarn_client_info(const kvarn_client *client, kvarn_server_info *info);

/* Library version "0.1.0". */
KVARN_API const char *kvarn_version(void);

/* ------------------------------------------------------------------ calls in flight */

/* A descriptor to poll for kvarn_client_events() (POLLIN, POLLOUT). -1 when the connection is lost.
 */
KVARN_API int kvarn_client_fd(const kvarn_client *client);
KVARN_API short kvarn_client_events(const kvarn_client *client);
/* Sends and receives what is possible without blocking. PEER_LOST when the connection ended: every
 * call in flight is then done with PEER_LOST. */
KVARN_API kvarn_status kvarn_client_process(kvarn_client *client);

/* 1 when the answer is there (or the call failed), else 0. Does no I/O. */
KVARN_API int kvarn_call_done(const kvarn_call *call);
/* Blocks until done or until timeout_ms (-1 = its deadline). RETRY when the time is up and it is
 * not done. */
KVARN_API kvarn_status kvarn_call_wait(kvarn_call *call, int timeout_ms);
/* Result of a done call. RETRY when it is not done. */
KVARN_API kvarn_status kvarn_call_status(const kvarn_call *call);
/* The daemon's sentence for a done call, "" when there is none. Lives as long as the call. */
KVARN_API const char *kvarn_call_text(const kvarn_call *call);
/* How long the daemon asks to wait before the call is repeated; 0 when it says nothing (it does
 * with RETRY). */
KVARN_API uint32_t kvarn_call_retry_after_us(const kvarn_call *call);
/* Nanoseconds the device worker spent on it; 0 when unknown. */
KVARN_API uint64_t kvarn_call_device_ns(const kvarn_call *call);
/* Frees and sets *call to NULL. A call in flight is abandoned: its memory is no longer touched, its
 * answer is dropped when it comes. Accepts NULL and a pointer to NULL. */
KVARN_API void kvarn_call_free(kvarn_call **call);

/* Defines the blocking and the non-blocking form of one operation. deadline_ms in args: 0 = the
 * client's.
 * NOLINTBEGIN(bugprone-macro-parentheses): args is a type */
#define KVARN_OPERATION(op, args)                                                                  \
    KVARN_API kvarn_status kvarn_##op(kvarn_client *client, args *in_out);                         \
    KVARN_API kvarn_status kvarn_##op##_start(kvarn_client *client, args *in_out, kvarn_call **call)
/* NOLINTEND(bugprone-macro-parentheses) */

/* ------------------------------------------------------------------ control */

typedef struct kvarn_ping_args {
    size_t size;
    uint32_t deadline_ms;
} kvarn_ping_args;
#define KVARN_PING_INIT                                                                            \
    {                                                                                              \
        sizeof(kvarn_ping_args), 0                                                                 \
    }
KVARN_OPERATION(ping, kvarn_ping_args);
/* Nothing of this tenant is kept: all its spaces are reset, and its blocks leave the daemon's disk;
 * on an encrypted one its key is destroyed first. OK when that is synced. */
KVARN_OPERATION(erase, kvarn_ping_args);

typedef struct kvarn_metric {
    char name[96];
    double value;
} kvarn_metric;
typedef struct kvarn_stats_args {
    size_t size;
    uint32_t deadline_ms;
    kvarn_metric *metrics;  /* out [capacity] */
    size_t capacity, count; /* count: out, how many the daemon has (may exceed capacity) */
} kvarn_stats_args;
#define KVARN_STATS_INIT                                                                           \
    {                                                                                              \
        sizeof(kvarn_stats_args), 0, NULL, 0, 0                                                    \
    }
KVARN_OPERATION(stats, kvarn_stats_args);

typedef struct kvarn_space_info {
    uint64_t space;
    char model[128], preset[64];
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint32_t layers, kv_heads, head_dim, dtype;
    uint64_t tile_blocks, exact_blocks, bytes, sequences;
} kvarn_space_info;
typedef struct kvarn_list_args {
    size_t size;
    uint32_t deadline_ms;
    kvarn_space_info *spaces; /* out [capacity] */
    size_t capacity, count;   /* count: out, as in kvarn_stats_args */
} kvarn_list_args;
#define KVARN_LIST_INIT                                                                            \
    {                                                                                              \
        sizeof(kvarn_list_args), 0, NULL, 0, 0                                                     \
    }
KVARN_OPERATION(list, kvarn_list_args);

/* The daemon refuses new work with DRAINING, finishes what it has and ends. Same uid only. */
typedef struct kvarn_drain_args {
    size_t size;
    uint32_t deadline_ms;
    uint32_t grace_ms; /* 0 = the daemon's default */
} kvarn_drain_args;
#define KVARN_DRAIN_INIT                                                                           \
    {                                                                                              \
        sizeof(kvarn_drain_args), 0, 0                                                             \
    }
KVARN_OPERATION(drain, kvarn_drain_args);

/* ------------------------------------------------------------------ spaces */

/* One model's cache geometry. Two workers share blocks only when all of this is equal (the
 * fingerprint); the shard fields stand beside it. */
typedef struct kvarn_space_options {
    size_t size;
    uint32_t deadline_ms;
    const char *model, *revision, *adapter; /* NULL = "" */
    const char *rope;                       /* canonical text, e.g. "theta=10000" */
    uint32_t layers, kv_heads, head_dim;    /* of the whole model */
    kvarn_dtype dtype;                      /* KVARN_F16 or KVARN_BF16 */
    const char *preset;                     /* "kvarn_k2v2_g128"; see kvarn_preset_at() */
    uint32_t iterations;                    /* 0 = 8 */
    int v_rotated;                          /* 1: V arrives rotated, output stays rotated */
    const char *key_algorithm;         /* a label in the fingerprint alone: whoever names blocks
                                        * in another way says so; NULL = "sha256_cbor" */
    uint32_t layer_begin, layer_count; /* shard; count 0 = all */
    uint32_t head_begin, head_count;
    /* out */
    uint64_t space;
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint32_t group;       /* tokens per block */
    uint32_t sink_tokens; /* blocks of a sequence's first tokens: the caller makes them EXACT */
    uint64_t record_bytes, tile_block_bytes, exact_block_bytes;
    /* in: where the daemon keeps it, if it is not there already: "cuda:0", "host"; NULL = it
     * chooses. Not part of what is equal or not. */
    const char *device;
    /* in: 1: K and queries are taken as they come, and K is given back so. Either the caller has
     * rotated both, or the model is better off without, as Gemma 3 is: where queries are large in
     * channels in which keys are small, rotation spreads the error of the largest keys over the
     * channels that the queries look at. tests/accuracy measures which is better for a model. */
    int k_rotated;
} kvarn_space_options;
#define KVARN_SPACE_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(kvarn_space_options), 0, NULL, NULL, NULL, NULL, 0, 0, 0, (kvarn_dtype)0, NULL, 0,  \
            0, NULL, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0, 0, NULL, 0                                    \
    }
KVARN_OPERATION(open_space, kvarn_space_options);

/* ------------------------------------------------------------------ blocks by key */

typedef struct kvarn_block_result {
    kvarn_status status;
    kvarn_block_kind kind;
    uint32_t digest; /* CRC-32C of the block's bytes in canonical order */
} kvarn_block_result;

/* LOOKUP (matched = longest run from keys[0], with a lease when lease_ms > 0), DROP, VERIFY, PIN (a
 * block stays, whoever comes and goes, until it is unpinned or dropped), RESET (weights changed:
 * all spaces of the model in this tenant are STALE from now on, and nothing of them is found again;
 * open them anew), PERSIST (a block whose result is OK is synced on the daemon's disk, and stays
 * there until DROP). Of a daemon with a disk a result may be RETRY: the block stands there and is
 * being loaded; ask again.
 */
typedef struct kvarn_blocks_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    const kvarn_key *keys; /* [count] */
    size_t count;
    uint32_t lease_ms;           /* LOOKUP: at most 600000 */
    int all;                     /* VERIFY, DROP: every block of the space, keys ignored */
    kvarn_block_result *results; /* out [count], may be NULL */
    /* out */
    size_t
        matched; /* LOOKUP: the run; DROP, VERIFY, PIN, PERSIST: blocks that are fine; RESET: spaces
                  */
    uint64_t lease;
    /* in and out, with all: where the walk goes on, 0 at first and when it is done. DROP goes on in
     * steps: call it until cursor is 0. VERIFY goes to the end, or as far as limit says. */
    uint64_t cursor;
    uint64_t total; /* out, with all: cursor runs towards this */
    uint32_t limit; /* with all: look at so many places in this call; 0 = as many as one call may */
    int unpin;      /* PIN: the other way */
    /* LOOKUP by the ranks of one group, each in the space of its own shard: a number that they
     * share for this look-up (not 0) and how many they are. All get the same matched, the run that
     * every shard has, and a lease of their own over it (lease_ms is needed). */
    uint64_t group;
    uint32_t ranks;
} kvarn_blocks_args;
#define KVARN_BLOCKS_INIT                                                                          \
    {                                                                                              \
        sizeof(kvarn_blocks_args), 0, 0, NULL, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0               \
    }
KVARN_OPERATION(lookup, kvarn_blocks_args);
KVARN_OPERATION(drop, kvarn_blocks_args);
KVARN_OPERATION(verify, kvarn_blocks_args);
KVARN_OPERATION(persist, kvarn_blocks_args);
KVARN_OPERATION(pin, kvarn_blocks_args);
KVARN_OPERATION(reset, kvarn_blocks_args);
/* Gives args->lease back. */
KVARN_OPERATION(release, kvarn_blocks_args);

/* What happens to this tenant's blocks, for whoever routes requests to where their prefix is.
 *
 * Begin with epoch, from and cursor 0; every answer sets them for the next call. lost: events that
 * were asked for are not kept any more, or the daemon was started again (all of before is gone):
 * forget what you know, read a snapshot (with snapshot = 1, until cursor is 0; epoch and from are
 * left alone), then go on with events. What is applied twice does no harm. */
typedef enum kvarn_event_type {
    KVARN_EVENT_STORED = 1,
    KVARN_EVENT_REMOVED = 2,
    KVARN_EVENT_CLEARED = 3 /* all of the space: it was reset */
} kvarn_event_type;
typedef struct kvarn_event {
    uint64_t sequence; /* one more than the event before; 0 in a snapshot */
    uint64_t space;
    kvarn_key key;
    kvarn_event_type type;
    kvarn_block_kind kind;
} kvarn_event;
typedef struct kvarn_events_args {
    size_t size;
    uint32_t deadline_ms;
    uint32_t wait_ms;             /* for the first event when there is none yet; at most 10000 */
    int snapshot;                 /* 1: what is stored now, as if each were just stored */
    uint64_t epoch, from, cursor; /* in and out */
    kvarn_event *events;          /* out [capacity] */
    size_t capacity, count;       /* at most 4096 in one answer; count: out */
    int lost;                     /* out */
} kvarn_events_args;
#define KVARN_EVENTS_INIT                                                                          \
    {                                                                                              \
        sizeof(kvarn_events_args), 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0                                 \
    }
KVARN_OPERATION(events, kvarn_events_args);

/* Byte strides of K and V rows; channels are contiguous. k and v each point at [layer 0, token 0,
 * head 0]. A stride of 0 is the dense one over the axis inside: head = a row, token = heads * head,
 * block = G * token, layer = blocks * block. */
typedef struct kvarn_strides {
    uint64_t layer, block, token, head; /* block: from one block's token 0 to the next one's */
} kvarn_strides;

/* COMPRESS: whole blocks of G tokens for every layer and kv head of the shard. Dense order (strides
 * NULL): [layer][block * G + token][head][dim].
 *
 * THE CALLER MARKS THE SINK: the daemon does not know which keys begin a sequence. Blocks of its
 * first sink_tokens (of kvarn_space_options) need kinds[i] = KVARN_BLOCK_EXACT; with kinds NULL all
 * become TILE, and attention over a sink in 2 bits is much worse. (Blocks that a kvarn_sequence
 * seals get this right by themselves.)
 *
 * Blocks succeed or fail one by one. OK: all are stored (EXISTS in results: was there already and
 * stays as it is). Else the status and the sentence are those of the first block that
 * failed, the others are stored all the same; results tell which, stored how many. */
typedef struct kvarn_compress_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    const kvarn_key *keys;         /* [count] */
    const kvarn_block_kind *kinds; /* [count]; NULL = all TILE, the sink too: see above */
    size_t count;
    const void *k, *v;
    const kvarn_strides *strides;
    kvarn_block_result
        *results; /* out [count], may be NULL: OK, EXISTS, NON_FINITE, NO_SPACE, ... */
    /* out */
    size_t stored; /* blocks that are OK or EXISTS */
} kvarn_compress_args;
#define KVARN_COMPRESS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvarn_compress_args), 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0                \
    }
KVARN_OPERATION(compress, kvarn_compress_args);

/* DECOMPRESS: rows of the named blocks, dense [layer][block * G + token][head][dim] in the space's
 * dtype. Blocks that are missing leave zeros and say so in results. */
typedef struct kvarn_decompress_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    const kvarn_key *keys;
    size_t count;
    uint32_t layer_begin, layer_count; /* of the shard; count 0 = all */
    void *k, *v;                       /* out */
    kvarn_block_result *results;       /* out [count], may be NULL */
    size_t matched;                    /* out: blocks that are fine */
} kvarn_decompress_args;
#define KVARN_DECOMPRESS_INIT                                                                      \
    {                                                                                              \
        sizeof(kvarn_decompress_args), 0, 0, NULL, 0, 0, 0, NULL, NULL, NULL, 0                    \
    }
KVARN_OPERATION(decompress, kvarn_decompress_args);

/* How queries are read and answered. Zero = default everywhere but in q_heads. */
typedef struct kvarn_query {
    uint32_t q_heads;      /* required: of the shard; a multiple of its kv heads */
    kvarn_dtype q_dtype;   /* 0 = the space's dtype */
    kvarn_dtype out_dtype; /* 0 = F32 */
    float scale;           /* 0 = 1/sqrt(head_dim) */
    float soft_cap;        /* logits become soft_cap * tanh(logit / soft_cap); 0 = none */
    uint32_t window;       /* a query token sees this many tokens, its own the last; 0 = all */
    int full;              /* 1: no causal limit between query tokens */
    int deterministic;     /* the same bits alone and beside other calls: always so on the CPU */
} kvarn_query;

/* ATTEND over blocks named by key, in that order, as positions 0, 1, 2, ... The last query token
 * sees all. */
typedef struct kvarn_attend_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    uint32_t layer; /* of the shard */
    const kvarn_key *keys;
    size_t count;
    kvarn_query query;
    uint32_t q_tokens; /* 1 to 256 */
    const void *q;     /* [q_tokens, q_heads, head_dim] */
    void *out;         /* out, required: [q_tokens, q_heads, head_dim] in out_dtype */
    float *lse;        /* out [q_tokens, q_heads], natural log; NULL: dropped */
} kvarn_attend_args;
#define KVARN_ATTEND_INIT                                                                          \
    {                                                                                              \
        sizeof(kvarn_attend_args), 0, 0, 0, NULL, 0,                                               \
            {0, (kvarn_dtype)0, (kvarn_dtype)0, 0, 0, 0, 0, 0}, 0, NULL, NULL, NULL                \
    }
KVARN_OPERATION(attend, kvarn_attend_args);

/* What the bytes of blocks were made for. Bytes of equal origins are interchangeable. */
typedef struct kvarn_origin {
    uint8_t fingerprint[KVARN_FINGERPRINT_BYTES];
    uint32_t layer_begin, layer_count, head_begin, head_count; /* the shard; counts are never 0 */
} kvarn_origin;

/* EXPORT: the bytes of blocks in canonical order [layer][kv head][record] (TILE) or
 * [layer][kv head][K rows [G, dim], V rows [G, dim]] (EXACT), one block after the other. */
typedef struct kvarn_export_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    const kvarn_key *keys;
    size_t count;
    void *bytes; /* out */
    size_t bytes_capacity;
    kvarn_block_result *results; /* out [count] */
    /* out */
    size_t bytes_used, matched;
    kvarn_origin origin; /* of the space: goes with the bytes to whoever imports them */
} kvarn_export_args;
#define KVARN_EXPORT_INIT                                                                          \
    {                                                                                              \
        sizeof(kvarn_export_args), 0, 0, NULL, 0, NULL, 0, NULL, 0, 0,                             \
        {                                                                                          \
            {0}, 0, 0, 0, 0                                                                        \
        }                                                                                          \
    }
KVARN_OPERATION(export, kvarn_export_args);

/* IMPORT: what EXPORT gave, into a space of the same fingerprint and shard (else
 * FINGERPRINT_MISMATCH: the bytes would be read as another model's). Digests are checked. (Named
 * import_blocks and export in C and C++ alike: `import` is reserved in newer C++.) */
typedef struct kvarn_import_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    const kvarn_key *keys;
    const kvarn_block_result *blocks; /* [count]: kind and digest of each */
    size_t count;
    const void *bytes; /* blocks one after the other */
    size_t bytes_count;
    kvarn_block_result *results; /* out [count], may be NULL */
    size_t stored;               /* out */
    const kvarn_origin *origin;  /* what export gave */
} kvarn_import_args;
#define KVARN_IMPORT_INIT                                                                          \
    {                                                                                              \
        sizeof(kvarn_import_args), 0, 0, NULL, NULL, 0, NULL, 0, NULL, 0, NULL                     \
    }
KVARN_OPERATION(import_blocks, kvarn_import_args);

/* ------------------------------------------------------------------ sequences */

#define KVARN_AT_END UINT64_MAX

typedef struct kvarn_seq {
    uint64_t sequence; /* in; SEQ_OPEN, SEQ_FORK: out */
    uint64_t position; /* in: append, attend: of the first new row; KVARN_AT_END = committed */
    uint32_t q_tokens; /* in: attend: 1 to 256 */
    uint32_t tokens;   /* in: at most 8192 that are not committed: new rows (append, attend); tokens
                          to commit (commit) */
    uint32_t keys;     /* in: commit: how many of args->keys are this sequence's */
    uint32_t blocks;   /* out: open: prefix blocks found; commit: blocks sealed */
    uint64_t committed;  /* out: tokens that count */
    kvarn_status status; /* out */
    uint32_t expected;   /* in: commit: the committed length before it, plus 1; 0 = any */
} kvarn_seq;

/* The one argument struct of the sequence calls.
 * sequence_open: keys = prefix; makes one sequence (seqs[0]) over the longest run of them.
 * sequence_append: rows of layers [layer_begin, +layer_count) for seqs[i].tokens new tokens each,
 * in order; dense [layer][token][head][dim] or strides (block unused). Rows count only after
 * commit; over pending rows of the same place they begin a new continuation, and what other layers
 * have from there on counts no longer. sequence_attend: one layer; q of all sequences one after the
 * other, and the new rows of that layer, which are written before attention. Query token j of
 * q_tokens sees position + tokens - q_tokens + j + 1 tokens. sequence_commit: makes seqs[i].tokens
 * more tokens count, once all layers have them. Blocks that fill up are sealed under the given keys
 * (fewer keys than blocks: the rest stay private). A commit whose answer was lost (DEADLINE,
 * PEER_LOST) may have happened: with `expected` set it can be repeated as it is, since it is
 * refused with INVALID_SHAPE, and `committed` says the length, when the sequence moved on.
 * sequence_fork: seqs[0].sequence in; count children out in seqs[1..count]. sequence_release: gives
 * the sequences back. */
typedef struct kvarn_seq_args {
    size_t size;
    uint32_t deadline_ms;
    uint64_t space;
    kvarn_seq *seqs; /* in, out [count] (fork: [1 + count]) */
    size_t count;
    const kvarn_key *keys;
    size_t key_count;
    uint32_t layer_begin, layer_count; /* append: 0 = all; attend: layer_begin is the layer */
    const void *k, *v;
    const kvarn_strides *strides;
    kvarn_query query;
    const void *q;
    void *out;  /* attend: required */
    float *lse; /* NULL: dropped */
} kvarn_seq_args;
#define KVARN_SEQ_ARGS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvarn_seq_args), 0, 0, NULL, 0, NULL, 0, 0, 0, NULL, NULL, NULL,                    \
            {0, (kvarn_dtype)0, (kvarn_dtype)0, 0, 0, 0, 0, 0}, NULL, NULL, NULL                   \
    }
KVARN_OPERATION(sequence_open, kvarn_seq_args);
KVARN_OPERATION(sequence_append, kvarn_seq_args);
KVARN_OPERATION(sequence_attend, kvarn_seq_args);
KVARN_OPERATION(sequence_commit, kvarn_seq_args);
KVARN_OPERATION(sequence_fork, kvarn_seq_args);
KVARN_OPERATION(sequence_release, kvarn_seq_args);

/* ------------------------------------------------------------------ keys */

/* Key of the block of `tokens` [count] after parent (NULL = first block), compatible with vLLM's
 * sha256_cbor chain under PYTHONHASHSEED=seed (NULL = "0"). salt NULL = none. */
KVARN_API kvarn_status kvarn_block_key(kvarn_key *out, const kvarn_key *parent, const char *seed,
                                       const uint32_t *tokens, size_t count, const char *salt);

#ifdef __cplusplus
}
#endif
#endif
