/* Attend over a piece list: every piece is computed with the scalar kernel, then the partial
 * results of the same rows are joined. */
#include <stdlib.h>
#include <string.h>

#include "kernels/tile.h"
#include "support/fake_cuda/pieces.h"

struct run {
    struct fake_pieces list;
    uint8_t *records;
    void *scratch;
};

/* A piece's spans as the scalar kernel takes them, with records in canonical order at run->records;
 * false: not all accessible. */
static bool load_spans(const struct run *run, const struct kvk_cuda_piece *piece,
                       const struct kvk_cuda_span *given, struct kvk_span *spans)
{
    const struct kvk_shape *shape = &run->list.all->shape;
    size_t row = 2 * (size_t)shape->dim, exact = 2 * row * shape->group;
    size_t tile = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    uint8_t *record = run->records;

    for (uint32_t s = piece->span_begin; s < piece->span_end; s++, spans++) {
        size_t bytes = given[s].kind == KVARN_BLOCK_TILE ? tile : exact;
        const uint8_t *cell = fake_at(given[s].cell + piece->kv_head * (uint64_t)bytes, bytes);

        if (cell == NULL)
            return false;
        if (given[s].tokens == 0 || given[s].tokens > shape->group)
            fake_die("%s: a span of %u tokens", run->list.name, given[s].tokens);
        *spans = (struct kvk_span){.kind = given[s].kind,
                                   .position = given[s].position,
                                   .tokens = given[s].tokens,
                                   .data = cell,
                                   .v = cell + row * shape->group,
                                   .token_stride_bytes = row};
        if (given[s].kind == KVARN_BLOCK_TILE) {
            kvk_record_from_device(shape, record, cell);
            spans->data = record;
            record += tile;
        }
    }
    return true;
}

