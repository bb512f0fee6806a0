/* ERASE: nothing of this tenant is kept, in memory or on disk.
 *
 * All its spaces are reset (see reset.c). On an encrypted disk its key goes first, and without it a
 * copy of its segments is unreadable (not so a copy of the folder's `keys/` with the operator's
 * key: SECURITY.md); then its segments go. The answer comes when both are synced. */
#include "server/rpc/tier.h"
#include "server/rpc/work.h"

struct erase {
    uint64_t mark;
    bool keyless, erased;
};

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_ping_decode(&work->args.ping, metadata,
                                          work->request.header.metadata_bytes, &work->arena, &why);

    return status == KVARN_OK ? status : kvd_work_fail(work, status, "metadata: %s", why);
}

/* False: no more epochs. */
static bool reset_all(struct kvd_service *service, uint32_t tenant)
{
    for (uint32_t i = 0; i < KVD_SPACES_MAX; i++) {
        struct kvd_space *space = &service->spaces.slots[i];

        if (space->used && space->tenant == tenant && !space->reset &&
            kvd_space_reset(&service->spaces, space) != KVARN_OK)
            return false;
    }
    for (uint32_t i = 0; i < KVD_SPACES_MAX; i++) {
        struct kvd_space *space = &service->spaces.slots[i];

        if (!space->used || space->tenant != tenant || !space->reset)
            continue;
        kvd_events_add(&service->events, tenant,
                       &(struct kvw_event_row){.space = space->handle, .type = KVW_EVENT_CLEARED});
        kvd_sequences_space_gone(&service->sequences, space);
    }
    service->sweep_end = service->blocks.made;
    service->sweep_at = 0;
    return true;
}

/* item_count stays 0: item 0 is where the disk tier puts the outcome of taking the key away. */
static void step(struct kvd_work *work)
{
    struct erase *state = work->state;
    struct kvd_item *item = &work->items[0];
    struct kvw_ping_reply reply = {.echo = work->args.ping.echo};
    kvarn_status status;

    if (item->status == KVD_TODO && item->entry == KVD_NO_ENTRY) {
        status = KVARN_OK;
        if (!state->erased)
            status = kvd_tier_erase(work, state->mark, &state->keyless);
        state->erased = state->erased || status == KVARN_OK;
        if (state->erased) /* so that what is stored from now on is found again */
            status = kvd_tier_epochs(work);
        if (status == KVARN_EXISTS)
            item->entry = 0;
        else if (status != KVARN_RETRY)
            item->status = (uint32_t)status;
    }
    if (item->status == KVD_TODO && !work->late && work->request.conn &&
        kvd_work_wait(work, step, true) == KVARN_OK)
        return;
    kvd_tier_detach(work);
    if (item->status != KVARN_OK) {
        kvd_work_refuse(work, work->late ? KVARN_DEADLINE : KVARN_INTERNAL,
                        "nothing of this tenant is served any more, but not all of it is off the "
                        "disk; erase it once more");
        return;
    }
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_ping_reply_encode(work->meta, sizeof work->meta, &reply));
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct erase *state = kvd_work_memory(work, 1, sizeof *state);

    work->items = kvd_work_memory(work, 1, sizeof *work->items);
    if (!state || !work->items) {
        kvd_work_refuse(work, KVARN_RETRY, "no memory now");
        return;
    }
    if (!reset_all(service, work->request.tenant)) {
        kvd_work_refuse(work, KVARN_NO_SPACE,
                        "not all of this tenant was erased: %u models that were reset before still "
                        "have open spaces or blocks on disk, and no more can be kept account of; "
                        "drop all blocks of one of them and start the daemon again, then erase",
                        kvd_epochs_limit(service->spaces.epochs));
        return;
    }
    work->state = state;
    work->items[0] = (struct kvd_item){.status = KVD_TODO, .entry = KVD_NO_ENTRY};
    state->mark = kvd_tier_mark(service);
    step(work);
}

const struct kvd_operation kvd_operation_erase = {begin, run, false, NULL};
