/* PING: is it there? */
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_ping_decode(&work->args.ping, metadata,
                                          work->request.header.metadata_bytes, &work->arena, &why);

    return status == KVARN_OK ? status : kvd_work_fail(work, status, "metadata: %s", why);
}

static void run(struct kvd_work *work)
{
    struct kvw_ping_reply reply = {.result = kvd_work_result(work), .echo = work->args.ping.echo};

    kvd_work_send(work, kvw_ping_reply_encode(work->meta, sizeof work->meta, &reply));
}

const struct kvd_operation kvd_operation_ping = {begin, run, true, NULL};
