/* See clients.h. A call that is lost is made again: after RETRY when the daemon says so, at once
 * after GPU_LOST, on a new sequence after STALE. Whatever else it may answer is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "gpu/faults/client.h"

enum { TOLD_MOST = 10 /* wrong answers that are printed */ };

uint64_t drill_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- outcomes ---- */

static void note(struct drill_client *client, uint64_t *counter)
{
    struct drill_clients *all = client->all;

    pthread_mutex_lock(&all->lock);
    ++*counter;
    if (counter == &client->count.good)
        client->good_call_ns = client->call_ns;
    if (counter == &client->count.lost)
        client->lost_ns = drill_now_ns();
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

void drill_good(struct drill_client *client)
{
    note(client, &client->count.good);
}

void drill_wrong(struct drill_client *client, const char *what, double value)
{
    note(client, &client->count.wrong);
    if (atomic_fetch_add(&client->all->told, 1) < TOLD_MOST)
        printf("wrong: %s: %g\n", what, value);
}

void drill_begin(struct drill_client *client)
{
    client->call_ns = drill_now_ns();
}

/* True: the answer counts and is to be looked at. */
bool drill_answered(struct drill_client *client, const char *what, kvarn_status status)
{
    if (status == KVARN_OK)
        return true;
    if (status == KVARN_GPU_LOST || status == KVARN_RETRY ||
        (status == KVARN_STALE && client->work == DRILL_SEQUENCE)) {
        note(client, &client->count.lost);
        if (status == KVARN_RETRY)
            usleep(kvarn_client_retry_after_us(client->client)); /* as the daemon asks */
        return false;
    }
    char text[300];
    snprintf(text, sizeof(text), "%s: %s: %s", what, kvarn_status_name(status),
             kvarn_client_error(client->client));
    drill_wrong(client, text, status);
    return false;
}

/* ---- all of them ---- */

static void *work(void *context)
{
    static void (*const works[DRILL_WORKS])(struct drill_client *) = {
        [DRILL_READ] = drill_read,
        [DRILL_ATTEND] = drill_attend,
        [DRILL_WRITE] = drill_write,
        [DRILL_SEQUENCE] = drill_sequence,
    };
    struct drill_client *client = context;

    while (!atomic_load(&client->all->stop))
        works[client->work](client);
    return NULL;
}

static void open_client(struct drill_client *client, const char *address)
{
    const struct drill_shape *shape = &client->all->model->shape;
    size_t rows = DRILL_READ_MOST * drill_block_elements(shape);
    size_t answers = 2 * (size_t)shape->q_heads * shape->record.dim;

    client->rng = rng_make(rng_seed(7) + client->work);
    drill_must(client->client, "connect", kvarn_connect(&client->client, address, NULL));
    client->space = drill_open(client->client, shape);
    client->k = aligned_alloc(64, rows * 2);
    client->v = aligned_alloc(64, rows * 2);
    client->out = aligned_alloc(64, (answers * sizeof(float) + 63) / 64 * 64);
    if (client->k == NULL || client->v == NULL || client->out == NULL)
        drill_die("no memory");
    drill_fill(client->k, rows, 11);
    drill_fill(client->v, rows, 12);
    if (pthread_create(&client->thread, NULL, work, client) != 0)
        drill_die("no thread");
}

struct drill_clients *drill_clients_start(const struct drill_model *model, const char *address)
{
    struct drill_clients *made = calloc(1, sizeof(*made));
    pthread_condattr_t clock;

    if (made == NULL)
        drill_die("no memory");
    made->model = model;
    pthread_mutex_init(&made->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &clock);
    pthread_condattr_destroy(&clock);
    for (uint32_t i = 0; i < DRILL_WORKS; i++) {
        made->clients[i].all = made;
        made->clients[i].work = (enum drill_work)i;
        open_client(&made->clients[i], address);
    }
    return made;
}

struct drill_count drill_clients_count(struct drill_clients *all)
{
    struct drill_count sum = {0};

    pthread_mutex_lock(&all->lock);
    for (uint32_t i = 0; i < DRILL_WORKS; i++) {
        sum.good += all->clients[i].count.good;
        sum.lost += all->clients[i].count.lost;
        sum.wrong += all->clients[i].count.wrong;
    }
    pthread_mutex_unlock(&all->lock);
    return sum;
}

struct drill_count drill_clients_stop(struct drill_clients **clients)
{
    struct drill_clients *all = *clients;

    atomic_store(&all->stop, true);
    for (uint32_t i = 0; i < DRILL_WORKS; i++) {
        pthread_join(all->clients[i].thread, NULL);
        kvarn_close(&all->clients[i].client);
        free(all->clients[i].k);
        free(all->clients[i].v);
        free(all->clients[i].out);
    }
    struct drill_count sum = drill_clients_count(all);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
    *clients = NULL;
    return sum;
}

/* ---- waiting ---- */

static bool is_so(const struct drill_clients *all, enum drill_event event, uint64_t since_ns)
{
    uint32_t good_ones = 0;

    for (uint32_t i = 0; i < DRILL_WORKS; i++) {
        if (event == DRILL_LOST && all->clients[i].lost_ns > since_ns)
            return true;
        good_ones += all->clients[i].good_call_ns > since_ns;
    }
    return event == DRILL_FIRST_GOOD ? good_ones > 0
                                     : event == DRILL_ALL_GOOD && good_ones == DRILL_WORKS;
}

uint64_t drill_clients_wait(struct drill_clients *all, enum drill_event event, uint64_t since_ns,
                            uint32_t deadline_ms)
{
    uint64_t until = drill_now_ns() + deadline_ms * UINT64_C(1000000), when = 0;
    const struct timespec limit = {.tv_sec = (time_t)(until / 1000000000u),
                                   .tv_nsec = (long)(until % 1000000000u)};
    int error = 0;

    pthread_mutex_lock(&all->lock);
    while (!is_so(all, event, since_ns) && error == 0)
        error = pthread_cond_timedwait(&all->changed, &all->lock, &limit);
    if (is_so(all, event, since_ns))
        when = drill_now_ns();
    pthread_mutex_unlock(&all->lock);
    return when;
}
