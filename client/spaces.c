/* OPEN_SPACE, and the client's own memory of the geometry it opened: the sizes of rows and blocks
 * in every later call follow from it. */
#include "client/client_internal.h"

#include <stdlib.h>
#include <string.h>

enum { SPACES_FIRST = 8 };

static const char *or_empty(const char *text, const char *other)
{
    return text ? text : other;
}

/* Room for one more, so that a reply never needs memory. Open calls in flight are counted too. */
static kvarn_status reserve(struct kvarn_client *client)
{
    size_t needed = client->space_count + client->session->in_flight + 1;

    if (needed <= client->space_capacity)
        return KVARN_OK;
    if (needed > KVC_CLIENT_SPACES_MAX)
        return kvc_client_fail(client, KVARN_TOO_LARGE,
                               "open_space: this client has %zu spaces open, the most it keeps",
                               client->space_count);
    size_t capacity = client->space_capacity ? 2 * client->space_capacity : SPACES_FIRST;
    while (capacity < needed)
        capacity *= 2;
    struct kvc_space *spaces = realloc(client->spaces, capacity * sizeof *spaces);
    if (!spaces)
        return kvc_client_no_memory(client);
    client->spaces = spaces;
    client->space_capacity = capacity;
    return KVARN_OK;
}

static void remember(struct kvarn_client *client, const kvarn_space_options *args)
{
    struct kvc_space known = {
        .space = args->space,
        .tile_block_bytes = args->tile_block_bytes,
        .exact_block_bytes = args->exact_block_bytes,
        .layers = args->layer_count ? args->layer_count : args->layers - args->layer_begin,
        .kv_heads = args->head_count ? args->head_count : args->kv_heads - args->head_begin,
        .head_dim = args->head_dim,
        .group = args->group,
        .dtype = args->dtype,
        .origin = {.layer_begin = args->layer_begin, .head_begin = args->head_begin},
    };

    known.origin.layer_count = known.layers;
    known.origin.head_count = known.kv_heads;
    memcpy(known.origin.fingerprint, args->fingerprint, sizeof args->fingerprint);

    for (size_t i = 0; i < client->space_count; i++) {
        if (client->spaces[i].space == known.space) {
            client->spaces[i] = known;
            return;
        }
    }
    if (client->space_count < client->space_capacity)
        client->spaces[client->space_count++] = known;
}

static kvarn_status reply_open(struct kvarn_call *call, const struct kvc_reply *reply,
                               const char **why)
{
    kvarn_space_options *args = call->args;
    struct kvw_open_space_reply in;
    kvarn_status status =
        kvw_open_space_reply_decode(&in, reply->metadata, reply->metadata_bytes, reply->arena, why);

    if (status != KVARN_OK)
        return status;
    kvc_call_take_result(call, &in.result);
    if (!kvc_call_succeeded(call))
        return KVARN_OK;
    if (in.group == 0 || in.group > KVARN_MAX_GROUP) {
        *why = "OPEN_SPACE: a reply with an impossible group";
        return KVARN_BAD_FRAME;
    }
    args->space = in.space;
    memcpy(args->fingerprint, in.fingerprint, sizeof args->fingerprint);
    args->group = in.group;
    args->sink_tokens = in.sink_tokens;
    args->record_bytes = in.record_bytes;
    args->tile_block_bytes = in.tile_block_bytes;
    args->exact_block_bytes = in.exact_block_bytes;
    remember(call->client, args);
    return KVARN_OK;
}

static kvarn_status check_name(struct kvarn_client *client, const char *what, const char *text)
{
    if (strlen(text) <= KVW_TEXT_MAX_BYTES)
        return KVARN_OK;
    return kvc_client_fail(client, KVARN_TOO_LARGE,
                           "open_space: %s has %zu bytes, at most %d are allowed", what,
                           strlen(text), KVW_TEXT_MAX_BYTES);
}

