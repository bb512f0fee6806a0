/* kvarnctl flush, reset, pin, persist, erase: what changes stored blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

struct options {
    uint64_t space;
    bool given, keyed, unpin;
    kvarn_key key;
};

static void take_key(const struct argp_state *state, const char *text, kvarn_key *key)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < 2 * sizeof key->bytes; i++) {
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;

        if (digit == NULL)
            argp_error(state, "--key %.80s: a key is 64 hexadecimal digits", text);
        key->bytes[i / 2] = (uint8_t)(key->bytes[i / 2] << 4 | (digit - digits));
    }
    if (text[2 * sizeof key->bytes] != '\0')
        argp_error(state, "--key %.80s: a key is 64 hexadecimal digits", text);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 's':
        options->space = ctl_number(state, "--space", text, 0, UINT64_MAX);
        options->given = true;
        return 0;
    case 'k':
        take_key(state, text, &options->key);
        options->keyed = true;
        return 0;
    case 'u':
        options->unpin = true;
        return 0;
    case ARGP_KEY_END:
        if (!options->given)
            argp_error(state, "--space is needed; kvarnctl ls shows the numbers");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option flags[] = {
    {"space", 's', "ID", 0, "the space; ls shows the numbers", 0},
    {0},
};

/* ---- flush */

int ctl_flush(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;
    json_int_t dropped = 0;

    ctl_parse(
        ctl, flags, parse, &options,
        "Drops every block of a space that is not pinned, on disk too. Who reads one may go on."
        "\v"
        "Examples:\n"
        "  kvarnctl flush --space 3\n",
        argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    args.space = options.space;
    args.all = 1;
    do {
        kvarn_status status = kvarn_drop(ctl->client, &args);
        if (status != KVARN_OK)
            return ctl_fail(ctl, ctl->client, status);
        dropped += (json_int_t)args.matched;
    } while (args.cursor != 0);
    ctl_print_one(ctl->format, "flush",
                  json_pack("{s:I, s:I}", "space", (json_int_t)args.space, "dropped", dropped));
    return CTL_FINE;
}

/* ---- reset */

int ctl_reset(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    ctl_parse(
        ctl, flags, parse, &options,
        "Says that the weights of a space's model changed: nothing that was computed with the "
        "old ones is found again, in any of its shards, and clients must open their spaces anew."
        "\v"
        "Examples:\n"
        "  kvarnctl reset --space 3\n",
        argc, argv);
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    args.space = options.space;
    kvarn_status status = kvarn_reset(ctl->client, &args);
    if (status != KVARN_OK)
        return ctl_fail(ctl, ctl->client, status);
    ctl_print_one(ctl->format, "reset",
                  json_pack("{s:I}", "spaces_reset", (json_int_t)args.matched));
    return CTL_FINE;
}

/* ---- pin */

static const struct argp_option pin_flags[] = {
    {"space", 's', "ID", 0, "the space; ls shows the numbers", 0},
    {"key", 'k', "HEX", 0, "the block", 0},
    {"unpin", 'u', NULL, 0, "let it go again", 0},
    {0},
};

int ctl_pin(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    ctl_parse(ctl, pin_flags, parse, &options,
              "Keeps a block whatever else needs room, until it is unpinned or dropped."
              "\v"
              "Examples:\n"
              "  kvarnctl pin --space 3 --key 6fd1...\n"
              "  kvarnctl pin --space 3 --key 6fd1... --unpin\n",
              argc, argv);
    if (!options.keyed) {
        fprintf(stderr, "kvarnctl pin: --key is needed\n");
        return CTL_USAGE;
    }
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    args.space = options.space;
    args.keys = &options.key;
    args.count = 1;
    args.unpin = options.unpin;
    kvarn_status status = kvarn_pin(ctl->client, &args);
    return status == KVARN_OK ? CTL_FINE : ctl_fail(ctl, ctl->client, status);
}

/* ---- persist */

static const struct argp_option persist_flags[] = {
    {"space", 's', "ID", 0, "the space; ls shows the numbers", 0},
    {"key", 'k', "HEX", 0, "the block", 0},
    {0},
};

int ctl_persist(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    kvarn_blocks_args args = KVARN_BLOCKS_INIT;

    ctl_parse(ctl, persist_flags, parse, &options,
              "Ends when the block is synced on the daemon's disk; it stays there until it is "
              "dropped."
              "\v"
              "Examples:\n"
              "  kvarnctl persist --space 3 --key 6fd1...\n",
              argc, argv);
    if (!options.keyed) {
        fprintf(stderr, "kvarnctl persist: --key is needed\n");
        return CTL_USAGE;
    }
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    args.space = options.space;
    args.keys = &options.key;
    args.count = 1;
    kvarn_status status = kvarn_persist(ctl->client, &args);
    return status == KVARN_OK ? CTL_FINE : ctl_fail(ctl, ctl->client, status);
}

/* ---- erase */

static const struct argp_option erase_flags[] = {
    {"yes", 'y', NULL, 0, "yes, all of it", 0},
    {0},
};

static error_t parse_erase(int key, char *text, struct argp_state *state)
{
    (void)text;
    if (key != 'y')
        return ARGP_ERR_UNKNOWN;
    *(bool *)state->input = true;
    return 0;
}

int ctl_erase(struct ctl *ctl, int argc, char **argv)
{
    kvarn_ping_args args = KVARN_PING_INIT;
    bool yes = false;

    ctl_parse(
        ctl, erase_flags, parse_erase, &yes,
        "Takes away every block of this user (or sharing group), in memory and on disk. On an "
        "encrypted disk the key goes first, so that copies of its files are of no use either."
        "\v"
        "Examples:\n"
        "  kvarnctl erase --yes\n",
        argc, argv);
    if (!yes) {
        fprintf(stderr, "kvarnctl erase: it cannot be undone; say --yes\n");
        return CTL_USAGE;
    }
    int code = ctl_connect(ctl);
    if (code != CTL_FINE)
        return code;
    kvarn_status status = kvarn_erase(ctl->client, &args);
    return status == KVARN_OK ? CTL_FINE : ctl_fail(ctl, ctl->client, status);
}
