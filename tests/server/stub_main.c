/* A device and the rest of a service for kvarnd's main without either: what the process itself does
 * (addresses, signals, drain, exit codes) is tested with it. */
#include <stdlib.h>

#include "server/device/device.h"
#include "server/rpc/service.h"
#include "stub_service.h"

struct kvd_device {
    int nothing;
};

static struct kvd_device the_device;
static struct kvd_service the_service;

kvarn_status kvd_device_open(struct kvd_device **device, struct uv_loop_s *loop,
                             const struct kvd_device_options *options, const char **why)
{
    (void)loop;
    (void)options;
    (void)why;
    *device = &the_device;
    return KVARN_OK;
}

void kvd_device_close(struct kvd_device **device)
{
    *device = NULL;
}

const char *kvd_device_name(const struct kvd_device *device)
{
    (void)device;
    return "host";
}

uint64_t kvd_device_pool_bytes(const struct kvd_device *device)
{
    (void)device;
    return 1 << 30;
}

uint32_t kvd_device_pool_descriptors(const struct kvd_device *device)
{
    (void)device;
    return 0;
}

const char *kvd_device_backend(const struct kvd_device *device)
{
    (void)device;
    return "stub";
}

kvarn_status kvd_service_open(struct kvd_service **service,
                              const struct kvd_service_options *options, const char **why)
{
    (void)options;
    (void)why;
    stub_open(&the_service);
    *service = &the_service;
    return KVARN_OK;
}

void kvd_service_close(struct kvd_service **service)
{
    stub_close(*service); /* asserts that nothing is in flight */
    *service = NULL;
}

/* A COMPRESS is answered at some later tick, work that takes a while; with STUB_HOLD never. */
bool kvd_service_ticking(const struct kvd_service *service)
{
    (void)service;
    return false;
}

void kvd_service_tick(struct kvd_service *service)
{
    static unsigned ticks;

    if (getenv("STUB_HOLD") == NULL && ++ticks % 20 == 0)
        (void)stub_release(service);
}

void kvd_service_drain(struct kvd_service *service)
{
    (void)service;
}
