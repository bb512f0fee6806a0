/* Log lines: one event per line, `time level event key=value ...`, on standard error.
 *
 * Any thread, front and worker. A call site may write KVD_LOG_BURST lines a second; what it drops
 * is counted in its next line. Values are quoted and their control characters escaped, so a peer's
 * text can neither forge a field nor drive a terminal. Never a payload, a key or a token. */
#ifndef KVD_LOG_H
#define KVD_LOG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum kvd_log_level { KVD_LOG_ERROR, KVD_LOG_WARN, KVD_LOG_INFO, KVD_LOG_DEBUG };

enum { KVD_LOG_LINE_MAX = 1024, KVD_LOG_BURST = 10 };

struct kvd_log_field {
    const char *name;
    const char *text; /* NULL: the number */
    int64_t number;
};

/* Of one call site; zeroed static storage. */
struct kvd_log_site {
    _Atomic uint64_t second; /* of the current count */
    _Atomic uint32_t lines, dropped;
};

/* Lines above this level are not written. INFO at the start. */
void kvd_log_set_level(enum kvd_log_level level);
/* "error", "warn", "info", "debug" -> level; -1 for anything else. */
int kvd_log_level_find(const char *name);
/* Writes to this descriptor from now on; aligned text for a terminal, logfmt otherwise. 2 at the
 * start. */
void kvd_log_set_fd(int fd);

/* Borrows everything. fields ends with a NULL name. */
void kvd_log_write(struct kvd_log_site *site, enum kvd_log_level level, const char *event,
                   const struct kvd_log_field *fields);

static inline struct kvd_log_field kvd_text(const char *name, const char *value)
{
    return (struct kvd_log_field){name, value != NULL ? value : "", 0};
}

static inline struct kvd_log_field kvd_number(const char *name, int64_t value)
{
    return (struct kvd_log_field){name, NULL, value};
}

/* kvd_log(KVD_LOG_INFO, "worker_ready", kvd_text("backend", name), kvd_number("pid", pid)); at
 * least one field. */
#define kvd_log(level, event, ...)                                                                 \
    do {                                                                                           \
        static struct kvd_log_site kvd_log_site_;                                                  \
        kvd_log_write(&kvd_log_site_, (level), (event),                                            \
                      (const struct kvd_log_field[]){__VA_ARGS__, {NULL, NULL, 0}});               \
    } while (0)

#endif
