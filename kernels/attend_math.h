/* exp and tanh on vectors, for any vector width. Include after one vec*.h.
 *
 * exp: x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 in two parts, so that r is exact enough), the
 * Taylor polynomial of degree 6 in r, then 2^n added to the exponent. Error below 3e-7 relative; 0
 * below -87, where fp32 has no normal numbers left. */
#ifndef KVK_ATTEND_MATH_H
#define KVK_ATTEND_MATH_H

/* For x <= 88. */
static inline vf v_exp(vf x)
{
    const vf low = v_set(-87.0f), shift = v_set(0x1.8p23f); /* adding it rounds to an integer */
    vf safe = v_max(x, low);
    vf t = v_fma(safe, v_set(1.44269504f), shift);
    vf n = v_sub(t, shift);
    vf r = v_fma(n, v_set(-0.693359375f), safe);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_fma(r, v_set(1.0f / 720), v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_where_ge(x, low, v_scale(p, t), v_set(0.0f));
}

/* 1 - 2 / (exp(2x) + 1); near 0, where that cancels, the odd series through x^9. */
static inline vf v_tanh(vf x)
{
    vf size = v_max(x, v_mul(x, v_set(-1.0f)));
    vf e = v_exp(v_mul(v_min(size, v_set(20.0f)), v_set(2.0f)));
    vf far = v_fma(v_div(v_set(-2.0f), v_add(e, v_set(1.0f))), v_set(1.0f), v_set(1.0f));
    vf xx = v_mul(x, x);
    vf p = v_fma(xx, v_set(62.0f / 2835), v_set(-17.0f / 315));
    p = v_fma(p, xx, v_set(2.0f / 15));
    p = v_fma(p, xx, v_set(-1.0f / 3));
    p = v_fma(v_mul(p, xx), size, size);
    vf y = v_where_ge(size, v_set(0.25f), far, p);
    return v_where_ge(x, v_set(0.0f), y, v_mul(y, v_set(-1.0f)));
}

#endif
