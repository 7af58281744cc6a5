/* search_scale.h - the scale of a unit: Q4_0, Q5_0, Q3_K, Q6_K.  SPDX-License-Identifier: MIT */

struct scale_spec {
    int unit;
    int top;   /* codes from -top to top - 1 */
    bool any;  /* values may be infinite or NaN, too */
};

struct scale_fit {
    float scale[MAX_UNITS];
    float code_scale[MAX_UNITS];
    int32_t offset[MAX_UNITS];
};

enum { SCALE_REACH = 9, SCALE_STEPS = 2 * SCALE_REACH + 1 };

enum clamps { CLAMP_NONE, CLAMP_ABOVE, CLAMP_BOTH, CLAMP_ANY };

LANE vf scale_code(vf t, int top, enum clamps clamps)
{
    if (clamps == CLAMP_ANY)
        return f_from(clamped(nearest(t), -top, top - 1));
    vf l = (t + ROUNDING) - ROUNDING;
    if (clamps != CLAMP_NONE)
        l = f_least(l, f_set((float)(top - 1)));
    return clamps == CLAMP_BOTH ? f_most(l, f_set((float)-top)) : l;
}

LANE void scale_sums(vf sums[][2], const float *x, const float *w, const float *wx, const vf *code_scale, int unit,
                     int top, enum clamps clamps, int n)
{
    for (int k = 0; k < n; k++)
        sums[k][0] = sums[k][1] = f_set(0);
    for (int i = 0; i < unit * LANES; i += LANES) {
        vf v = f_load(x + i), q = f_load(w + i), qv = f_load(wx + i);
        for (int k = 0; k < n; k++) {
            vf l = scale_code(code_scale[k] * v, top, clamps);
            sums[k][0] += qv * l;
            sums[k][1] += q * l * l;
        }
    }
}

LANE void scale_steps(vf sums[][2], const float *x, const float *w, const float *wx, const vf *code_scale, int unit,
                     int top, enum clamps clamps, int from, int to)
{
    enum { N = SCALE_N };
    int step = from + SCALE_REACH;
    for (; step + N <= to + SCALE_REACH + 1; step += N)
        scale_sums(sums + step, x, w, wx, code_scale + step, unit, top, clamps, N);
    for (; step <= to + SCALE_REACH; step++)
        scale_sums(sums + step, x, w, wx, code_scale + step, unit, top, clamps, 1);
}

LANE void scale_tile(float *scales, float *code_scales, int32_t *offsets, const float *x, const float *w,
                     const struct scale_spec *s)
{
    _Alignas(64) float wx[32 * LANES];
    vf most = f_set(0), size = f_set(0), code_scale[SCALE_STEPS], sums[SCALE_STEPS][2];
    for (int i = 0; i < s->unit * LANES; i += LANES) {
        vf v = f_load(x + i);
        vm larger = f_lt(size, f_abs(v));
        size = f_pick(larger, f_abs(v), size);
        most = f_pick(larger, v, most);
        f_store(wx + i, f_load(w + i) * v);
    }
    vm flat = f_lt(size, f_set(ALL_ZERO));
    for (int step = -SCALE_REACH; step <= SCALE_REACH; step++)
        code_scale[step + SCALE_REACH] = -((float)s->top + 0.1f * (float)step) / most;
    if (s->any) {
        scale_steps(sums, x, w, wx, code_scale, s->unit, s->top, CLAMP_ANY, -9, 9);
    } else {
        scale_steps(sums, x, w, wx, code_scale, s->unit, s->top, CLAMP_NONE, -9, -6);
        scale_steps(sums, x, w, wx, code_scale, s->unit, s->top, CLAMP_ABOVE, -5, 4);
        scale_steps(sums, x, w, wx, code_scale, s->unit, s->top, CLAMP_BOTH, 5, 9);
    }
    vf sum_lx = sums[SCALE_REACH][0], sum_l2 = sums[SCALE_REACH][1], best_code_scale = code_scale[SCALE_REACH];
    vf scale = f_pick(f_ne(sum_l2, f_set(0)), sum_lx / sum_l2, f_set(0)), best = scale * sum_lx;
    for (int step = 0; step < SCALE_STEPS; step++) {
        if (step == SCALE_REACH)
            continue;
        sum_lx = sums[step][0];
        sum_l2 = sums[step][1];
        vm won = m_and(f_lt(f_set(0), sum_l2), f_lt(best * sum_l2, sum_lx * sum_lx));
        scale = f_pick(won, sum_lx / sum_l2, scale);
        best = f_pick(won, scale * sum_lx, best);
        best_code_scale = f_pick(won, code_scale[step], best_code_scale);
    }
    f_store(scales, f_pick(flat, f_set(0), scale));
    f_store(code_scales, f_pick(flat, f_set(0), best_code_scale));
    vi offset = i_pick(flat, i_set(0), i_set(s->top));
    memcpy(offsets, &offset, sizeof offset);
}

LANE void scale_search(struct scale_fit *fit, const struct batch *b, const struct scale_spec *s)
{
    for (int u = 0; u < b->n_units; u += LANES)
        scale_tile(fit->scale + u, fit->code_scale + u, fit->offset + u, b->x + u * s->unit, b->w + u * s->unit, s);
}

/* The codes that the search found for a unit's weights, in their order. */
LANE void scale_first_codes(uint8_t *codes, const struct batch *b, const struct scale_fit *fit, int u,
                            const struct scale_spec *s)
{
    const float *x = b->src + u * s->unit;
    for (int i = 0; i < s->unit; i += LANES)
        store_bytes(codes + i,
                    clamped(nearest(fit->code_scale[u] * f_load(x + i)), -s->top, s->top - 1) + fit->offset[u]);
}

LANE void encode_scale_32(const struct batch *b, uint8_t *out, int top)
{
    const struct scale_spec spec = {32, top, false};
    struct scale_fit fit;
    scale_search(&fit, b, &spec);
    for (int u = 0; u < b->n_units; u++, out += top == 8 ? 18 : 22) {
        uint8_t codes[32];
        scale_first_codes(codes, b, &fit, u, &spec);
        store_fp16(out, fit.scale[u]);
        if (top == 8)
            store_nibbles(out + 2, codes);
        else
            store_five_bits(out + 2, codes);
    }
}

static void encode_q4_0(const struct batch *b, uint8_t *out)
{
    encode_scale_32(b, out, 8);
}

static void encode_q5_0(const struct batch *b, uint8_t *out)
{
    encode_scale_32(b, out, 16);
}
