/* Inside the stand-in driver: the piece list of an attend launch, checked. */
#ifndef FAKE_CUDA_PIECES_H
#define FAKE_CUDA_PIECES_H

#include "support/fake_cuda/inside.h"

struct fake_piece {
    const struct kvk_cuda_piece *given;
    uint32_t row_end;
    float *out, *lse; /* [rows][dim], [rows]; one allocation */
};

struct fake_pieces {
    const char *name; /* of the kernel */
    const struct kvk_cuda_attend *all;
    struct fake_piece *table; /* ordered by sequence, kv head, row, part */
    uint32_t count, group_heads;
};

/* Reads and orders the list. Ends the process when a piece belongs to no thread block or to two,
 * when a head or a row has none, or when one has more rows than the kernel takes. */
kvd_cu_result fake_pieces_load(struct fake_pieces *pieces, const char *name,
                               const struct kvk_cuda_attend *all);
void fake_pieces_free(struct fake_pieces *pieces);

/* Pieces [begin, gives) are of the same rows. */
uint32_t fake_pieces_end(const struct fake_pieces *pieces, uint32_t begin);
/* Ends the process unless these cover every span that one of their rows sees, once. */
void fake_pieces_check(const struct fake_pieces *pieces, uint32_t begin, uint32_t end,
                       const struct kvk_cuda_span *spans);

/* Positions that query token `token` sees: [*from, *to). */
void fake_range(const struct kvk_cuda_sequence *sequence, uint32_t token, uint32_t *from,
                uint32_t *to);

#endif
