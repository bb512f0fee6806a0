/* Attend for any vector width: spans, folding, online softmax, exact rows, the final join.
 *
 * A template: attend_avx2.c and attend_avx512.c define the vectors (vec*.h), the order of
 * columns and the product with codes, then include this file, which defines KVK_ATTEND_ENTRY.
 * Formulas are those of METHOD.md, section 7; names too (a, z, u; b, y, w). */
#include "kernels/attend_math.h"
#include "kernels/fwht.h"
#include "kernels/tile.h"

KVK_INLINE void fill_units(int32_t *column_at, uint32_t columns, uint32_t bits, uint32_t width)
{
    for (uint32_t base = 0; base < columns; base += width) {
        for (uint32_t place = 0; place < width; place++)
            column_at[base + place] = (int32_t)(base + unit_column(bits, width, place));
    }
}

/* Place -> column of a whole code matrix; with constants, so that no call pays for divisions. */
static void fill_order(int32_t *column_at, uint32_t bits, uint32_t columns)
{
    if (unit_columns(bits, columns) == 128)
        fill_units(column_at, columns, bits, 128);
    else if (bits == 2)
        fill_units(column_at, columns, 2, 64);
    else
        fill_units(column_at, columns, 4, 64);
}

static void load_vector(float *dst, const uint8_t *halves, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += VW)
        v_store(dst + i, v_from_f16(halves + (size_t)2 * i));
}

/* One factor per token, in the order of the logits; zeros behind the end of a partial tile keep
 * what lies there out of every sum. */
static void load_tokens(float *dst, const uint8_t *halves, const struct kvk_attend_work *work,
                        uint32_t group, uint32_t valid)
{
    order_halves(dst, halves, work->token_at, group, unit_columns(work->bits_k, group));
    for (uint32_t i = 0; i < group && valid < group; i++)
        dst[i] = (uint32_t)work->token_at[i] < valid ? dst[i] : 0.0f;
}

/* Visible tokens of a span for every row of the group; how many rows see any. */
static uint32_t clip_rows(const struct kvk_attend *op, const struct kvk_span *span,
                          struct kvk_attend_row *rows, uint32_t first, uint32_t count,
                          struct kvk_attend_row **seen)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < count; i++) {
        struct kvk_attend_row *row = &rows[first + i];
        struct kvk_range range = kvk_attend_range(op, (first + i) / op->q_heads);
        kvk_attend_clip(span, range, &row->from, &row->to);
        if (row->from < row->to)
            seen[found++] = row;
    }
    return found;
}

/* Logits in s (padded to pairs of vectors, hidden ones -inf) -> p in s; m, l, shrink of the row. At
 * least one logit is not -inf. m need not be the maximum itself, only near it: it stays while the
 * new maximum is at most `slack` above, so that exp rarely waits for the maximum and sums are
 * rarely rescaled. p is at most exp(slack). */
static void softmax_step(struct kvk_attend_row *row, float *s, uint32_t padded)
{
    const float slack = 8.0f;
    vf top = v_load(s), top_odd = v_load(s + VW);
    vf sum = v_set(0.0f), sum_odd = sum;

    for (uint32_t i = 2 * VW; i < padded; i += 2 * VW) {
        top = v_max(top, v_load(s + i));
        top_odd = v_max(top_odd, v_load(s + i + VW));
    }
    float largest = v_reduce_max(v_max(top, top_odd));
    row->shrink = 1.0f;
    if (largest > row->m + slack || !(row->m > -INFINITY)) {
        row->shrink = expf(row->m - largest); /* 0 at first, where m is -inf */
        row->m = largest;
    }
    vf minus = v_set(-row->m);
    for (uint32_t i = 0; i < padded; i += 2 * VW) {
        vf p = v_exp(v_add(v_load(s + i), minus));
        vf p_odd = v_exp(v_add(v_load(s + i + VW), minus));
        v_store(s + i, p);
        v_store(s + i + VW, p_odd);
        sum = v_add(sum, p);
        sum_odd = v_add(sum_odd, p_odd);
    }
    row->l = row->l * row->shrink + v_reduce_add(v_add(sum, sum_odd));
}

