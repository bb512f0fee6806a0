/* One piece of work is open at a time, told by its number. A helper enters it under the lock while
 * it is open and leaves under the lock; the caller closes it and then waits until nobody is inside.
 * So a helper that wakes late finds it closed and never touches work that is over. */
#include "server/device/team.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPINS = 64 }; /* a few microseconds: a pause takes about 140 cycles on current server CPUs */

struct helper {
    struct kvd_team *team;
    pthread_t thread;
    uint32_t index;
};

struct kvd_team {
    pthread_mutex_t lock;
    pthread_cond_t work, left; /* work: for helpers; left: for the caller */
    uint32_t threads, started; /* started: helpers */
    uint32_t waiting;
    _Atomic uint32_t inside; /* changed under the lock only */
    bool open, ending, spin;
    _Atomic uint32_t number; /* of the latest piece of work */
    _Atomic uint64_t next;   /* unit to be taken */
    uint64_t units;
    kvd_team_unit unit;
    void *context;
    struct helper *helpers;
};

uint32_t kvd_cpus_available(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 1)
        return 1;
    return (uint32_t)CPU_COUNT(&set);
}

static void take_units(struct kvd_team *team, uint32_t thread)
{
    uint64_t unit;

    while ((unit = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed)) < team->units)
        team->unit(team->context, thread, unit);
}

/* Looks for new work for a moment before a helper sleeps: a batch is often followed by the next. */
static void spin_for_work(struct kvd_team *team, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team->number, memory_order_relaxed) != seen)
            return;
        kvd_cpu_pause();
    }
}

static void *help(void *argument)
{
    struct helper *helper = argument;
    struct kvd_team *team = helper->team;
    uint32_t seen = 0;

    pthread_mutex_lock(&team->lock);
    while (!team->ending) {
        uint32_t number = atomic_load_explicit(&team->number, memory_order_relaxed);
        if (!team->open || number == seen) {
            seen = number;
            team->waiting++;
            pthread_cond_wait(&team->work, &team->lock);
            team->waiting--;
            continue;
        }
        seen = number;
        team->inside++;
        pthread_mutex_unlock(&team->lock);
        take_units(team, helper->index);
        pthread_mutex_lock(&team->lock);
        if (--team->inside == 0 && !team->open)
            pthread_cond_signal(&team->left);
        if (team->spin) {
            pthread_mutex_unlock(&team->lock);
            spin_for_work(team, seen);
            pthread_mutex_lock(&team->lock);
        }
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

kvarn_status kvd_team_open(struct kvd_team **team, uint32_t threads)
{
    struct kvd_team *made = calloc(1, sizeof(*made));

    assert(threads > 0);
    if (made == NULL)
        return KVARN_INTERNAL;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    pthread_cond_init(&made->left, NULL);
    made->threads = threads;
    made->spin = kvd_cpus_available() >= threads && threads > 1;
    made->helpers = calloc(threads, sizeof(*made->helpers));
    for (uint32_t i = 1; made->helpers != NULL && i < threads; i++) {
        struct helper *helper = &made->helpers[made->started];
        char name[16];
        *helper = (struct helper){.team = made, .index = i};
        if (pthread_create(&helper->thread, NULL, help, helper) != 0)
            break;
        snprintf(name, sizeof(name), "kvarn-w%u", i % 1000);
        pthread_setname_np(helper->thread, name);
        made->started++;
    }
    if (made->started + 1 != threads || made->helpers == NULL) {
        kvd_team_close(&made);
        return KVARN_INTERNAL;
    }
    *team = made;
    return KVARN_OK;
}

void kvd_team_close(struct kvd_team **team)
{
    struct kvd_team *closing = *team;

    if (closing == NULL)
        return;
    pthread_mutex_lock(&closing->lock);
    closing->ending = true;
    pthread_cond_broadcast(&closing->work);
    pthread_mutex_unlock(&closing->lock);
    for (uint32_t i = 0; i < closing->started; i++)
        pthread_join(closing->helpers[i].thread, NULL);
    pthread_cond_destroy(&closing->left);
    pthread_cond_destroy(&closing->work);
    pthread_mutex_destroy(&closing->lock);
    free(closing->helpers);
    free(closing);
    *team = NULL;
}

void kvd_team_run(struct kvd_team *team, uint64_t units, kvd_team_unit unit, void *context)
{
    if (units <= 1 || team->threads == 1) {
        for (uint64_t i = 0; i < units; i++)
            unit(context, 0, i);
        return;
    }
    pthread_mutex_lock(&team->lock);
    team->units = units;
    team->unit = unit;
    team->context = context;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&team->number, 1, memory_order_relaxed);
    team->open = true;
    uint64_t wake = units - 1 < team->waiting ? units - 1 : team->waiting;
    pthread_mutex_unlock(&team->lock);
    for (; wake > 0; wake--)
        pthread_cond_signal(&team->work);

    take_units(team, 0);
    pthread_mutex_lock(&team->lock);
    team->open = false;
    if (team->inside > 0 && team->spin) {
        /* the last units are mostly over in a moment */
        pthread_mutex_unlock(&team->lock);
        for (int i = 0; i < SPINS && atomic_load(&team->inside) > 0; i++)
            kvd_cpu_pause();
        pthread_mutex_lock(&team->lock);
    }
    while (team->inside > 0)
        pthread_cond_wait(&team->left, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

uint32_t kvd_team_threads(const struct kvd_team *team)
{
    return team->threads;
}
