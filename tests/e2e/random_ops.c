/* Random puts, gets, deletes, leases and pins of 8 clients at once, against a checker that knows
 * every acknowledged block.
 *
 *   random_ops OPERATIONS [SEED]
 *
 * An operation is one block of one call. Every client has keys of its own, so that it knows what
 * must be there, and all share some, of which they know the bytes. Two runs: in a pool where
 * everything fits (nothing may be missing) and in one where a third does (what is missing was
 * evicted, and the counters must say how many; what is leased or pinned may not go). In both: what
 * is found has the bytes that belong to its key, what was deleted stays deleted, and at the end the
 * daemon's counters are those of the clients to the last block. Prints a line for each run; exits 0
 * when nothing was wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/e2e/model.h"
#include "tests/support/daemon.h"
#include "tests/support/rng.h"

enum {
    CLIENTS = 8,
    OWN = 4000,    /* keys of each client */
    SHARED = 2000, /* and of all */
    KEYS = CLIENTS * OWN + SHARED,
    CONTENTS = 1024, /* different blocks; a key names one of them */
    BATCH = 16,
    LEASES = 4,
    GROUP = 64,
    DIM = 64,
    LEASE_MS = 600000
};

/* What a client knows of its own keys. Of the shared ones it knows the bytes alone. */
struct own {
    bool stored, pinned;
    uint8_t leases;
};

struct lease {
    uint64_t handle;
    uint32_t keys[BATCH], count;
};

struct worker {
    uint32_t number;
    uint64_t operations;
    bool all_fits;
    struct rng rng;
    kvarn_client *client;
    uint64_t space;
    struct own own[OWN];
    struct lease leases[LEASES];
    /* of acknowledged answers */
    uint64_t stored, existed, dropped, hits, misses, evicted_seen, wrong;
    uint8_t bytes[BATCH * 4096];
};

static struct test_daemon daemon_;
static uint8_t *contents; /* [CONTENTS][tile_bytes] */
static uint32_t digests[CONTENTS];
static size_t tile_bytes;
static kvarn_origin origin;
static struct worker workers[CLIENTS];

static kvarn_key key_of(uint32_t number)
{
    struct rng rng = rng_make(number + 1);
    kvarn_key key;

    for (size_t word = 0; word < sizeof key.bytes; word += 8) {
        uint64_t value = rng_next(&rng);

        memcpy(key.bytes + word, &value, sizeof value);
    }
    return key;
}

static uint32_t content_of(uint32_t number)
{
    return number * 2654435761u % CONTENTS;
}

static void wrong(struct worker *w, const char *what, uint32_t number)
{
    if (w->wrong++ < 10)
        fprintf(stderr, "client %u: key %u: %s\n", w->number, number, what);
}

static struct own *own_of(struct worker *w, uint32_t number)
{
    return number / OWN == w->number && number < CLIENTS * OWN ? &w->own[number % OWN] : NULL;
}

/* Different keys, mostly the client's own. */
static uint32_t choose(struct worker *w, uint32_t numbers[BATCH], kvarn_key keys[BATCH])
{
    bool shared = rng_below(&w->rng, 8) == 0;
    uint32_t count = 1 + rng_below(&w->rng, BATCH), span = shared ? SHARED : OWN;
    uint32_t base = shared ? CLIENTS * OWN : w->number * OWN, at = rng_below(&w->rng, span);

    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = base + at;
        keys[i] = key_of(numbers[i]);
        at = (at + 1 + rng_below(&w->rng, 3)) % span;
    }
    return count;
}

static void expect(struct worker *w, kvarn_status status, const char *what)
{
    if (status == KVARN_OK || status == KVARN_NOT_FOUND)
        return;
    fprintf(stderr, "client %u: %s: %s\n", w->number, what, kvarn_client_error(w->client));
    w->wrong++;
}

/* A look at one key: is that an answer that may be? */
static void look(struct worker *w, uint32_t number, bool found)
{
    struct own *own = own_of(w, number);

    w->hits += found;
    w->misses += !found;
    if (!own)
        return;
    if (found && !own->stored)
        wrong(w, "was deleted, or never stored, and is there", number);
    if (!found && own->stored && (own->leases || own->pinned))
        wrong(w, "is leased or pinned, and is gone", number);
    if (!found && own->stored && w->all_fits)
        wrong(w, "was stored, and is gone", number);
    if (!found && own->stored) {
        own->stored = false;
        w->evicted_seen++;
    }
}

