/* Tables of the disk tier, against a slow model of what must be found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/store/disk.h"
#include "support/rng.h"

enum { KEYS = 600, STEPS = 200000, TENANTS = 2 };

static struct kvd_disk_identity identity_of(uint32_t tenant)
{
    struct kvd_disk_identity identity = {.layers = 2, .heads = 2, .slot_bytes = {9000, 30000}};

    identity.tenant[0] = (char)('a' + tenant);
    return identity;
}

static kvarn_key key_of(uint32_t number)
{
    kvarn_key key = {{0}};

    memcpy(key.bytes, &number, sizeof number);
    return key;
}

struct known {
    struct kvd_disk_record *record; /* FILLING or READY here; NULL: neither */
    bool ready, persistent, held;
};

struct model {
    struct kvd_disk *disk;
    uint32_t spaces[TENANTS];
    struct known known[TENANTS][KEYS];
    uint64_t published, removed;
};

static void open_model(struct model *m, uint64_t capacity)
{
    static const uint64_t secret[2] = {3, 5};

    memset(m, 0, sizeof *m);
    m->disk = kvd_disk_new(capacity, secret);
    assert_non_null(m->disk);
    for (uint32_t t = 0; t < TENANTS; t++) {
        struct kvd_disk_identity identity = identity_of(t);

        m->spaces[t] = kvd_disk_space(m->disk, &identity);
    }
}

/* What the caller of the tables owes them: segments made and dropped, entries cleared. */
static void serve(struct model *m, struct kvd_disk_segment *make)
{
    struct kvd_disk_record *record;
    struct kvd_disk_segment *segment;

    if (make)
        kvd_disk_made(m->disk, make, true);
    while ((record = kvd_disk_clear_next(m->disk)) != NULL)
        kvd_disk_cleared(m->disk, record);
    while ((segment = kvd_disk_drop_next(m->disk)) != NULL)
        kvd_disk_dropped(m->disk, segment);
}

/* The quota may have taken what is neither persistent, nor held, nor FILLING. */
static void look(struct model *m, uint32_t tenant, uint32_t number)
{
    struct known *known = &m->known[tenant][number];
    kvarn_key key = key_of(number);
    struct kvd_disk_record *found = kvd_disk_find(m->disk, m->spaces[tenant], &key);

    if (found) {
        assert_ptr_equal(found, known->record);
        assert_true(known->ready);
        assert_int_equal(found->entry.persistent, known->persistent);
        assert_memory_equal(&found->entry.key, &key, sizeof key);
        assert_int_equal(found->segment->space, m->spaces[tenant]);
    } else if (known->ready) {
        assert_false(known->persistent);
        assert_false(known->held);
        *known = (struct known){0};
    }
}

static void claim(struct model *m, uint32_t tenant, uint32_t number)
{
    struct known *known = &m->known[tenant][number];
    kvarn_key key = key_of(number);
    struct kvd_disk_segment *make;
    struct kvd_disk_record *record;
    kvarn_status status;

    if (known->record)
        return;
    for (int i = 0; i < 20; i++) {
        status = kvd_disk_claim(m->disk, m->spaces[tenant], &key, 1 + number % 2, &record, &make);
        serve(m, make);
        if (status != KVARN_RETRY)
            break;
    }
    assert_int_not_equal(status, KVARN_RETRY);
    if (status == KVARN_OK)
        known->record = record;
    else
        assert_int_equal(status, KVARN_NO_SPACE);
    assert_true(m->disk->used_bytes <= m->disk->capacity_bytes);
}

