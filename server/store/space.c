/* The table of spaces. See space.h. */
#include "server/store/space.h"

#include <stdio.h>
#include <string.h>

#include "proto/blockkey.h"
#include "server/store/block.h"
#include "server/store/counts.h"
#include "server/store/pool.h"

static bool holds_nothing(const struct kvd_space *space)
{
    return !space->tile_blocks && !space->exact_blocks && !space->sequences && !space->pins;
}

bool kvd_spaces_hold(const struct kvd_spaces *spaces, const uint8_t base[KVARN_FINGERPRINT_BYTES])
{
    for (size_t i = 0; i < KVD_SPACES_MAX; i++) {
        const struct kvd_space *at = &spaces->slots[i];

        if (at->used && !memcmp(at->base, base, sizeof at->base) &&
            !(at->reset && holds_nothing(at)))
            return true;
    }
    return false;
}

static bool space_holds(void *context, const struct kvd_epoch *row)
{
    return kvd_spaces_hold(context, row->base);
}

/* As the table calls the tenant: by its name, or without a disk by its number. */
static const char *name_in_epochs(const struct kvd_spaces *spaces, uint32_t tenant,
                                  char number[KVD_TENANT_NAME_MAX])
{
    if (spaces->tenant_name)
        return spaces->tenant_name(spaces->name_context, tenant);
    snprintf(number, KVD_TENANT_NAME_MAX, "%u", tenant);
    return number;
}

void kvd_spaces_init(struct kvd_spaces *spaces, struct kvd_blocks *blocks, const uint64_t secret[2],
                     const struct kvd_space_pool *pools, uint32_t pool_count)
{
    memset(spaces, 0, sizeof *spaces);
    spaces->blocks = blocks;
    spaces->secret[0] = secret[0];
    spaces->secret[1] = secret[1];
    memcpy(spaces->pools, pools, pool_count * sizeof *pools);
    spaces->pool_count = pool_count;
    spaces->generation = (uint32_t)(secret[0] ^ secret[1] >> 32) >> 1;
    spaces->epochs = &spaces->own_epochs;
    spaces->own_epochs.held = space_holds;
    spaces->own_epochs.context = spaces;
}

void kvd_spaces_keep_epochs(struct kvd_spaces *spaces, struct kvd_epochs *epochs,
                            const char *(*tenant_name)(void *context, uint32_t tenant),
                            void *context)
{
    spaces->epochs = epochs;
    spaces->tenant_name = tenant_name;
    spaces->name_context = context;
}

static void uncount(struct kvd_spaces *spaces, uint32_t tenant)
{
    if (spaces->blocks->counts)
        kvd_counts_give(spaces->blocks->counts, tenant, KVD_COUNTED_SPACES, 1);
}

static void give_up(struct kvd_spaces *spaces, struct kvd_space *space)
{
    uncount(spaces, space->tenant);
    kvd_index_free(&space->index);
    kvd_evict_list_set(spaces->blocks->evict, kvd_space_list(space, KVARN_BLOCK_TILE), 0, 0);
    kvd_evict_list_set(spaces->blocks->evict, kvd_space_list(space, KVARN_BLOCK_EXACT), 0, 0);
    space->used = false;
}

void kvd_spaces_free(struct kvd_spaces *spaces)
{
    for (size_t i = 0; i < KVD_SPACES_MAX; i++)
        kvd_index_free(&spaces->slots[i].index);
}

/* Names of all presets, for the text of a refusal. */
static kvarn_status unknown_preset(const char *name, char *text, size_t room)
{
    int used = snprintf(text, room, "preset \"%.64s\" is not known; use one of", name);

    for (size_t i = 0; kvarn_preset_at(i) && used > 0 && (size_t)used < room; i++)
        used += snprintf(text + used, room - (size_t)used, "%s %s", i ? "," : "",
                         kvarn_preset_at(i)->name);
    return KVARN_UNSUPPORTED;
}

static kvarn_status check_counts(const struct kvw_open_space *in, char *text, size_t room)
{
    if (!in->model[0]) {
        snprintf(text, room, "the model id is empty; name the model, e.g. \"org/name\"");
        return KVARN_INVALID_SHAPE;
    }
    if (in->layers < 1 || in->layers > KVD_LAYERS_MAX) {
        snprintf(text, room, "layers = %u; must be 1 to %d", in->layers, KVD_LAYERS_MAX);
        return KVARN_INVALID_SHAPE;
    }
    if (in->kv_heads < 1 || in->kv_heads > KVD_HEADS_MAX) {
        snprintf(text, room, "kv_heads = %u; must be 1 to %d", in->kv_heads, KVD_HEADS_MAX);
        return KVARN_INVALID_SHAPE;
    }
    if ((uint64_t)in->layer_begin + in->layer_count > in->layers || in->layer_begin >= in->layers) {
        snprintf(text, room, "the shard's layers [%u, +%u) are outside the model's %u",
                 in->layer_begin, in->layer_count, in->layers);
        return KVARN_INVALID_SHAPE;
    }
    if ((uint64_t)in->head_begin + in->head_count > in->kv_heads ||
        in->head_begin >= in->kv_heads) {
        snprintf(text, room, "the shard's kv heads [%u, +%u) are outside the model's %u",
                 in->head_begin, in->head_count, in->kv_heads);
        return KVARN_INVALID_SHAPE;
    }
    return KVARN_OK;
}

