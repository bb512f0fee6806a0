/* See folder.h. */
#include "support/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void folder_new(char *path, size_t room)
{
    snprintf(path, room, "/tmp/kvarn-test-XXXXXX");
    if (!mkdtemp(path))
        abort();
}

static bool next(DIR *list, const struct dirent **entry)
{
    do
        *entry = readdir(list);
    while (*entry && (strcmp((*entry)->d_name, ".") == 0 || strcmp((*entry)->d_name, "..") == 0));
    return *entry != NULL;
}

void folder_remove(const char *path)
{
    DIR *list = opendir(path);
    const struct dirent *entry;

    while (list && next(list, &entry)) {
        char name[512];

        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (unlink(name) != 0)
            folder_remove(name);
    }
    if (list)
        closedir(list);
    rmdir(path);
}

bool folder_find(const char *path, const char *begins, char *out, size_t room)
{
    DIR *list = opendir(path);
    const struct dirent *entry;
    bool found = false;

    while (list && !found && next(list, &entry)) {
        if (strncmp(entry->d_name, begins, strlen(begins)) != 0)
            continue;
        snprintf(out, room, "%s/%s", path, entry->d_name);
        found = true;
    }
    if (list)
        closedir(list);
    return found;
}

unsigned folder_count(const char *path, const char *begins)
{
    DIR *list = opendir(path);
    const struct dirent *entry;
    unsigned count = 0;

    while (list && next(list, &entry))
        count += strncmp(entry->d_name, begins, strlen(begins)) == 0;
    if (list)
        closedir(list);
    return count;
}
