/* What the operation files need of a client: its spaces, how to refuse, how to run a call. */
#ifndef KVC_CLIENT_INTERNAL_H
#define KVC_CLIENT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/client.h>

#include "client/call.h"
#include "client/session.h"
#include "client/transport.h"

enum {
    KVC_CLIENT_ERROR_BYTES = 768,
    KVC_CLIENT_SPACES_MAX = 4096, /* spaces one client may have open */
    KVC_CLIENT_ROWS_BYTES_MAX = 1 << 20
};

/* Geometry of a space opened here: what sizes of rows and blocks follow from. */
struct kvc_space {
    uint64_t space, tile_block_bytes, exact_block_bytes;
    uint32_t layers, kv_heads; /* of the shard */
    uint32_t head_dim, group;
    kvarn_dtype dtype;
    kvarn_origin origin;
};

struct kvarn_client {
    struct kvc_session *session; /* NULL when connecting failed */
    struct kvc_transport transport;
    uint32_t deadline_ms;
    struct kvc_space *spaces;
    size_t space_count, space_capacity;
    uint32_t retry_after_us; /* of the failure that error tells of */
    char error[KVC_CLIENT_ERROR_BYTES];
};

/* Keeps the sentence for kvarn_client_error() and returns status. */
kvarn_status kvc_client_fail(struct kvarn_client *client, kvarn_status status, const char *format,
                             ...) __attribute__((format(printf, 3, 4)));

/* The space, or NULL with NOT_FOUND said. */
const struct kvc_space *kvc_client_space(struct kvarn_client *client, uint64_t space);

/* One operation: what it is called, its argument struct, and how a call is made of one. plan
 * validates everything that can be known here and gives a new call. */
struct kvc_operation {
    const char *name;
    uint8_t op;
    size_t args_bytes;
    kvarn_status (*plan)(struct kvarn_client *client, void *args, struct kvarn_call **call);
};

/* The non-blocking form. */
kvarn_status kvc_client_start(struct kvarn_client *client, const struct kvc_operation *operation,
                              void *args, struct kvarn_call **call);
/* The blocking form. */
kvarn_status kvc_client_run(struct kvarn_client *client, const struct kvc_operation *operation,
                            void *args);

/* Says that memory ran out. */
kvarn_status kvc_client_no_memory(struct kvarn_client *client);

/* *product = a * b, *sum = a + b; false when it does not fit. */
static inline bool kvc_mul(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
static inline bool kvc_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

/* Both public forms of one operation; a list macro for the operation files.
 * NOLINTBEGIN(bugprone-macro-parentheses): args is a type */
#define KVC_DEFINE_OPERATION(op, args, number, plan)                                               \
    static const struct kvc_operation operation_##op = {#op, number, sizeof(args), plan};          \
    kvarn_status kvarn_##op##_start(kvarn_client *client, args *in_out, kvarn_call **call)         \
    {                                                                                              \
        return kvc_client_start(client, &operation_##op, in_out, call);                            \
    }                                                                                              \
    kvarn_status kvarn_##op(kvarn_client *client, args *in_out)                                    \
    {                                                                                              \
        return kvc_client_run(client, &operation_##op, in_out);                                    \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
