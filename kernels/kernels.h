/* One parameter struct per operation and one table of functions per CPU variant.
 *
 * No function here allocates, logs, locks or keeps a pointer. Every pointer is borrowed for the
 * call. Calls on different data may run in parallel on any threads; scratch must not be shared
 * between them. compress and decompress of every table give the same bits as kvk_table_ref. attend
 * is within KVK_ATTEND_TOLERANCE of attention in float64 over the decoded record. */
#ifndef KVK_KERNELS_H
#define KVK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvarn/status.h>
#include <kvarn/types.h>

/* Relative error of an output row (2-norm); absolute error of its LSE. Holds while the terms of
 * every visible logit, scale * sum |q_d K_d|, stay below 8 and grows with them above: a logit is a
 * sum of that size in finite precision. (Typical terms sum to 5 where logits have deviation 1.) */
#define KVK_ATTEND_TOLERANCE 2e-4f

/* What a record is made of. Valid when kvk_shape_check() says OK. */
struct kvk_shape {
    uint16_t dim;        /* 64, 128, 256 */
    uint16_t group;      /* tokens per tile: 64, 128 */
    uint8_t bits_k;      /* 2, 4 */
    uint8_t bits_v;      /* 2, 4 */
    uint8_t dtype;       /* of K, V rows: KVARN_F16 or KVARN_BF16 */
    uint8_t balance;     /* kvarn_balance */
    uint8_t range;       /* kvarn_range */
    uint8_t k_rotated;   /* 1: K and q are taken as they are: the caller rotated both, or neither;
                            decompress does not un-rotate K either */
    uint8_t v_rotated;   /* 1: V rows arrive rotated (H folded into the weights); they are neither
                            rotated by compress nor un-rotated by decompress and attend */
    uint16_t iterations; /* 1..KVARN_MAX_ITERATIONS */
};

/* Where a non-finite value stood. */
struct kvk_fault {
    char tensor; /* 'k', 'v' or 'q'; 0 when there is none */
    uint32_t token, channel;
};

/* K, V of one tile -> one record. NON_FINITE leaves the record unspecified and sets fault. fp16
 * vectors saturate at 65504; bf16 input beyond 2^50 counts as 2^50. */
struct kvk_compress {
    struct kvk_shape shape;
    const void *k, *v;                                 /* [group, dim], channels contiguous */
    size_t k_token_stride_bytes, v_token_stride_bytes; /* any value >= dim * element size, or odd */
    uint8_t *record;                                   /* kvk_layout_of(...).bytes, any alignment */
    void *scratch;                                     /* kvk_scratch_bytes(), 64-byte aligned */
    struct kvk_fault fault;                            /* out */
};

/* One record -> K, V rows, un-rotated, in shape.dtype. Either of k, v may be NULL. */
struct kvk_decompress {
    struct kvk_shape shape;
    const uint8_t *record;
    void *k, *v; /* [group, dim], channels contiguous */
    size_t k_token_stride_bytes, v_token_stride_bytes;
    void *scratch;
};

/* A run of consecutive tokens of one kv head. */
struct kvk_span {
    uint32_t kind;     /* kvarn_block_kind */
    uint32_t position; /* of its first token in the sequence */
    uint32_t tokens;   /* valid tokens: TILE at most group (the first `tokens` of the tile) */
    const void *data; /* TILE: the record. EXACT: K rows [tokens, dim] in shape.dtype, un-rotated */
    const void *v;    /* EXACT: V rows [tokens, dim]; TILE: ignored */
    size_t token_stride_bytes; /* EXACT: of K and of V rows */
};

/* Attention of some query rows of one kv head over spans (GQA: all query heads of that kv head in
 * one call). Query token j sees positions p with  p < limit + j  and, when window > 0,  p >= limit
 * + j - window. s = scale * q.k, then soft_cap * tanh(s / soft_cap) when soft_cap > 0. Empty set:
 * out = 0, lse = -inf. Finite q, K and V whose products or sums leave fp32 (beyond 3e38) give
 * unspecified values, NaN among them, in the rows concerned and in no other. */
