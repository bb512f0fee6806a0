/* Keys and values of real models (tests/data): one layer of a capture, read without other
 * libraries.
 */
#ifndef GPU_SUPPORT_CAPTURE_H
#define GPU_SUPPORT_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* fp16 rows [tokens, heads, dim]. */
struct capture {
    uint32_t tokens, heads, dim, layers;
    uint8_t *k, *v; /* [layers][tokens][heads][dim] */
};

/* "smollm2_135m" or "gemma3_270m", from tests/data or $KVARN_DATA. false: the file is not there. A
 * file that is something else ends the program. */
bool capture_open(struct capture *capture, const char *name);
void capture_close(struct capture *capture);
size_t capture_matrix_bytes(const struct capture *capture); /* k or v of one layer */

#endif
