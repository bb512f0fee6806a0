/* Words between blanks. See quota.h. */
#include "server/core/quota.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/size.h"

enum { WORD_MAX = 128 };

static const char *const tier_names[KVD_TIER_COUNT] = {"host", "gpu"};
static const char *const counted_names[KVD_COUNTED_COUNT] = {
    "requests", "spaces", "sequences", "leases", "leased-blocks", "pinned-blocks"};

/* The next word from *at on; false after the last, or with one that is too long. */
static bool next_word(const char **at, char word[WORD_MAX])
{
    size_t length;

    *at += strspn(*at, " \t");
    length = strcspn(*at, " \t");
    if (length == 0 || length >= WORD_MAX)
        return false;
    memcpy(word, *at, length);
    word[length] = '\0';
    *at += length;
    return true;
}

/* A name that HELLO, the log and the metrics can show as it is. */
static bool take_name(const char *word, char name[KVD_TENANT_NAME_MAX], const char **why)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

    *why = "a tenant's name has at most 31 letters, digits, '-', '_' and '.', as uid-1001";
    if (strlen(word) >= KVD_TENANT_NAME_MAX || word[strspn(word, allowed)] != '\0')
        return false;
    memcpy(name, word, strlen(word) + 1);
    return true;
}

/* "1GiB..4GiB", "..4GiB", "1GiB..", "4GiB" (a maximum) */
static bool take_bytes(const char *value, uint64_t *guaranteed, uint64_t *maximum, const char **why)
{
    const char *dots = strstr(value, "..");
    char least[WORD_MAX];

    *guaranteed = 0;
    *maximum = UINT64_MAX;
    if (dots == NULL)
        return kvd_size_parse(value, 0, maximum, why);
    snprintf(least, sizeof least, "%.*s", (int)(dots - value), value);
    if (least[0] != '\0' && !kvd_size_parse(least, 0, guaranteed, why))
        return false;
    if (dots[2] != '\0' && !kvd_size_parse(dots + 2, 0, maximum, why))
        return false;
    *why = "the guaranteed bytes are more than the maximum";
    return *guaranteed <= *maximum;
}

static bool take_count(const char *value, uint32_t *most, const char **why)
{
    char *end;
    unsigned long number = strtoul(value, &end, 10);

    *why = "a count is a whole number from 1 to 4294967294";
    if (*value < '0' || *value > '9' || *end != '\0' || number == 0 || number >= UINT32_MAX)
        return false;
    *most = (uint32_t)number;
    return true;
}

static bool take_setting(char *word, struct kvd_quota *quota, const char **why)
{
    char *value = strchr(word, '=');

    *why = "after the name come host=, gpu= (bytes, as 1GiB..4GiB), requests=, spaces=, "
           "sequences=, leases=, leased-blocks=, pinned-blocks=";
    if (value == NULL)
        return false;
    *value++ = '\0';
    for (int tier = 0; tier < KVD_TIER_COUNT; tier++)
        if (strcmp(word, tier_names[tier]) == 0)
            return take_bytes(value, &quota->guaranteed[tier], &quota->maximum[tier], why);
    for (int counted = 0; counted < KVD_COUNTED_COUNT; counted++)
        if (strcmp(word, counted_names[counted]) == 0)
            return take_count(value, &quota->most[counted], why);
    return false;
}

bool kvd_quota_parse(const char *text, struct kvd_quota *quota, const char **why)
{
    char word[WORD_MAX];
    bool any = false;

    memset(quota, 0, sizeof *quota);
    for (int tier = 0; tier < KVD_TIER_COUNT; tier++)
        quota->maximum[tier] = UINT64_MAX;
    for (int counted = 0; counted < KVD_COUNTED_COUNT; counted++)
        quota->most[counted] = UINT32_MAX;
    *why = "a quota begins with a tenant's name, as uid-1001 host=1GiB..4GiB";
    if (!next_word(&text, word) || !take_name(word, quota->name, why))
        return false;
    for (; next_word(&text, word); any = true)
        if (!take_setting(word, quota, why))
            return false;
    *why = any ? "a word is longer than 127 letters" : "a quota says something, as host=4GiB";
    return any && *text == '\0';
}

bool kvd_share_parse(const char *text, struct kvd_share *share, const char **why)
{
    char word[WORD_MAX];

    memset(share, 0, sizeof *share);
    *why = "a sharing group is a name and its members, as team uid-1001 uid-1002";
    if (!next_word(&text, word) || !take_name(word, share->name, why))
        return false;
    while (next_word(&text, word)) {
        *why = "a sharing group has at most 16 members";
        if (share->count == KVD_SHARE_MEMBERS_MAX ||
            !take_name(word, share->members[share->count], why))
            return false;
        share->count++;
    }
    *why = "a sharing group is a name and its members, as team uid-1001 uid-1002";
    return share->count > 0 && *text == '\0';
}