/* What the kernels refuse, with the client's name and value of the field. */
static void name_field(const struct kvw_open_space *in, const char *why, char *text, size_t room)
{
    if (strncmp(why, "head", 4) == 0)
        snprintf(text, room, "head_dim = %u; %s", in->head_dim, why);
    else if (strncmp(why, "dtype", 5) == 0)
        snprintf(text, room, "dtype = %u; %s", in->dtype, why);
    else
        snprintf(text, room, "%s", why);
}

/* Fills in shape and sizes of *space. */
static kvarn_status check_shape(struct kvd_space *space, const struct kvw_open_space *in,
                                char *text, size_t room)
{
    const kvarn_preset *preset = space->preset;
    uint32_t iterations =
        in->has_iterations && in->iterations ? in->iterations : KVARN_DEFAULT_ITERATIONS;
    const char *why = "";
    kvarn_status status;

    if (iterations > KVARN_MAX_ITERATIONS) {
        snprintf(text, room, "iterations = %u; must be at most %d", iterations,
                 KVARN_MAX_ITERATIONS);
        return KVARN_INVALID_SHAPE;
    }
    space->shape = (struct kvk_shape){.dim = in->head_dim > UINT16_MAX ? 0 : (uint16_t)in->head_dim,
                                      .group = preset->group,
                                      .bits_k = preset->bits_k,
                                      .bits_v = preset->bits_v,
                                      .dtype = in->dtype > UINT8_MAX ? 0 : (uint8_t)in->dtype,
                                      .balance = preset->balance,
                                      .range = preset->range,
                                      .k_rotated = in->k_rotated,
                                      .v_rotated = in->v_rotated,
                                      .iterations = (uint16_t)iterations};
    status = kvk_shape_check(&space->shape, &why);
    if (status != KVARN_OK) {
        name_field(in, why, text, room);
        return status;
    }
    if (space->sink_tokens % preset->group || space->sink_tokens > KVD_SINK_MAX) {
        snprintf(text, room, "sink_tokens = %u; must be a multiple of the group %u, at most %d",
                 space->sink_tokens, preset->group, KVD_SINK_MAX);
        return KVARN_INVALID_SHAPE;
    }
    /* At most 1024 * 1024 * 128 KiB: no overflow. */
    space->record_bytes = kvarn_record_bytes(preset, in->head_dim);
    space->tile_bytes = space->record_bytes * space->layers * space->heads;
    space->exact_bytes =
        2 * kvd_space_row_bytes(space) * preset->group * space->layers * space->heads;
    return KVARN_OK;
}

/* Is a pool with so much unused memory a better one than the one chosen so far? */
static bool better(const struct kvd_space_pool *chosen, const struct kvd_space_pool *other)
{
    if (!chosen || chosen->preferred != other->preferred)
        return !chosen || other->preferred;
    return kvd_pool_capacity_bytes(other->pool) - kvd_pool_used_bytes(other->pool) >
           kvd_pool_capacity_bytes(chosen->pool) - kvd_pool_used_bytes(chosen->pool);
}

/* Names of all devices, for the text of a refusal. */
static kvarn_status unknown_device(const struct kvd_spaces *spaces, const char *name, char *text,
                                   size_t room)
{
    int used = snprintf(text, room, "there is no pool of device \"%.32s\"; use one of", name);

    for (uint32_t i = 0; i < spaces->pool_count && used > 0 && (size_t)used < room; i++)
        used += snprintf(text + used, room - (size_t)used, "%s %s", i ? "," : "",
                         spaces->pools[i].name);
    return KVARN_UNSUPPORTED;
}

