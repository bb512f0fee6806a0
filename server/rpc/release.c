/* RELEASE: a lease is given back before it runs out. */
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_release_decode(
        &work->args.release, metadata, work->request.header.metadata_bytes, &work->arena, &why);

    return status == KVARN_OK ? status : kvd_work_fail(work, status, "metadata: %s", why);
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    struct kvw_blocks_reply reply = {.block_count = 0};
    kvarn_status status;

    /* So that the answer does not hang on when the clock last ticked. */
    kvd_leases_expire(&service->leases, kvd_service_now(service));
    status = kvd_lease_release(&service->leases, work->request.conn_id, work->args.release.lease);
    if (status != KVARN_OK) {
        kvd_work_refuse(work, status, "the lease %s",
                        status == KVARN_NOT_FOUND ? "is not known on this connection"
                        : status == KVARN_STALE   ? "was released before"
                                                  : "ran out; look the keys up again");
        return;
    }
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_blocks_reply_encode(work->meta, sizeof work->meta, &reply));
}

const struct kvd_operation kvd_operation_release = {begin, run, true, NULL};
