/* A code matrix ready to be multiplied, for attend_body.h and the variants' products.
 *
 * A product is y[c] = sum over rows r of x[r] * code[r][c]: the same for K (rows are channels, x is
 * the folded query) and for V (rows are tokens, x is the folded p). Columns come in units; inside a
 * unit a variant chooses its own order of columns ("places"), so that unpacking is a shift. */
#ifndef KVK_ATTEND_CODES_H
#define KVK_ATTEND_CODES_H

#include <stdint.h>

#include "kernels/attend_scratch.h"
#include "kernels/inline.h"

struct kvk_codes {
    const uint8_t *base; /* code vector of step s, unit n: base + s * step + n * unit */
    size_t step_bytes, unit_bytes;
    uint32_t bits, rows, columns;
    const int32_t *order; /* where x of row r lies; NULL: at r */
};

#endif
