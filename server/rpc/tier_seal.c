/* Encryption of the disk tier: AES-256-GCM with a key of each tenant, on the threads of
 * core/files.h. ERASE takes the key away. See tier.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/core/log.h"
#include "server/rpc/tier_move.h"

kvarn_status kvd_tier_open_keys(struct kvd_disk_tier *tier, char *why)
{
    const struct kvd_service_options *options = &tier->service->options;
    struct kvd_disk *disk = tier->disk;
    uint64_t unreadable = 0;
    kvarn_status status;

    if (options->disk_key) {
        status = kvd_disk_keys_open(&tier->keys, options->disk_key, tier->dir.fd, disk->store, why);
        if (status != KVARN_OK)
            return status;
        disk->sealed = true;
    }
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        struct kvd_disk_segment *segment = &disk->segments[i];
        const struct kvd_disk_secret *row;

        if (!segment->used || !segment->header.sealed)
            continue;
        if (!options->disk_key) {
            snprintf(why, KVD_DISK_WHY_MAX,
                     "%.200s holds encrypted blocks; say with which key: --disk-key FILE",
                     options->disk_path);
            return KVARN_DENIED;
        }
        row = kvd_disk_keys_of(&tier->keys, segment->header.identity.tenant);
        if (row && row->state == KVD_SECRET_READY)
            continue;
        unreadable += segment->live; /* erased: its tenant's key is gone */
        kvd_disk_drop(disk, segment);
    }
    if (unreadable)
        kvd_log(KVD_LOG_WARN, "disk_blocks_without_key", kvd_number("blocks", (int64_t)unreadable));
    return KVARN_OK;
}

/* ---- a tenant's key */

static int call_make(void *context)
{
    const struct kvd_move *move = context;

    return kvd_disk_keys_make(&move->tier->keys, move->row);
}

static void made(struct kvd_move *move, int failed)
{
    move->row->state = failed ? KVD_SECRET_NONE : KVD_SECRET_READY;
    if (failed)
        kvd_log(KVD_LOG_ERROR, "disk_failed", kvd_text("at", "key"),
                kvd_text("error", strerror(failed)));
    kvd_move_end(move, KVARN_OK);
}

kvarn_status kvd_move_secret(struct kvd_move *move, uint32_t space)
{
    struct kvd_disk_tier *tier = move->tier;
    struct kvd_disk_secret *row;
    struct kvd_move *make;

    if (!tier->disk->sealed)
        return KVARN_OK;
    row = kvd_disk_keys_of(&tier->keys, tier->disk->spaces[space].identity.tenant);
    if (!row)
        return KVARN_NO_SPACE;
    if (row->state == KVD_SECRET_READY) {
        memcpy(move->secret, row->key, sizeof move->secret);
        return KVARN_OK;
    }
    if (row->state == KVD_SECRET_NONE && (make = kvd_move_new(tier, KVD_MOVES_SPARE / 2)) != NULL) {
        row->state = KVD_SECRET_BUSY;
        make->row = row;
        kvd_move_call(make, call_make, made);
    }
    return KVARN_RETRY;
}

/* ---- a block */

static int call_seal(void *context)
{
    struct kvd_move *move = context;
    uint8_t with[KVD_DISK_BOUND_BYTES];

    kvd_disk_bound_to(with, &move->segment->header, &move->entry);
    if (!kvd_seal_random(move->entry.nonce, sizeof move->entry.nonce) ||
        !kvd_seal(move->secret, move->entry.nonce, with, sizeof with, move->bytes, move->count,
                  move->entry.tag))
        return ENOMEM;
    return 0;
}

void kvd_move_seal(struct kvd_move *move, kvd_move_step then)
{
    kvd_move_call(move, call_seal, then);
}

static int call_unseal(void *context)
{
    struct kvd_move *move = context;
    uint8_t with[KVD_DISK_BOUND_BYTES];

    kvd_disk_bound_to(with, &move->segment->header, &move->entry);
    return kvd_unseal(move->secret, move->entry.nonce, with, sizeof with, move->bytes, move->count,
                      move->entry.tag)
               ? 0
               : EBADMSG;
}

void kvd_move_unseal(struct kvd_move *move, kvd_move_step then)
{
    kvd_move_call(move, call_unseal, then);
}

/* ---- ERASE */

static int call_erase(void *context)
{
    const struct kvd_move *move = context;

    return kvd_disk_keys_erase(&move->tier->keys, move->row);
}

static void erased(struct kvd_move *move, int failed)
{
    move->row->state = KVD_SECRET_NONE;
    if (failed)
        kvd_log(KVD_LOG_ERROR, "disk_failed", kvd_text("at", "erase"),
                kvd_text("error", strerror(failed)));
    kvd_move_end(move, failed ? KVARN_INTERNAL : (kvarn_status)KVD_TODO);
}

uint64_t kvd_tier_mark(const struct kvd_service *service)
{
    return service->tier ? service->tier->disk->number : 0;
}

kvarn_status kvd_tier_erase(struct kvd_work *work, uint64_t mark, bool *keyless)
{
    struct kvd_disk_tier *tier = kvd_work_service(work)->tier;
    struct kvd_disk_secret *row;
    struct kvd_move *move;
    const char *tenant;
    bool left = false;

    if (!tier)
        return KVARN_OK;
    tenant =
        tier->service->options.tenant_name(tier->service->options.context, work->request.tenant);
    for (uint32_t i = 0; i < KVD_DISK_SEGMENTS_MAX; i++) {
        const struct kvd_disk_segment *segment = &tier->disk->segments[i];

        if (!segment->used || segment->header.number >= mark ||
            strcmp(segment->header.identity.tenant, tenant) != 0)
            continue;
        (void)kvd_tier_cancel(tier, segment->space, NULL);
        kvd_disk_forget(tier->disk, segment->space, false);
        left = true;
    }
    tier->starved = true; /* look again with the next tick */
    row = tier->disk->sealed && !*keyless ? kvd_disk_keys_of(&tier->keys, tenant) : NULL;
    if (row && row->state == KVD_SECRET_BUSY)
        return KVARN_RETRY;
    if (row && row->state == KVD_SECRET_READY) {
        move = kvd_move_new(tier, KVD_MOVES_SPARE);
        if (!move)
            return KVARN_RETRY;
        row->state = KVD_SECRET_BUSY;
        move->row = row;
        move->owner = work;
        kvd_move_call(move, call_erase, erased);
        *keyless = true;
        return KVARN_EXISTS;
    }
    *keyless = true;
    return left ? KVARN_RETRY : KVARN_OK;
}