static void soft_cap(float *s, uint32_t padded, float cap)
{
    for (uint32_t i = 0; i < padded; i += VW)
        v_store(s + i, v_mul(v_set(cap), v_tanh(v_mul(v_load(s + i), v_set(1.0f / cap)))));
}

static void scale_by(float *x, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; i += VW)
        v_store(x + i, v_mul(v_load(x + i), v_set(factor)));
}

/* qa[d] = q~[d] a[d] into x; returns beta = sum_d q~[d] z[d]. */
static float fold_query(const struct kvk_attend_work *work, const float *q, float *x, uint32_t dim)
{
    vf beta = v_set(0.0f);

    for (uint32_t d = 0; d < dim; d += VW) {
        vf value = v_load(q + d);
        v_store(x + d, v_mul(value, v_load(work->step + d)));
        beta = v_fma(value, v_load(work->zero + d), beta);
    }
    return v_reduce_add(beta);
}

/* s = tau u (beta + sum), softmax, then x = p b; returns gamma = sum_g p[g] y[g]. */
static float tile_softmax(const struct kvk_attend *op, const struct kvk_attend_work *work,
                          struct kvk_attend_row *row, float *s, float *x, float beta)
{
    uint32_t group = op->shape.group;
    vf gamma = v_set(0.0f);

    for (uint32_t i = 0; i < group; i += VW) {
        vf u = v_mul(v_load(work->token + i), v_set(op->scale));
        v_store(s + i, v_mul(u, v_add(v_load(s + i), v_set(beta))));
    }
    if (op->soft_cap > 0)
        soft_cap(s, group, op->soft_cap);
    if (row->from > 0 || row->to < group) {
        for (uint32_t i = 0; i < group; i++) {
            uint32_t token = (uint32_t)work->token_at[i];
            if (token < row->from || token >= row->to)
                s[i] = -INFINITY;
        }
    }
    softmax_step(row, s, group);
    for (uint32_t i = 0; i < group; i += VW) {
        vf p = v_load(s + i);
        v_store(x + i, v_mul(p, v_load(work->v_step + i)));
        gamma = v_fma(p, v_load(work->v_zero + i), gamma);
    }
    return v_reduce_add(gamma);
}

/* Up to KVK_ROWS rows that see some of the tile. */
static void tile_rows(const struct kvk_attend *op, struct kvk_attend_work *work,
                      const struct kvk_codes *k, const struct kvk_codes *v,
                      struct kvk_attend_row **rows, uint32_t count)
{
    uint32_t dim = op->shape.dim;
    float beta[KVK_ROWS], gamma[KVK_ROWS];

    for (uint32_t r = 0; r < count; r++)
        beta[r] = fold_query(work, rows[r]->q_rotated, work->x[r], dim);
    codes_multiply(k, work, count);
    for (uint32_t r = 0; r < count; r++)
        gamma[r] = tile_softmax(op, work, rows[r], work->sum[r], work->x[r], beta[r]);
    codes_multiply(v, work, count);
    for (uint32_t r = 0; r < count; r++) { /* acc[d] = shrink acc[d] + w[d] (gamma + sum) */
        vf shrink = v_set(rows[r]->shrink), zero = v_set(gamma[r]);
        for (uint32_t d = 0; d < dim; d += VW) {
            vf value = v_add(v_load(work->sum[r] + d), zero);
            value =
                v_fma(value, v_load(work->channel + d), v_mul(v_load(rows[r]->tile + d), shrink));
            v_store(rows[r]->tile + d, value);
        }
        if (rows[r]->shrink < 1.0f)
            scale_by(rows[r]->exact, dim, rows[r]->shrink);
    }
}

/* Asks for the next tile's record while this one is worked on: one tile takes about as long as its
 * bytes take to arrive. */
static void fetch_ahead(const struct kvk_span *span, const struct kvk_span *end, size_t bytes)
{
    if (span == end || span->kind != KVARN_BLOCK_TILE)
        return;
    for (size_t at = 0; at < bytes; at += 64)
        _mm_prefetch((const char *)span->data + at, _MM_HINT_T1);
}

