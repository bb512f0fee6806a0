/* The second half of compress_body.h: step, zero and codes of rows and, with the tight range, the
 * corrected scales of columns. Bit for bit what compress_ref.c defines.
 *
 * Rows go in blocks of 16. With the whole range a row is rounded at a time; with the tight one four
 * registers of columns are rounded down all rows of a block, so that the sums of a column are ready
 * with its codes and nothing is decoded again. */
#include "kernels/compress.h"

/* Of KVK_LANES rows: the lower end of the codes in units of T / gain / sc, 1 / step, and what a
 * reader will use as step and zero. */
struct row_codes {
    _Alignas(64) float low[KVK_LANES], inverse[KVK_LANES];
    float step[KVK_LANES], zero[KVK_LANES];
};

/* Of the columns, as compress_ref.c has them. */
struct column_sums {
    _Alignas(64) float kept[KVK_MAX_SIDE], seen[KVK_MAX_SIDE];
};

/* VW rows from r on, which are rows i, ... of the block. */
KVK_INLINE void find_steps(struct row_codes *q, const struct kvk_balance *b,
                           const struct kvk_side *side, const float *t, uint32_t r, uint32_t i,
                           uint32_t bits)
{
    uint32_t cols = side->cols;
    uint8_t *at_step = side->step + 2 * (size_t)r, *at_zero = side->zero + 2 * (size_t)r;
    vf lo[VW], hi[VW], least, most, span, step, gain = v_set(b->gain);

    for (uint32_t j = 0; j < VW; j++) {
        const float *row = t + (size_t)j * cols;

        lo[j] = hi[j] = v_mul(v_load(row), v_load(b->best_w));
        for (uint32_t c = VW; c < cols; c += VW) {
            vf x = v_mul(v_load(row + c), v_load(b->best_w + c));

            lo[j] = v_min(lo[j], x);
            hi[j] = v_max(hi[j], x);
        }
    }
    KVK_FOLD(least, lo, v_min);
    KVK_FOLD(most, hi, v_max);
    span = v_sub(most, least);
    least = v_fma(v_set(side->rest), span, least);
    step = v_div(v_mul(v_set(side->share), span), v_set(bits == 2 ? 3.0f : 15.0f));
    step = v_max(step, v_mul(v_set(KVK_STEP_FLOOR), v_load(b->best_sr + r)));
    v_store_vector(at_step, v_mul(step, gain));
    v_store_vector(at_zero, v_mul(least, gain));
    v_store(q->low + i, least);
    v_store(q->inverse + i, v_div(v_set(1.0f), step));
    v_store(q->step + i, v_from_f16(at_step));
    v_store(q->zero + i, v_from_f16(at_zero));
}

KVK_INLINE void quantise_row(uint8_t *codes, const float *t, const float *w, float low,
                             float inverse, uint32_t cols, uint32_t bits)
{
    const vf lo = v_set(low), inv = v_set(inverse), magic = v_set(KVK_ROUND_MAGIC);

    for (uint32_t c = 0; c < cols; c += 4 * VW) {
        vf code[4];

        KVK_UNROLL
        for (size_t i = 0; i < 4; i++) {
            vf x = v_mul(v_load(t + c + VW * i), v_load(w + c + VW * i));

            code[i] = v_fma(v_sub(x, lo), inv, magic);
        }
        pack_codes(codes + c * bits / 8, code, bits);
    }
}

/* Four registers of columns down a block of rows, clamped; their sums are added to the totals. */
KVK_INLINE void quantise_columns(float *kept, float *seen, uint8_t *codes, const float *t,
                                 const float *w, const struct row_codes *q, uint32_t cols,
                                 uint32_t bits, int is_k)
{
    const vf magic = v_set(KVK_ROUND_MAGIC),
             top = v_set(KVK_ROUND_MAGIC + (bits == 2 ? 3.0f : 15.0f));
    vf s[4], p[4];

    KVK_UNROLL
    for (size_t i = 0; i < 4; i++)
        s[i] = p[i] = v_set(0.0f);
    for (uint32_t r = 0; r < KVK_LANES; r++, t += cols, codes += cols * bits / 8) {
        const vf lo = v_set(q->low[r]), inv = v_set(q->inverse[r]);
        const vf step = v_set(q->step[r]), zero = v_set(q->zero[r]);
        vf code[4];

        KVK_UNROLL
        for (size_t i = 0; i < 4; i++) {
            vf x = v_load(t + VW * i), at = v_sub(v_mul(x, v_load(w + VW * i)), lo), got;

            code[i] = v_min(v_max(v_fma(at, inv, magic), magic), top);
            got = v_fma(v_sub(code[i], magic), step, zero);
            s[i] = v_fma(x, x, s[i]);
            p[i] = v_fma(is_k ? got : x, got, p[i]);
        }
        pack_codes(codes, code, bits);
    }
    KVK_UNROLL
    for (size_t i = 0; i < 4; i++) {
        v_store(kept + VW * i, v_add(v_load(kept + VW * i), s[i]));
        v_store(seen + VW * i, v_add(v_load(seen + VW * i), p[i]));
    }
}

/* KVK_LANES rows from r on. */
KVK_INLINE void quantise_block(struct column_sums *sums, const struct kvk_balance *b,
                               const struct kvk_side *side, const float *t, uint32_t r,
                               uint32_t bits)
{
    uint32_t cols = side->cols;
    uint8_t *codes = side->codes + (size_t)r * cols * bits / 8;
    struct row_codes q;

    for (uint32_t i = 0; i < KVK_LANES; i += VW)
        find_steps(&q, b, side, t + (size_t)i * cols, r + i, i, bits);
    for (uint32_t i = 0; i < KVK_LANES && !side->tight; i++)
        quantise_row(codes + (size_t)i * cols * bits / 8, t + (size_t)i * cols, b->best_w, q.low[i],
                     q.inverse[i], cols, bits);
    for (uint32_t c = 0; c < cols && side->tight; c += 4 * VW) {
        if (side->transposed)
            quantise_columns(sums->kept + c, sums->seen + c, codes + c * bits / 8, t + c,
                             b->best_w + c, &q, cols, bits, 1);
        else
            quantise_columns(sums->kept + c, sums->seen + c, codes + c * bits / 8, t + c,
                             b->best_w + c, &q, cols, bits, 0);
    }
}

static void correct_columns(struct kvk_balance *b, const struct kvk_side *side,
                            const struct column_sums *sums)
{
    const vf enough = v_set(KVK_TIGHT_LEAST);

    for (uint32_t c = 0; c < side->cols; c += VW) {
        vf scale = v_load(b->best_sc + c), kept = v_load(sums->kept + c);
        vf seen = v_load(sums->seen + c), x = v_div(kept, seen);

        if (side->transposed)
            x = v_sqrt(x);
        x = v_max(x, v_mul(v_set(KVK_TIGHT_LOW), scale));
        x = v_min(x, v_mul(v_set(KVK_TIGHT_HIGH), scale));
        v_store(b->best_sc + c, v_where_ge(v_min(kept, seen), enough, x, scale));
    }
}

static void quantise(struct kvk_balance *b, const struct kvk_side *side, const float *t)
{
    struct column_sums sums;

    memset(&sums, 0, sizeof sums);
    for (uint32_t r = 0; r < side->rows; r += KVK_LANES, t += (size_t)KVK_LANES * side->cols) {
        if (side->bits == 2)
            quantise_block(&sums, b, side, t, r, 2);
        else
            quantise_block(&sums, b, side, t, r, 4);
    }
    if (side->tight)
        correct_columns(b, side, &sums);
}
