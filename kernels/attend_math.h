/* exp and tanh on vectors, for any vector width. Include after one attend_vec*.h.
 *
 * exp: x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 in two parts, so that r is exact enough), the
 * Taylor polynomial of degree 7 in r, then an exact scaling by 2^n. Error below 2 units in the last
 * place; 0 below -87.3, where fp32 has no normal numbers left. */
#ifndef KVK_ATTEND_MATH_H
#define KVK_ATTEND_MATH_H

/* For x <= 88. */
static inline vf v_exp(vf x)
{
    const vf low = v_set(-87.3f);
    vf safe = v_max(x, low);
    vf n = v_round(v_mul(safe, v_set(1.44269504f)));
    vf r = v_fma(n, v_set(-0.693359375f), safe);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_fma(r, v_set(1.0f / 5040), v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_where_ge(x, low, v_scale(p, n), v_set(0.0f));
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
