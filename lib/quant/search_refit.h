/* search_refit.h - one factor for the scales of several units.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). n values that are not negative, as a rule, become integers from 0 to
 * `top` times one factor: the best of nine by weighted squares, and then single integers are changed as long
 * as that helps, in five sweeps at most. A lane carries one such problem. */

enum { REFITS = 16, REFIT_MOST = 32 }; /* problems together; values in one */

#define ALL_ZERO 1e-15f

struct refit {
    _Alignas(64) float x[REFIT_MOST][REFITS], w[REFIT_MOST][REFITS];
    float scale[REFITS];               /* the factors found */
    uint8_t codes[REFIT_MOST][REFITS]; /* the integers; a byte of negative ones */
};

/* Squared errors of a factor; codes are bytes at first and bounded above afterwards, as ggml has it. */
LANE vf refit_error(const float *x, const float *w, int stride, int n, vf per_unit, vf scale, int top,
                    bool bytes)
{
    vf error = f_set(0);
    for (int i = 0; i < n; i++) {
        vf v = f_load(x + i * stride);
        vi l = nearest(per_unit * v);
        vf d = v - scale * f_from(bytes ? l & 255 : i_least(i_set(top), l));
        error += f_load(w + i * stride) * d * d;
    }
    return error;
}

/* One sweep; the lanes in which something changed. */
LANE vm refit_sweep(vi *codes, vf *sum_lx, vf *sum_l2, const float *x, const float *w, int stride, int n,
                    int top, vm alive)
{
    vm changed = m_none();
    for (int i = 0; i < n; i++) {
        vf v = f_load(x + i * stride), q = f_load(w + i * stride), l = f_from(codes[i]);
        vf lx = *sum_lx - q * v * l, l2 = *sum_l2 - q * l * l;
        vm open = m_and(alive, m_and(f_lt(f_set(0), lx), f_lt(f_set(0), l2)));
        if (m_bits(open) == 0)
            continue;
        vi code = i_least(i_set(top), nearest(v * l2 / lx));
        vf new_l = f_from(code);
        open = m_andnot(open, i_eq(code, codes[i]));
        lx += q * v * new_l;
        l2 += q * new_l * new_l;
        vm won = m_and(open, f_lt(*sum_lx * *sum_lx * l2, lx * lx * *sum_l2));
        codes[i] = i_pick(won, code & 255, codes[i]);
        *sum_lx = f_pick(won, lx, *sum_lx);
        *sum_l2 = f_pick(won, l2, *sum_l2);
        changed = m_or(changed, won);
    }
    return changed;
}

/* x and w: n rows of LANES, at distances of `stride`. Codes are integers of the lanes; returns the factors.
 */
LANE vf refit_tile(vi *codes, const float *x, const float *w, int stride, int n, int top)
{
    vf most = f_set(0), sum_lx = f_set(0), sum_l2 = f_set(0);
    for (int i = 0; i < n; i++)
        most = f_most(most, f_load(x + i * stride));
    vm zero = f_lt(most, f_set(ALL_ZERO));
    vf per_unit = (float)top / most;
    vf best = refit_error(x, w, stride, n, per_unit, 1 / per_unit, top, true);
    for (int step = -4; step <= 4; step++) {
        if (step == 0)
            continue;
        vf tried = (0.1f * (float)step + (float)top) / most;
        vf error = refit_error(x, w, stride, n, tried, 1 / tried, top, false);
        vm won = f_lt(error, best);
        best = f_pick(won, error, best);
        per_unit = f_pick(won, tried, per_unit);
    }
    for (int i = 0; i < n; i++) {
        vf v = f_load(x + i * stride), q = f_load(w + i * stride);
        vi code = i_least(i_set(top), nearest(per_unit * v));
        vf l = f_from(code);
        codes[i] = code & 255;
        sum_lx += q * v * l;
        sum_l2 += q * l * l;
    }
    vm alive = m_not(zero);
    for (int sweep = 0; sweep < 5 && m_bits(alive) != 0; sweep++)
        alive = refit_sweep(codes, &sum_lx, &sum_l2, x, w, stride, n, top, alive);
    for (int i = 0; i < n; i++)
        codes[i] = i_pick(zero, i_set(0), codes[i]);
    vf scale = f_pick(f_lt(f_set(0), sum_l2), sum_lx / sum_l2, f_set(0));
    return f_pick(zero, f_set(0), scale);
}

LANE void refit_search(struct refit *r, int n, int top)
{
    for (int first = 0; first < REFITS; first += LANES) {
        vi codes[REFIT_MOST];
        f_store(r->scale + first, refit_tile(codes, r->x[0] + first, r->w[0] + first, REFITS, n, top));
        for (int i = 0; i < n; i++)
            store_bytes(r->codes[i] + first, codes[i]);
    }
}
