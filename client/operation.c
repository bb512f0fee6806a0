/* Running one operation: the checks that all share, starting, waiting, and the calls' own API. */
#include "client/client_internal.h"

#include <stdlib.h>
#include <string.h>

/* Every argument struct begins like this. */
struct args_head {
    size_t size;
    uint32_t deadline_ms;
};

static kvarn_status check(struct kvarn_client *client, const struct kvc_operation *operation,
                          const struct args_head *args)
{
    if (!args)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: args is NULL", operation->name);
    if (args->size < operation->args_bytes)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "%s: args.size is %zu, at least %zu is needed: begin with the "
                               "struct's _INIT macro",
                               operation->name, args->size, operation->args_bytes);
    if (!client->session)
        return kvc_client_fail(client, KVARN_PEER_LOST, "%s: not connected", operation->name);
    if (client->session->state == KVC_SESSION_BROKEN)
        return kvc_client_fail(client, KVARN_PEER_LOST, "%s: %s", operation->name,
                               client->session->why);
    return KVARN_OK;
}

static uint32_t deadline_of(const struct kvarn_client *client, const struct args_head *args)
{
    return args->deadline_ms ? args->deadline_ms : client->deadline_ms;
}

/* The header has 32 bits of microseconds: 71 minutes. What is longer is exact here alone. */
static uint32_t wire_deadline(uint32_t deadline_ms)
{
    return deadline_ms > UINT32_MAX / 1000 ? UINT32_MAX : deadline_ms * 1000;
}

static kvarn_status start_until(struct kvarn_client *client, const struct kvc_operation *operation,
                                void *args, uint64_t deadline_ns, struct kvarn_call **call)
{
    uint32_t deadline_ms = deadline_of(client, args);

    *call = NULL;
    kvarn_status status = operation->plan(client, args, call);
    if (status != KVARN_OK) {
        free(*call);
        *call = NULL;
        return status;
    }
    (*call)->client = client;
    (*call)->args = args;
    status = kvc_session_start(client->session, *call, deadline_ns, wire_deadline(deadline_ms));
    if (status != KVARN_OK) {
        kvc_client_fail(client, status, "%s: %s", operation->name, (*call)->text);
        free(*call);
        *call = NULL;
        return status;
    }
    /* A connection that is lost here ends the call, which says so itself. */
    kvc_transport_send(&client->transport, client->session);
    return KVARN_OK;
}

static uint64_t deadline_from_now(uint32_t deadline_ms)
{
    return kvc_now_ns() + (uint64_t)deadline_ms * 1000000u;
}

kvarn_status kvc_client_start(struct kvarn_client *client, const struct kvc_operation *operation,
                              void *args, struct kvarn_call **call)
{
    if (call)
        *call = NULL;
    if (!client)
        return KVARN_INVALID_SHAPE;
    kvarn_status status = check(client, operation, args);
    if (status != KVARN_OK)
        return status;
    if (!call)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE, "%s: call is NULL", operation->name);
    return start_until(client, operation, args, deadline_from_now(deadline_of(client, args)), call);
}

/* One turn of a blocking wait. False: until_ns has passed. */
static bool turn(struct kvarn_client *client, uint64_t until_ns)
{
    struct kvc_session *session = client->session;
    bool ready = kvc_transport_poll(&client->transport, kvc_transport_events(session), until_ns);

    if (ready)
        kvc_transport_pump(&client->transport, session);
    kvc_session_expire(session, kvc_now_ns());
    return ready;
}

static void say_failure(struct kvarn_client *client, const char *name,
                        const struct kvarn_call *call)
{
    kvc_client_fail(client, call->status, "%s: %s", name,
                    call->text[0] ? call->text : kvarn_status_text(call->status));
    client->retry_after_us = call->retry_after_us;
}

kvarn_status kvc_client_run(struct kvarn_client *client, const struct kvc_operation *operation,
                            void *args)
{
    struct kvarn_call *call = NULL;

    if (!client)
        return KVARN_INVALID_SHAPE;
    kvarn_status status = check(client, operation, args);
    if (status != KVARN_OK)
        return status;
    uint64_t deadline_ns = deadline_from_now(deadline_of(client, args));
    /* Other calls may fill the connection; the blocking form waits for one of them. */
    while (!kvc_session_has_room(client->session) && client->session->state == KVC_SESSION_OPEN &&
           turn(client, deadline_ns))
        continue;
    status = start_until(client, operation, args, deadline_ns, &call);
    if (status != KVARN_OK)
        return status;
    while (call->state != KVC_CALL_DONE)
        turn(client, deadline_ns);
    status = call->status;
    if (!kvc_call_succeeded(call))
        say_failure(client, operation->name, call);
    free(call);
    return status;
}

int kvarn_call_done(const kvarn_call *call)
{
    return !call || call->state == KVC_CALL_DONE;
}

kvarn_status kvarn_call_wait(kvarn_call *call, int timeout_ms)
{
    if (!call)
        return KVARN_INVALID_SHAPE;
    if (call->state == KVC_CALL_DONE)
        return call->status;
    struct kvarn_client *client = call->client;
    uint64_t until_ns = call->deadline_ns;
    if (timeout_ms >= 0) {
        uint64_t limit = deadline_from_now((uint32_t)timeout_ms);
        until_ns = limit < until_ns ? limit : until_ns;
    }
    while (call->state != KVC_CALL_DONE) {
        if (!turn(client, until_ns) && call->state != KVC_CALL_DONE)
            return KVARN_RETRY;
    }
    if (!kvc_call_succeeded(call))
        say_failure(client, kvw_op_name(call->op), call);
    return call->status;
}

kvarn_status kvarn_call_status(const kvarn_call *call)
{
    if (!call)
        return KVARN_INVALID_SHAPE;
    return call->state == KVC_CALL_DONE ? call->status : KVARN_RETRY;
}

const char *kvarn_call_text(const kvarn_call *call)
{
    return call && call->state == KVC_CALL_DONE ? call->text : "";
}

uint32_t kvarn_call_retry_after_us(const kvarn_call *call)
{
    return call && call->state == KVC_CALL_DONE ? call->retry_after_us : 0;
}

uint64_t kvarn_call_device_ns(const kvarn_call *call)
{
    return call && call->state == KVC_CALL_DONE ? call->device_ns : 0;
}

void kvarn_call_free(kvarn_call **call)
{
    if (!call || !*call)
        return;
    if ((*call)->session)
        kvc_session_abandon((*call)->session, *call);
    free(*call);
    *call = NULL;
}
