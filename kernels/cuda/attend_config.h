/* Attend: what a thread block of each variant is made of. Numbers that the kernels take as template
 * constants and the planner as values, hence macros.
 *
 * A variant is D, G, bits of K and V, and NT: it works on up to 4 NT query rows at a time. Each
 * warp owns KVK_ATTEND_STAGES slots for the K part of a tile, [0, v_codes) of its record, and as
 * many for the V part; 16 exact rows of K or V, 16 bytes apart, fit a slot too. */
#ifndef KVK_CUDA_ATTEND_CONFIG_H
#define KVK_CUDA_ATTEND_CONFIG_H

#define KVK_ATTEND_SHARED_MAX        (227 * 1024) /* a block's shared memory on sm_90 */
#define KVK_ATTEND_SPAN_ROWS         16           /* exact rows that a warp takes at a time */
#define KVK_ATTEND_MAX(a, b)         ((a) > (b) ? (a) : (b))
#define KVK_ATTEND_MIN(a, b)         ((a) < (b) ? (a) : (b))
#define KVK_ATTEND_K_BYTES(d, g, kb) ((d) * (g) * (kb) / 8 + 4 * (d) + 2 * (g))
#define KVK_ATTEND_V_BYTES(d, g, vb) ((d) * (g) * (vb) / 8 + 2 * (d) + 4 * (g))
#define KVK_ATTEND_ROW_BYTES(d)      (2 * (d) + 16) /* of an exact row in a slot */
#define KVK_ATTEND_K_SLOT(d, g, kb)                                                                \
    KVK_ATTEND_MAX(KVK_ATTEND_K_BYTES(d, g, kb), KVK_ATTEND_SPAN_ROWS *KVK_ATTEND_ROW_BYTES(d))
#define KVK_ATTEND_V_SLOT(d, g, vb)                                                                \
    KVK_ATTEND_MAX(KVK_ATTEND_V_BYTES(d, g, vb), KVK_ATTEND_SPAN_ROWS *KVK_ATTEND_ROW_BYTES(d))
#define KVK_ATTEND_STAGE(d, g, kb, vb) (KVK_ATTEND_K_SLOT(d, g, kb) + KVK_ATTEND_V_SLOT(d, g, vb))

/* Rows of four query rows in the merge, 8 floats apart from a whole number of banks. */
#define KVK_ATTEND_ROW_FLOATS(d) ((d) + 8)
/* Per warp: its rows for the merge; m and l of 4 NT rows. Barriers: at most 4 stages of two. */
#define KVK_ATTEND_WARP_BYTES(d, nt) (4 * KVK_ATTEND_ROW_FLOATS(d) * 4 + (nt)*32 + 64)
/* Per block: queries in fp32 and twice in two halves, four finished rows, scales of rows. */
#define KVK_ATTEND_BLOCK_BYTES(d, nt)                                                              \
    ((nt) * (d)*48 + 4 * KVK_ATTEND_ROW_FLOATS(d) * 4 + (nt)*32 + 64)

#define KVK_ATTEND_FIT(d, g, kb, vb, nt)                                                           \
    ((KVK_ATTEND_SHARED_MAX - KVK_ATTEND_BLOCK_BYTES(d, nt)) /                                     \
     (KVK_ATTEND_STAGE(d, g, kb, vb) + KVK_ATTEND_WARP_BYTES(d, nt)))
/* Registers: 12 warps have 168 each, 8 have 255; the 128 that 16 have are too few from D = 128 on.
 */
#ifndef KVK_ATTEND_WARPS_MAX
#define KVK_ATTEND_WARPS_MAX(d, nt) ((d) * (nt) <= 64 ? 16 : (d) * (nt) <= 256 ? 12 : 8)
#endif
#define KVK_ATTEND_WARPS(d, g, kb, vb, nt)                                                         \
    KVK_ATTEND_MIN(KVK_ATTEND_WARPS_MAX(d, nt), KVK_ATTEND_FIT(d, g, kb, vb, nt))
#define KVK_ATTEND_STAGES(d, g, kb, vb, nt)                                                        \
    KVK_ATTEND_MIN(4, ((KVK_ATTEND_SHARED_MAX - KVK_ATTEND_BLOCK_BYTES(d, nt)) /                   \
                           KVK_ATTEND_WARPS(d, g, kb, vb, nt) -                                    \
                       KVK_ATTEND_WARP_BYTES(d, nt)) /                                             \
                          KVK_ATTEND_STAGE(d, g, kb, vb))
#define KVK_ATTEND_SHARED(d, g, kb, vb, nt)                                                        \
    (KVK_ATTEND_BLOCK_BYTES(d, nt) +                                                               \
     KVK_ATTEND_WARPS(d, g, kb, vb, nt) *                                                          \
         (KVK_ATTEND_WARP_BYTES(d, nt) +                                                           \
          KVK_ATTEND_STAGES(d, g, kb, vb, nt) * KVK_ATTEND_STAGE(d, g, kb, vb)))

/* A partial result: [4 NT][D] floats, unnormalised, then maximum (base 2) and sum of each row. */
#define KVK_ATTEND_PART_BYTES(d, nt) (16 * (nt) * (d) + 32 * (nt))

#endif
