/* A line is put together on the stack and written by one write(2), so lines of threads and of the
 * worker processes that share the descriptor do not mix. */
#include "server/core/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static _Atomic int log_level = KVD_LOG_INFO;
static _Atomic int log_fd = 2;
static _Atomic int log_terminal = -1; /* -1: not asked yet */

struct line {
    char text[KVD_LOG_LINE_MAX];
    size_t used;
};

void kvd_log_set_level(enum kvd_log_level level)
{
    log_level = (int)level;
}

int kvd_log_level_find(const char *name)
{
    for (int i = 0; i < (int)(sizeof(level_names) / sizeof(level_names[0])); i++)
        if (strcmp(name, level_names[i]) == 0)
            return i;
    return -1;
}

void kvd_log_set_fd(int fd)
{
    log_fd = fd;
    log_terminal = isatty(fd);
}

static bool for_terminal(void)
{
    int known = log_terminal;

    if (known < 0) {
        known = isatty(log_fd);
        log_terminal = known;
    }
    return known == 1;
}

/* Gives the number of lines dropped since the last one written, or -1 when this one is to be
 * dropped. Two threads may both see a new second; then a line more is written, never one less. */
static int64_t admit(struct kvd_log_site *site, uint64_t second)
{
    if (atomic_load(&site->second) != second) {
        atomic_store(&site->second, second);
        atomic_store(&site->lines, 0);
    }
    if (atomic_fetch_add(&site->lines, 1) >= KVD_LOG_BURST) {
        atomic_fetch_add(&site->dropped, 1);
        return -1;
    }
    return atomic_exchange(&site->dropped, 0);
}

/* The last byte stays free for the newline. */
static void add_char(struct line *line, char c)
{
    if (line->used + 1 < sizeof(line->text))
        line->text[line->used++] = c;
}

static void add_text(struct line *line, const char *text)
{
    while (*text != '\0')
        add_char(line, *text++);
}

static bool is_plain(const char *text)
{
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\')
            return false;
    }
    return true;
}

/* Bytes above 0x7f pass when they are the bytes of UTF-8 text past the C1 control characters; those
 * two-byte sequences C2 80..9F are what a terminal could obey. */
static void add_value(struct line *line, const char *text)
{
    static const char hex[] = "0123456789abcdef";

    if (is_plain(text)) {
        add_text(line, text);
        return;
    }
    add_char(line, '"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        bool c1 = c == 0xc2 && (unsigned char)text[1] >= 0x80 && (unsigned char)text[1] < 0xa0;
        if (c == '"' || c == '\\') {
            add_char(line, '\\');
            add_char(line, (char)c);
        } else if (c < ' ' || c == 0x7f ||
                   (c >= 0x80 && c < 0xa0 && line->used > 0 &&
                    (unsigned char)line->text[line->used - 1] < 0x80) ||
                   c1) {
            char escape[] = {'\\', 'x', hex[c >> 4], hex[c & 15], '\0'};
            add_text(line, escape);
        } else {
            add_char(line, (char)c);
        }
    }
    add_char(line, '"');
}

static void add_field(struct line *line, const struct kvd_log_field *field)
{
    add_char(line, ' ');
    add_text(line, field->name);
    add_char(line, '=');
    if (field->text != NULL) {
        add_value(line, field->text);
    } else {
        char number[24];
        snprintf(number, sizeof(number), "%lld", (long long)field->number);
        add_text(line, number);
    }
}

static void add_start(struct line *line, const struct timespec *now, enum kvd_log_level level,
                      const char *event)
{
    struct tm parts;
    char text[96];

    if (for_terminal()) {
        localtime_r(&now->tv_sec, &parts);
        snprintf(text, sizeof(text), "%02d:%02d:%02d.%03ld %-5s %-20s", parts.tm_hour, parts.tm_min,
                 parts.tm_sec, now->tv_nsec / 1000000, level_names[level], event);
    } else {
        gmtime_r(&now->tv_sec, &parts);
        snprintf(text, sizeof(text), "ts=%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ level=%s event=%s",
                 parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min,
                 parts.tm_sec, now->tv_nsec / 1000000, level_names[level], event);
    }
    add_text(line, text);
}

void kvd_log_write(struct kvd_log_site *site, enum kvd_log_level level, const char *event,
                   const struct kvd_log_field *fields)
{
    struct timespec now, steady;
    struct line line = {.used = 0};

    if ((int)level > log_level)
        return;
    clock_gettime(CLOCK_MONOTONIC, &steady);
    int64_t dropped = admit(site, (uint64_t)steady.tv_sec + 1);
    if (dropped < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    add_start(&line, &now, level, event);
    for (; fields->name != NULL; fields++)
        add_field(&line, fields);
    if (dropped > 0)
        add_field(&line, &(struct kvd_log_field){"dropped", NULL, dropped});
    line.text[line.used++] = '\n';
    /* A log that cannot be written must not stop the service. */
    (void)!write(log_fd, line.text, line.used);
}