static void step(struct model *m, struct rng *rng)
{
    uint32_t tenant = (uint32_t)rng_below(rng, TENANTS), number = (uint32_t)rng_below(rng, KEYS);
    struct known *known = &m->known[tenant][number];

    look(m, tenant, number);
    switch (rng_below(rng, 8)) {
    case 0:
    case 1:
    case 2:
        claim(m, tenant, number);
        break;
    case 3:
    case 4:
        if (!known->record || known->ready)
            break;
        known->persistent = known->record->entry.persistent = rng_below(rng, 16) == 0;
        assert_int_equal(kvd_disk_publish(m->disk, known->record), KVARN_OK);
        known->ready = true;
        break;
    case 5:
        if (known->record && !known->ready) {
            kvd_disk_abandon(m->disk, known->record);
            *known = (struct known){0};
        }
        break;
    case 6:
        if (!known->ready || known->held)
            break;
        if (rng_below(rng, 50) == 0)
            kvd_disk_condemn(m->disk, known->record);
        else
            kvd_disk_remove(m->disk, known->record);
        *known = (struct known){0};
        break;
    default:
        if (known->held)
            kvd_disk_release(m->disk, known->record);
        else if (known->ready)
            kvd_disk_hold(known->record);
        if (known->ready)
            known->held = !known->held;
    }
}

static void what_is_found_is_what_was_put(void **state)
{
    static struct model m;
    struct rng rng = rng_make(rng_seed(42));
    uint64_t found = 0;

    (void)state;
    open_model(&m, 16 << 20);
    for (uint32_t i = 0; i < STEPS; i++)
        step(&m, &rng);
    for (uint32_t t = 0; t < TENANTS; t++)
        for (uint32_t k = 0; k < KEYS; k++) {
            look(&m, t, k);
            found += m.known[t][k].ready;
        }
    assert_int_equal(found, m.disk->count);
    assert_true(found > 100);
    assert_true(m.disk->evictions > 1000);
    kvd_disk_free(&m.disk);
}

/* A full file system: what there is goes on; when some of it goes, there is room again. */
static void a_segment_that_cannot_be_made(void **state)
{
    static struct model m;
    struct kvd_disk_segment *make;
    struct kvd_disk_record *record;
    kvarn_key key = key_of(1);

    (void)state;
    open_model(&m, 64 << 20);
    assert_int_equal(kvd_disk_claim(m.disk, m.spaces[0], &key, 1, &record, &make), KVARN_RETRY);
    assert_non_null(make);
    kvd_disk_made(m.disk, make, false);
    assert_int_equal(m.disk->used_bytes, 0);
    assert_int_equal(kvd_disk_claim(m.disk, m.spaces[0], &key, 1, &record, &make), KVARN_NO_SPACE);
    assert_null(make);
    m.disk->limit_bytes = m.disk->capacity_bytes; /* as the tick does after a while */
    assert_int_equal(kvd_disk_claim(m.disk, m.spaces[0], &key, 1, &record, &make), KVARN_RETRY);
    kvd_disk_made(m.disk, make, true);
    assert_int_equal(kvd_disk_claim(m.disk, m.spaces[0], &key, 1, &record, &make), KVARN_OK);
    kvd_disk_abandon(m.disk, record);
    kvd_disk_free(&m.disk);
}

/* One tenant's full disk is not emptied for another's sake. */
static void tenants_do_not_take_each_others_room(void **state)
{
    static struct model m;

    (void)state;
    open_model(&m, 4 << 20);
    for (uint32_t k = 0; k < KEYS; k += 2) {
        claim(&m, 0, k);
        if (!m.known[0][k].record)
            break;
        assert_int_equal(kvd_disk_publish(m.disk, m.known[0][k].record), KVARN_OK);
        m.known[0][k].ready = true;
    }
    assert_true(m.disk->count > 50);
    claim(&m, 1, 0);
    assert_null(m.known[1][0].record);
    kvd_disk_forget(m.disk, m.spaces[0], false);
    assert_int_equal(m.disk->count, 0);
    serve(&m, NULL);
    claim(&m, 1, 0);
    assert_non_null(m.known[1][0].record);
    kvd_disk_free(&m.disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_found_is_what_was_put),
        cmocka_unit_test(a_segment_that_cannot_be_made),
        cmocka_unit_test(tenants_do_not_take_each_others_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
