/* core/config_values: the first and the last value that each key takes, and what is said beyond. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/core/config.h"
#include "server/core/size.h"

static char why[KVD_CONFIG_WHY_MAX];

static kvarn_status set(struct kvd_config *config, const char *key, const char *value)
{
    enum kvd_key at = kvd_config_key(key);

    assert_true(at < KVD_KEY_COUNT);
    return kvd_config_set(config, at, value, KVD_RANK_FLAG, "here", why);
}

static void values_that_are_wrong(void **state)
{
    static const struct {
        const char *key, *value, *says;
    } table[] = {
        {"pool", "host:12", "here: pool \"host:12\": the unit is missing"},
        {"pool", "host:4.5GiB", "a fraction is not taken; write a whole number"},
        {"pool", "1", "the unit is missing"},
        {"pool", "gpu:0:1GiB", "a pool is host:SIZE or cuda:NUMBER:SIZE"},
        {"pool", "cuda:80%", "cuda:NUMBER:SIZE"},
        {"pool", "cuda::80%", "cuda:NUMBER:SIZE"},
        {"pool", "cuda:0", "cuda:NUMBER:SIZE"},
        {"pool", "cuda:256:80%", "cuda:NUMBER:SIZE"},
        {"pool", "cuda:1000:80%", "cuda:NUMBER:SIZE"},
        {"pool", "cuda:-1:80%", "cuda:NUMBER:SIZE"},
        {"pool", "cuda:0:101%", "1% to 100%"},
        {"pool", "cuda:0:0%", "1% to 100%"},
        {"pool", "cuda:0:", "a whole number and a unit"},
        {"pool", "cuda:0:3MiB", "at least 4MiB"},
        {"pool", "cuda:0:257GiB", "at most 256GiB"},
        {"pool", "cuda:0:8388608TiB", "at most 256GiB"},
        {"pool", "cuda:0:18446744073709551615B", "at most 256GiB"},
        {"worker-stall", "99", "100 to an hour"},
        {"worker-stall", "3600001", "100 to an hour"},
        {"worker-stall", "never", "auto, or"},
        {"pool", "host:1MiB", "at least 4MiB"},
        {"pool", "host:4194303B", "at least 4MiB"},
        {"pool", "host:8000000TiB",
         "is larger than the memory of this machine or container, which"},
        {"staging", "1KiB", "at least 4MiB"},
        {"staging", "4194303B", "at least 4MiB"},
        {"staging", "8000000TiB", "staging is larger than the memory"},
        {"staging", "many", "a whole number and a unit"},
        {"threads", "0", "1 to 64"},
        {"threads", "65", "1 to 64"},
        {"threads", "-1", "1 to 64"},
        {"threads", "+1", "1 to 64"},
        {"threads", " 1", "1 to 64"},
        {"threads", "", "1 to 64"},
        {"threads", "2x", "1 to 64"},
        {"threads", "0x2", "1 to 64"},
        {"threads", "4294967297", "1 to 64"}, /* 1 in 32 bits */
        {"threads", "99999999999", "1 to 64"},
        {"disk", "cache:1GiB", "none or /PATH:SIZE"},
        {"disk", "/cache", "none or /PATH:SIZE"},
        {"disk", "/cache:50%", "none or /PATH:SIZE"},
        {"disk", ":1GiB", "none or /PATH:SIZE"},
        {"disk", "/cache:", "a whole number and a unit"},
        {"disk", "/cache:1MiB", "at least 4MiB"},
        {"disk-bandwidth", "1KiB", "at least 1MiB"},
        {"disk-bandwidth", "50%", "at least 1MiB"},
        {"disk-key", "", "none or the path"},
        {"disk-io", "aio", "one of auto, uring, threads"},
        {"cpu", "sse", "one of auto, ref, avx2, avx512"},
        {"cpu", "", "one of auto, ref, avx2, avx512"},
        {"log-level", "loud", "one of error, warn, info, debug"},
        {"watermarks", "90", "two percentages"},
        {"watermarks", "90:90", "two percentages"},
        {"watermarks", "101:90", "two percentages"},
        {"watermarks", "90:0", "two percentages"},
        {"watermarks", "1000:9", "two percentages"},
        {"watermarks", "95%:90%", "two percentages"},
        {"eviction", "fifo", "s3fifo, lru"},
        {"quota", "uid-1", "says something"},
        {"share", "team", "its members"},
        {"socket-mode", "0777", "octal mode"},
        {"socket-mode", "0610", "octal mode"},
        {"socket-mode", "0577", "octal mode"},
        {"socket-mode", "9", "octal mode"},
        {"socket-mode", "600x", "octal mode"},
        {"drain-grace", "3600001", "at most an hour"},
        {"quiet", "maybe", "true or false"},
        {"worker", "", "is empty"},
        {"listen", "kvarnd.sock", "unix:/PATH or tcp:HOST:PORT"},
        {"listen", "unix:@name", "must be absolute"},
        {"listen", "unix:rel.sock", "must be absolute"},
        {"listen", "unix://rel.sock", "must be absolute"},
        {"listen", "tcp", "unix:/PATH or tcp:HOST:PORT"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct kvd_config config = {0};

        why[0] = '\0';
        if (set(&config, table[i].key, table[i].value) != KVARN_INVALID_SHAPE ||
            strstr(why, table[i].says) == NULL)
            fail_msg("%s %s: %s", table[i].key, table[i].value, why);
        assert_int_equal(config.rank[kvd_config_key(table[i].key)], KVD_RANK_NONE);
    }
}

