#include "server/device/stall.h"

#include <stdlib.h>

#include "server/core/loop.h"

enum { LOOKS = 4 };

struct kvd_stall {
    struct kvd_stall_options options;
    struct kvd_timer *timer;
    uint64_t before; /* what `moved` said at the last look */
    uint32_t still;  /* looks since it changed */
    bool watching;
};

static void look_later(struct kvd_stall *stall)
{
    stall->watching = true;
    kvd_timer_start(stall->timer, stall->options.stall_ms / LOOKS + 1, 0);
}

static void look(void *context)
{
    struct kvd_stall *stall = context;
    uint64_t now = stall->options.moved(stall->options.context);

    stall->watching = false;
    if (!stall->options.busy(stall->options.context))
        return;
    stall->still = now == stall->before ? stall->still + 1 : 0;
    stall->before = now;
    bool stalled = stall->still == LOOKS;
    if (stalled)
        stall->still = 0;
    look_later(stall);
    if (stalled)
        stall->options.stalled(stall->options.context);
}

kvarn_status kvd_stall_open(struct kvd_stall **stall, const struct kvd_stall_options *options)
{
    struct kvd_stall *made = calloc(1, sizeof(*made));

    *stall = made;
    if (made == NULL)
        return KVARN_INTERNAL;
    made->options = *options;
    return kvd_timer_open(&made->timer, options->loop, look, made);
}

void kvd_stall_close(struct kvd_stall **stall)
{
    if (*stall == NULL)
        return;
    kvd_timer_close(&(*stall)->timer);
    free(*stall);
    *stall = NULL;
}

void kvd_stall_watch(struct kvd_stall *stall)
{
    if (stall->watching)
        return;
    stall->before = stall->options.moved(stall->options.context);
    stall->still = 0;
    look_later(stall);
}

void kvd_stall_rest(struct kvd_stall *stall)
{
    kvd_timer_stop(stall->timer);
    stall->watching = false;
}
