/* What a device is, between device.c (jobs) and device_memory.c (staging and pool). */
#ifndef KVD_DEVICE_INTERNAL_H
#define KVD_DEVICE_INTERNAL_H

#include "server/core/loop.h"
#include "server/device/device.h"
#include "server/device/flights.h"
#include "server/device/gpu_pool.h"
#include "server/device/link.h"
#include "server/device/process.h"
#include "server/device/region.h"
#include "server/device/stall.h"
#include "server/device/staging.h"
#include "server/device/wipes.h"

struct kvd_device {
    struct uv_loop_s *loop;
    char name[KVD_DEVICE_NAME_MAX];
    struct kvd_memory staging, ring_memory;
    struct kvd_memory pool;       /* not of a GPU */
    struct kvd_gpu_pool gpu_pool; /* of a GPU */
    struct kvd_wipes *wipes;      /* of a GPU */
    bool gpu;
    struct kvd_link_rings *rings;
    struct kvd_ring_producer jobs;
    int jobs_bell, done_bell;
    struct kvd_extents *extents;
    struct kvd_flights flights;
    struct kvd_watch *done_watch;
    struct kvd_deferred *flush;
    struct kvd_process *process;
    void (*restarted)(void *context);
    void *restarted_context;
    struct kvd_stall *stall;
    uint64_t ended;  /* jobs */
    bool distrusted; /* the worker wrote nonsense: nothing goes to it or is taken from it */
};

#endif
