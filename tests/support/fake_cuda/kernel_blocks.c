/* The kernels over blocks: compress, write, decompress, read, export, import, digest. */
#include <stdlib.h>
#include <string.h>

#include "kernels/tile.h"
#include "support/fake_cuda/inside.h"

enum { SLOT_ALIGNMENT = 128, CELL_ALIGNMENT = 16 };

/* One cell of one block, with everything about it that kernels need. */
struct cell {
    const struct kvk_cuda_blocks *all;
    const struct kvk_cuda_block *block;
    uint32_t index;       /* block */
    uint32_t layer, head; /* layer: from layer_begin */
    uint32_t number;      /* within the block */
    size_t bytes, row;
    uint8_t *at;     /* in the slot */
    uint8_t *record; /* room for one in canonical order */
    void *scratch;
};

typedef kvd_cu_result cell_body(struct cell *cell);

void *fake_memory(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (at == NULL)
        fake_die("no memory");
    return at;
}

bool fake_fault_keep(uint64_t faults, uint32_t index, uint64_t fault)
{
    uint64_t *at = (uint64_t *)(void *)fake_at(faults + index * UINT64_C(8), 8);

    if (at != NULL && fault < *at)
        *at = fault;
    return at != NULL;
}

static kvd_cu_result keep_fault(const struct cell *cell, const struct kvk_fault *fault)
{
    uint32_t tensor = fault->tensor == 'v';

    return fake_fault_keep(cell->all->faults, cell->index,
                           KVK_CUDA_FAULT(cell->number, tensor, fault->token, fault->channel))
               ? KVD_CU_SUCCESS
               : KVD_CU_ILLEGAL_ADDRESS;
}

