/* A kvarnd of the benchmark's own, on a Unix socket in a folder of its own. */
#ifndef BENCH_DAEMON_H
#define BENCH_DAEMON_H

#include <sys/types.h>

#include <kvarn/client.h>

struct bench_daemon {
    pid_t pid;
    char folder[64], address[96];
};

/* Starts it (`kvarnd` beside this program's ../bin, or $KVARND) and connects; ends the process with
 * a message when that fails. */
void bench_daemon_start(struct bench_daemon *daemon, const char *pool, kvarn_client **client);
void bench_daemon_stop(struct bench_daemon *daemon, kvarn_client **client);

/* Ends the process with the client's sentence unless status is OK or EXISTS. */
void bench_must(kvarn_client *client, const char *what, kvarn_status status);

/* The other side of a bare socket: a process that reads `bytes_in`, answers `bytes_out`, over and
 * over. */
struct bench_peer {
    pid_t pid;
    int fd;
};
void bench_peer_start(struct bench_peer *peer);
/* One exchange; the seconds it took. in [bytes_in] is sent, out [bytes_out] received. */
double bench_peer_exchange(struct bench_peer *peer, const void *in, size_t bytes_in, void *out,
                           size_t bytes_out);
void bench_peer_stop(struct bench_peer *peer);

#endif
