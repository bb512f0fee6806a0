/* A service that does nothing but keep the seam's promises, and counts whether net keeps its own.
 *
 * PING and HELLO answer at once. STATS answers with `reply_bytes` of payload. COMPRESS waits until
 * the test lets it go. Any other operation answers UNSUPPORTED. */
#ifndef STUB_SERVICE_H
#define STUB_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/rpc/request.h"

enum { STUB_REQUESTS = 256 };

struct stub_request {
    struct kvd_request request; /* first */
    bool used, begun, running, replied;
    uint8_t *staging;
    uint8_t meta[128];
    struct iovec iov[4];
};

struct kvd_service {
    uint32_t requests_max;  /* at most STUB_REQUESTS */
    uint64_t staging_bytes; /* free */
    uint64_t reply_bytes;   /* of STATS */
    uint64_t payload_sum;   /* over the payload bytes of requests that ran */
    uint32_t used, used_max, runs, dones, gones, waits, unwanted;
    uint64_t staging_low; /* least that was free */
    uint8_t *bulk;        /* what STATS sends */
    void (*room)(void *context);
    void *room_context;
    struct stub_request requests[STUB_REQUESTS];
};

void stub_open(struct kvd_service *service);
void stub_close(struct kvd_service *service); /* asserts that every request is done */
/* Answers the COMPRESS requests that wait; gives how many. */
uint32_t stub_release(struct kvd_service *service);

#endif
