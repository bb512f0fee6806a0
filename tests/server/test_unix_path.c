/* net/unix_path: which directories and files are accepted, the lock, and what is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/net/unix_path.h"

static char directory[32], path[64], lock_path[80], why[512];

static int fds; /* open at the start of a test */

static int open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static int setup(void **state)
{
    (void)state;
    fds = open_fds();
    strcpy(directory, "/tmp/kvarnd-path-XXXXXX");
    if (mkdtemp(directory) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/k.sock", directory);
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    return 0;
}

static int teardown(void **state)
{
    char command[64];

    (void)state;
    assert_int_equal(open_fds(), fds);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

static void claims(struct kvd_unix_path *it, const char *at)
{
    if (kvd_unix_path_claim(it, at, geteuid(), why, sizeof why) != KVARN_OK)
        fail_msg("%s", why);
    assert_true(it->lock_fd >= 0);
}

static void refuses(const char *at, uid_t uid, kvarn_status status, const char *says)
{
    struct kvd_unix_path it;
    kvarn_status got = kvd_unix_path_claim(&it, at, uid, why, sizeof why);

    if (got != status || strstr(why, says) == NULL)
        fail_msg("%s: %d %s", at, (int)got, why);
    assert_int_equal(it.lock_fd, -1);
    kvd_unix_path_release(&it); /* no harm */
}

static int exists(const char *at)
{
    struct stat is;

    return lstat(at, &is) == 0;
}

/* A socket that nobody listens on, as a daemon that was killed leaves it. */
static void leave_socket(const char *at)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(name.sun_path, sizeof name.sun_path, "%s", at);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof name), 0);
    close(fd);
}

static void a_claim_names_its_holder_and_leaves_nothing(void **state)
{
    struct kvd_unix_path it;
    char says[32], text[32];
    ssize_t count;

    (void)state;
    claims(&it, path);
    assert_string_equal(it.path, path);
    assert_string_equal(it.lock_path, lock_path);
    count = pread(it.lock_fd, text, sizeof text - 1, 0);
    assert_true(count > 0);
    text[count] = '\0';
    assert_int_equal(strtol(text, NULL, 10), getpid());
    snprintf(says, sizeof says, "pid %ld", (long)getpid());
    refuses(path, geteuid(), KVARN_EXISTS, says);
    leave_socket(path);
    kvd_unix_path_release(&it);
    assert_int_equal(it.lock_fd, -1);
    assert_false(exists(path));
    assert_false(exists(lock_path));
    kvd_unix_path_release(&it); /* twice is no harm */
    claims(&it, path);
    kvd_unix_path_release(&it);
    assert_int_equal(rmdir(directory), 0);
}

static void a_holder_without_a_number_is_another_process(void **state)
{
    int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    (void)state;
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(write(fd, "nonsense", 8), 8);
    refuses(path, geteuid(), KVARN_EXISTS, "another process");
    close(fd);
}

/* The number of a longer one that died is not mixed with ours. */
static void an_old_lock_file_is_taken_over(void **state)
{
    struct kvd_unix_path it;
    int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat is;
    char text[32];

    (void)state;
    assert_int_equal(write(fd, "99999999999999\n", 15), 15);
    close(fd);
    leave_socket(path);
    claims(&it, path);
    assert_false(exists(path)); /* the dead one's */
    assert_int_equal(fstat(it.lock_fd, &is), 0);
    snprintf(text, sizeof text, "%ld\n", (long)getpid());
    assert_int_equal(is.st_size, strlen(text));
    kvd_unix_path_release(&it);
}

static void the_directory_is_made_private(void **state)
{
    struct kvd_unix_path it;
    char made[64], at[80];
    mode_t old = umask(0);
    struct stat is;

    (void)state;
    snprintf(made, sizeof made, "%s/new", directory);
    snprintf(at, sizeof at, "%s/k", made);
    claims(&it, at);
    umask(old);
    assert_int_equal(stat(made, &is), 0);
    assert_int_equal(is.st_mode & 0777, 0700);
    kvd_unix_path_release(&it);
    snprintf(at, sizeof at, "%s/not/there/k", directory);
    refuses(at, geteuid(), KVARN_DENIED, "cannot make the directory");
}

static void unsafe_directories_are_refused(void **state)
{
    char link[64], at[80];

    (void)state;
    assert_int_equal(chmod(directory, 0770), 0);
    refuses(path, geteuid(), KVARN_DENIED, "chmod go-w");
    assert_int_equal(chmod(directory, 0702), 0);
    refuses(path, geteuid(), KVARN_DENIED, "mode 0702");
    refuses(path, geteuid(), KVARN_DENIED, "use a folder of its own, such as unix:");
    assert_int_equal(chmod(directory, 0755), 0);
    refuses("/tmp/kvarnd-test.sock", geteuid(), KVARN_DENIED,
            "such as unix:/tmp/kvarn/kvarnd-test.sock");
    refuses(path, 12345, KVARN_DENIED, "not to the daemon's uid 12345");
    snprintf(link, sizeof link, "%s/link", directory);
    assert_int_equal(symlink(directory, link), 0);
    snprintf(at, sizeof at, "%s/k", link);
    refuses(at, geteuid(), KVARN_DENIED, "not a directory");
    assert_false(exists(lock_path));
}

static void what_is_not_ours_is_not_replaced(void **state)
{
    int fd;

    (void)state;
    assert_int_equal(symlink("/etc/passwd", path), 0);
    refuses(path, geteuid(), KVARN_DENIED, "is a link");
    assert_true(exists(path));
    assert_false(exists(lock_path)); /* and the lock is given back */
    assert_int_equal(unlink(path), 0);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    refuses(path, geteuid(), KVARN_DENIED, "not a socket");
    assert_true(exists(path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", lock_path), 0); /* nor is a lock followed */
    refuses(path, geteuid(), KVARN_DENIED, "cannot open the lock file");
    assert_true(exists(lock_path));
}

static void paths_that_cannot_be(void **state)
{
    char at[110];

    (void)state;
    refuses("", geteuid(), KVARN_INVALID_SHAPE, "absolute");
    refuses("k.sock", geteuid(), KVARN_INVALID_SHAPE, "absolute");
    refuses("@kvarnd", geteuid(), KVARN_INVALID_SHAPE, "absolute");
    memset(at, 'x', sizeof at);
    at[0] = '/';
    at[108] = '\0';
    assert_int_equal(kvd_unix_path_check(at, why, sizeof why), KVARN_INVALID_SHAPE);
    assert_non_null(strstr(why, "108 bytes"));
    at[107] = '\0';
    assert_int_equal(kvd_unix_path_check(at, why, sizeof why), KVARN_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_claim_names_its_holder_and_leaves_nothing),
        TEST(a_holder_without_a_number_is_another_process),
        TEST(an_old_lock_file_is_taken_over),
        TEST(the_directory_is_made_private),
        TEST(unsafe_directories_are_refused),
        TEST(what_is_not_ours_is_not_replaced),
        TEST(paths_that_cannot_be),
    };
    return cmocka_run_group_tests_name("unix_path", tests, NULL, NULL);
}
