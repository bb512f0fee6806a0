/* core/size: every unit, what is refused, and that what is written can be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/core/size.h"

enum { MEMORY = 10099 }; /* a percent of it is cut, not rounded */

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
        {"4G", 4ull << 30},
        {"3m", 3ull << 20},
        {"5K", 5ull << 10},
        {"2T", 2ull << 40},
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
        bool good = kvd_size_parse(table[i].text, MEMORY, &bytes, &why);

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(sizes_are_written_exactly),
    };
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
