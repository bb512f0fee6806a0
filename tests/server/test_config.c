/* core/config: defaults, precedence, flags, and what is printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/wait.h>
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

/* Flags are one string, split at blanks; a ~ is a blank in a word. */
static kvarn_status load(struct kvd_config *config, const char *flags, char *why)
{
    static char words[1024];
    char *argv[48] = {(char *)(uintptr_t) "kvarnd"};
    int argc = 1;

    snprintf(words, sizeof words, "%s", flags);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    for (int i = 1; i < argc; i++)
        for (char *at = argv[i]; (at = strchr(at, '~')) != NULL;)
            *at = ' ';
    return kvd_config_load(config, argc, argv, why);
}

static void defaults_are_complete(void **state)
{
    struct kvd_config config;
    char why[KVD_CONFIG_WHY_MAX];

    (void)state;
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_int_equal(load(&config, "", why), KVARN_OK);
    assert_int_equal(config.listen_count, 1);
    assert_string_equal(config.listen[0], "unix:/run/user/7/kvarnd/kvarnd.sock");
    assert_int_equal(config.pools[0].bytes, 1u << 30);
    assert_int_equal(config.staging_bytes, KVD_STAGING_DEFAULT_BYTES);
    assert_in_range(config.threads, 1, KVD_WORKER_THREADS_MAX);
    assert_string_equal(config.cpu, "");
    assert_int_equal(config.socket_fd, -1);
    assert_int_equal(config.socket_mode, 0600);
    assert_non_null(strstr(config.worker, "/kvarn-worker"));
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(load(&config, "", why), KVARN_OK);
    assert_string_equal(config.listen[0], "unix:/run/kvarnd/kvarnd.sock");
    for (unsigned key = 0; key < KVD_KEY_COUNT; key++)
        assert_string_equal(config.from[key], "default");
}

static void flags_over_environment_over_file(void **state)
{
    struct kvd_config config;
    char why[KVD_CONFIG_WHY_MAX], flags[256], want[256];

    (void)state;
    write_file("# all from here\n"
               "pool: host:64MiB\n"
               "threads: 3\n"
               "drain-grace: 5\n"
               "listen:\n"
               "  - unix:/a\n"
               "  - tcp:127.0.0.1:1\n");
    setenv("KVARND_THREADS", "4", 1);
    setenv("KVARND_DRAIN_GRACE", "6", 1);
    setenv("KVARN_CPU", "ref", 1);
    snprintf(flags, sizeof flags, "--config %s --drain-grace 7 --quiet", path);
    assert_int_equal(load(&config, flags, why), KVARN_OK);
    assert_int_equal(config.pools[0].bytes, 64u << 20);
    assert_int_equal(config.threads, 4);
    assert_int_equal(config.drain_grace_ms, 7);
    assert_true(config.quiet);
    assert_string_equal(config.cpu, "ref");
    assert_int_equal(config.listen_count, 2);
    snprintf(want, sizeof want, "%s:2:7", path);
    assert_string_equal(config.from[KVD_KEY_POOL], want);
    assert_string_equal(config.from[KVD_KEY_THREADS], "KVARND_THREADS");
    assert_string_equal(config.from[KVD_KEY_DRAIN_GRACE], "flag --drain-grace");
    assert_string_equal(config.from[KVD_KEY_CPU], "KVARN_CPU");

    setenv("KVARND_CPU", "auto", 1); /* the daemon's own name wins over the kernels' */
    setenv("KVARND_LISTEN", "unix:/c,unix:/d,unix:/e", 1);
    setenv("KVARND_POOL", "cuda:1:50%,8MiB", 1);
    setenv("KVARND_CONFIG", path, 1);
    assert_int_equal(load(&config, "", why), KVARN_OK);
    assert_string_equal(config.cpu, "");
    assert_int_equal(config.listen_count, 3);
    assert_string_equal(config.listen[2], "unix:/e");
    assert_int_equal(config.pool_count, 2);
    assert_true(config.pools[0].gpu && !config.pools[1].gpu);
    assert_int_equal(config.pools[0].number, 1);
    assert_int_equal(config.pools[0].percent, 50);
    assert_int_equal(config.pools[0].bytes, 0);
    assert_int_equal(config.pools[1].bytes, 8 << 20);
    assert_int_equal(load(&config, "--listen unix:/z", why), KVARN_OK);
    assert_int_equal(config.listen_count, 1);
    assert_string_equal(config.listen[0], "unix:/z");
}

