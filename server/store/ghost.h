/* The keys of blocks that were given up lately: their hashes, in the order in which they went.
 *
 * A ring keeps the order, a table of places in it finds them. Both grow with what they are asked to
 * remember; without memory they remember less, which costs hits and nothing else. */
#ifndef KVD_GHOST_H
#define KVD_GHOST_H

#include <stdbool.h>
#include <stdint.h>

struct kvd_ghosts {
    uint64_t *ring;  /* [room]; 0 = taken out of the middle */
    uint32_t *table; /* [2 * room] place in the ring + 1; 0 = empty */
    uint32_t room;   /* 0 or a power of two */
    uint32_t first;  /* of the ring */
    uint32_t length; /* of the ring from there, with what was taken out */
};

void kvd_ghosts_free(struct kvd_ghosts *ghosts);

/* Remembers a hash (not 0) as the latest, and of all at most the latest `most`. */
void kvd_ghosts_add(struct kvd_ghosts *ghosts, uint64_t hash, uint32_t most);
/* Forgets it; was it there? */
bool kvd_ghosts_take(struct kvd_ghosts *ghosts, uint64_t hash);

#endif
