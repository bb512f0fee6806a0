/* One JSON object per line, appended to a file or printed. */
#ifndef DEMO_REPORT_H
#define DEMO_REPORT_H

#include <jansson.h>

/* Takes the object. path NULL = stdout. 0, or -1 after saying on stderr what went wrong. */
int demo_report(const char *path, json_t *object);

#endif
