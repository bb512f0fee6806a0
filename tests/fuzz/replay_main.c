/* Runs a fuzz target over files and over all files of directories: the committed corpus as an
 * ordinary test, or one input that libFuzzer found, under a debugger, without libFuzzer.
 *
 *   fuzz_frame FILE_OR_DIRECTORY... */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

enum { INPUT_MAX = 1 << 20 };

static unsigned long inputs;

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *room, *input;
    size_t count;
    int failed;

    if (file == NULL) {
        perror(path);
        return 1;
    }
    room = malloc(INPUT_MAX);
    count = room != NULL ? fread(room, 1, INPUT_MAX, file) : 0;
    failed = room == NULL || ferror(file) || !feof(file);
    (void)fclose(file);
    /* a copy of exactly that size, so that a sanitizer sees the first byte too many */
    input = failed ? NULL : malloc(count > 0 ? count : 1);
    if (input != NULL) {
        memcpy(input, room, count);
        (void)LLVMFuzzerTestOneInput(input, count);
        inputs++;
    } else {
        (void)fprintf(stderr, "%s: cannot be read, or over %d bytes\n", path, INPUT_MAX);
    }
    failed = input == NULL;
    free(input);
    free(room);
    return failed;
}

static int replay(const char *path);

static int replay_directory(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort), failed = 0;

    if (count < 0) {
        perror(path);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        char whole[4096];
        int length = snprintf(whole, sizeof whole, "%s/%s", path, entries[i]->d_name);

        if (entries[i]->d_name[0] != '.')
            failed |= length < 0 || (size_t)length >= sizeof whole || replay(whole);
        free(entries[i]);
    }
    free(entries);
    return failed;
}

static int replay(const char *path)
{
    struct stat about;

    if (stat(path, &about) != 0) {
        perror(path);
        return 1;
    }
    return S_ISDIR(about.st_mode) ? replay_directory(path) : replay_file(path);
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    (void)printf("%lu inputs\n", inputs);
    return failed || inputs == 0;
}