static uint32_t put(struct worker *w)
{
    uint32_t numbers[BATCH];
    kvarn_key keys[BATCH];
    kvarn_block_result blocks[BATCH], results[BATCH];
    kvarn_import_args args = KVARN_IMPORT_INIT;
    uint32_t count = choose(w, numbers, keys);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t content = content_of(numbers[i]);

        memcpy(w->bytes + i * tile_bytes, contents + content * tile_bytes, tile_bytes);
        blocks[i] = (kvarn_block_result){.kind = KVARN_BLOCK_TILE, .digest = digests[content]};
    }
    args.space = w->space;
    args.keys = keys;
    args.blocks = blocks;
    args.count = count;
    args.bytes = w->bytes;
    args.bytes_count = count * tile_bytes;
    args.origin = &origin;
    args.results = results;
    expect(w, kvarn_import_blocks(w->client, &args), "import");
    for (uint32_t i = 0; i < count; i++) {
        struct own *own = own_of(w, numbers[i]);

        w->stored += results[i].status == KVARN_OK;
        w->existed += results[i].status == KVARN_EXISTS;
        if (results[i].status != KVARN_OK && results[i].status != KVARN_EXISTS)
            wrong(w, kvarn_status_name(results[i].status), numbers[i]);
        else if (own && results[i].status == KVARN_EXISTS && !own->stored)
            wrong(w, "exists, and was deleted or never stored", numbers[i]);
        else if (own && results[i].status == KVARN_OK && own->stored) {
            if (w->all_fits || own->leases || own->pinned)
                wrong(w, "was stored, and is stored anew", numbers[i]);
            w->evicted_seen++;
        }
        if (own)
            own->stored = true;
    }
    return count;
}

static uint32_t get(struct worker *w)
{
    uint32_t numbers[BATCH];
    kvarn_key keys[BATCH];
    kvarn_block_result results[BATCH];
    kvarn_export_args args = KVARN_EXPORT_INIT;
    size_t at = 0;

    args.space = w->space;
    args.keys = keys;
    args.count = choose(w, numbers, keys);
    args.bytes = w->bytes;
    args.bytes_capacity = sizeof w->bytes;
    args.results = results;
    expect(w, kvarn_export(w->client, &args), "export");
    for (uint32_t i = 0; i < args.count; i++) {
        uint32_t content = content_of(numbers[i]);

        look(w, numbers[i], results[i].status == KVARN_OK);
        if (results[i].status != KVARN_OK)
            continue;
        if (results[i].digest != digests[content] ||
            memcmp(w->bytes + at, contents + content * tile_bytes, tile_bytes) != 0)
            wrong(w, "has wrong bytes", numbers[i]);
        at += tile_bytes;
    }
    return (uint32_t)args.count;
}

static uint32_t drop(struct worker *w)
{
    uint32_t numbers[BATCH];
    kvarn_key keys[BATCH];
    kvarn_block_result results[BATCH];
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    uint32_t count;

    args.space = w->space;
    args.keys = keys;
    args.results = results;
    count = choose(w, numbers, keys);
    for (uint32_t i = 0; i < count; i++) { /* not what is leased: a lease keeps bytes, not keys */
        const struct own *own = own_of(w, numbers[i]);

        if (own && own->leases)
            continue;
        numbers[args.count] = numbers[i];
        keys[args.count++] = keys[i];
    }
    if (args.count == 0)
        return 0;
    expect(w, kvarn_drop(w->client, &args), "drop");
    for (uint32_t i = 0; i < args.count; i++) {
        struct own *own = own_of(w, numbers[i]);
        bool found = results[i].status == KVARN_OK;

        w->dropped += found;
        if (own && found != own->stored) {
            if (found || w->all_fits || own->pinned)
                wrong(w, found ? "was not stored, and is dropped" : "was stored, and is gone",
                      numbers[i]);
            w->evicted_seen++;
        }
        if (own)
            *own = (struct own){.stored = false};
    }
    return (uint32_t)args.count;
}

static void release(struct worker *w, struct lease *lease)
{
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    args.lease = lease->handle;
    expect(w, kvarn_release(w->client, &args), "release");
    for (uint32_t i = 0; i < lease->count; i++)
        w->own[lease->keys[i] % OWN].leases--;
    lease->handle = 0;
}

/* Takes a lease where none is held, or gives one back. */
static uint32_t lease(struct worker *w)
{
    struct lease *lease = &w->leases[rng_below(&w->rng, LEASES)];
    uint32_t numbers[BATCH];
    kvarn_key keys[BATCH];
    kvarn_block_result results[BATCH];
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    if (lease->handle) {
        release(w, lease);
        return lease->count;
    }
    args.space = w->space;
    args.keys = keys;
    args.count = choose(w, numbers, keys);
    args.results = results;
    args.lease_ms = own_of(w, numbers[0]) ? LEASE_MS : 0;
    expect(w, kvarn_lookup(w->client, &args), "lookup");
    for (uint32_t i = 0; i < args.count; i++)
        look(w, numbers[i], results[i].status == KVARN_OK);
    lease->handle = args.lease;
    lease->count = args.lease ? (uint32_t)args.matched : 0;
    for (uint32_t i = 0; i < lease->count; i++) {
        lease->keys[i] = numbers[i];
        w->own[numbers[i] % OWN].leases++;
    }
    return (uint32_t)args.count;
}

