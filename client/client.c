/* The client object: connecting, closing, errors, spaces, and polling from outside. */
#include "client/client_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/blockkey.h"

enum { CONNECT_TIMEOUT_MS = 5000, DEADLINE_MS = 30000, NAME_BYTES = 200 };

kvarn_status kvc_client_fail(struct kvarn_client *client, kvarn_status status, const char *format,
                             ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(client->error, sizeof client->error, format, arguments);
    va_end(arguments);
    client->retry_after_us = 0;
    return status;
}

kvarn_status kvc_client_no_memory(struct kvarn_client *client)
{
    return kvc_client_fail(client, KVARN_INTERNAL, "out of memory in the client");
}

/* "program 0.1.0" in printable ASCII: the daemon refuses names that are not UTF-8. */
static void client_name(char out[NAME_BYTES], const char *name)
{
    snprintf(out, NAME_BYTES, "%s libkvarn-client/%s",
             name && name[0] ? name : program_invocation_short_name, KVARN_VERSION);
    for (char *at = out; *at; at++) {
        if (*at < 0x20 || *at > 0x7e)
            *at = '?';
    }
}

/* Sends HELLO and waits for its answer. */
static kvarn_status greet(struct kvarn_client *client, const struct kvc_address *address,
                          uint64_t deadline_ns)
{
    struct kvc_session *session = client->session;

    while (session->state == KVC_SESSION_HELLO) {
        if (kvc_transport_pump(&client->transport, session) != KVARN_OK ||
            session->state != KVC_SESSION_HELLO)
            break;
        if (!kvc_transport_poll(&client->transport, kvc_transport_events(session), deadline_ns))
            return kvc_client_fail(client, KVARN_DEADLINE,
                                   "%s took the connection but did not answer HELLO in time: is "
                                   "it a kvarnd, and not stopped?",
                                   address->text);
    }
    if (session->state == KVC_SESSION_OPEN)
        return KVARN_OK;
    if (client->transport.child > 0 && session->status == KVARN_PEER_LOST)
        return kvc_client_fail(client, KVARN_PEER_LOST,
                               "spawn: the private kvarnd ended before it answered; what it said "
                               "is on standard error");
    kvc_client_fail(client, session->status, "%s: %s", address->text, session->why);
    client->retry_after_us = session->retry_after_us;
    return session->status;
}

static kvarn_status connect_client(struct kvarn_client *client, const char *text,
                                   const struct kvarn_connect_options *options)
{
    struct kvc_address address;
    char why[KVC_TRANSPORT_WHY_BYTES], name[NAME_BYTES];
    const struct kvc_spawn_options spawn = {
        .kvarnd_path = options->kvarnd_path,
        .pool = options->spawn_pool ? options->spawn_pool : "host:256MiB",
    };
    uint32_t timeout_ms = options->connect_timeout_ms;

    if (timeout_ms == 0)
        timeout_ms = CONNECT_TIMEOUT_MS;
    client->deadline_ms = options->deadline_ms ? options->deadline_ms : DEADLINE_MS;
    _Static_assert((int)KVC_ADDRESS_WHY_BYTES <= (int)KVC_TRANSPORT_WHY_BYTES,
                   "one buffer for both");
    kvarn_status status = kvc_address_parse(&address, text, why);
    if (status != KVARN_OK)
        return kvc_client_fail(client, status, "%s", why);
    uint64_t deadline_ns = kvc_now_ns() + (uint64_t)timeout_ms * 1000000u;
    status = kvc_transport_open(&client->transport, &address, &spawn, deadline_ns, why);
    if (status != KVARN_OK)
        return kvc_client_fail(client, status, "%s", why);
    client_name(name, options->name);
    client->session = kvc_session_new(name, timeout_ms > 4000000 ? 0 : timeout_ms * 1000);
    status = client->session ? greet(client, &address, deadline_ns) : kvc_client_no_memory(client);
    if (status != KVARN_OK) {
        kvc_transport_close(&client->transport);
        kvc_session_free(client->session);
        client->session = NULL;
    }
    return status;
}

