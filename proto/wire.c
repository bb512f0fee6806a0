/* Rows of the raw tables, names of operations, choice of the protocol version.
 *
 * Loads and stores go field by field: the layout on the wire is what this file says, not what a
 * compiler does with the structs. */
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/bytes.h"

void kvw_put_row_load(struct kvw_put_row *row, const uint8_t *at)
{
    memcpy(row->key.bytes, at, KVARN_KEY_BYTES);
    row->kind = kvw_le32_load(at + 32);
    row->tokens = kvw_le32_load(at + 36);
    row->bytes = kvw_le64_load(at + 40);
    row->digest = kvw_le32_load(at + 48);
    row->reserved = kvw_le32_load(at + 52);
}

void kvw_put_row_store(uint8_t *at, const struct kvw_put_row *row)
{
    memcpy(at, row->key.bytes, KVARN_KEY_BYTES);
    kvw_le32_store(at + 32, row->kind);
    kvw_le32_store(at + 36, row->tokens);
    kvw_le64_store(at + 40, row->bytes);
    kvw_le32_store(at + 48, row->digest);
    kvw_le32_store(at + 52, row->reserved);
}

void kvw_block_status_load(struct kvw_block_status *row, const uint8_t *at)
{
    row->status = kvw_le32_load(at);
    row->kind = kvw_le32_load(at + 4);
    row->digest = kvw_le32_load(at + 8);
    row->reserved = kvw_le32_load(at + 12);
}

void kvw_block_status_store(uint8_t *at, const struct kvw_block_status *row)
{
    kvw_le32_store(at, row->status);
    kvw_le32_store(at + 4, row->kind);
    kvw_le32_store(at + 8, row->digest);
    kvw_le32_store(at + 12, row->reserved);
}

void kvw_seq_row_load(struct kvw_seq_row *row, const uint8_t *at)
{
    row->sequence = kvw_le64_load(at);
    row->position = kvw_le64_load(at + 8);
    row->q_tokens = kvw_le32_load(at + 16);
    row->tokens = kvw_le32_load(at + 20);
    row->keys = kvw_le32_load(at + 24);
    row->expected = kvw_le32_load(at + 28);
}

void kvw_seq_row_store(uint8_t *at, const struct kvw_seq_row *row)
{
    kvw_le64_store(at, row->sequence);
    kvw_le64_store(at + 8, row->position);
    kvw_le32_store(at + 16, row->q_tokens);
    kvw_le32_store(at + 20, row->tokens);
    kvw_le32_store(at + 24, row->keys);
    kvw_le32_store(at + 28, row->expected);
}

void kvw_seq_status_load(struct kvw_seq_status *row, const uint8_t *at)
{
    row->sequence = kvw_le64_load(at);
    row->committed = kvw_le64_load(at + 8);
    row->status = kvw_le32_load(at + 16);
    row->blocks = kvw_le32_load(at + 20);
    row->reserved = kvw_le64_load(at + 24);
}

void kvw_seq_status_store(uint8_t *at, const struct kvw_seq_status *row)
{
    kvw_le64_store(at, row->sequence);
    kvw_le64_store(at + 8, row->committed);
    kvw_le32_store(at + 16, row->status);
    kvw_le32_store(at + 20, row->blocks);
    kvw_le64_store(at + 24, row->reserved);
}

void kvw_event_row_load(struct kvw_event_row *row, const uint8_t *at)
{
    row->sequence = kvw_le64_load(at);
    row->space = kvw_le64_load(at + 8);
    memcpy(row->key.bytes, at + 16, KVARN_KEY_BYTES);
    row->type = kvw_le32_load(at + 48);
    row->kind = kvw_le32_load(at + 52);
}

void kvw_event_row_store(uint8_t *at, const struct kvw_event_row *row)
{
    kvw_le64_store(at, row->sequence);
    kvw_le64_store(at + 8, row->space);
    memcpy(at + 16, row->key.bytes, KVARN_KEY_BYTES);
    kvw_le32_store(at + 48, row->type);
    kvw_le32_store(at + 52, row->kind);
}

const char *kvw_op_name(uint8_t op)
{
    static const char *const names[] = {
        [KVW_HELLO] = "HELLO",
        [KVW_PING] = "PING",
        [KVW_OPEN_SPACE] = "OPEN_SPACE",
        [KVW_LOOKUP] = "LOOKUP",
        [KVW_RELEASE] = "RELEASE",
        [KVW_COMPRESS] = "COMPRESS",
        [KVW_DECOMPRESS] = "DECOMPRESS",
        [KVW_ATTEND] = "ATTEND",
        [KVW_EXPORT] = "EXPORT",
        [KVW_IMPORT] = "IMPORT",
        [KVW_DROP] = "DROP",
        [KVW_VERIFY] = "VERIFY",
        [KVW_PIN] = "PIN",
        [KVW_RESET] = "RESET",
        [KVW_SEQ_OPEN] = "SEQ_OPEN",
        [KVW_SEQ_APPEND] = "SEQ_APPEND",
        [KVW_SEQ_ATTEND] = "SEQ_ATTEND",
        [KVW_SEQ_COMMIT] = "SEQ_COMMIT",
        [KVW_SEQ_FORK] = "SEQ_FORK",
        [KVW_SEQ_RELEASE] = "SEQ_RELEASE",
        [KVW_STATS] = "STATS",
        [KVW_LIST] = "LIST",
        [KVW_DRAIN] = "DRAIN",
        [KVW_EVENTS] = "EVENTS",
        [KVW_PERSIST] = "PERSIST",
        [KVW_ERASE] = "ERASE",
    };

    return op < sizeof names / sizeof names[0] ? names[op] : NULL;
}

kvarn_status kvw_negotiate(uint32_t client_min, uint32_t client_max, uint32_t server_min,
                           uint32_t server_max, uint32_t *chosen)
{
    uint32_t low = client_min > server_min ? client_min : server_min;
    uint32_t high = client_max < server_max ? client_max : server_max;

    *chosen = 0;
    if (client_min == 0 || client_min > client_max)
        return KVARN_BAD_FRAME;
    if (low > high)
        return KVARN_UNSUPPORTED;
    *chosen = high;
    return KVARN_OK;
}

void kvw_negotiate_text(char *out, size_t room, uint32_t client_min, uint32_t client_max,
                        uint32_t server_min, uint32_t server_max)
{
    (void)snprintf(out, room,
                   "no common protocol version: the client speaks %" PRIu32 "..%" PRIu32
                   ", the server %" PRIu32 "..%" PRIu32,
                   client_min, client_max, server_min, server_max);
}