static void bounds_are_allowed(void **state)
{
    static const struct {
        const char *key, *value;
    } table[] = {
        {"pool", "host:4MiB"},      {"pool", "cuda:0:1%"},      {"pool", "cuda:255:100%"},
        {"pool", "cuda:7:4MiB"},    {"worker-stall", "100"},    {"worker-stall", "auto"},
        {"staging", "4MiB"},        {"staging", "100%"},        {"threads", "1"},
        {"threads", "64"},          {"threads", "0000000064"},  {"cpu", "ref"},
        {"cpu", "avx512"},          {"log-level", "error"},     {"drain-grace", "0"},
        {"drain-grace", "3600000"}, {"socket-mode", "0600"},    {"socket-mode", "666"},
        {"socket-mode", "0640"},    {"listen", "tcp:[::1]:70"}, {"quiet", "false"},
        {"eviction", "lru"},        {"eviction", "s3fifo"},     {"quota", "none"},
        {"watermarks", "none"},     {"watermarks", "100:1"},    {"quota", "a host=1GiB"},
        {"share", "g a b"},         {"share", "none"},          {"disk", "/c:4MiB"},
        {"disk", "none"},           {"disk-bandwidth", "1MiB"}, {"disk-io", "uring"},
        {"disk-io", "threads"},     {"disk-io", "auto"},        {"disk-key", "none"},
    };
    struct kvd_config config = {.quiet = true};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        enum kvd_key key = kvd_config_key(table[i].key);

        if (set(&config, table[i].key, table[i].value) != KVARN_OK)
            fail_msg("%s", why);
        assert_string_equal(config.text[key], table[i].value);
        assert_string_equal(config.from[key], "here");
    }
    assert_int_equal(config.pool_count, 4);
    assert_int_equal(config.worker_stall_ms, 0);
    config.pool_count = 0;
    assert_int_equal(set(&config, "pool", "100%"), KVARN_OK);
    assert_true(config.pools[0].bytes <= kvd_memory_bytes());
    assert_int_equal(config.threads, 64);
    assert_int_equal(config.drain_grace_ms, 3600000);
    assert_int_equal(config.socket_mode, 0640);
    assert_false(config.quiet);
    for (size_t i = 0; i < 8; i++) {
        static const char *const words[] = {"true", "no", "yes", "off", "on", "0", "1", "false"};

        assert_int_equal(set(&config, "quiet", words[i]), KVARN_OK);
        assert_int_equal(config.quiet, i % 2 == 0);
    }
    assert_int_equal(set(&config, "cpu", "auto"), KVARN_OK);
    assert_string_equal(config.cpu, "");
}

