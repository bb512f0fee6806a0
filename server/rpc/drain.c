/* DRAIN: the daemon ends when what it has is done. */
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_drain_decode(&work->args.drain, metadata,
                                           work->request.header.metadata_bytes, &work->arena, &why);

    if (status != KVARN_OK)
        return kvd_work_fail(work, status, "metadata: %s", why);
    if (!work->request.same_uid)
        return kvd_work_fail(work, KVARN_DENIED,
                             "only a client of the daemon's own user may drain it");
    if (!kvd_work_service(work)->options.drain)
        return kvd_work_fail(work, KVARN_UNSUPPORTED, "this daemon cannot be drained by a client");
    return KVARN_OK;
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvw_result result = kvd_work_result(work);
    uint32_t grace_ms = work->args.drain.grace_ms;

    kvd_service_drain(service);
    kvd_work_send(work, kvw_result_encode(work->meta, sizeof work->meta, &result));
    service->options.drain(service->options.context, grace_ms);
}

const struct kvd_operation kvd_operation_drain = {begin, run, true, NULL};