static void attend_tile(const struct kvk_attend *op, const struct kvk_span *span,
                        struct kvk_attend_work *work, struct kvk_attend_row *rows)
{
    const struct kvk_shape *shape = &op->shape;
    const uint8_t *record = span->data;
    struct kvk_layout at = kvk_layout_of(shape->dim, shape->group, shape->bits_k, shape->bits_v);
    struct kvk_attend_row *seen[KVK_ROWS];
    struct kvk_codes k, v;
    uint32_t total = op->q_tokens * op->q_heads;
    bool ready = false;

    for (uint32_t first = 0; first < total; first += KVK_ROWS) {
        uint32_t count = total - first < KVK_ROWS ? total - first : KVK_ROWS;
        count = clip_rows(op, span, rows, first, count, seen);
        if (count == 0)
            continue;
        if (!ready) {
            fetch_ahead(span + 1, op->spans + op->span_count, at.bytes);
            load_vector(work->step, record + at.k_step, shape->dim);
            load_vector(work->zero, record + at.k_zero, shape->dim);
            load_tokens(work->token, record + at.k_token, work, shape->group, span->tokens);
            load_tokens(work->v_step, record + at.v_step, work, shape->group, span->tokens);
            load_tokens(work->v_zero, record + at.v_zero, work, shape->group, span->tokens);
            order_halves(work->channel, record + at.v_channel, work->channel_at, shape->dim,
                         unit_columns(shape->bits_v, shape->dim));
            k = codes_prepare(record + at.k_codes, shape->bits_k, shape->dim, shape->group, NULL,
                              work->k_codes);
            v = codes_prepare(record + at.v_codes, shape->bits_v, shape->group, shape->dim,
                              work->token_at, work->v_codes);
            v.order = work->place_of;
            ready = true;
        }
        tile_rows(op, work, &k, &v, seen, count);
    }
}

static vf load_half(const uint8_t *at, bool f16)
{
    return f16 ? v_from_f16(at) : v_from_bf16(at);
}

/* Logits of `count` exact tokens for one row. */
static void exact_logits(const struct kvk_attend *op, const uint8_t *k, size_t stride,
                         const float *q, float *s, uint32_t count)
{
    bool f16 = op->shape.dtype == KVARN_F16;

    for (uint32_t t = 0; t < count; t++, k += stride) {
        vf even = v_set(0.0f), odd = v_set(0.0f);
        for (uint32_t d = 0; d < op->shape.dim; d += 2 * VW) {
            even = v_fma(v_load(q + d), load_half(k + (size_t)2 * d, f16), even);
            odd = v_fma(v_load(q + d + VW), load_half(k + (size_t)2 * (d + VW), f16), odd);
        }
        s[t] = op->scale * v_reduce_add(v_add(even, odd));
    }
}

/* exact[] = shrink exact[] + sum_t p[t] V[t]. */
static void exact_values(const struct kvk_attend *op, const uint8_t *v, size_t stride,
                         struct kvk_attend_row *row, const float *p, uint32_t count)
{
    bool f16 = op->shape.dtype == KVARN_F16;

    for (uint32_t d = 0; d < op->shape.dim; d += 4 * VW) {
        vf acc[4];
        for (uint32_t i = 0; i < 4; i++)
            acc[i] = v_mul(v_load(row->exact + d + (size_t)i * VW), v_set(row->shrink));
        for (uint32_t t = 0; t < count; t++) {
            for (uint32_t i = 0; i < 4; i++)
                acc[i] = v_fma(v_set(p[t]),
                               load_half(v + t * stride + (size_t)2 * (d + i * VW), f16), acc[i]);
        }
        for (uint32_t i = 0; i < 4; i++)
            v_store(row->exact + d + (size_t)i * VW, acc[i]);
    }
}

/* Exact spans are short (sink, tail), so rows go one by one, in runs of KVARN_MAX_GROUP tokens. */
static void attend_exact(const struct kvk_attend *op, const struct kvk_span *span,
                         struct kvk_attend_work *work, struct kvk_attend_row *row)
{
    float *s = work->sum[0];

