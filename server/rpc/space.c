/* OPEN_SPACE. */
#include "server/rpc/work.h"

#include <string.h>

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_open_space_decode(
        &work->args.open_space, metadata, work->request.header.metadata_bytes, &work->arena, &why);

    return status == KVARN_OK ? status : kvd_work_fail(work, status, "metadata: %s", why);
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvw_open_space_reply reply;
    struct kvd_space *space;
    char text[KVD_TEXT_MAX] = "";
    kvarn_status status = kvd_space_open(&service->spaces, work->request.tenant,
                                         &work->args.open_space, &space, text, sizeof text);

    if (status != KVARN_OK) {
        kvd_work_refuse(work, status, "%s", text);
        return;
    }
    reply.result = kvd_work_result(work);
    reply.epoch = space->epoch;
    reply.space = space->handle;
    memcpy(reply.fingerprint, space->fingerprint, sizeof reply.fingerprint);
    reply.group = space->shape.group;
    reply.sink_tokens = space->sink_tokens;
    reply.record_bytes = space->record_bytes;
    reply.tile_block_bytes = space->tile_bytes;
    reply.exact_block_bytes = space->exact_bytes;
    kvd_work_send(work, kvw_open_space_reply_encode(work->meta, sizeof work->meta, &reply));
}

const struct kvd_operation kvd_operation_open_space = {begin, run, false, NULL};
