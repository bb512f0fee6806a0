/* The door to libuv: descriptors, child processes, timers and deferred calls on one loop.
 *
 * Everything here runs on the loop's thread. An object is made by *_open and ended by *_close,
 * which sets the caller's pointer to NULL; no callback comes after it, and an object may close
 * itself in its own callback. The memory behind it is freed by the loop a turn later, so a loop is
 * freed last. Nothing is allocated except in *_open. */
#ifndef KVD_LOOP_H
#define KVD_LOOP_H

#include <stdint.h>
#include <sys/types.h>

#include <kvarn/status.h>

#include "server/core/clock.h"

struct uv_loop_s;
struct kvd_watch;
struct kvd_child;
struct kvd_timer;
struct kvd_deferred;

/* NULL without memory or descriptors. */
struct uv_loop_s *kvd_loop_new(void);
/* Lets closed objects go, then frees the loop and sets *loop to NULL. Every object is closed. */
void kvd_loop_free(struct uv_loop_s **loop);
/* Runs until kvd_loop_stop or until no open object waits for anything. */
void kvd_loop_run(struct uv_loop_s *loop);
/* One turn: waits for the next event and handles what there is. */
void kvd_loop_turn(struct uv_loop_s *loop);
void kvd_loop_stop(struct uv_loop_s *loop);

/* A descriptor, level-triggered. The caller keeps the descriptor and may close it as soon as
 * kvd_watch_close returns. An error, as a reset connection, comes as all three events, again
 * and again: the caller's next read or write names it. */
enum kvd_watch_event { KVD_READABLE = 1, KVD_WRITABLE = 2, KVD_HANGUP = 4 };
typedef void (*kvd_watch_call)(void *context, unsigned events);
/* Starts out waiting for nothing. INTERNAL for a descriptor that cannot be polled. The descriptor
 * becomes non-blocking. */
kvarn_status kvd_watch_open(struct kvd_watch **watch, struct uv_loop_s *loop, int fd,
                            kvd_watch_call call, void *context);
void kvd_watch_set(struct kvd_watch *watch, unsigned events); /* 0: waits for nothing */
void kvd_watch_close(struct kvd_watch **watch);

/* A child process of ours. Reaps it; the callback comes once, when it is gone. A signal number of 0
 * means that it ended by itself. */
typedef void (*kvd_child_call)(void *context, int exit_code, int signal);
kvarn_status kvd_child_open(struct kvd_child **child, struct uv_loop_s *loop, pid_t pid,
                            kvd_child_call call, void *context);
void kvd_child_signal(struct kvd_child *child, int signal); /* nothing when it is gone */
/* A child that still runs is not reaped afterwards; the caller waits for it. */
void kvd_child_close(struct kvd_child **child);

/* repeat_ms 0: once. Starting a running timer sets it anew. */
typedef void (*kvd_timer_call)(void *context);
kvarn_status kvd_timer_open(struct kvd_timer **timer, struct uv_loop_s *loop, kvd_timer_call call,
                            void *context);
void kvd_timer_start(struct kvd_timer *timer, uint64_t delay_ms, uint64_t repeat_ms);
void kvd_timer_stop(struct kvd_timer *timer);
void kvd_timer_close(struct kvd_timer **timer);

/* Once armed: one call after the events of this turn are handled and before the loop waits again.
 * Arming it twice in a turn is one call; arming it in its own callback is a call in the next turn.
 */
typedef void (*kvd_deferred_call)(void *context);
kvarn_status kvd_deferred_open(struct kvd_deferred **deferred, struct uv_loop_s *loop,
                               kvd_deferred_call call, void *context);
void kvd_deferred_arm(struct kvd_deferred *deferred);
void kvd_deferred_close(struct kvd_deferred **deferred);

#endif
