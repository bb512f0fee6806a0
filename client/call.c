/* Building one request and keeping its answer. No I/O, no protocol state. */
#include "client/call.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvarn_call *kvc_call_new(uint8_t op, size_t head_room, size_t table_bytes)
{
    size_t fixed = sizeof(struct kvarn_call) + KVW_HEADER_BYTES;

    if (head_room > SIZE_MAX / 4 || table_bytes > SIZE_MAX / 4)
        return NULL;
    struct kvarn_call *call = malloc(fixed + head_room + table_bytes);
    if (!call)
        return NULL;
    memset(call, 0, sizeof *call);
    call->op = op;
    call->head_bytes = KVW_HEADER_BYTES;
    call->head_room = KVW_HEADER_BYTES + head_room;
    call->table = call->head + call->head_room;
    call->table_bytes = table_bytes;
    call->part_count = 1;
    return call;
}

uint8_t *kvc_call_metadata(struct kvarn_call *call)
{
    return call->head + KVW_HEADER_BYTES;
}

void kvc_call_set_metadata(struct kvarn_call *call, size_t count)
{
    assert(call->head_bytes == KVW_HEADER_BYTES && count <= call->head_room - KVW_HEADER_BYTES);
    call->metadata_bytes = count;
    call->head_bytes += count;
}

uint8_t *kvc_call_append(struct kvarn_call *call, size_t count)
{
    assert(count <= call->head_room - call->head_bytes);
    uint8_t *at = call->head + call->head_bytes;
    call->head_bytes += count;
    return at;
}

uint8_t *kvc_call_spare(struct kvarn_call *call, size_t count)
{
    assert(count <= call->head_room - call->head_bytes);
    call->head_room -= count;
    return call->head + call->head_room;
}

void kvc_call_add_part(struct kvarn_call *call, const void *base, size_t count)
{
    if (count == 0)
        return;
    assert(call->part_count < KVC_CALL_PARTS_MAX);
    /* iovec has no const form; sendmsg only reads. */
    call->parts[call->part_count++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)base, .iov_len = count};
}

uint64_t kvc_call_payload_bytes(const struct kvarn_call *call)
{
    uint64_t bytes = call->head_bytes - KVW_HEADER_BYTES - call->metadata_bytes;
    for (uint32_t i = 1; i < call->part_count; i++)
        bytes += call->parts[i].iov_len;
    return bytes;
}

void kvc_call_seal(struct kvarn_call *call, uint32_t deadline_us)
{
    struct kvw_header header = {
        .version = KVW_VERSION_MAX,
        .op = call->op,
        .request_id = call->request_id,
        .metadata_bytes = (uint32_t)call->metadata_bytes,
        .deadline_us = deadline_us,
        .payload_bytes = kvc_call_payload_bytes(call),
    };
    kvw_header_pack(call->head, &header);
    call->parts[0] = (struct iovec){.iov_base = call->head, .iov_len = call->head_bytes};
}

void kvc_call_take_result(struct kvarn_call *call, const struct kvw_result *result)
{
    call->status = result->status;
    call->retry_after_us = result->retry_after_us;
    snprintf(call->text, sizeof call->text, "%s", result->text);
}

void kvc_call_add_place(struct kvarn_call *call, void *base, uint64_t bytes)
{
    assert(call->place_count < KVC_CALL_PLACES_MAX);
    call->places[call->place_count++] = (struct kvc_place){.base = base, .bytes = bytes};
}

bool kvc_call_has_table(const struct kvarn_call *call)
{
    return call->place_count > 0 && call->payload_bytes > 0;
}

bool kvc_call_succeeded(const struct kvarn_call *call)
{
    return kvarn_status_class_of(call->status) == KVARN_CLASS_SUCCESS;
}