static kvarn_status check_names(struct kvarn_client *client, const struct kvw_open_space *open)
{
    const struct {
        const char *what, *text;
    } names[] = {
        {"model", open->model},     {"revision", open->revision},
        {"adapter", open->adapter}, {"rope", open->rope},
        {"preset", open->preset},   {"key_algorithm", open->key_algorithm},
        {"device", open->device},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        kvarn_status status = check_name(client, names[i].what, names[i].text);
        if (status != KVARN_OK)
            return status;
    }
    return KVARN_OK;
}

/* Only what later arithmetic relies on; what a daemon supports is its own to say. */
static kvarn_status check_geometry(struct kvarn_client *client, const kvarn_space_options *args)
{
    if (args->layers == 0 || args->kv_heads == 0 || args->head_dim == 0)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "open_space: layers %u, kv_heads %u, head_dim %u: none may be 0",
                               args->layers, args->kv_heads, args->head_dim);
    if (args->dtype != KVARN_F16 && args->dtype != KVARN_BF16)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "open_space: dtype is %d: use KVARN_F16 or KVARN_BF16",
                               (int)args->dtype);
    if (args->layer_begin >= args->layers || args->layer_count > args->layers - args->layer_begin ||
        args->head_begin >= args->kv_heads || args->head_count > args->kv_heads - args->head_begin)
        return kvc_client_fail(client, KVARN_INVALID_SHAPE,
                               "open_space: the shard (layers %u+%u, heads %u+%u) is not inside "
                               "the model's %u layers and %u kv heads",
                               args->layer_begin, args->layer_count, args->head_begin,
                               args->head_count, args->layers, args->kv_heads);
    return KVARN_OK;
}

static struct kvw_open_space wire_form(const kvarn_space_options *args)
{
    return (struct kvw_open_space){
        .model = or_empty(args->model, ""),
        .revision = or_empty(args->revision, ""),
        .adapter = or_empty(args->adapter, ""),
        .rope = or_empty(args->rope, ""),
        .preset = or_empty(args->preset, ""),
        .key_algorithm = or_empty(args->key_algorithm, "sha256_cbor"),
        .device = or_empty(args->device, ""),
        .layers = args->layers,
        .kv_heads = args->kv_heads,
        .head_dim = args->head_dim,
        .dtype = (uint32_t)args->dtype,
        .iterations = args->iterations ? args->iterations : KVARN_DEFAULT_ITERATIONS,
        .sink_tokens = KVARN_SINK_TOKENS,
        .k_rotated = args->k_rotated != 0,
        .v_rotated = args->v_rotated != 0,
        .has_iterations = args->iterations != 0,
        .layer_begin = args->layer_begin,
        .layer_count = args->layer_count,
        .head_begin = args->head_begin,
        .head_count = args->head_count,
    };
}

static kvarn_status plan_open(struct kvarn_client *client, void *args_, struct kvarn_call **call)
{
    kvarn_space_options *args = args_;
    struct kvw_open_space open = wire_form(args);
    size_t room = KVC_METADATA_ROOM + 7 * KVW_TEXT_MAX_BYTES;

    kvarn_status status = check_names(client, &open);
    if (status == KVARN_OK)
        status = check_geometry(client, args);
    if (status == KVARN_OK && !args->preset)
        status = kvc_client_fail(client, KVARN_INVALID_SHAPE,
                                 "open_space: preset is NULL: use a name such as "
                                 "kvarn_k2v2_g128, see kvarn_preset_at()");
    if (status == KVARN_OK)
        status = reserve(client);
    if (status != KVARN_OK)
        return status;
    *call = kvc_call_new(KVW_OPEN_SPACE, room, 0);
    if (!*call)
        return kvc_client_no_memory(client);
    (*call)->on_reply = reply_open;
    kvc_call_set_metadata(*call, kvw_open_space_encode(kvc_call_metadata(*call), room, &open));
    return KVARN_OK;
}

KVC_DEFINE_OPERATION(open_space, kvarn_space_options, KVW_OPEN_SPACE, plan_open)
