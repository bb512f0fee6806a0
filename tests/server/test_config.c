/* core/config and core/size: the table of values, precedence, and what each mistake says. */
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
#include "server/core/size.h"

static char path[] = "/tmp/kvarnd-config-XXXXXX";

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Flags are one string, split at blanks. */
static kvarn_status load(struct kvd_config *config, const char *flags, char *why)
{
    static char words[1024];
    char *argv[32] = {(char *)(uintptr_t) "kvarnd"};
    int argc = 1;

    snprintf(words, sizeof words, "%s", flags);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return kvd_config_load(config, argc, argv, why);
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0 = refused */
    } table[] = {
        {"64MiB", 64ull << 20},
        {"16GiB", 16ull << 30},
        {"30gb", 30000000000ull},
        {"1kB", 1000},
        {"1KIB", 1024},
        {"2TiB", 2ull << 40},
        {"7B", 7},
        {"80%", 8000},
        {"1%", 100},
        {"100%", 10000},
        {"0%", 0},
        {"101%", 0},
        {"12", 0},
        {"", 0},
        {"MiB", 0},
        {"-1MiB", 0},
        {"+1MiB", 0},
        {" 1MiB", 0},
        {"1 MiB", 0},
        {"1MiBs", 0},
        {"1.5GiB", 0},
        {"0x10MiB", 0},
        {"18446744073709551615B", UINT64_MAX},
        {"18446744073709551616B", 0},
        {"16777216TiB", 0},
        {"99999999999999999999999GiB", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint64_t bytes = 0;
        const char *why = NULL;
        bool good = kvd_size_parse(table[i].text, 10000, &bytes, &why);

        if (good != (table[i].bytes != 0) || (good && bytes != table[i].bytes))
            fail_msg("%s", table[i].text);
        assert_true(good || why != NULL);
    }
    assert_true(kvd_memory_bytes() > 1u << 20);
}

static void sizes_are_written_exactly(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } table[] = {{0, "0B"},       {1ull << 30, "1GiB"}, {1500000000, "1500MB"}, {1000, "1kB"},
                 {1001, "1001B"}, {3ull << 20, "3MiB"}, {1ull << 40, "1TiB"}};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[KVD_SIZE_TEXT_MAX];

        kvd_size_format(table[i].bytes, text);
        assert_string_equal(text, table[i].text);
    }
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
    assert_int_equal(config.pool_bytes, 1u << 30);
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
    assert_int_equal(config.pool_bytes, 64u << 20);
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
    setenv("KVARND_CONFIG", path, 1);
    assert_int_equal(load(&config, "", why), KVARN_OK);
    assert_string_equal(config.cpu, "");
    assert_int_equal(config.listen_count, 3);
    assert_string_equal(config.listen[2], "unix:/e");
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
        {"--pool 1GiB", "a pool is host:SIZE"},
        {"--pool gpu:0:1GiB", "no GPU backend in this build"},
        {"--pool host:1MiB", "at least 4MiB"},
        {"--pool host:8000000TiB", "larger than the memory"},
        {"--staging 1KiB", "at least 4MiB"},
        {"--threads 0", "1 to 64"},
        {"--threads 65", "1 to 64"},
        {"--threads -1", "1 to 64"},
        {"--threads 2x", "1 to 64"},
        {"--threads 99999999999", "1 to 64"},
        {"--cpu sse", "one of auto, ref, avx2, avx512"},
        {"--log-level loud", "one of error, warn, info, debug"},
        {"--socket-mode 0777", "octal mode"},
        {"--socket-mode 9", "octal mode"},
        {"--drain-grace 3600001", "at most an hour"},
        {"--listen kvarnd.sock", "unix:/PATH or tcp:HOST:PORT"},
        {"--listen unix:@name", "unix:/PATH or tcp:HOST:PORT"},
        {"--threads 1 --threads 1", "given twice"},
        {"--config /no/such/file", "/no/such/file: No such file"},
        {"--config /tmp", "not a file"},
        {"--listen unix:/1 --listen unix:/2 --listen unix:/3 --listen unix:/4 --listen unix:/5 "
         "--listen unix:/6 --listen unix:/7 --listen unix:/8 --listen unix:/9",
         "more than 8"},
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

static void files_that_are_wrong(void **state)
{
    static const struct {
        const char *text, *says; /* says follows the file's name */
    } table[] = {
        {"pol: host:1GiB\n", ":1:1: unknown key \"pol\""},
        {"pool: host:64MiB\nthreads: many\n", ":2:10: threads \"many\""},
        {"threads: 1\nthreads: 1\n", ":2:1: given twice"},
        {"threads: [1]\n", ":1:10: a plain value"},
        {"pool:\n  size: 1\n", ":2:3: a plain value"},
        {"listen:\n  - unix:/a\n  - nonsense\n", ":3:5: listen \"nonsense\""},
        {"- pool\n", ":1:1: the file is a map"},
        {"just words\n", ":1:1: the file is a map"},
        {"{pool: host:1GiB\n", ":2:1: "},
        {"a: b: c\n", ":1:5: "},
        {"? [x]\n: 1\n", ":1:3: a key is expected"},
        {"\"pool\\0x\": 1\n", ":1:1: unknown key"},
        {"threads: \"1\\0\"\n", ":1:10: "},
        {"socket-fd: 3\n", ":1:1: unknown key"},
        {"threads: *none\n", ":1:10: "},
        {"quiet: yes\n", ":1:8: quiet \"yes\": true or false"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct kvd_config config;
        char why[KVD_CONFIG_WHY_MAX] = "", flags[128];

        write_file(table[i].text);
        snprintf(flags, sizeof flags, "--config %s", path);
        if (load(&config, flags, why) != KVARN_INVALID_SHAPE ||
            strncmp(why, path, strlen(path)) != 0 ||
            strncmp(why + strlen(path), table[i].says, strlen(table[i].says)) != 0)
            fail_msg("%s -> %s", table[i].text, why);
    }
}

static void an_empty_file_says_nothing(void **state)
{
    struct kvd_config config;
    char why[KVD_CONFIG_WHY_MAX] = "", flags[128];

    (void)state;
    snprintf(flags, sizeof flags, "--config %s", path);
    write_file("");
    assert_int_equal(load(&config, flags, why), KVARN_OK);
    write_file("# nothing\n---\n");
    assert_int_equal(load(&config, flags, why), KVARN_INVALID_SHAPE); /* an explicit null */
}

static void what_is_printed_can_be_read_again(void **state)
{
    struct kvd_config config, again;
    char why[KVD_CONFIG_WHY_MAX] = "", flags[128];
    FILE *file;

    (void)state;
    assert_int_equal(load(&config,
                          "--pool host:96MiB --listen unix:/x --listen tcp:[::1]:5 --cpu avx2 "
                          "--threads 7 --socket-mode 0660 --quiet --worker /w --log-level debug",
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
    assert_int_equal(again.pool_bytes, config.pool_bytes);
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
        TEST(sizes),
        TEST(sizes_are_written_exactly),
        TEST(defaults_are_complete),
        TEST(flags_over_environment_over_file),
        TEST(flags_that_are_wrong),
        TEST(files_that_are_wrong),
        TEST(an_empty_file_says_nothing),
        TEST(what_is_printed_can_be_read_again),
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