kvarn_status kvarn_connect(kvarn_client **client, const char *address,
                           const kvarn_connect_options *options)
{
    const kvarn_connect_options defaults = KVARN_CONNECT_OPTIONS_INIT;

    if (!client)
        return KVARN_INVALID_SHAPE;
    *client = calloc(1, sizeof **client);
    if (!*client)
        return KVARN_INTERNAL;
    (*client)->transport.fd = -1;
    if (options && options->size < sizeof *options)
        return kvc_client_fail(*client, KVARN_INVALID_SHAPE,
                               "connect: options.size is %zu, at least %zu is needed: begin with "
                               "KVARN_CONNECT_OPTIONS_INIT",
                               options->size, sizeof *options);
    return connect_client(*client, address, options ? options : &defaults);
}

void kvarn_close(kvarn_client **client)
{
    if (!client || !*client)
        return;
    kvc_session_free((*client)->session);
    kvc_transport_close(&(*client)->transport);
    free((*client)->spaces);
    free(*client);
    *client = NULL;
}

const char *kvarn_client_error(const kvarn_client *client)
{
    return client ? client->error : "no client: kvarn_connect() had no memory for one";
}

uint32_t kvarn_client_retry_after_us(const kvarn_client *client)
{
    return client ? client->retry_after_us : 0;
}

kvarn_status kvarn_client_info(const kvarn_client *client, kvarn_server_info *info)
{
    if (!info)
        return KVARN_INVALID_SHAPE;
    memset(info, 0, sizeof *info);
    info->server = info->backend = info->tenant = "";
    if (!client || !client->session)
        return KVARN_PEER_LOST;
    const struct kvc_peer *peer = &client->session->peer;
    info->version = peer->version;
    info->features = peer->features;
    info->server = peer->server;
    info->backend = peer->backend;
    info->tenant = peer->tenant;
    info->payload_max_bytes = peer->payload_max_bytes;
    info->in_flight_max = peer->in_flight_max;
    return KVARN_OK;
}

const char *kvarn_version(void)
{
    return KVARN_VERSION;
}

int kvarn_client_fd(const kvarn_client *client)
{
    if (!client || !client->session || client->session->state == KVC_SESSION_BROKEN)
        return -1;
    return client->transport.fd;
}

short kvarn_client_events(const kvarn_client *client)
{
    if (kvarn_client_fd(client) < 0)
        return 0;
    return kvc_transport_events(client->session);
}

kvarn_status kvarn_client_process(kvarn_client *client)
{
    if (!client)
        return KVARN_INVALID_SHAPE;
    struct kvc_session *session = client->session;
    if (!session)
        return KVARN_PEER_LOST;
    kvarn_status status = kvc_transport_pump(&client->transport, session);
    if (status != KVARN_OK)
        return kvc_client_fail(client, KVARN_PEER_LOST, "%s", session->why);
    kvc_session_expire(session, kvc_now_ns());
    return session->status;
}

const struct kvc_space *kvc_client_space(struct kvarn_client *client, uint64_t space)
{
    for (size_t i = client->space_count; i > 0; i--) {
        if (client->spaces[i - 1].space == space)
            return &client->spaces[i - 1];
    }
    kvc_client_fail(client, KVARN_NOT_FOUND,
                    "space %llu was not opened on this client: call kvarn_open_space() first",
                    (unsigned long long)space);
    return NULL;
}

kvarn_status kvarn_block_key(kvarn_key *out, const kvarn_key *parent, const char *seed,
                             const uint32_t *tokens, size_t count, const char *salt)
{
    if (!out || (!tokens && count > 0))
        return KVARN_INVALID_SHAPE;
    return kvw_blockkey_next(out, parent, seed, tokens, count, salt);
}
