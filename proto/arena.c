/* Bump allocator: a pointer that only goes up until the owner drops everything at once. */
#include "proto/arena.h"

#include <string.h>

enum { KVW_ARENA_ALIGN = 16 };

void kvw_arena_init(struct kvw_arena *arena, void *base, size_t size)
{
    arena->base = base;
    arena->size = size;
    arena->used = 0;
}

void *kvw_arena_take(struct kvw_arena *arena, size_t size)
{
    /* The address is aligned, not the offset: the owner's memory may start anywhere. */
    uintptr_t next = (uintptr_t)arena->base + arena->used;
    size_t pad = (size_t)(-next & (KVW_ARENA_ALIGN - 1));
    size_t left = arena->size - arena->used;
    uint8_t *at;

    if (pad > left || size > left - pad)
        return NULL;
    at = arena->base + arena->used + pad;
    arena->used += pad + size;
    memset(at, 0, size);
    return at;
}

void kvw_arena_reset(struct kvw_arena *arena)
{
    arena->used = 0;
}