/* The pool that the space will live in. */
static kvarn_status choose_pool(const struct kvd_spaces *spaces, struct kvd_space *space,
                                const char *device, char *text, size_t room)
{
    uint64_t needed =
        space->exact_bytes > space->tile_bytes ? space->exact_bytes : space->tile_bytes;
    const struct kvd_space_pool *chosen = NULL;
    uint64_t largest = 0;
    bool named = false;

    for (uint32_t i = 0; i < spaces->pool_count; i++) {
        const struct kvd_space_pool *at = &spaces->pools[i];
        uint64_t capacity = kvd_pool_capacity_bytes(at->pool);

        if (device[0] && strcmp(device, at->name) != 0)
            continue;
        named = true;
        largest = capacity > largest ? capacity : largest;
        if (needed <= capacity && better(chosen, at))
            chosen = at;
    }
    if (!named)
        return unknown_device(spaces, device, text, room);
    if (!chosen) {
        snprintf(text, room,
                 "an EXACT block of this shard takes %llu bytes, a TILE block %llu; the pool has "
                 "%llu: give the daemon a larger pool or open a smaller shard",
                 (unsigned long long)space->exact_bytes, (unsigned long long)space->tile_bytes,
                 (unsigned long long)largest);
        return KVARN_TOO_LARGE;
    }
    space->pool = chosen->pool;
    space->device = (uint32_t)(chosen - spaces->pools);
    return KVARN_OK;
}

static kvarn_status make_fingerprint(const struct kvd_spaces *spaces, struct kvd_space *space,
                                     const struct kvw_open_space *in)
{
    struct kvw_fingerprint_input input = {.model = in->model,
                                          .revision = in->revision,
                                          .adapter = in->adapter,
                                          .rope = in->rope,
                                          .preset = space->preset->name,
                                          .key_algorithm = in->key_algorithm[0] ? in->key_algorithm
                                                                                : "sha256_cbor",
                                          .layers = in->layers,
                                          .kv_heads = in->kv_heads,
                                          .head_dim = in->head_dim,
                                          .dtype = in->dtype,
                                          .iterations = space->shape.iterations,
                                          .balance = space->shape.balance,
                                          .range = space->shape.range,
                                          .k_rotated = space->shape.k_rotated,
                                          .v_rotated = space->shape.v_rotated,
                                          .sink_tokens = space->sink_tokens};
    kvarn_status status = kvw_fingerprint(space->base, &input);
    char name[KVD_TENANT_NAME_MAX];

    if (status != KVARN_OK)
        return status;
    space->epoch = input.epoch =
        kvd_epochs_of(spaces->epochs, name_in_epochs(spaces, space->tenant, name), space->base);
    return kvw_fingerprint(space->fingerprint, &input);
}

/* As much of the model's name as there is room for, cut between characters. */
static void keep_name(char out[KVD_SPACE_NAME_MAX], const char *name)
{
    size_t count = strlen(name);

    if (count >= KVD_SPACE_NAME_MAX) {
        count = KVD_SPACE_NAME_MAX - 1;
        while (count && ((uint8_t)name[count] & 0xc0) == 0x80)
            count--;
    }
    memcpy(out, name, count);
    out[count] = 0;
}

static kvarn_status describe(const struct kvd_spaces *spaces, uint32_t tenant,
                             struct kvd_space *space, const struct kvw_open_space *options,
                             char *text, size_t room)
{
    struct kvw_open_space in = *options;
    kvarn_status status;

    memset(space, 0, sizeof *space);
    space->tenant = tenant;
    if (!in.layer_count)
        in.layer_count = in.layers - (in.layer_begin < in.layers ? in.layer_begin : 0);
    if (!in.head_count)
        in.head_count = in.kv_heads - (in.head_begin < in.kv_heads ? in.head_begin : 0);
    space->preset = kvarn_preset_find(in.preset);
    if (!space->preset)
        return unknown_preset(in.preset, text, room);
    status = check_counts(&in, text, room);
    if (status != KVARN_OK)
        return status;
    keep_name(space->model, in.model);
    space->model_layers = in.layers;
    space->model_heads = in.kv_heads;
    space->layer_begin = in.layer_begin;
    space->layers = in.layer_count;
    space->head_begin = in.head_begin;
    space->heads = in.head_count;
    space->sink_tokens = in.has_sink_tokens ? in.sink_tokens : KVARN_SINK_TOKENS;
    status = check_shape(space, &in, text, room);
    if (status != KVARN_OK)
        return status;
    status = make_fingerprint(spaces, space, &in);
    if (status != KVARN_OK)
        snprintf(text, room, "the fingerprint could not be computed");
    return status;
}

static bool same(const struct kvd_space *a, const struct kvd_space *b)
{
    return a->tenant == b->tenant && a->layer_begin == b->layer_begin && a->layers == b->layers &&
           a->head_begin == b->head_begin && a->heads == b->heads &&
           !memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint);
}

/* The hash of keys is another one in every tenant and space: what one of them may learn about its
 * own table says nothing about any other. */
