/* Formatting of flat results. Column widths come from the rows themselves. */
#include "client/ctl/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES = 256, COLUMNS_MAX = 32, SCHEMA = 1 };

static void format_bytes(char out[CELL_BYTES], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, CELL_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

static int ends_in_bytes(const char *key)
{
    size_t length = strlen(key);

    return length >= 5 && strcmp(key + length - 5, "bytes") == 0;
}

static void format_cell(char out[CELL_BYTES], const char *key, const json_t *value,
                        enum ctl_format format)
{
    if (format == CTL_TABLE && json_is_integer(value) && ends_in_bytes(key))
        format_bytes(out, (double)json_integer_value(value));
    else if (json_is_string(value))
        snprintf(out, CELL_BYTES, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, CELL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, CELL_BYTES, format == CTL_TABLE ? "%.6g" : "%.15g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(out, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else /* nothing to say */
        snprintf(out, CELL_BYTES, "%s", format == CTL_TABLE ? "-" : "");
}

static void print_table(const json_t *rows, int with_head)
{
    int widths[COLUMNS_MAX] = {0};
    char cell[CELL_BYTES];
    const char *key;
    json_t *row, *value;
    size_t index;

    json_array_foreach(rows, index, row)
    {
        size_t column = 0;
        json_object_foreach(row, key, value)
        {
            if (column >= COLUMNS_MAX)
                break;
            format_cell(cell, key, value, CTL_TABLE);
            int width = (int)strlen(cell), head = (int)strlen(key);
            width = width > head ? width : head;
            widths[column] = width > widths[column] ? width : widths[column];
            column++;
        }
    }
    for (size_t line = 0; line < json_array_size(rows) + 1; line++) {
        size_t column = 0;
        if (line == 0 && !with_head)
            continue;
        row = json_array_get(rows, line > 0 ? line - 1 : 0);
        json_object_foreach(row, key, value)
        {
            if (column >= COLUMNS_MAX)
                break;
            format_cell(cell, key, value, CTL_TABLE);
            /* Numbers to the right; the last column ends without spaces. */
            int width = json_is_string(value) ? -widths[column] : widths[column];
            int last = column + 1 == json_object_size(row);
            printf("%*s%s", last && width < 0 ? 0 : width, line == 0 ? key : cell,
                   last ? "\n" : "  ");
            column++;
        }
    }
}

static void print_csv_cell(const char *text)
{
    if (strpbrk(text, ",\"\n\r") == NULL) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_csv_head(json_t *row)
{
    const char *key, *comma = "";
    json_t *value;

    json_object_foreach(row, key, value)
    {
        printf("%s%s", comma, key);
        comma = ",";
    }
    putchar('\n');
}

void ctl_print_head(enum ctl_format format, json_t *example)
{
    if (format == CTL_CSV)
        print_csv_head(example);
    json_decref(example);
}

static void print_csv(const json_t *rows, int with_head)
{
    char cell[CELL_BYTES];
    const char *key;
    json_t *row, *value;
    size_t index;

    json_array_foreach(rows, index, row)
    {
        const char *comma = "";
        if (index == 0 && with_head)
            print_csv_head(row);
        json_object_foreach(row, key, value)
        {
            fputs(comma, stdout);
            format_cell(cell, key, value, CTL_CSV);
            print_csv_cell(cell);
            comma = ",";
        }
        putchar('\n');
    }
}

void ctl_print_rows(enum ctl_format format, const json_t *rows, int with_head)
{
    if (format == CTL_CSV)
        print_csv(rows, with_head);
    else
        print_table(rows, with_head);
    fflush(stdout);
}

void ctl_print_json(json_t *document)
{
    json_t *whole = json_pack("{s:i}", "schema", SCHEMA);

    json_object_update(whole, document);
    json_decref(document);
    json_dumpf(whole, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    putchar('\n');
    fflush(stdout);
    json_decref(whole);
}

void ctl_print(enum ctl_format format, const char *name, json_t *rows)
{
    if (format == CTL_JSON) {
        ctl_print_json(json_pack("{s:o}", name, rows));
        return;
    }
    ctl_print_rows(format, rows, 1);
    json_decref(rows);
}

void ctl_print_one(enum ctl_format format, const char *name, json_t *object)
{
    char cell[CELL_BYTES];
    const char *key;
    json_t *value;

    if (format == CTL_JSON) {
        ctl_print_json(json_pack("{s:o}", name, object));
        return;
    }
    if (format == CTL_CSV) {
        json_t *rows = json_pack("[o]", object);
        print_csv(rows, 1);
        json_decref(rows);
        return;
    }
    json_object_foreach(object, key, value)
    {
        format_cell(cell, key, value, CTL_TABLE);
        printf("%-18s %s\n", key, cell);
    }
    json_decref(object);
}
