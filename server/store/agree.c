/* A small table of what groups were told. See agree.h. */
#include "server/store/agree.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/block.h"
#include "server/store/lease.h"
#include "server/store/space.h"

static void end(struct kvd_agreements *agreements, struct kvd_agreement *at)
{
    free(at->ranks);
    memset(at, 0, sizeof *at);
    agreements->count--;
}

void kvd_agreements_free(struct kvd_agreements *agreements)
{
    for (uint32_t i = 0; i < agreements->high; i++)
        free(agreements->slots[i].ranks);
    memset(agreements, 0, sizeof *agreements);
}

void kvd_agreements_expire(struct kvd_agreements *agreements, uint64_t now_ns)
{
    for (uint32_t i = 0; agreements->count && i < agreements->high; i++)
        if (agreements->slots[i].ranks && agreements->slots[i].expires_ns <= now_ns)
            end(agreements, &agreements->slots[i]);
}

void kvd_agreements_conn_gone(struct kvd_agreements *agreements, uint64_t conn)
{
    for (uint32_t i = 0; agreements->count && i < agreements->high; i++)
        if (agreements->slots[i].ranks && agreements->slots[i].conn == conn)
            end(agreements, &agreements->slots[i]);
}

/* Of all keys, so that a group that mixes up two questions is told. */
static uint64_t hash_of(const struct kvd_spaces *spaces, const struct kvd_agree_question *question)
{
    uint64_t secret[2] = {spaces->secret[0], question->count};
    kvarn_key key;

    for (uint32_t i = 0; i < question->count; i++) {
        memcpy(key.bytes, question->keys + (size_t)i * KVARN_KEY_BYTES, sizeof key.bytes);
        secret[1] = kvd_index_hash(secret, &key);
    }
    return secret[1];
}

static struct kvd_agreement *find(struct kvd_agreements *agreements,
                                  const struct kvd_agree_question *question)
{
    for (uint32_t i = 0; i < agreements->high; i++) {
        struct kvd_agreement *at = &agreements->slots[i];

        if (at->ranks && at->group == question->group && at->tenant == question->space->tenant &&
            !memcmp(at->fingerprint, question->space->fingerprint, sizeof at->fingerprint))
            return at;
    }
    return NULL;
}

/* ---- the ranks that ask later */

static kvarn_status hand_out(struct kvd_agreements *agreements, struct kvd_leases *leases,
                             struct kvd_agreement *at, const struct kvd_agree_question *question,
                             uint64_t *lease)
{
    kvarn_status status = KVARN_OK;

    for (uint32_t i = 0; i < at->found; i++) {
        struct kvd_agreed_rank *rank = &at->ranks[i];

        if (rank->space != question->space->handle)
            continue;
        if (!rank->lease)
            return KVARN_STALE;
        status = kvd_lease_move(leases, at->conn, rank->lease, question->conn);
        *lease = rank->lease;
        rank->lease = 0;
        if (!--at->left)
            end(agreements, at);
        return status;
    }
    /* Without a match nothing is held, and so nobody is told apart. */
    if (at->matched)
        return KVARN_INVALID_SHAPE;
    if (!--at->left)
        end(agreements, at);
    return KVARN_OK;
}

/* ---- the rank that asks first */

static bool apart(const struct kvd_space *a, const struct kvd_space *b)
{
    return a->layer_begin + a->layers <= b->layer_begin ||
           b->layer_begin + b->layers <= a->layer_begin ||
           a->head_begin + a->heads <= b->head_begin || b->head_begin + b->heads <= a->head_begin;
}

static bool of_group(const struct kvd_space *asker, const struct kvd_space *space)
{
    return space == asker ||
           (space->used && !space->reset && space->tenant == asker->tenant &&
            space->heads == asker->heads && apart(asker, space) &&
            !memcmp(space->fingerprint, asker->fingerprint, sizeof asker->fingerprint));
}

/* The longest run that all of them have; 0 when they are not as many as the group says. */
static uint32_t run_of(const struct kvd_spaces *spaces, struct kvd_blocks *blocks,
                       const struct kvd_agree_question *question)
{
    uint32_t run = question->count, found = 0;

    for (size_t i = 0; i < KVD_SPACES_MAX; i++) {
        struct kvd_space *space = (struct kvd_space *)(uintptr_t)&spaces->slots[i];
        uint32_t own = 0;

        if (!of_group(question->space, space))
            continue;
        found++;
        kvd_block_find_many(blocks, space, question->keys, KVARN_KEY_BYTES, run, question->room);
        while (own < run && question->room[own])
            own++;
        run = own;
    }
    return found == question->ranks ? run : 0;
}

/* Leases over the run in every space of the group, all of who asks for now. */
static kvarn_status hold_all(const struct kvd_spaces *spaces, struct kvd_leases *leases,
                             struct kvd_agreement *at, const struct kvd_agree_question *question)
{
    kvarn_status status = KVARN_OK;

    for (size_t i = 0; i < KVD_SPACES_MAX && status == KVARN_OK; i++) {
        const struct kvd_space *space = &spaces->slots[i];
        struct kvd_agreed_rank *rank = &at->ranks[at->found];

        if (!of_group(question->space, space))
            continue;
        kvd_index_find_many(&space->index, question->keys, KVARN_KEY_BYTES, at->matched,
                            question->room);
        status = kvd_lease_new(leases, question->conn, space->tenant, question->expires_ns,
                               question->room, at->matched, &rank->lease);
        rank->space = space->handle;
        at->found += status == KVARN_OK;
    }
    while (status != KVARN_OK && at->found)
        kvd_lease_release(leases, question->conn, at->ranks[--at->found].lease);
    return status;
}

static struct kvd_agreement *make(struct kvd_agreements *agreements,
                                  const struct kvd_agree_question *question)
{
    uint32_t i = 0;
    struct kvd_agreement *at;

    while (i < agreements->high && agreements->slots[i].ranks)
        i++;
    if (i == KVD_AGREEMENTS_MAX)
        return NULL;
    at = &agreements->slots[i];
    at->ranks = calloc(question->ranks, sizeof *at->ranks);
    if (!at->ranks)
        return NULL;
    if (i == agreements->high)
        agreements->high++;
    agreements->count++;
    at->group = question->group;
    at->conn = question->conn;
    at->expires_ns = question->expires_ns;
    at->tenant = question->space->tenant;
    at->count = at->left = question->ranks;
    memcpy(at->fingerprint, question->space->fingerprint, sizeof at->fingerprint);
    return at;
}

kvarn_status kvd_agree(struct kvd_agreements *agreements, struct kvd_spaces *spaces,
                       struct kvd_blocks *blocks, struct kvd_leases *leases,
                       const struct kvd_agree_question *question, uint32_t *matched,
                       uint64_t *lease)
{
    uint64_t keys = hash_of(spaces, question);
    struct kvd_agreement *at = find(agreements, question);
    kvarn_status status;

    *lease = 0;
    if (at && (at->keys != keys || at->count != question->ranks))
        return KVARN_INVALID_SHAPE;
    if (!at) {
        at = make(agreements, question);
        if (!at)
            return KVARN_RETRY;
        at->keys = keys;
        at->matched = run_of(spaces, blocks, question);
        status = at->matched ? hold_all(spaces, leases, at, question) : KVARN_OK;
        if (status != KVARN_OK) {
            end(agreements, at);
            return status;
        }
    }
    *matched = at->matched;
    return hand_out(agreements, leases, at, question, lease);
}
