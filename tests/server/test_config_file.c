/* core/config_file: what a file may hold, and the place that each mistake names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "server/core/config.h"

static char path[] = "/tmp/kvarnd-config-XXXXXX";

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static kvarn_status read_back(struct kvd_config *config, char *why)
{
    memset(config, 0, sizeof *config);
    return kvd_config_read(config, path, why);
}

static void files_that_are_wrong(void **state)
{
    static const struct {
        const char *text, *says; /* says follows the file's name */
    } table[] = {
        {"pol: host:1GiB\n", ":1:1: unknown key \"pol\"; the keys are listen, pool, "},
        {"pool: host:64MiB\nthreads: many\n", ":2:10: threads \"many\""},
        {"threads: 1\nthreads: 1\n", ":2:1: given twice"},
        {"threads: [1]\n", ":1:10: a plain value"},
        {"pool:\n  size: 1\n", ":2:3: a plain value"},
        {"listen:\n  - unix:/a\n  - nonsense\n", ":3:5: listen \"nonsense\""},
        {"listen:\n  - unix:/a\n  - [unix:/b]\n", ":3:5: a plain value"},
        {"pool:\n  - host:8MiB\n  - cuda:0\n", ":3:5: pool \"cuda:0\": a GPU's pool is"},
        {"- pool\n", ":1:1: the file is a map"},
        {"just words\n", ":1:1: the file is a map"},
        {"{pool: host:1GiB\n", ":2:1: "},
        {"a: b: c\n", ":1:5: "},
        {"? [x]\n: 1\n", ":1:3: a key is expected"},
        {"\"pool\\0x\": 1\n", ":1:1: unknown key"},
        {"threads: \"1\\0\"\n", ":1:10: "},
        {"socket-fd: 3\n", ":1:1: unknown key"},
        {"threads: *none\n", ":1:10: "},
        {"quiet: maybe\n", ":1:8: quiet \"maybe\": true or false"},
        {"# nothing\n---\n", ":3:1: the file is a map"}, /* an explicit null */
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct kvd_config config;
        char why[KVD_CONFIG_WHY_MAX] = "";

        write_file(table[i].text);
        if (read_back(&config, why) != KVARN_INVALID_SHAPE ||
            strncmp(why, path, strlen(path)) != 0 ||
            strncmp(why + strlen(path), table[i].says, strlen(table[i].says)) != 0)
            fail_msg("%s -> %s", table[i].text, why);
    }
}

static void every_key_may_stand_in_a_file(void **state)
{
    struct kvd_config config;
    char why[KVD_CONFIG_WHY_MAX] = "", want[64];

    (void)state;
    write_file("listen: [unix:/a, 'tcp:localhost:0']\n"
               "pool: ['cuda:2:80%', host:8MiB]\n"
               "staging: 5MiB\n"
               "threads: 3\n"
               "eviction: lru\n"
               "watermarks: 95:90\n"
               "quota:\n  - uid-7 host=1GiB..2GiB\n  - uid-8 leases=3\n"
               "share: team uid-9 uid-10\n"
               "cpu: avx2\n"
               "worker: /opt/kvarn-worker\n"
               "worker-stall: 900\n"
               "socket-mode: \"0660\"\n"
               "drain-grace: 7\n"
               "log-level: warn\n"
               "quiet: true\n"
               "disk: /var/cache/a:b:5GiB\n"
               "disk-key: /etc/kvarnd.key\n"
               "disk-bandwidth: 7MiB\n"
               "disk-io: threads\n");
    if (read_back(&config, why) != KVARN_OK)
        fail_msg("%s", why);
    assert_int_equal(config.listen_count, 2);
    assert_string_equal(config.listen[1], "tcp:localhost:0");
    assert_int_equal(config.pool_count, 2);
    assert_int_equal(config.pools[0].number, 2);
    assert_int_equal(config.pools[1].bytes, 8 << 20);
    assert_int_equal(config.worker_stall_ms, 900);
    assert_int_equal(config.staging_bytes, 5 << 20);
    assert_int_equal(config.threads, 3);
    assert_string_equal(config.cpu, "avx2");
    assert_string_equal(config.worker, "/opt/kvarn-worker");
    assert_int_equal(config.socket_mode, 0660);
    assert_int_equal(config.drain_grace_ms, 7);
    assert_string_equal(config.log_level, "warn");
    assert_true(config.quiet);
    for (unsigned key = 0; key < KVD_KEY_COUNT; key++)
        assert_int_equal(config.rank[key], KVD_RANK_FILE);
    assert_true(config.lru);
    assert_int_equal(config.high_percent, 95);
    assert_int_equal(config.low_percent, 90);
    assert_int_equal(config.quota_count, 2);
    assert_int_equal(config.quotas[0].guaranteed[KVD_TIER_HOST], 1 << 30);
    assert_string_equal(config.quotas[1].name, "uid-8");
    assert_int_equal(config.share_count, 1);
    assert_string_equal(config.shares[0].members[1], "uid-10");
    assert_string_equal(config.disk, "/var/cache/a:b");
    assert_int_equal(config.disk_bytes, 5ull << 30);
    assert_int_equal(config.disk_bandwidth, 7 << 20);
    assert_string_equal(config.disk_io, "threads");
    assert_string_equal(config.disk_key, "/etc/kvarnd.key");
    snprintf(want, sizeof want, "%s:4:10", path);
    assert_string_equal(config.from[KVD_KEY_THREADS], want);
}

static void an_empty_file_says_nothing(void **state)
{
    static const struct kvd_config untouched;
    struct kvd_config config;
    char why[KVD_CONFIG_WHY_MAX] = "";

    (void)state;
    write_file("");
    assert_int_equal(read_back(&config, why), KVARN_OK);
    assert_memory_equal(&config, &untouched, sizeof config);
}

static void what_is_no_file_is_refused(void **state)
{
    struct kvd_config config = {0};
    char why[KVD_CONFIG_WHY_MAX] = "";
    FILE *file;

    (void)state;
    assert_int_equal(kvd_config_read(&config, "/no/such/file", why), KVARN_INVALID_SHAPE);
    assert_string_equal(why, "/no/such/file: No such file or directory");
    assert_int_equal(kvd_config_read(&config, "/tmp", why), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(why, "/tmp: not a file"));
    assert_int_equal(kvd_config_read(&config, "/dev/zero", why), KVARN_INVALID_SHAPE);
    file = fopen(path, "w"); /* a comment of the most bytes that are read, and one more */
    assert_non_null(file);
    for (int i = 0; i < 1 << 20; i++)
        fputc('#', file);
    fclose(file);
    assert_int_equal(read_back(&config, why), KVARN_OK);
    file = fopen(path, "a");
    assert_non_null(file);
    fputc('#', file);
    fclose(file);
    assert_int_equal(read_back(&config, why), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(why, "at most 1 MiB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_are_wrong),
        cmocka_unit_test(every_key_may_stand_in_a_file),
        cmocka_unit_test(an_empty_file_says_nothing),
        cmocka_unit_test(what_is_no_file_is_refused),
    };
    int fd = mkstemp(path), failed;

    if (fd < 0)
        return 1;
    close(fd);
    failed = cmocka_run_group_tests_name("config_file", tests, NULL, NULL);
    unlink(path);
    return failed;
}
