/* Units are required: a bare number is as often meant in megabytes as in bytes. */
#include "server/core/size.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct unit {
    const char *name;
    uint64_t bytes;
};

static const struct unit units[] = {
    {"T", 1ull << 40},   {"G", 1ull << 30},        {"M", 1ull << 20},   {"K", 1ull << 10},
    {"TiB", 1ull << 40}, {"TB", 1000000000000ull}, {"GiB", 1ull << 30}, {"GB", 1000000000ull},
    {"MiB", 1ull << 20}, {"MB", 1000000ull},       {"KiB", 1ull << 10}, {"kB", 1000ull},
    {"B", 1ull},
};

enum { UNITS = sizeof units / sizeof units[0] };

static bool parse_percent(uint64_t number, uint64_t memory_bytes, uint64_t *bytes, const char **why)
{
    if (number < 1 || number > 100) {
        *why = "a share of memory is 1% to 100%";
        return false;
    }
    *bytes = memory_bytes / 100 * number;
    return true;
}

bool kvd_size_parse(const char *text, uint64_t memory_bytes, uint64_t *bytes, const char **why)
{
    const char *at = text;
    uint64_t number = 0;

    if (*at < '0' || *at > '9') {
        *why = "a size is a whole number and a unit, as 64MiB, 16GiB, 30gb or 80%";
        return false;
    }
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(number, 10u, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number)) {
            *why = "the number is too large";
            return false;
        }
    }
    if (*at == '.' || *at == ',') {
        *why = "a fraction is not taken; write a whole number of a smaller unit, as 4608MiB for "
               "4.5GiB";
        return false;
    }
    if (strcmp(at, "%") == 0)
        return parse_percent(number, memory_bytes, bytes, why);
    for (size_t i = 0; i < UNITS; i++) {
        if (strcasecmp(at, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(number, units[i].bytes, bytes)) {
            *why = "the number is too large";
            return false;
        }
        return true;
    }
    *why = *at == '\0' ? "the unit is missing, as in 64MiB, 16GiB, 30gb or 80%"
                       : "the unit is none of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (or K, M, G, T "
                         "for these), %";
    return false;
}

void kvd_size_format(uint64_t bytes, char out[KVD_SIZE_TEXT_MAX])
{
    const struct unit *best = &units[UNITS - 1];

    for (size_t i = UNITS; i-- > 0;)
        if (bytes != 0 && bytes % units[i].bytes == 0 && units[i].bytes > best->bytes)
            best = &units[i];
    snprintf(out, KVD_SIZE_TEXT_MAX, "%llu%s", (unsigned long long)(bytes / best->bytes),
             best->name);
}

/* A limit that a control group sets; UINT64_MAX when there is none. */
static uint64_t group_limit(const char *path)
{
    FILE *file = fopen(path, "re");
    unsigned long long limit = 0;
    int got;

    if (file == NULL)
        return UINT64_MAX;
    got = fscanf(file, "%llu", &limit); /* "max" is no number */
    fclose(file);
    return got == 1 && limit > 0 ? limit : UINT64_MAX;
}

uint64_t kvd_memory_bytes(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        uint64_t limit = group_limit(limits[i]);

        if (limit < bytes)
            bytes = limit;
    }
    return bytes;
}