static uint32_t pin(struct worker *w)
{
    uint32_t number = w->number * OWN + rng_below(&w->rng, OWN);
    struct own *own = own_of(w, number);
    kvarn_key key = key_of(number);
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    kvarn_status status;

    args.space = w->space;
    args.keys = &key;
    args.count = 1;
    args.unpin = own->pinned;
    status = kvarn_pin(w->client, &args);
    expect(w, status, "pin");
    if (status == KVARN_NOT_FOUND && own->stored && (own->pinned || own->leases || w->all_fits))
        wrong(w, "was stored, and cannot be pinned", number);
    if (status == KVARN_OK)
        own->pinned = !args.unpin;
    return 1;
}

static void *work(void *context)
{
    struct worker *w = context;
    uint64_t done = 0;

    while (done < w->operations) {
        uint32_t what = rng_below(&w->rng, 100);

        done += what < 38   ? put(w)
                : what < 75 ? get(w)
                : what < 83 ? drop(w)
                : what < 98 ? lease(w)
                            : pin(w);
    }
    w->operations = done;
    for (size_t i = 0; i < LEASES; i++)
        if (w->leases[i].handle)
            release(w, &w->leases[i]);
    return NULL;
}

/* ---- before and after */

static kvarn_space_options open_space(kvarn_client *client)
{
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;

    space.model = "random";
    space.layers = 1;
    space.kv_heads = 1;
    space.head_dim = DIM;
    space.dtype = KVARN_F16;
    space.preset = "kvarn_k2v2_g64";
    model_expect(client, kvarn_open_space(client, &space), KVARN_OK, "open");
    return space;
}

/* Blocks as the daemon itself makes them, each of other rows. */
static void make_contents(kvarn_client *client)
{
    enum { AT_ONCE = 64 };
    kvarn_space_options space = open_space(client);
    static uint16_t rows[2][AT_ONCE * GROUP * DIM];
    kvarn_key keys[AT_ONCE];
    struct rng rng = rng_make(99);

    tile_bytes = space.tile_block_bytes;
    assert_true(tile_bytes * BATCH <= sizeof workers[0].bytes);
    contents = malloc(CONTENTS * tile_bytes);
    assert_non_null(contents);
    for (uint32_t first = 0; first < CONTENTS; first += AT_ONCE) {
        kvarn_compress_args put = KVARN_COMPRESS_INIT;
        kvarn_export_args get = KVARN_EXPORT_INIT;
        kvarn_blocks_args drop = KVARN_BLOCKS_INIT;
        kvarn_block_result results[AT_ONCE];

        for (size_t i = 0; i < sizeof rows / sizeof rows[0][0]; i++)
            (&rows[0][0])[i] = (uint16_t)(0x3000u + (rng_next(&rng) & 0x8bffu));
        for (uint32_t i = 0; i < AT_ONCE; i++)
            keys[i] = key_of(KEYS + i);
        put.space = get.space = drop.space = space.space;
        put.keys = get.keys = drop.keys = keys;
        put.count = get.count = drop.count = AT_ONCE;
        put.k = rows[0];
        put.v = rows[1];
        get.bytes = contents + first * tile_bytes;
        get.bytes_capacity = AT_ONCE * tile_bytes;
        get.results = results;
        model_expect(client, kvarn_compress(client, &put), KVARN_OK, "compress");
        model_expect(client, kvarn_export(client, &get), KVARN_OK, "export");
        model_expect(client, kvarn_drop(client, &drop), KVARN_OK, "drop");
        for (uint32_t i = 0; i < AT_ONCE; i++)
            digests[first + i] = results[i].digest;
        origin = get.origin;
    }
}

