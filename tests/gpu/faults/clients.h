/* The load of the drill: clients that call kvarnd for ever and check every answer. */
#ifndef DRILL_CLIENTS_H
#define DRILL_CLIENTS_H

#include <stdint.h>

#include "gpu/faults/model.h"

enum drill_work { DRILL_READ, DRILL_ATTEND, DRILL_WRITE, DRILL_SEQUENCE, DRILL_WORKS };

struct drill_count {
    uint64_t good; /* answered, and right */
    uint64_t lost; /* GPU_LOST, RETRY and, for sequences, STALE: typed, to be done again */
    uint64_t wrong;
};

struct drill_clients;

/* One client of each work. model must hold what the daemon at address holds. */
struct drill_clients *drill_clients_start(const struct drill_model *model, const char *address);
/* Ends them and adds up what they counted. */
struct drill_count drill_clients_stop(struct drill_clients **clients);

struct drill_count drill_clients_count(struct drill_clients *clients);

enum drill_event {
    DRILL_LOST,       /* a call ended as lost */
    DRILL_FIRST_GOOD, /* a call made after since_ns had a good answer */
    DRILL_ALL_GOOD    /* one of every client had */
};

/* Waits until this was so after since_ns; gives when that was seen, 0: not within the deadline. */
uint64_t drill_clients_wait(struct drill_clients *clients, enum drill_event event,
                            uint64_t since_ns, uint32_t deadline_ms);

uint64_t drill_now_ns(void);

#endif
