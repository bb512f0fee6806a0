/* The tables of this binary and the choice among them.
 *
 * A bundle is offered only when the CPU and the operating system have all of it: avx2 means AVX2,
 * FMA and F16C; avx512 means F, BW, VL and DQ on top. The choice goes down the stairs avx512, avx2,
 * ref and passes over a table that fails the self-test. */
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/attend.h"
#include "kernels/variants.h"

#if defined(__x86_64__)
/* __builtin_cpu_supports looks at XGETBV too; it does not know F16C in every compiler we use. */
static int cpu_has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static int cpu_has_fma(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int cpu_has_avx2(void)
{
    return cpu_has_fma() && cpu_has_f16c();
}

static int cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#else
static int cpu_has_avx2(void)
{
    return 0;
}

static int cpu_has_avx512(void)
{
    return 0;
}
#endif

/* Both builds of the reference give the same bits; this one only picks the faster. */
static kvarn_status compress_ref(struct kvk_compress *op)
{
#if defined(KVK_HAVE_AVX2)
    if (cpu_has_fma())
        return kvk_compress_ref_fma(op);
#endif
    return kvk_compress_ref(op);
}

const struct kvk_table kvk_table_ref = {
    .name = "ref",
    .compress = compress_ref,
    .decompress = kvk_decompress_ref,
    .attend = kvk_attend_ref,
};

#if defined(KVK_HAVE_AVX2)
static const struct kvk_table table_avx2 = {
    .name = "avx2",
    .compress = kvk_compress_avx2,
    .decompress = kvk_decompress_avx2,
    .attend = kvk_attend_avx2,
};
const struct kvk_table *const kvk_table_avx2 = &table_avx2;
#else
const struct kvk_table *const kvk_table_avx2 = NULL;
#endif

#if defined(KVK_HAVE_AVX512)
static const struct kvk_table table_avx512 = {
    .name = "avx512",
    .compress = kvk_compress_avx512,
    .decompress = kvk_decompress_avx512,
    .attend = kvk_attend_avx512,
};
const struct kvk_table *const kvk_table_avx512 = &table_avx512;
#else
const struct kvk_table *const kvk_table_avx512 = NULL;
#endif

const struct kvk_table *kvk_cpu_table(const char *name)
{
    if (strcmp(name, "ref") == 0)
        return &kvk_table_ref;
    if (strcmp(name, "avx2") == 0)
        return cpu_has_avx2() ? kvk_table_avx2 : NULL;
    if (strcmp(name, "avx512") == 0)
        return cpu_has_avx512() ? kvk_table_avx512 : NULL;
    return NULL;
}

const struct kvk_table *kvk_cpu_best(const char *mask, void (*report)(const char *line))
{
    static const char *const stairs[] = {"avx512", "avx2", "ref"};
    size_t from = 0, count = sizeof stairs / sizeof stairs[0];

    if (mask != NULL && mask[0] != '\0') {
        while (from < count && strcmp(mask, stairs[from]) != 0)
            from++;
        if (from == count)
            return NULL;
    }
    for (; from < count; from++) {
        const struct kvk_table *table = kvk_cpu_table(stairs[from]);
        const char *why = "this CPU or build does not have it";
        char line[160];

        if (table != NULL && kvk_selftest_passes(table, &why))
            return table;
        if (report == NULL)
            continue;
        snprintf(line, sizeof line, "kernels: %s skipped: %s", stairs[from], why);
        report(line);
    }
    return NULL;
}
