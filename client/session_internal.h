/* Shared by session.c and session_input.c only. */
#ifndef KVC_SESSION_INTERNAL_H
#define KVC_SESSION_INTERNAL_H

#include "client/session.h"

/* The HELLO call. NULL without memory. */
struct kvarn_call *kvc_session_hello(const char *name);
/* The slot is free again. */
void kvc_session_give_slot(struct kvc_session *session, struct kvc_slot *slot);
/* Ends a call that has no slot any more. text NULL: its own stays. */
void kvc_session_done(struct kvarn_call *call, kvarn_status status, const char *text);
/* The call has its whole answer: gives the slot and ends it. */
void kvc_session_answered(struct kvc_session *session, struct kvarn_call *call);

#endif
