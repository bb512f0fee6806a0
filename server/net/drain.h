/* The orderly end of the front: listeners close, new work is answered DRAINING, what is in flight
 * finishes and what is still arriving is read to its end and answered, within the grace time; then
 * the loop stops.
 *
 * Asked for by a client's DRAIN, by SIGTERM or SIGINT, or by the end of the one connection of a
 * private daemon. A second signal ends the process at once. One per process, loop thread. */
#ifndef KVD_DRAIN_H
#define KVD_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include <kvarn/status.h>

struct uv_loop_s;
struct kvd_conns;
struct kvd_service;
struct kvd_drain;

struct kvd_drain_options {
    struct uv_loop_s *loop;
    struct kvd_conns *conns;
    struct kvd_service *service;
    uint32_t grace_ms;                  /* when nobody says another time */
    bool with_last;                     /* begins when the last connection has gone */
    void (*close_doors)(void *context); /* no new connections; also before an end at once */
    void *context;
};

/* Takes over SIGTERM, SIGINT and SIGHUP; SIGPIPE is ignored from now on. */
kvarn_status kvd_drain_open(struct kvd_drain **drain, const struct kvd_drain_options *options);
void kvd_drain_close(struct kvd_drain **drain);

/* 0 = the options' grace time. Nothing when it has begun. */
void kvd_drain_begin(struct kvd_drain *drain, uint32_t grace_ms);
/* A connection or a request ended. */
void kvd_drain_look(struct kvd_drain *drain);

#endif
