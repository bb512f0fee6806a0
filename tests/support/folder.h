/* Folders of a test. */
#ifndef TEST_FOLDER_H
#define TEST_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* A fresh one under /tmp, for this user alone. */
void folder_new(char *path, size_t room);
/* With everything in it, two levels deep. */
void folder_remove(const char *path);
/* A file whose name begins so; its whole path in out. */
bool folder_find(const char *path, const char *begins, char *out, size_t room);
unsigned folder_count(const char *path, const char *begins);

#endif
