/* What the piece list of an attend launch must be, and the order in which it is worked off here. */
#include "support/fake_cuda/pieces.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "..._<D>_<G>_k<KB>v<VB>..." */
bool fake_name_fits(const char *name, const struct kvk_shape *shape)
{
    unsigned dim, group, bits_k, bits_v;

    while (*name != '\0' && !isdigit((unsigned char)*name))
        name++;
    if (sscanf(name, "%u_%u_k%uv%u", &dim, &group, &bits_k, &bits_v) != 4)
        return true;
    return dim == shape->dim && group == shape->group && bits_k == shape->bits_k &&
           bits_v == shape->bits_v;
}

/* "..._n<NT>": 4 NT rows at most. */
static uint32_t rows_most(const char *name)
{
    const char *at = strstr(name, "_n");
    unsigned long tiles = at != NULL ? strtoul(at + 2, NULL, 10) : 0;

    return tiles > 0 ? (uint32_t)tiles * 4 : UINT32_MAX;
}

static int order(const void *a, const void *b)
{
    const struct kvk_cuda_piece *p = ((const struct fake_piece *)a)->given;
    const struct kvk_cuda_piece *q = ((const struct fake_piece *)b)->given;
    const uint32_t left[] = {p->sequence, p->kv_head, p->row_begin, p->part};
    const uint32_t right[] = {q->sequence, q->kv_head, q->row_begin, q->part};

    for (int i = 0; i < 4; i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

static bool same_head(const struct kvk_cuda_piece *a, const struct kvk_cuda_piece *b)
{
    return a->sequence == b->sequence && a->kv_head == b->kv_head;
}

static bool same_rows(const struct kvk_cuda_piece *a, const struct kvk_cuda_piece *b)
{
    return same_head(a, b) && a->row_begin == b->row_begin;
}

/* Pieces [begin, end) are of the same rows. */
uint32_t fake_pieces_end(const struct fake_pieces *pieces, uint32_t begin)
{
    uint32_t at = begin;

    while (at < pieces->count && same_rows(pieces->table[at].given, pieces->table[begin].given))
        at++;
    return at;
}

/* Row ranges follow from the next one's begin. Every head of a sequence that has a piece has pieces
 * for all of its rows. */
static void cut_rows(struct fake_pieces *pieces)
{
    for (uint32_t at = 0, next; at < pieces->count; at = next) {
        const struct kvk_cuda_piece *given = pieces->table[at].given;
        uint32_t rows = given->of.q_tokens * pieces->group_heads;
        next = fake_pieces_end(pieces, at);
        bool last = next == pieces->count || !same_head(pieces->table[next].given, given);
        bool first = at == 0 || !same_head(pieces->table[at - 1].given, given);
        uint32_t end = last ? rows : pieces->table[next].given->row_begin;

        if ((first && given->row_begin != 0) || end > rows || end <= given->row_begin ||
            end - given->row_begin > rows_most(pieces->name))
            fake_die("%s: sequence %u, kv head %u: rows %u to %u of %u in one piece", pieces->name,
                     given->sequence, given->kv_head, given->row_begin, end, rows);
        for (uint32_t i = at; i < next; i++)
            pieces->table[i].row_end = end;
        if (!last || given->kv_head == pieces->all->kv_heads - 1)
            continue;
        if (next == pieces->count || pieces->table[next].given->sequence != given->sequence ||
            pieces->table[next].given->kv_head != given->kv_head + 1)
            fake_die("%s: sequence %u has nothing for kv head %u", pieces->name, given->sequence,
                     given->kv_head + 1);
    }
}

/* Positions that query token `token` sees: [*from, *to). */
void fake_range(const struct kvk_cuda_sequence *sequence, uint32_t token, uint32_t *from,
                uint32_t *to)
{
    uint32_t limit = sequence->limit + token;

    *to = sequence->full ? sequence->limit : limit;
    *from = sequence->window > 0 && limit > sequence->window ? limit - sequence->window : 0;
}

static bool all_see(const struct fake_pieces *pieces, const struct fake_piece *piece,
                    const struct kvk_cuda_span *span)
{
    for (uint32_t row = piece->given->row_begin; row < piece->row_end; row++) {
        uint32_t from, to;
        fake_range(&piece->given->of, row / pieces->group_heads, &from, &to);
        if (span->position < from || span->position + span->tokens > to)
            return false;
    }
    return true;
}

static bool sees_any(const struct fake_pieces *pieces, const struct fake_piece *piece,
                     const struct kvk_cuda_span *span)
{
    const struct kvk_cuda_sequence *sequence = &piece->given->of;

    for (uint32_t row = piece->given->row_begin; row < piece->row_end; row++) {
        uint32_t from, to;
        fake_range(sequence, row / pieces->group_heads, &from, &to);
        if (span->position < to && span->position + span->tokens > from)
            return true;
    }
    return false;
}

/* A piece is exact spans, tiles, exact spans, and does not leave out masks that it needs. */
static void check_spans(const struct fake_pieces *pieces, const struct fake_piece *piece,
                        const struct kvk_cuda_span *spans)
{
    const struct kvk_cuda_piece *given = piece->given;
    uint32_t count = given->span_end - given->span_begin, exact = given->lead + given->trail;
    uint32_t stretches = pieces->all->shape.group / 16;

    if (exact > count || given->units != exact * stretches + (count - exact))
        fake_die("%s: %u units in %u spans, %u of them exact", pieces->name, given->units, count,
                 exact);
    for (uint32_t s = given->span_begin; s < given->span_end; s++) {
        bool tile = s >= given->span_begin + given->lead && s < given->span_end - given->trail;
        if (spans[s].kind != (tile ? KVARN_BLOCK_TILE : KVARN_BLOCK_EXACT) ||
            (!tile && spans[s].tokens == 0))
            fake_die("%s: span %u of kind %u where a piece has the other", pieces->name, s,
                     spans[s].kind);
        bool whole = spans[s].tokens == pieces->all->shape.group;
        if (tile && given->masked == 0 && !(whole && all_see(pieces, piece, &spans[s])))
            fake_die("%s: sequence %u, row %u: span %u needs a mask", pieces->name, given->sequence,
                     given->row_begin, s);
    }
}

/* Pieces [begin, end) of the same rows cover every span that one of the rows sees, once. */
void fake_pieces_check(const struct fake_pieces *pieces, uint32_t begin, uint32_t end,
                       const struct kvk_cuda_span *spans)
{
    const struct fake_piece *lead = &pieces->table[begin];
    const struct kvk_cuda_sequence *sequence = &lead->given->of;

    for (uint32_t i = begin; i < end; i++) {
        const struct kvk_cuda_piece *given = pieces->table[i].given;

        if (given->parts != end - begin || given->part != i - begin ||
            given->join != lead->given->join || given->part_first != lead->given->part_first)
            fake_die("%s: sequence %u, kv head %u, row %u: part %u of %u does not join the others",
                     pieces->name, given->sequence, given->kv_head, given->row_begin, given->part,
                     given->parts);
        if (given->span_begin > given->span_end || given->span_end > sequence->span_count)
            fake_die("%s: spans %u to %u of %u", pieces->name, given->span_begin, given->span_end,
                     sequence->span_count);
        if (memcmp(&given->of, sequence, sizeof(*sequence)) != 0)
            fake_die("%s: sequence %u is not the same in all pieces", pieces->name,
                     given->sequence);
        check_spans(pieces, &pieces->table[i], spans);
    }
    for (uint32_t s = 0; s < sequence->span_count; s++) {
        uint32_t covered = 0;
        for (uint32_t i = begin; i < end; i++)
            covered +=
                s >= pieces->table[i].given->span_begin && s < pieces->table[i].given->span_end;
        if (covered > 1 || (covered == 0 && sees_any(pieces, lead, &spans[s])))
            fake_die("%s: sequence %u, kv head %u, row %u: span %u is covered %u times",
                     pieces->name, lead->given->sequence, lead->given->kv_head,
                     lead->given->row_begin, s, covered);
    }
}

/* Every thread block begins at the piece of its number and goes on from there; together they come
 * by every piece once. */
static void check_turns(const struct fake_pieces *pieces, const struct kvk_cuda_piece *given)
{
    uint8_t *taken = fake_memory(pieces->count + UINT64_C(1));
    uint32_t count = 0;

    memset(taken, 0, pieces->count);
    for (uint32_t block = 0; block < pieces->all->blocks; block++) {
        uint32_t at = block;
        do {
            if (at >= pieces->count || taken[at])
                fake_die("%s: thread block %u comes to piece %u of %u, %s", pieces->name, block, at,
                         pieces->count,
                         at < pieces->count ? "which is taken" : "which is not there");
            taken[at] = 1;
            count++;
            at = given[at].next;
        } while (at != 0);
    }
    if (count != pieces->count)
        fake_die("%s: %u of %u pieces belong to a thread block", pieces->name, count,
                 pieces->count);
    free(taken);
}

kvd_cu_result fake_pieces_load(struct fake_pieces *pieces, const char *name,
                               const struct kvk_cuda_attend *all)
{
    const struct kvk_cuda_piece *given =
        (const void *)fake_at(all->pieces, all->piece_count * sizeof(*given));

    *pieces = (struct fake_pieces){.name = name,
                                   .all = all,
                                   .count = all->piece_count,
                                   .group_heads = all->q_heads / all->kv_heads};
    if (given == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    if (all->pieces % 16 != 0)
        return KVD_CU_MISALIGNED_ADDRESS;
    check_turns(pieces, given);
    pieces->table = fake_memory((pieces->count + UINT64_C(1)) * sizeof(*pieces->table));
    for (uint32_t i = 0; i < pieces->count; i++) {
        pieces->table[i] = (struct fake_piece){.given = &given[i]};
        if (given[i].kv_head >= all->kv_heads)
            fake_die("%s: piece %u of kv head %u", name, i, given[i].kv_head);
    }
    qsort(pieces->table, pieces->count, sizeof(*pieces->table), order);
    cut_rows(pieces);
    return KVD_CU_SUCCESS;
}

void fake_pieces_free(struct fake_pieces *pieces)
{
    for (uint32_t i = 0; pieces->table != NULL && i < pieces->count; i++)
        free(pieces->table[i].out);
    free(pieces->table);
}
