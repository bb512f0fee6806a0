/* The one list of results: on the wire, in the daemon, in the client library.
 *
 * Numbers are never reused. The range tells the caller what to do next: 0..15 success, 16..31 fix
 * the call, 32..47 retry later, 48..63 the answer is lost and the call may be made again, 64.. give
 * up. A call that ends with DEADLINE or PEER_LOST while it runs may have happened: what it stored
 * stays, what only its answer names (sequences, leases) is given back.
 * Compiles alone as C99 and as C++. */
#ifndef KVARN_STATUS_H
#define KVARN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, one line for people) */
#define KVARN_STATUS_LIST(X)                                                                       \
    X(OK, 0, "ok")                                                                                 \
    X(EXISTS, 1, "the key is already stored; the first copy stays")                                \
    X(BAD_FRAME, 16, "the bytes are not a valid kvarn frame or its metadata")                      \
    X(TOO_LARGE, 17, "over a stated limit")                                                        \
    X(UNSUPPORTED, 18, "this daemon does not know the operation, preset or option")                \
    X(INVALID_SHAPE, 19, "a shape, stride, count or offset does not fit")                          \
    X(NON_FINITE, 20, "the input holds NaN or infinity")                                           \
    X(FINGERPRINT_MISMATCH, 21, "the space was made with other parameters")                        \
    X(DENIED, 22, "not allowed for this credential")                                               \
    X(NOT_FOUND, 23, "no such space, key, sequence or lease")                                      \
    X(STALE, 24, "the handle names an object that is gone")                                        \
    X(LEASE_EXPIRED, 25, "the lease ran out")                                                      \
    X(RETRY, 32, "busy; try again after the stated time")                                          \
    X(NO_SPACE, 33, "the pool is full and nothing can be evicted")                                 \
    X(QUOTA, 34, "the tenant's quota is used up")                                                  \
    X(DRAINING, 35, "the daemon is shutting down")                                                 \
    X(DEADLINE, 48, "the deadline passed; the call may have happened")                             \
    X(CANCELLED, 49, "the call was cancelled")                                                     \
    X(GPU_LOST, 50, "the device worker died; it is being restarted")                               \
    X(PEER_LOST, 51, "the connection was lost")                                                    \
    X(CORRUPT, 52, "a checksum does not match; the block is not served")                           \
    X(INTERNAL, 64, "a fault inside kvarn; please report it")

#define KVARN_STATUS_ENUM(name, number, text) KVARN_##name = (number),
typedef enum kvarn_status {
    KVARN_STATUS_LIST(KVARN_STATUS_ENUM) KVARN_STATUS_MAX = 255
} kvarn_status;
#undef KVARN_STATUS_ENUM

typedef enum kvarn_status_class {
    KVARN_CLASS_SUCCESS = 0,
    KVARN_CLASS_FIX = 1,   /* the call is wrong; do not repeat it unchanged */
    KVARN_CLASS_RETRY = 2, /* nothing is wrong with the call; repeat it later */
    KVARN_CLASS_LOST = 3,  /* there is no answer; do it again. DEADLINE, PEER_LOST: see above */
    KVARN_CLASS_FATAL = 4  /* give up */
} kvarn_status_class;

/* Stable upper-case name such as "NO_SPACE"; "UNKNOWN" for a number not in the list. Static string.
 */
const char *kvarn_status_name(kvarn_status status);

/* One line for people. Static string, never NULL. */
const char *kvarn_status_text(kvarn_status status);

/* 1 for a number in the list. */
int kvarn_status_known(kvarn_status status);

kvarn_status_class kvarn_status_class_of(kvarn_status status);

#ifdef __cplusplus
}
#endif
#endif
