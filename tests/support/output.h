/* What a function prints to standard output, for tests of programs' parts. */
#ifndef TEST_OUTPUT_H
#define TEST_OUTPUT_H

#include <stdio.h>
#include <unistd.h>

struct output {
    int saved; /* the real standard output */
    FILE *file;
};

static inline int output_begin(struct output *output)
{
    fflush(stdout);
    output->saved = dup(STDOUT_FILENO);
    output->file = tmpfile();
    return output->saved >= 0 && output->file != NULL &&
                   dup2(fileno(output->file), STDOUT_FILENO) >= 0
               ? 0
               : -1;
}

/* Gives the text, cut at `room`, and standard output back. */
static inline size_t output_end(struct output *output, char *text, size_t room)
{
    size_t count;

    fflush(stdout);
    dup2(output->saved, STDOUT_FILENO);
    close(output->saved);
    rewind(output->file);
    count = fread(text, 1, room - 1, output->file);
    text[count] = '\0';
    fclose(output->file);
    return count;
}

#endif
