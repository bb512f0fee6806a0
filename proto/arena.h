/* Bump allocator over memory of the owner: all of one decode's objects, dropped at once.
 *
 * protobuf-c allocates every field; this bounds it and makes it free of malloc. Memory handed out
 * is zeroed. One thread at a time. */
#ifndef KVW_ARENA_H
#define KVW_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct kvw_arena {
    uint8_t *base;
    size_t size, used;
};

void kvw_arena_init(struct kvw_arena *arena, void *base, size_t size); /* keeps base */
void *kvw_arena_take(struct kvw_arena *arena, size_t size); /* 16-byte aligned; NULL = full */
void kvw_arena_reset(struct kvw_arena *arena);

#endif