static void open_index(const struct kvd_spaces *spaces, struct kvd_space *space)
{
    uint64_t secret[2] = {spaces->secret[0] ^ space->tenant, spaces->secret[1]}, own[2];
    kvarn_key name;

    memcpy(name.bytes, space->fingerprint, sizeof name.bytes);
    own[0] = kvd_index_hash(secret, &name);
    secret[1] = ~secret[1];
    own[1] = kvd_index_hash(secret, &name);
    kvd_index_init(&space->index, own, spaces->blocks->slabs);
}
_Static_assert((int)KVARN_FINGERPRINT_BYTES == (int)KVARN_KEY_BYTES, "hashed as a key is");

kvarn_status kvd_space_open(struct kvd_spaces *spaces, uint32_t tenant,
                            const struct kvw_open_space *options, struct kvd_space **space,
                            char *text, size_t text_room)
{
    struct kvd_space wanted, *room = NULL;
    kvarn_status status = describe(spaces, tenant, &wanted, options, text, text_room);

    if (status == KVARN_OK)
        status =
            choose_pool(spaces, &wanted, options->device ? options->device : "", text, text_room);
    if (status != KVARN_OK)
        return status;
    for (size_t i = 0; i < KVD_SPACES_MAX; i++) {
        struct kvd_space *at = &spaces->slots[i];

        if (at->used && !at->reset && same(at, &wanted)) {
            *space = at;
            return KVARN_OK;
        }
        if ((!room && (!at->used || holds_nothing(at))) || (room && room->used && !at->used))
            room = at;
    }
    if (spaces->blocks->counts &&
        !kvd_counts_take(spaces->blocks->counts, tenant, KVD_COUNTED_SPACES, 1)) {
        snprintf(text, text_room, "this tenant has %u spaces, the most that it may have",
                 spaces->blocks->counts->used[tenant][KVD_COUNTED_SPACES]);
        return KVARN_QUOTA;
    }
    if (!room) {
        snprintf(text, text_room, "all %d spaces are in use; drop blocks of one first",
                 KVD_SPACES_MAX);
        uncount(spaces, tenant);
        return KVARN_RETRY;
    }
    if (room->used)
        give_up(spaces, room);
    wanted.used = true;
    wanted.slot = (uint32_t)(room - spaces->slots);
    wanted.handle = (uint64_t)++spaces->generation << 32 | (wanted.slot + 1);
    open_index(spaces, &wanted);
    *room = wanted;
    kvd_evict_list_set(spaces->blocks->evict, kvd_space_list(room, KVARN_BLOCK_TILE),
                       kvd_space_owner(room), room->tile_bytes);
    kvd_evict_list_set(spaces->blocks->evict, kvd_space_list(room, KVARN_BLOCK_EXACT),
                       kvd_space_owner(room), room->exact_bytes);
    *space = room;
    return KVARN_OK;
}

struct kvd_space *kvd_space_find_any(struct kvd_spaces *spaces, uint64_t handle)
{
    uint32_t slot = (uint32_t)handle - 1;

    if (slot >= KVD_SPACES_MAX || !spaces->slots[slot].used || spaces->slots[slot].reset ||
        spaces->slots[slot].handle != handle)
        return NULL;
    return &spaces->slots[slot];
}

struct kvd_space *kvd_space_find(struct kvd_spaces *spaces, uint32_t tenant, uint64_t handle)
{
    struct kvd_space *space = kvd_space_find_any(spaces, handle);

    return space && space->tenant == tenant ? space : NULL;
}

bool kvd_space_was_reset(const struct kvd_spaces *spaces, uint32_t tenant, uint64_t handle)
{
    uint32_t slot = (uint32_t)handle - 1;
    const struct kvd_space *space = &spaces->slots[slot < KVD_SPACES_MAX ? slot : 0];

    return space->used && space->reset && space->handle == handle && space->tenant == tenant;
}

kvarn_status kvd_space_reset(struct kvd_spaces *spaces, const struct kvd_space *space)
{
    char name[KVD_TENANT_NAME_MAX];
    const char *tenant = name_in_epochs(spaces, space->tenant, name);
    uint32_t epoch = kvd_epochs_of(spaces->epochs, tenant, space->base) + 1;

    if (!kvd_epochs_raise(spaces->epochs, tenant, space->base, epoch))
        return KVARN_NO_SPACE;
    for (size_t i = 0; i < KVD_SPACES_MAX; i++) {
        struct kvd_space *one = &spaces->slots[i];

        if (one->used && one->tenant == space->tenant &&
            !memcmp(one->base, space->base, sizeof space->base))
            one->reset = true;
    }
    return KVARN_OK;
}
