/* Whether what a slot holds of one layer and kv head (a record, or exact rows) is made of finite
 * numbers.
 *
 * compress never makes anything else; bytes that come from elsewhere (IMPORT) may, with a right
 * digest, and would turn every attention over them into NaN. Codes cannot be wrong: every bit
 * pattern is one. */
#include "kernels/tile.h"
#include "kernels/variants.h"

/* A vector of the record: its place, its length, and whether its elements belong to tokens. */
struct vector {
    size_t at;
    uint32_t count;
    char tensor;
    int per_token;
};

static kvarn_status check_record(const struct kvk_shape *shape, const uint8_t *record,
                                 struct kvk_fault *fault)
{
    const struct kvk_layout at =
        kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    const struct vector vectors[] = {
        {at.k_step, shape->dim, 'k', 0},    {at.k_zero, shape->dim, 'k', 0},
        {at.k_token, shape->group, 'k', 1}, {at.v_channel, shape->dim, 'v', 0},
        {at.v_step, shape->group, 'v', 1},  {at.v_zero, shape->group, 'v', 1},
    };

    struct kvk_fault seen, least = {0};

    /* The three vectors of each matrix stand side by side: two looks, and six only to name what was
     * seen: the smallest place in the order (tensor, token, channel). */
    if (kvk_rows_check(record + at.k_step, 0, 1, 2u * shape->dim + shape->group, KVARN_F16, 'k',
                       fault) == KVARN_OK &&
        kvk_rows_check(record + at.v_channel, 0, 1, shape->dim + 2u * shape->group, KVARN_F16, 'v',
                       fault) == KVARN_OK)
        return KVARN_OK;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const struct vector *v = &vectors[i];

        if (kvk_rows_check(record + v->at, 0, 1, v->count, KVARN_F16, v->tensor, &seen) == KVARN_OK)
            continue;
        if (v->per_token)
            seen = (struct kvk_fault){v->tensor, seen.channel, 0};
        if (least.tensor == 0 || (seen.tensor == least.tensor &&
                                  (seen.token < least.token ||
                                   (seen.token == least.token && seen.channel < least.channel))))
            least = seen;
    }
    *fault = least;
    return KVARN_NON_FINITE;
}

kvarn_status kvk_cell_check(const struct kvk_shape *shape, uint32_t kind, const uint8_t *cell,
                            struct kvk_fault *fault)
{
    const char *why;
    kvarn_status status = kvk_shape_check(shape, &why);
    size_t row = (size_t)shape->dim * 2;

    *fault = (struct kvk_fault){0};
    if (status != KVARN_OK)
        return status;
    if (kind == KVARN_BLOCK_TILE)
        return check_record(shape, cell, fault);
    status =
        kvk_rows_check(cell, row, shape->group, shape->dim, (kvarn_dtype)shape->dtype, 'k', fault);
    if (status != KVARN_OK)
        return status;
    return kvk_rows_check(cell + shape->group * row, row, shape->group, shape->dim,
                          (kvarn_dtype)shape->dtype, 'v', fault);
}
