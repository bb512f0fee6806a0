/* What the tests of connecting share: a call that must fail, and the number of open descriptors. */
#ifndef TEST_CONNECT_RIG_H
#define TEST_CONNECT_RIG_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <kvarn/client.h>

static inline int count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static inline void fails(const char *address, const kvarn_connect_options *options,
                         kvarn_status status, const char *hint)
{
    kvarn_client *client = NULL;
    kvarn_ping_args ping = KVARN_PING_INIT;
    kvarn_server_info info;
    kvarn_status got = kvarn_connect(&client, address, options);

    if (got != status)
        fail_msg("%s: %s, not %s: %s", address, kvarn_status_name(got), kvarn_status_name(status),
                 kvarn_client_error(client));
    assert_non_null(client);
    if (!strstr(kvarn_client_error(client), hint))
        fail_msg("\"%s\" does not say \"%s\"", kvarn_client_error(client), hint);
    assert_int_equal(kvarn_client_fd(client), -1);
    assert_int_equal(kvarn_client_process(client), KVARN_PEER_LOST);
    assert_int_equal(kvarn_ping(client, &ping), KVARN_PEER_LOST);
    assert_int_equal(kvarn_client_info(client, &info), KVARN_PEER_LOST);
    assert_string_equal(info.server, "");
    kvarn_close(&client);
    assert_null(client);
}

#endif
