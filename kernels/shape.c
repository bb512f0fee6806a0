/* What shapes the kernels take, and the scratch they need for them. */
#include "kernels/compress.h"

static kvarn_status refuse(const char **why, kvarn_status status, const char *text)
{
    if (why != NULL)
        *why = text;
    return status;
}

kvarn_status kvk_shape_check(const struct kvk_shape *s, const char **why)
{
    if (s->dim != 64 && s->dim != 128 && s->dim != 256)
        return refuse(why, KVARN_INVALID_SHAPE, "head dimension must be 64, 128 or 256");
    if (s->group != 64 && s->group != 128)
        return refuse(why, KVARN_INVALID_SHAPE, "tokens per tile must be 64 or 128");
    if (s->bits_k != 2 && s->bits_k != 4)
        return refuse(why, KVARN_UNSUPPORTED, "bits of K must be 2 or 4");
    if (s->bits_v != 2 && s->bits_v != 4)
        return refuse(why, KVARN_UNSUPPORTED, "bits of V must be 2 or 4");
    if (s->dtype != KVARN_F16 && s->dtype != KVARN_BF16)
        return refuse(why, KVARN_UNSUPPORTED, "dtype of K and V must be f16 or bf16");
    if (s->balance != KVARN_BALANCE_PUBLIC && s->balance != KVARN_BALANCE_SCALE_FREE)
        return refuse(why, KVARN_UNSUPPORTED, "unknown balance policy");
    if (s->range != KVARN_RANGE_MINMAX && s->range != KVARN_RANGE_TIGHT)
        return refuse(why, KVARN_UNSUPPORTED, "unknown range policy");
    if (s->k_rotated > 1)
        return refuse(why, KVARN_UNSUPPORTED, "k_rotated must be 0 or 1");
    if (s->v_rotated > 1)
        return refuse(why, KVARN_UNSUPPORTED, "v_rotated must be 0 or 1");
    if (s->iterations < 1 || s->iterations > KVARN_MAX_ITERATIONS)
        return refuse(why, KVARN_INVALID_SHAPE, "iterations must be 1 to 64");
    return KVARN_OK;
}

bool kvk_shape_same(const struct kvk_shape *a, const struct kvk_shape *b)
{
    return a->dim == b->dim && a->group == b->group && a->bits_k == b->bits_k &&
           a->bits_v == b->bits_v && a->dtype == b->dtype && a->balance == b->balance &&
           a->range == b->range && a->k_rotated == b->k_rotated && a->v_rotated == b->v_rotated &&
           a->iterations == b->iterations;
}

size_t kvk_scratch_bytes(const struct kvk_shape *shape)
{
    return sizeof(struct kvk_compress_scratch) + (size_t)shape->dim * shape->group * sizeof(float);
}