static double metric(kvarn_client *client, const char *name)
{
    static kvarn_metric metrics[256];
    kvarn_stats_args args = KVARN_STATS_INIT;

    args.metrics = metrics;
    args.capacity = 256;
    model_expect(client, kvarn_stats(client, &args), KVARN_OK, "stats");
    for (size_t i = 0; i < args.count; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    fail_msg("no metric %s", name);
    return 0;
}

/* How many of all keys are there. */
static uint64_t present(kvarn_client *client, uint64_t space)
{
    uint64_t found = 0;

    for (uint32_t first = 0; first < KEYS; first += 1000) {
        kvarn_key keys[1000];
        kvarn_block_result results[1000];
        kvarn_blocks_args args = KVARN_BLOCKS_INIT;

        for (uint32_t i = 0; i < 1000; i++)
            keys[i] = key_of(first + i);
        args.space = space;
        args.keys = keys;
        args.count = 1000;
        args.results = results;
        model_expect(client, kvarn_lookup(client, &args), KVARN_OK, "lookup");
        for (uint32_t i = 0; i < 1000; i++)
            found += results[i].status == KVARN_OK;
    }
    return found;
}

static bool same(const char *what, double daemons, uint64_t clients)
{
    if (daemons == (double)clients)
        return true;
    fprintf(stderr, "%s: the daemon counts %.0f, the clients %llu\n", what, daemons,
            (unsigned long long)clients);
    return false;
}

static bool settle(kvarn_client *client, uint64_t space, double seconds)
{
    uint64_t stored = CONTENTS, existed = 0, dropped = CONTENTS, hits = CONTENTS, misses = 0;
    uint64_t wrongs = 0, seen = 0, operations = 0, there;
    double evictions = metric(client, "kvarn_evictions_total");
    bool fine = true;

    for (size_t i = 0; i < CLIENTS; i++) {
        stored += workers[i].stored;
        existed += workers[i].existed;
        dropped += workers[i].dropped;
        hits += workers[i].hits;
        misses += workers[i].misses;
        wrongs += workers[i].wrong;
        seen += workers[i].evicted_seen;
        operations += workers[i].operations;
    }
    fine &= same("stored", metric(client, "kvarn_blocks_stored_total"), stored);
    fine &= same("existed", metric(client, "kvarn_blocks_existed_total"), existed);
    fine &= same("dropped", metric(client, "kvarn_blocks_dropped_total"), dropped);
    fine &= same("hits", metric(client, "kvarn_block_hits_total"), hits);
    fine &= same("misses", metric(client, "kvarn_block_misses_total"), misses);
    fine &= same("leases", metric(client, "kvarn_leases"), 0);
    fine &= same("differing digests", metric(client, "kvarn_digest_differences_total"), 0);
    fine &= same("integrity failures", metric(client, "kvarn_integrity_failures_total"), 0);
    there = present(client, space);
    fine &= same("stored - dropped - evicted", (double)stored - (double)dropped - evictions, there);
    fine &= !workers[0].all_fits || same("evictions", evictions, 0);
    fine &= evictions >= (double)seen;
    printf("%llu operations of %d clients in %.1f s: %llu stored, %llu found, %llu dropped, %.0f "
           "evicted, %llu there, %llu wrong: %s\n",
           (unsigned long long)operations, CLIENTS, seconds, (unsigned long long)stored,
           (unsigned long long)hits, (unsigned long long)dropped, evictions,
           (unsigned long long)there, (unsigned long long)wrongs,
           fine && !wrongs ? "fine" : "NOT FINE");
    return fine && !wrongs;
}

static double now(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static bool play(const char *pool, bool all_fits, uint64_t operations, uint64_t seed)
{
    pthread_t threads[CLIENTS];
    kvarn_client *client;
    uint64_t space;
    double begin;
    bool fine;

    test_daemon_start(&daemon_, pool);
    client = model_connect(daemon_.unix_address);
    make_contents(client);
    space = open_space(client).space;
    memset(workers, 0, sizeof workers);
    begin = now();
    for (uint32_t i = 0; i < CLIENTS; i++) {
        workers[i].number = i;
        workers[i].operations = operations / CLIENTS;
        workers[i].all_fits = all_fits;
        workers[i].rng = rng_make(seed * CLIENTS + i);
        workers[i].client = model_connect(daemon_.unix_address);
        workers[i].space = open_space(workers[i].client).space;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        kvarn_close(&workers[i].client);
    }
    fine = settle(client, space, now() - begin);
    kvarn_close(&client);
    free(contents);
    assert_int_equal(test_daemon_stop(&daemon_), 0);
    return fine;
}

int main(int count, char **values)
{
    uint64_t operations = count > 1 ? strtoull(values[1], NULL, 10) : 0;
    uint64_t seed = count > 2 ? strtoull(values[2], NULL, 0) : rng_seed(1);
    bool fine;

    if (operations == 0) {
        fprintf(stderr, "usage: random_ops OPERATIONS [SEED]\n");
        return 2;
    }
    fine = play("host:256MiB", true, operations / 2, seed);
    fine &= play("host:32MiB", false, operations / 2, seed + 1);
    return !fine;
}
