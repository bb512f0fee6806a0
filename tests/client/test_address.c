/* client/address: every form, the default rule, and refusals that say how to mend the address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/address.h"

static struct kvc_address address;
static char why[KVC_ADDRESS_WHY_BYTES];

static void parse(const char *text, kvarn_status expected)
{
    kvarn_status status = kvc_address_parse(&address, text, why);

    if (status != expected)
        fail_msg("\"%s\": %s, not %s (%s)", text ? text : "NULL", kvarn_status_name(status),
                 kvarn_status_name(expected), why);
    assert_int_equal(why[0] == '\0', status == KVARN_OK);
}

static void refuses(const char *text, kvarn_status status, const char *hint)
{
    parse(text, status);
    if (!strstr(why, hint))
        fail_msg("\"%s\": \"%s\" does not say \"%s\"", text ? text : "NULL", why, hint);
}

static void unix_paths(void **state)
{
    char text[300];

    (void)state;
    parse("unix:/run/kvarnd/kvarnd.sock", KVARN_OK);
    assert_int_equal(address.kind, KVC_ADDRESS_UNIX);
    assert_string_equal(address.path, "/run/kvarnd/kvarnd.sock");
    parse("unix:///run/x", KVARN_OK);
    assert_string_equal(address.path, "/run/x");
    snprintf(text, sizeof text, "unix:/%0106d", 0);
    parse(text, KVARN_OK);
    assert_int_equal(strlen(address.path), KVC_UNIX_PATH_MAX_BYTES);
    snprintf(text, sizeof text, "unix:/%0107d", 0);
    refuses(text, KVARN_TOO_LARGE, "108 bytes");
    refuses("unix:run/x", KVARN_INVALID_SHAPE, "absolute");
    refuses("unix:", KVARN_INVALID_SHAPE, "absolute");
}

static void tcp_hosts(void **state)
{
    char text[400];

    (void)state;
    parse("tcp://127.0.0.1:7070", KVARN_OK);
    assert_int_equal(address.kind, KVC_ADDRESS_TCP);
    assert_string_equal(address.host, "127.0.0.1");
    assert_string_equal(address.port, "7070");
    parse("tcp:localhost:80", KVARN_OK);
    assert_string_equal(address.host, "localhost");
    parse("tcp://[::1]:1", KVARN_OK);
    assert_string_equal(address.host, "::1");
    parse("tcp://host.example:00065", KVARN_OK);
    assert_string_equal(address.port, "65");
    refuses("tcp://::1:7070", KVARN_INVALID_SHAPE, "brackets");
    refuses("tcp://[::1:7070", KVARN_INVALID_SHAPE, "not closed");
    refuses("tcp://[::1]", KVARN_INVALID_SHAPE, "port is missing");
    refuses("tcp://host", KVARN_INVALID_SHAPE, "port is missing");
    refuses("tcp://:7070", KVARN_INVALID_SHAPE, "host is missing");
    refuses("tcp://[]:7070", KVARN_INVALID_SHAPE, "host is missing");
    refuses("tcp://host:", KVARN_INVALID_SHAPE, "1 to 65535");
    refuses("tcp://host:0", KVARN_INVALID_SHAPE, "1 to 65535");
    refuses("tcp://host:65536", KVARN_INVALID_SHAPE, "1 to 65535");
    refuses("tcp://host:70a", KVARN_INVALID_SHAPE, "1 to 65535");
    refuses("tcp://host:-1", KVARN_INVALID_SHAPE, "1 to 65535");
    refuses("tcp://host:999999", KVARN_INVALID_SHAPE, "1 to 65535");
    snprintf(text, sizeof text, "tcp://%0260d:1", 0);
    refuses(text, KVARN_TOO_LARGE, "host");
    snprintf(text, sizeof text, "tcp://%0350d:1", 0);
    refuses(text, KVARN_TOO_LARGE, "300");
}

static void other_forms(void **state)
{
    (void)state;
    parse("spawn:", KVARN_OK);
    assert_int_equal(address.kind, KVC_ADDRESS_SPAWN);
    refuses("spawn:/bin/x", KVARN_INVALID_SHAPE, "spawn:");
    refuses("tls://h:1", KVARN_UNSUPPORTED, "TLS");
    refuses("/run/x", KVARN_INVALID_SHAPE, "unix:/run/x");
    refuses("http://x", KVARN_INVALID_SHAPE, "tcp://host:port");
}

static void default_rule(void **state)
{
    char deep[200];

    (void)state;
    setenv("KVARN_ADDRESS", "tcp://a:5", 1);
    parse(NULL, KVARN_OK);
    assert_string_equal(address.host, "a");
    parse("", KVARN_OK);
    assert_string_equal(address.host, "a");
    unsetenv("KVARN_ADDRESS");
    setenv("XDG_RUNTIME_DIR", "/run/user/5", 1);
    parse(NULL, KVARN_OK);
    assert_string_equal(address.path, "/run/user/5/kvarnd/kvarnd.sock");
    unsetenv("XDG_RUNTIME_DIR");
    parse(NULL, KVARN_OK);
    assert_string_equal(address.path, "/run/kvarnd/kvarnd.sock");
    snprintf(deep, sizeof deep, "/%0150d", 0);
    setenv("XDG_RUNTIME_DIR", deep, 1);
    refuses(NULL, KVARN_TOO_LARGE, "107");
    unsetenv("XDG_RUNTIME_DIR");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unix_paths),
        cmocka_unit_test(tcp_hosts),
        cmocka_unit_test(other_forms),
        cmocka_unit_test(default_rule),
    };
    return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
