/* Results as a table, JSON or CSV. A result is a list of flat objects with the same keys; keys that
 * end in "bytes" are shown with a unit in a table and as integers elsewhere. */
#ifndef KVC_CTL_OUTPUT_H
#define KVC_CTL_OUTPUT_H

#include <jansson.h>

enum ctl_format { CTL_TABLE, CTL_JSON, CTL_CSV };

/* Prints {"schema": 1, name: rows}, or the rows alone as table or CSV. Takes rows. */
void ctl_print(enum ctl_format format, const char *name, json_t *rows);
/* As above for one object: a table is then one line per key. Takes it. */
void ctl_print_one(enum ctl_format format, const char *name, json_t *object);
/* A JSON document with the schema number; takes document. */
void ctl_print_json(json_t *document);
/* The head of a CSV that has no rows, from an object with the keys of one; nothing in other
 * formats. Takes it. */
void ctl_print_head(enum ctl_format format, json_t *example);
/* The parts of a table or CSV that comes in pieces (stat -i). */
void ctl_print_rows(enum ctl_format format, const json_t *rows, int with_head);

#endif
