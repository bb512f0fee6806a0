/* HELLO: the version both speak, and what the daemon is. */
#include "server/core/log.h"
#include "server/rpc/work.h"

static kvarn_status begin(struct kvd_work *work, const uint8_t *metadata)
{
    const char *why = "";
    kvarn_status status = kvw_hello_decode(&work->args.hello, metadata,
                                           work->request.header.metadata_bytes, &work->arena, &why);

    return status == KVARN_OK ? status : kvd_work_fail(work, status, "metadata: %s", why);
}

static void run(struct kvd_work *work)
{
    struct kvd_service *service = kvd_work_service(work);
    const struct kvw_hello *hello = &work->args.hello;
    struct kvw_hello_reply reply = {
        .features = hello->features & KVW_FEATURE_SEQUENCES,
        .server = service->options.server,
        .backend = kvd_device_backend(service->devices[0].device),
        .tenant = service->options.tenant_name(service->options.context, work->request.tenant),
        .payload_max_bytes = service->options.payload_max_bytes,
        .in_flight_max = KVD_IN_FLIGHT_MAX,
    };
    char text[128];
    kvarn_status status;

    status = kvw_negotiate(hello->version_min, hello->version_max, KVW_VERSION_MIN, KVW_VERSION_MAX,
                           &reply.version);
    if (status == KVARN_UNSUPPORTED) {
        kvw_negotiate_text(text, sizeof text, hello->version_min, hello->version_max,
                           KVW_VERSION_MIN, KVW_VERSION_MAX);
        kvd_work_refuse(work, status, "%s", text);
        return;
    }
    if (status != KVARN_OK) {
        kvd_work_refuse(work, status, "versions %u to %u are no range", hello->version_min,
                        hello->version_max);
        return;
    }
    kvd_log(KVD_LOG_DEBUG, "hello", kvd_number("conn", (int64_t)work->request.conn_id),
            kvd_text("client", hello->client), kvd_text("tenant", reply.tenant),
            kvd_number("version", reply.version));
    reply.result = kvd_work_result(work);
    kvd_work_send(work, kvw_hello_reply_encode(work->meta, sizeof work->meta, &reply));
}

const struct kvd_operation kvd_operation_hello = {begin, run, true, NULL};