/* One row over all spans of the piece. */
static kvd_cu_result run_row(const struct run *run, const struct fake_piece *piece, uint32_t row,
                             const struct kvk_span *spans, struct kvk_span *clipped)
{
    const struct kvk_cuda_sequence *sequence = &piece->given->of;
    const struct kvk_cuda_attend *all = run->list.all;
    uint32_t token = row / run->list.group_heads, at = row - piece->given->row_begin, from, to;
    uint32_t head = piece->given->kv_head * run->list.group_heads + row % run->list.group_heads;
    size_t q_bytes = all->shape.dim * kvarn_dtype_bytes((kvarn_dtype)all->q_dtype), count = 0;

    fake_range(sequence, token, &from, &to);
    for (uint32_t s = 0; s < piece->given->span_end - piece->given->span_begin; s++) {
        if (spans[s].position >= to)
            continue;
        clipped[count] = spans[s];
        if (to - spans[s].position < spans[s].tokens)
            clipped[count].tokens = to - spans[s].position;
        count++;
    }
    /* what is beyond the limit is cut off, so the scalar kernel's own limit only places the window
     */
    struct kvk_attend op = {.shape = all->shape,
                            .q = fake_at(sequence->q + token * sequence->q_token_stride_bytes +
                                             head * sequence->q_head_stride_bytes,
                                         q_bytes),
                            .q_dtype = (uint8_t)all->q_dtype,
                            .q_tokens = 1,
                            .q_heads = 1,
                            .q_token_stride_bytes = q_bytes,
                            .q_head_stride_bytes = q_bytes,
                            .scale = sequence->scale,
                            .soft_cap = sequence->soft_cap,
                            .limit = sequence->limit + token,
                            .window = sequence->window,
                            .spans = clipped,
                            .span_count = count,
                            .out = piece->out + (size_t)at * all->shape.dim,
                            .lse = &piece->lse[at],
                            .scratch = run->scratch};
    if (op.q == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    kvarn_status status = kvk_table_ref.attend(&op);
    if (status == KVARN_OK)
        return KVD_CU_SUCCESS;
    if (status != KVARN_NON_FINITE)
        fake_die("%s: the scalar kernel takes no such call: status %d", run->list.name,
                 (int)status);
    return fake_fault_keep(all->faults, sequence->fault,
                           KVK_CUDA_FAULT(head, 2, token, op.fault.channel))
               ? KVD_CU_SUCCESS
               : KVD_CU_ILLEGAL_ADDRESS;
}

static kvd_cu_result run_piece(struct run *run, struct fake_piece *piece,
                               const struct kvk_cuda_span *given)
{
    const struct kvk_shape *shape = &run->list.all->shape;
    uint32_t rows = piece->row_end - piece->given->row_begin;
    size_t spans = piece->given->span_end - piece->given->span_begin;
    size_t tile = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    struct kvk_span *loaded = fake_memory((2 * spans + 1) * sizeof(*loaded));
    kvd_cu_result result = KVD_CU_SUCCESS;

    run->records = fake_memory(spans * tile + 1);
    piece->out = fake_memory((size_t)rows * (shape->dim + 1u) * sizeof(float));
    piece->lse = piece->out + (size_t)rows * shape->dim;
    if (!load_spans(run, piece->given, given, loaded))
        result = KVD_CU_ILLEGAL_ADDRESS;
    for (uint32_t row = piece->given->row_begin; row < piece->row_end && result == KVD_CU_SUCCESS;
         row++)
        result = run_row(run, piece, row, loaded, loaded + spans);
    free(run->records);
    free(loaded);
    return result;
}

/* Joins the parts of a row and stores it. */
static kvd_cu_result store_row(const struct run *run, uint32_t begin, uint32_t end, uint32_t row)
{
    const struct kvk_cuda_piece *given = run->list.table[begin].given;
    const struct kvk_cuda_sequence *sequence = &given->of;
    uint32_t dim = run->list.all->shape.dim, parts = end - begin;
    kvarn_dtype dtype = (kvarn_dtype)run->list.all->out_dtype;
    float *out = fake_memory((size_t)(parts + 1) * (dim + 1u) * sizeof(float));
    float *lse = out + (size_t)(parts + 1) * dim;
    uint64_t place = (uint64_t)(row / run->list.group_heads) * run->list.all->q_heads +
                     given->kv_head * run->list.group_heads + row % run->list.group_heads;
    uint8_t *to = fake_at(sequence->out + place * dim * kvarn_dtype_bytes(dtype),
                          dim * kvarn_dtype_bytes(dtype));
    uint8_t *to_lse = fake_at(sequence->lse + place * 4, 4);

    for (uint32_t i = 0; i < parts; i++) {
        const struct fake_piece *piece = &run->list.table[begin + i];
        uint32_t at = row - given->row_begin;
        memcpy(out + (size_t)i * dim, piece->out + (size_t)at * dim, dim * sizeof(float));
        lse[i] = piece->lse[at];
    }
    kvk_merge(out + (size_t)parts * dim, &lse[parts], out, lse, parts, 1, dim);
    if (to != NULL && to_lse != NULL) {
        kvk_store_rows(to, dtype, out + (size_t)parts * dim, dim);
        memcpy(to_lse, &lse[parts], 4);
    }
    free(out);
    return to != NULL && to_lse != NULL ? KVD_CU_SUCCESS : KVD_CU_ILLEGAL_ADDRESS;
}

/* The counter of rows in several parts, which the kernel leaves as it finds it: at 0. */
static kvd_cu_result check_join(const struct run *run, uint32_t begin)
{
    const struct kvk_cuda_piece *given = run->list.table[begin].given;
    const uint8_t *join = fake_at(run->list.all->joins + given->join * UINT64_C(4), 4);
    uint32_t count;

    if (given->parts == 1)
        return KVD_CU_SUCCESS;
    if (join == NULL || fake_at(run->list.all->parts, 1) == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    memcpy(&count, join, 4);
    if (count != 0)
        fake_die("%s: join %u begins at %u", run->list.name, given->join, count);
    return KVD_CU_SUCCESS;
}

static kvd_cu_result run_rows(struct run *run, uint32_t begin, uint32_t end)
{
    const struct kvk_cuda_sequence *sequence = &run->list.table[begin].given->of;
    const struct kvk_cuda_span *spans =
        (const void *)fake_at(sequence->spans, sequence->span_count * sizeof(*spans));
    kvd_cu_result result = check_join(run, begin);

    if (spans == NULL && sequence->span_count > 0)
        return KVD_CU_ILLEGAL_ADDRESS;
    fake_pieces_check(&run->list, begin, end, spans);
    for (uint32_t i = begin; i < end && result == KVD_CU_SUCCESS; i++)
        result = run_piece(run, &run->list.table[i], spans);
    for (uint32_t row = run->list.table[begin].given->row_begin;
         row < run->list.table[begin].row_end && result == KVD_CU_SUCCESS; row++)
        result = store_row(run, begin, end, row);
    return result;
}

kvd_cu_result fake_attend(const char *name, const void *arguments, uint32_t grid)
{
    const struct kvk_cuda_attend *all = arguments;
    struct run run = {0};
    const char *why;

    if (kvk_shape_check(&all->shape, &why) != KVARN_OK || !fake_name_fits(name, &all->shape) ||
        all->kv_heads == 0 || all->q_heads % all->kv_heads != 0)
        fake_die("%s launched for a shape that is not its own", name);
    if (grid != all->blocks)
        fake_die("%s launched with %u thread blocks for %u", name, grid, all->blocks);
    run.scratch = fake_memory(kvk_attend_scratch_bytes(1, 1, all->shape.dim));
    kvd_cu_result result = fake_pieces_load(&run.list, name, all);
    for (uint32_t at = 0, next; at < run.list.count && result == KVD_CU_SUCCESS; at = next) {
        next = fake_pieces_end(&run.list, at);
        result = run_rows(&run, at, next);
    }
    fake_pieces_free(&run.list);
    free(run.scratch);
    return result;
}
