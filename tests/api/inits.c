/* Every _INIT macro of client.h, in C99 and in C++11, without a warning (see CMakeLists.txt). */
#include <kvarn/client.h>

#ifdef __cplusplus
extern "C" {
#endif
size_t kvarn_inits(void);
size_t kvarn_inits(void)
{
    static kvarn_space_options constant = KVARN_SPACE_OPTIONS_INIT;
    kvarn_connect_options connect = KVARN_CONNECT_OPTIONS_INIT;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_stats_args stats = KVARN_STATS_INIT;
    kvarn_list_args list = KVARN_LIST_INIT;
    kvarn_drain_args drain = KVARN_DRAIN_INIT;
    kvarn_space_options space = KVARN_SPACE_OPTIONS_INIT;
    kvarn_blocks_args blocks = KVARN_BLOCKS_INIT;
    kvarn_events_args events = KVARN_EVENTS_INIT;
    kvarn_compress_args compress = KVARN_COMPRESS_INIT;
    kvarn_decompress_args decompress = KVARN_DECOMPRESS_INIT;
    kvarn_attend_args attend = KVARN_ATTEND_INIT;
    kvarn_export_args out = KVARN_EXPORT_INIT;
    kvarn_import_args in = KVARN_IMPORT_INIT;
    kvarn_seq_args seq = KVARN_SEQ_ARGS_INIT;

    return constant.size + connect.size + ping.size + stats.size + list.size + drain.size +
           space.size + blocks.size + compress.size + decompress.size + attend.size + out.size +
           in.size + seq.size + events.size;
}
#ifdef __cplusplus
}
#endif