static void addresses_collect_within_a_rank(void **state)
{
    struct kvd_config config = {0};
    char address[16];

    (void)state;
    assert_int_equal(kvd_config_set(&config, KVD_KEY_LISTEN, "unix:/old", KVD_RANK_ENV, "env", why),
                     KVARN_OK);
    for (int i = 0; i < KVD_LISTENERS_MAX; i++) {
        snprintf(address, sizeof address, "unix:/%d", i);
        assert_int_equal(set(&config, "listen", address), KVARN_OK);
        assert_int_equal(config.listen_count, i + 1);
        assert_string_equal(config.listen[i], address);
    }
    assert_int_equal(set(&config, "listen", "unix:/9"), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(why, "more than 8"));
    assert_int_equal(config.listen_count, KVD_LISTENERS_MAX);
}

static void addresses_with_slashes_are_the_same(void **state)
{
    static const char *const same[][2] = {{"tcp://127.0.0.1:17099", "tcp:127.0.0.1:17099"},
                                          {"tcp://[::1]:1", "tcp:[::1]:1"},
                                          {"unix:///run/k.sock", "unix:/run/k.sock"},
                                          {"unix:/run/k.sock", "unix:/run/k.sock"}};
    struct kvd_config config = {0};

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_int_equal(set(&config, "listen", same[i][0]), KVARN_OK);
        assert_string_equal(config.listen[i], same[i][1]);
    }
}

static void long_values_are_refused_whole(void **state)
{
    struct kvd_config config = {0};
    char value[KVD_CONFIG_TEXT_MAX + 1];

    (void)state;
    memset(value, 'x', sizeof value);
    value[KVD_CONFIG_TEXT_MAX] = '\0';
    assert_int_equal(set(&config, "worker", value), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(why, "longer than 255 bytes"));
    value[KVD_CONFIG_TEXT_MAX - 1] = '\0';
    assert_int_equal(set(&config, "worker", value), KVARN_OK);
    assert_string_equal(config.worker, value);
}

static void stray_variables_are_found(void **state)
{
    char *const environment[] = {
        "PATH=/bin", "KVARND_POL=host:1GiB", "KVARND_POOL=host:1GiB", "KVARND_CONFIG=/x", "KVARND_",
        NULL};
    char name[64];
    size_t at = 0;

    (void)state;
    assert_true(kvd_config_stray(environment, &at, name));
    assert_string_equal(name, "KVARND_POL");
    assert_true(kvd_config_stray(environment, &at, name));
    assert_string_equal(name, "KVARND_");
    assert_false(kvd_config_stray(environment, &at, name));
}

static void keys_are_found_by_name(void **state)
{
    (void)state;
    for (unsigned key = 0; key < KVD_KEY_COUNT; key++)
        assert_int_equal(kvd_config_key(kvd_config_keys[key].name), key);
    assert_int_equal(kvd_config_key("pol"), KVD_KEY_COUNT);
    assert_int_equal(kvd_config_key("socket-fd"), KVD_KEY_COUNT); /* a flag, no value */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_are_wrong),
        cmocka_unit_test(bounds_are_allowed),
        cmocka_unit_test(addresses_collect_within_a_rank),
        cmocka_unit_test(addresses_with_slashes_are_the_same),
        cmocka_unit_test(long_values_are_refused_whole),
        cmocka_unit_test(stray_variables_are_found),
        cmocka_unit_test(keys_are_found_by_name),
    };
    return cmocka_run_group_tests_name("config_values", tests, NULL, NULL);
}
