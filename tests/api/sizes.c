/* Sizes and offsets of the public structs on 64-bit machines. A struct may grow at its end in a new
 * version, and then its line here changes with it; nothing before that end may ever move. */
#include <stddef.h>

#include <kvarn/client.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define LAST(type, field, at)                                                                      \
    _Static_assert(offsetof(type, field) == (at), #type "." #field " has moved")

#if UINTPTR_MAX == UINT64_MAX
SIZE(kvarn_key, 32);
SIZE(kvarn_preset, 16);
SIZE(kvarn_connect_options, 40);
LAST(kvarn_connect_options, spawn_pool, 32);
SIZE(kvarn_server_info, 56);
LAST(kvarn_server_info, in_flight_max, 48);
SIZE(kvarn_ping_args, 16);
SIZE(kvarn_metric, 104);
SIZE(kvarn_stats_args, 40);
LAST(kvarn_stats_args, count, 32);
SIZE(kvarn_space_info, 280);
LAST(kvarn_space_info, sequences, 272);
SIZE(kvarn_list_args, 40);
SIZE(kvarn_drain_args, 16);
SIZE(kvarn_space_options, 192);
LAST(kvarn_space_options, space, 104);
LAST(kvarn_space_options, exact_block_bytes, 168);
LAST(kvarn_space_options, device, 176);
LAST(kvarn_space_options, k_rotated, 184);
SIZE(kvarn_block_result, 12);
SIZE(kvarn_blocks_args, 112);
LAST(kvarn_blocks_args, lease, 64);
LAST(kvarn_blocks_args, ranks, 104);
SIZE(kvarn_event, 56);
SIZE(kvarn_events_args, 80);
LAST(kvarn_events_args, lost, 72);
SIZE(kvarn_strides, 32);
SIZE(kvarn_compress_args, 88);
LAST(kvarn_compress_args, stored, 80);
SIZE(kvarn_decompress_args, 80);
LAST(kvarn_decompress_args, matched, 72);
SIZE(kvarn_query, 32);
LAST(kvarn_query, deterministic, 28);
SIZE(kvarn_attend_args, 112);
LAST(kvarn_attend_args, lse, 104);
SIZE(kvarn_export_args, 128);
LAST(kvarn_export_args, origin, 80);
SIZE(kvarn_import_args, 88);
LAST(kvarn_import_args, origin, 80);
SIZE(kvarn_seq, 48);
LAST(kvarn_seq, expected, 44);
SIZE(kvarn_seq_args, 144);
LAST(kvarn_seq_args, lse, 136);
#endif

int main(void)
{
    return 0;
}