    for (uint32_t t = row->from; t < row->to; t += KVARN_MAX_GROUP) {
        uint32_t count = row->to - t < KVARN_MAX_GROUP ? row->to - t : KVARN_MAX_GROUP;
        uint32_t padded = (count + 2 * VW - 1) / (2 * VW) * (2 * VW);
        size_t at = t * span->token_stride_bytes;
        exact_logits(op, (const uint8_t *)span->data + at, span->token_stride_bytes, row->q, s,
                     count);
        for (uint32_t i = count; i < padded; i++)
            s[i] = 0;
        if (op->soft_cap > 0)
            soft_cap(s, padded, op->soft_cap);
        for (uint32_t i = count; i < padded; i++)
            s[i] = -INFINITY;
        softmax_step(row, s, padded);
        exact_values(op, (const uint8_t *)span->v + at, span->token_stride_bytes, row, s, count);
        if (row->shrink < 1.0f)
            scale_by(row->tile, op->shape.dim, row->shrink);
    }
}

/* o = (un-rotated tile part + exact part) / l. */
static void finish_row(const struct kvk_attend *op, const struct kvk_attend_work *work,
                       const struct kvk_attend_row *row, float *out, float *lse)
{
    uint32_t dim = op->shape.dim;
    float natural[KVARN_MAX_HEAD_DIM];

    if (!(row->l > 0)) {
        memset(out, 0, dim * sizeof(*out));
        *lse = -INFINITY;
        return;
    }
    for (uint32_t place = 0; place < dim; place++)
        natural[work->channel_at[place]] = row->tile[place];
    if (!op->shape.v_rotated)
        kvk_fwht_rotate(natural, dim);
    for (uint32_t d = 0; d < dim; d++)
        out[d] = (natural[d] + row->exact[d]) / row->l;
    *lse = row->m + logf(row->l);
}

static kvarn_status start_rows(struct kvk_attend *op, struct kvk_attend_work *work,
                               struct kvk_attend_row *rows)
{
    size_t dim = op->shape.dim, count = (size_t)op->q_tokens * op->q_heads;
    float *q = (float *)(rows + count);
    kvarn_status status = kvk_attend_load_q(op, q);

    if (status != KVARN_OK)
        return status;
    memcpy(q + count * dim, q, count * dim * sizeof(*q));
    memset(q + 2 * count * dim, 0, 2 * count * dim * sizeof(*q));
    for (size_t i = 0; i < count; i++) {
        rows[i] = (struct kvk_attend_row){.q = q + i * dim,
                                          .q_rotated = q + (count + i) * dim,
                                          .tile = q + (2 * count + i) * dim,
                                          .exact = q + (3 * count + i) * dim,
                                          .m = -INFINITY};
        if (!op->shape.k_rotated)
            kvk_fwht_rotate(rows[i].q_rotated, op->shape.dim);
    }
    work->bits_k = op->shape.bits_k;
    fill_order(work->token_at, op->shape.bits_k, op->shape.group);
    fill_order(work->channel_at, op->shape.bits_v, op->shape.dim);
    for (int32_t place = 0; place < op->shape.group; place++)
        work->place_of[work->token_at[place]] = place;
    return KVARN_OK;
}

kvarn_status KVK_ATTEND_ENTRY(struct kvk_attend *op)
{
    struct kvk_attend_work *work = op->scratch;
    struct kvk_attend_row *rows = (struct kvk_attend_row *)(work + 1);
    uint32_t count = op->q_tokens * op->q_heads;
    kvarn_status status = kvk_attend_check(op);

    if (status != KVARN_OK || count == 0)
        return status;
    status = start_rows(op, work, rows);
    if (status != KVARN_OK)
        return status;
    for (size_t i = 0; i < op->span_count; i++) {
        const struct kvk_span *span = &op->spans[i];
        if (span->kind == KVARN_BLOCK_TILE) {
            attend_tile(op, span, work, rows);
            continue;
        }
        for (uint32_t r = 0; r < count; r++) {
            struct kvk_attend_row *seen;
            if (clip_rows(op, span, rows, r, 1, &seen) > 0)
                attend_exact(op, span, work, seen);
        }
    }
    for (uint32_t r = 0; r < count; r++)
        finish_row(op, work, &rows[r], op->out + (size_t)r * op->shape.dim, &op->lse[r]);
    return KVARN_OK;
}