struct kvk_attend {
    struct kvk_shape shape;
    const void *q;   /* [q_tokens, q_heads, dim], post-RoPE, in the basis of the K rows */
    uint8_t q_dtype; /* kvarn_dtype, F32 too */
    uint32_t q_tokens, q_heads; /* q_heads = query heads of this kv head, 1..KVARN_MAX_GQA */
    size_t q_token_stride_bytes, q_head_stride_bytes;
    float scale, soft_cap;
    uint32_t limit, window;
    const struct kvk_span *spans; /* [span_count], positions ascending, disjoint */
    size_t span_count;
    float *out;    /* [q_tokens, q_heads, dim], dense, un-rotated (rotated when shape.v_rotated) */
    float *lse;    /* [q_tokens, q_heads], natural log */
    void *scratch; /* kvk_attend_scratch_bytes(q_tokens, q_heads, dim) */
    struct kvk_fault fault; /* out: NON_FINITE in q (token = query token * q_heads + head) */
};

struct kvk_table {
    const char *name; /* "ref", "avx2", "avx512" */
    kvarn_status (*compress)(struct kvk_compress *op);
    kvarn_status (*decompress)(struct kvk_decompress *op);
    kvarn_status (*attend)(struct kvk_attend *op);
};

extern const struct kvk_table kvk_table_ref;
/* The tables this binary was built with; NULL where the compiler could not. Take them from
 * kvk_cpu_table(), which asks the CPU first. */
extern const struct kvk_table *const kvk_table_avx2;
extern const struct kvk_table *const kvk_table_avx512;

/* "ref", "avx2" or "avx512"; NULL when unknown, not built or not on this CPU. Not self-tested.
 * Keep the result: CPUID costs tens of microseconds in a virtual machine. */
const struct kvk_table *kvk_cpu_table(const char *name);

/* INVALID_SHAPE or UNSUPPORTED with *why (static text) set; OK otherwise. */
kvarn_status kvk_shape_check(const struct kvk_shape *shape, const char **why);
bool kvk_shape_same(const struct kvk_shape *a, const struct kvk_shape *b);

size_t kvk_scratch_bytes(const struct kvk_shape *shape); /* for compress and decompress */
size_t kvk_attend_scratch_bytes(uint32_t q_tokens, uint32_t q_heads, uint32_t dim);

/* Joins `parts` partial results of the same query rows over disjoint key ranges: out
 * [parts][rows][dim], lse [parts][rows] -> dst_out [rows][dim], dst_lse [rows]. Parts are joined in
 * index order. */
void kvk_merge(float *dst_out, float *dst_lse, const float *out, const float *lse, size_t parts,
               size_t rows, size_t dim);

/* EXACT rows: copies [tokens, dim] and looks for NaN and infinity in the copy; fault set and
 * nothing promised about dst on NON_FINITE. tensor is 'k' or 'v'. */
kvarn_status kvk_copy_rows(void *dst, size_t dst_token_stride_bytes, const void *src,
                           size_t src_token_stride_bytes, uint32_t tokens, uint32_t dim,
                           kvarn_dtype dtype, char tensor, struct kvk_fault *fault);

/* f32 rows -> dtype, round to nearest even. */
void kvk_store_rows(void *dst, kvarn_dtype dtype, const float *src, size_t count);

/* Looks for NaN and infinity in what a slot holds of one layer and kv head: a record (kind TILE) or
 * K, then V rows [group, dim] (EXACT), at any alignment. NON_FINITE with fault set (of a record:
 * the token or channel whose scale it is); INVALID_SHAPE. */
kvarn_status kvk_cell_check(const struct kvk_shape *shape, uint32_t kind, const uint8_t *cell,
                            struct kvk_fault *fault);

/* A record from canonical to device order and back (tile.h): kvk_layout_of(...).bytes each, any
 * alignment, apart from each other. */
void kvk_device_from_record(const struct kvk_shape *shape, uint8_t *device, const uint8_t *record);
void kvk_record_from_device(const struct kvk_shape *shape, uint8_t *record, const uint8_t *device);

/* CRC-32C (Castagnoli) of bytes, continued from `crc` (0 at the start). d_rec of a record. */
uint32_t kvk_digest(uint32_t crc, const void *bytes, size_t count);

/* The best table of this CPU that agrees with the reference on the known-answer self-test, limited
 * by mask ("ref", "avx2", "avx512"; NULL or "" = no limit). The chosen table's name is in ->name.
 * NULL on an unknown mask, or when even the reference fails. report (may be NULL) is called with
 * one line per variant that was skipped. Takes some milliseconds and allocates: run it once. */
const struct kvk_table *kvk_cpu_best(const char *mask, void (*report)(const char *line));

#endif
