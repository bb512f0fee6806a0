/* The table of presets and the sizes that follow from one. */
#include <string.h>

#include <kvarn/types.h>

#define PUBLIC(name, k, v, g)                                                                      \
    {                                                                                              \
        name, k, v, g, KVARN_BALANCE_PUBLIC, KVARN_RANGE_MINMAX                                    \
    }
#define SCALE_FREE(name, k, v, g)                                                                  \
    {                                                                                              \
        name, k, v, g, KVARN_BALANCE_SCALE_FREE, KVARN_RANGE_MINMAX                                \
    }
#define TIGHT(name, k, v, g)                                                                       \
    {                                                                                              \
        name, k, v, g, KVARN_BALANCE_SCALE_FREE, KVARN_RANGE_TIGHT                                 \
    }

static const kvarn_preset presets[] = {
    PUBLIC("kvarn_k2v2_g128", 2, 2, 128),
    PUBLIC("kvarn_k4v2_g128", 4, 2, 128),
    PUBLIC("kvarn_k4v4_g128", 4, 4, 128),
    PUBLIC("kvarn_k2v2_g64", 2, 2, 64),
    PUBLIC("kvarn_k4v2_g64", 4, 2, 64),
    PUBLIC("kvarn_k4v4_g64", 4, 4, 64),
    SCALE_FREE("scalefree_k2v2_g128", 2, 2, 128),
    SCALE_FREE("scalefree_k4v2_g128", 4, 2, 128),
    SCALE_FREE("scalefree_k4v4_g128", 4, 4, 128),
    SCALE_FREE("scalefree_k2v2_g64", 2, 2, 64),
    SCALE_FREE("scalefree_k4v2_g64", 4, 2, 64),
    SCALE_FREE("scalefree_k4v4_g64", 4, 4, 64),
    TIGHT("tight_k2v2_g128", 2, 2, 128),
    TIGHT("tight_k4v2_g128", 4, 2, 128),
    TIGHT("tight_k4v4_g128", 4, 4, 128),
    TIGHT("tight_k2v2_g64", 2, 2, 64),
    TIGHT("tight_k4v2_g64", 4, 2, 64),
    TIGHT("tight_k4v4_g64", 4, 4, 64),
};

const kvarn_preset *kvarn_preset_at(size_t index)
{
    return index < sizeof presets / sizeof presets[0] ? &presets[index] : NULL;
}

const kvarn_preset *kvarn_preset_find(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}

size_t kvarn_dtype_bytes(kvarn_dtype dtype)
{
    switch (dtype) {
    case KVARN_F16:
    case KVARN_BF16:
        return 2;
    case KVARN_F32:
        return 4;
    }
    return 0;
}

const char *kvarn_dtype_name(kvarn_dtype dtype)
{
    switch (dtype) {
    case KVARN_F16:
        return "f16";
    case KVARN_BF16:
        return "bf16";
    case KVARN_F32:
        return "f32";
    }
    return NULL;
}

size_t kvarn_record_bytes(const kvarn_preset *preset, uint32_t head_dim)
{
    size_t codes;

    if (head_dim != 64 && head_dim != 128 && head_dim != 256)
        return 0;
    codes = (size_t)head_dim * preset->group * ((size_t)preset->bits_k + preset->bits_v) / 8;
    return codes + 6 * ((size_t)head_dim + preset->group);
}