static void flags_that_are_wrong(void **state)
{
    static const struct {
        const char *flags, *says;
    } table[] = {
        {"--pool host:12", "flag --pool: pool \"host:12\": the unit is missing"},
        {"--threads 1 --threads 1", "given twice"},
        {"--pool cuda:0:1GiB --pool host:8MiB --pool cuda:0:50%",
         "flag --pool: pool \"cuda:0:50%\": there is a pool of this device already"},
        {"--config /no/such/file", "/no/such/file: No such file"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct kvd_config config;
        char why[KVD_CONFIG_WHY_MAX] = "";

        if (load(&config, table[i].flags, why) != KVARN_INVALID_SHAPE ||
            strstr(why, table[i].says) == NULL)
            fail_msg("%s: %s", table[i].flags, why);
    }
}

static void what_is_printed_can_be_read_again(void **state)
{
    struct kvd_config config, again;
    char why[KVD_CONFIG_WHY_MAX] = "", flags[128];
    FILE *file;

    (void)state;
    assert_int_equal(load(&config,
                          "--pool host:96MiB --pool cuda:3:25% --pool cuda:0:2GiB --worker-stall "
                          "700 --listen unix:/x --listen tcp:[::1]:5 --cpu avx2 "
                          "--eviction lru --quota a~host=1GiB..2GiB --quota b~leases=1 --threads 7 "
                          "--socket-mode 0660 --quiet --worker /w --log-level debug",
                          why),
                     KVARN_OK);
    file = fopen(path, "w");
    assert_non_null(file);
    kvd_config_print(&config, file);
    fclose(file);
    snprintf(flags, sizeof flags, "--config %s", path);
    if (load(&again, flags, why) != KVARN_OK)
        fail_msg("%s", why);
    assert_memory_equal(again.listen, config.listen, sizeof config.listen);
    assert_int_equal(again.pool_count, 3);
    assert_memory_equal(again.pools, config.pools, sizeof config.pools);
    assert_int_equal(again.worker_stall_ms, 700);
    assert_true(again.lru);
    assert_int_equal(again.quota_count, 2);
    assert_memory_equal(again.quotas, config.quotas, sizeof config.quotas);
    assert_int_equal(again.share_count, 0);
    assert_int_equal(again.threads, config.threads);
    assert_int_equal(again.socket_mode, config.socket_mode);
    assert_int_equal(again.quiet, config.quiet);
    assert_string_equal(again.cpu, config.cpu);
    assert_string_equal(again.log_level, config.log_level);
}

static void unknown_flags_exit_with_2(void **state)
{
    static const char *const wrong[] = {"--bogus", "word", "--socket-fd x", "--pool"};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int status;
        pid_t child;

        fflush(NULL);
        child = fork();
        if (child == 0) {
            struct kvd_config config;
            char why[KVD_CONFIG_WHY_MAX];

            if (freopen("/dev/null", "w", stderr) == NULL)
                _exit(99);
            (void)load(&config, wrong[i], why);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    }
}

static int clean(void **state)
{
    static const char *const names[] = {"KVARND_THREADS", "KVARND_DRAIN_GRACE", "KVARN_CPU",
                                        "KVARND_CPU",     "KVARND_LISTEN",      "KVARND_CONFIG",
                                        "KVARND_POOL"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, clean, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults_are_complete),     TEST(flags_over_environment_over_file),
        TEST(flags_that_are_wrong),      TEST(what_is_printed_can_be_read_again),
        TEST(unknown_flags_exit_with_2),
    };
    int fd = mkstemp(path), failed;

    if (fd < 0)
        return 1;
    close(fd);
    failed = cmocka_run_group_tests_name("config", tests, NULL, NULL);
    unlink(path);
    return failed;
}
