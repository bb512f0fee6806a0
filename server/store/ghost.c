/* A ring and an open-addressing table over it. See ghost.h. */
#include "server/store/ghost.h"

#include <stdlib.h>
#include <string.h>

enum { GHOSTS_FIRST = 256 };
#define GHOSTS_MAX (1u << 24)

void kvd_ghosts_free(struct kvd_ghosts *ghosts)
{
    free(ghosts->ring);
    free(ghosts->table);
    memset(ghosts, 0, sizeof *ghosts);
}

static uint32_t mask_of(const struct kvd_ghosts *ghosts)
{
    return 2 * ghosts->room - 1;
}

/* Where the hash stands in the table, or the empty place where it would. */
static uint32_t place_of(const struct kvd_ghosts *ghosts, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & mask_of(ghosts);

    while (ghosts->table[at] && ghosts->ring[ghosts->table[at] - 1] != hash)
        at = (at + 1) & mask_of(ghosts);
    return at;
}

static void remove_at(struct kvd_ghosts *ghosts, uint32_t hole)
{
    uint32_t mask = mask_of(ghosts), at = hole;

    ghosts->ring[ghosts->table[hole] - 1] = 0;
    for (;;) {
        uint32_t home;

        at = (at + 1) & mask;
        if (!ghosts->table[at])
            break;
        home = (uint32_t)ghosts->ring[ghosts->table[at] - 1] & mask;
        /* It may fill the hole when its home is not between the hole and itself. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            ghosts->table[hole] = ghosts->table[at];
            hole = at;
        }
    }
    ghosts->table[hole] = 0;
}

static void forget_first(struct kvd_ghosts *ghosts)
{
    uint64_t hash = ghosts->ring[ghosts->first];

    if (hash)
        remove_at(ghosts, place_of(ghosts, hash));
    ghosts->first = (ghosts->first + 1) & (ghosts->room - 1);
    ghosts->length--;
}

static void append(struct kvd_ghosts *ghosts, uint64_t hash)
{
    uint32_t at = (ghosts->first + ghosts->length++) & (ghosts->room - 1);

    ghosts->ring[at] = hash;
    ghosts->table[place_of(ghosts, hash)] = at + 1;
}

/* False: it stays as it is. */
static bool grow(struct kvd_ghosts *ghosts)
{
    struct kvd_ghosts grown = {.room = ghosts->room ? 2 * ghosts->room : (uint32_t)GHOSTS_FIRST};

    if (grown.room > GHOSTS_MAX)
        return false;
    grown.ring = calloc(grown.room, sizeof *grown.ring);
    grown.table = calloc((size_t)2 * grown.room, sizeof *grown.table);
    if (!grown.ring || !grown.table) {
        kvd_ghosts_free(&grown);
        return false;
    }
    for (uint32_t i = 0; i < ghosts->length; i++) {
        uint64_t hash = ghosts->ring[(ghosts->first + i) & (ghosts->room - 1)];

        if (hash)
            append(&grown, hash);
        else
            grown.length++;
    }
    kvd_ghosts_free(ghosts);
    *ghosts = grown;
    return true;
}

void kvd_ghosts_add(struct kvd_ghosts *ghosts, uint64_t hash, uint32_t most)
{
    kvd_ghosts_take(ghosts, hash);
    while (ghosts->length && ghosts->length >= most)
        forget_first(ghosts);
    if (!most)
        return;
    if (ghosts->length == ghosts->room && !grow(ghosts)) {
        if (!ghosts->room)
            return;
        forget_first(ghosts);
    }
    append(ghosts, hash);
}

bool kvd_ghosts_take(struct kvd_ghosts *ghosts, uint64_t hash)
{
    uint32_t at;

    if (!ghosts->room)
        return false;
    at = place_of(ghosts, hash);
    if (!ghosts->table[at])
        return false;
    remove_at(ghosts, at);
    return true;
}
