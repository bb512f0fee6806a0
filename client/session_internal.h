/* Shared by session.c and session_input.c only. */
#ifndef KVARN_SESSION_INTERNAL_H
#define KVARN_SESSION_INTERNAL_H

#include "client/session.h"

/* The HELLO call. NULL without memory. */
struct kvarn_call *kvarn_session_hello(const char *name);
/* The slot is free again. */
void kvarn_session_give_slot(struct kvarn_session *session, struct kvarn_slot *slot);
/* Ends a call that has no slot any more. text NULL: its own stays. */
void kvarn_session_done(struct kvarn_call *call, kvarn_status status, const char *text);
/* The call has its whole answer: gives the slot and ends it. */
void kvarn_session_answered(struct kvarn_session *session, struct kvarn_call *call);

#endif