static kvd_cu_result keep_digest(const struct cell *cell, const uint8_t *canonical)
{
    const struct kvk_cuda_blocks *all = cell->all;
    uint64_t place = (uint64_t)cell->index * all->layer_count * all->heads + cell->number;
    uint32_t digest = kvk_digest(0, canonical, cell->bytes);

    if (all->digests == 0)
        return KVD_CU_SUCCESS;
    uint8_t *at = fake_at(all->digests + place * 4, 4);
    if (at == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    memcpy(at, &digest, 4);
    return KVD_CU_SUCCESS;
}

/* The first of the cell's `tokens` rows at address `rows` of the block; NULL: not all accessible.
 */
static uint8_t *rows_at(const struct cell *cell, uint64_t rows, uint32_t tokens)
{
    const struct kvk_cuda_block *block = cell->block;
    uint64_t at =
        rows + cell->layer * block->layer_stride_bytes + cell->head * block->head_stride_bytes;

    return fake_at(at, (tokens - 1) * block->token_stride_bytes + cell->row);
}

/* ---- one kernel each ---- */

static kvd_cu_result compress(struct cell *cell)
{
    const struct kvk_cuda_block *block = cell->block;
    const struct kvk_shape *shape = &cell->all->shape;
    struct kvk_compress op = {.shape = *shape,
                              .k = rows_at(cell, block->k, shape->group),
                              .v = rows_at(cell, block->v, shape->group),
                              .k_token_stride_bytes = block->token_stride_bytes,
                              .v_token_stride_bytes = block->token_stride_bytes,
                              .record = cell->record,
                              .scratch = cell->scratch};

    if (block->kind != KVARN_BLOCK_TILE)
        return KVD_CU_SUCCESS;
    if (op.k == NULL || op.v == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    if (kvk_table_ref.compress(&op) != KVARN_OK)
        return keep_fault(cell, &op.fault);
    kvk_device_from_record(shape, cell->at, cell->record);
    return keep_digest(cell, cell->record);
}

static kvd_cu_result write_rows(struct cell *cell)
{
    const struct kvk_cuda_block *block = cell->block;
    const struct kvk_shape *shape = &cell->all->shape;
    kvarn_dtype dtype = (kvarn_dtype)shape->dtype;
    struct kvk_fault fault;

    if (block->kind != KVARN_BLOCK_EXACT || block->tokens == 0)
        return KVD_CU_SUCCESS;
    const uint8_t *k = rows_at(cell, block->k, block->tokens);
    const uint8_t *v = rows_at(cell, block->v, block->tokens);
    uint8_t *to = cell->at + block->first_token * cell->row;
    if (k == NULL || v == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    if (block->first_token > shape->group || block->tokens > shape->group - block->first_token)
        fake_die("write of tokens %u + %u into a cell of %u", block->first_token, block->tokens,
                 shape->group);
    kvarn_status status = kvk_copy_rows(to, cell->row, k, block->token_stride_bytes, block->tokens,
                                        shape->dim, dtype, 'k', &fault);
    if (status == KVARN_OK)
        status =
            kvk_copy_rows(to + shape->group * cell->row, cell->row, v, block->token_stride_bytes,
                          block->tokens, shape->dim, dtype, 'v', &fault);
    return status == KVARN_OK ? keep_digest(cell, cell->at) : keep_fault(cell, &fault);
}

static kvd_cu_result decompress(struct cell *cell)
{
    const struct kvk_cuda_block *block = cell->block;
    const struct kvk_shape *shape = &cell->all->shape;
    struct kvk_decompress op = {.shape = *shape,
                                .record = cell->record,
                                .k_token_stride_bytes = block->token_stride_bytes,
                                .v_token_stride_bytes = block->token_stride_bytes,
                                .scratch = cell->scratch};

    if (block->kind != KVARN_BLOCK_TILE)
        return KVD_CU_SUCCESS;
    op.k = block->k != 0 ? rows_at(cell, block->k, shape->group) : NULL;
    op.v = block->v != 0 ? rows_at(cell, block->v, shape->group) : NULL;
    if ((block->k != 0 && op.k == NULL) || (block->v != 0 && op.v == NULL))
        return KVD_CU_ILLEGAL_ADDRESS;
    kvk_record_from_device(shape, cell->record, cell->at);
    kvk_table_ref.decompress(&op);
    return KVD_CU_SUCCESS;
}

static void read_tensor(const struct cell *cell, uint8_t *to, const uint8_t *from)
{
    const struct kvk_cuda_block *block = cell->block;

    for (uint32_t token = 0; to != NULL && token < block->tokens; token++)
        memcpy(to + token * block->token_stride_bytes,
               from + (block->first_token + token) * cell->row, cell->row);
}

static kvd_cu_result read_rows(struct cell *cell)
{
    const struct kvk_cuda_block *block = cell->block;
    uint32_t group = cell->all->shape.group;

    if (block->kind != KVARN_BLOCK_EXACT || block->tokens == 0)
        return KVD_CU_SUCCESS;
    uint8_t *k = block->k != 0 ? rows_at(cell, block->k, block->tokens) : NULL;
    uint8_t *v = block->v != 0 ? rows_at(cell, block->v, block->tokens) : NULL;
    if ((block->k != 0 && k == NULL) || (block->v != 0 && v == NULL))
        return KVD_CU_ILLEGAL_ADDRESS;
    if (block->first_token > group || block->tokens > group - block->first_token)
        fake_die("read of tokens %u + %u of a cell of %u", block->first_token, block->tokens,
                 group);
    read_tensor(cell, k, cell->at);
    read_tensor(cell, v, cell->at + group * cell->row);
    return KVD_CU_SUCCESS;
}

/* The cell's canonical bytes: in `record`, or where they stand. */
static const uint8_t *canonical(const struct cell *cell)
{
    if (cell->block->kind == KVARN_BLOCK_EXACT)
        return cell->at;
    kvk_record_from_device(&cell->all->shape, cell->record, cell->at);
    return cell->record;
}

static kvd_cu_result export_cell(struct cell *cell)
{
    uint8_t *to = fake_at(cell->block->k + cell->number * (uint64_t)cell->bytes, cell->bytes);

    if (to == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    memcpy(to, canonical(cell), cell->bytes);
    return keep_digest(cell, to);
}

static kvd_cu_result import_cell(struct cell *cell)
{
    const struct kvk_shape *shape = &cell->all->shape;
    const uint8_t *from =
        fake_at(cell->block->k + cell->number * (uint64_t)cell->bytes, cell->bytes);
    struct kvk_fault fault;

    if (from == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    memcpy(cell->record, from, cell->bytes); /* what is looked at is what is kept */
    if (cell->block->kind == KVARN_BLOCK_TILE)
        kvk_device_from_record(shape, cell->at, cell->record);
    else
        memcpy(cell->at, cell->record, cell->bytes);
    kvd_cu_result result = keep_digest(cell, cell->record);
    if (result == KVD_CU_SUCCESS &&
        kvk_cell_check(shape, cell->block->kind, cell->record, &fault) != KVARN_OK)
        result = keep_fault(cell, &fault);
    return result;
}

static kvd_cu_result digest(struct cell *cell)
{
    return keep_digest(cell, canonical(cell));
}

/* ---- all cells of a launch ---- */

static size_t cell_bytes(const struct kvk_shape *shape, uint32_t kind)
{
    if (kind == KVARN_BLOCK_TILE)
        return kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v).bytes;
    return kind == KVARN_BLOCK_EXACT ? 4 * (size_t)shape->dim * shape->group : 0;
}

static kvd_cu_result run_block(struct cell *cell, cell_body *body)
{
    const struct kvk_cuda_blocks *all = cell->all;
    uint64_t first = (uint64_t)all->layer_begin * all->heads;
    kvd_cu_result result = KVD_CU_SUCCESS;

    cell->bytes = cell_bytes(&all->shape, cell->block->kind);
    if (cell->bytes == 0)
        fake_die("block %u of %u has kind %u", cell->index, all->count, cell->block->kind);
    for (cell->number = 0; cell->number < all->layer_count * all->heads; cell->number++) {
        uint64_t at = cell->block->slot + (first + cell->number) * cell->bytes;

        if (cell->block->slot % SLOT_ALIGNMENT != 0 || at % CELL_ALIGNMENT != 0)
            return KVD_CU_MISALIGNED_ADDRESS;
        cell->layer = cell->number / all->heads;
        cell->head = cell->number % all->heads;
        cell->at = fake_at(at, cell->bytes);
        result = cell->at != NULL ? body(cell) : KVD_CU_ILLEGAL_ADDRESS;
        if (result != KVD_CU_SUCCESS)
            break;
    }
    return result;
}

static kvd_cu_result run_blocks(const char *name, const struct kvk_cuda_blocks *all,
                                cell_body *body)
{
    const char *why;
    kvd_cu_result result = KVD_CU_SUCCESS;

    if (kvk_shape_check(&all->shape, &why) != KVARN_OK || !fake_name_fits(name, &all->shape) ||
        all->layer_begin > all->layers || all->layer_count > all->layers - all->layer_begin)
        fake_die("%s launched for a shape that is not its own", name);
    const struct kvk_cuda_block *blocks =
        (const void *)fake_at(all->blocks, all->count * sizeof(struct kvk_cuda_block));
    if (blocks == NULL)
        return KVD_CU_ILLEGAL_ADDRESS;
    struct cell cell = {.all = all,
                        .row = 2 * (size_t)all->shape.dim,
                        .record = fake_memory(cell_bytes(&all->shape, KVARN_BLOCK_EXACT)),
                        .scratch = fake_memory(kvk_scratch_bytes(&all->shape))};
    for (cell.index = 0; cell.index < all->count && result == KVD_CU_SUCCESS; cell.index++) {
        cell.block = &blocks[cell.index];
        result = run_block(&cell, body);
    }
    free(cell.record);
    free(cell.scratch);
    return result;
}

#define BODY(name, cell)                                                                           \
    static kvd_cu_result name##_kernel(const char *kernel, const void *arguments, uint32_t grid)   \
    {                                                                                              \
        (void)grid;                                                                                \
        return run_blocks(kernel, arguments, cell);                                                \
    }
BODY(compress, compress)
BODY(write, write_rows)
BODY(decompress, decompress)
BODY(read, read_rows)
BODY(export, export_cell)
BODY(import, import_cell)
BODY(digest, digest)
#undef BODY

static const struct {
    const char *beginning;
    fake_kernel_body *body;
    uint32_t argument_bytes;
} bodies[] = {
    {"kvk_cuda_compress", compress_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_write", write_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_decompress", decompress_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_read", read_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_export", export_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_import", import_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_digest", digest_kernel, sizeof(struct kvk_cuda_blocks)},
    {"kvk_cuda_attend", fake_attend, sizeof(struct kvk_cuda_attend)},
};

fake_kernel_body *fake_kernel_body_of(const char *name, uint32_t *argument_bytes)
{
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        size_t bytes = strlen(bodies[i].beginning);

        if (strncmp(name, bodies[i].beginning, bytes) == 0 &&
            (name[bytes] == '\0' || name[bytes] == '_')) {
            *argument_bytes = bodies[i].argument_bytes;
            return bodies[i].body;
        }
    }
    return NULL;
}
