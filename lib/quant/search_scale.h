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
    uint8_t codes[BATCH];
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

/* The weight with the largest magnitude; of equals the first. */
LANE vf tile_most(const float *x, int unit)
{
    vf most = f_set(0);
    for (int i = 0; i < unit * LANES; i += LANES)
        most = f_pick(f_lt(f_abs(most), f_abs(f_load(x + i))), f_load(x + i), most);
    return most;
}

LANE void scale_tile(float *scales, float *code_scales, int32_t *offsets, const float *x, const float *w,
                     const struct scale_spec *s)
{
    _Alignas(64) float wx[32 * LANES];
    vf most = tile_most(x, s->unit), code_scale[SCALE_STEPS], sums[SCALE_STEPS][2];
    for (int i = 0; i < s->unit * LANES; i += LANES)
        f_store(wx + i, f_load(w + i) * f_load(x + i));
    vm flat = f_lt(f_abs(most), f_set(ALL_ZERO));
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

/* ---- One code at a time: Q3_K without importances ---------------------------------------------------------- */

enum { SWEPT = 4, SWEEPS = 5 }; /* tiles together; sweeps at most */

/* One weight of a tile; the lanes in which its code changed. */
LANE vm sweep_one(vf *code, vf *sum_lx, vf *sum_l2, vf v, int top)
{
    vf q = v * v, l = *code;
    vf lx = *sum_lx - q * v * l, l2 = *sum_l2 - q * l * l;
    vf new_l = f_from(clamped(nearest(v * l2 / lx), -top, top - 1));
    vm open = m_and(f_lt(f_set(0), lx), f_ne(new_l, l));
    lx += q * v * new_l;
    l2 += q * new_l * new_l;
    vm won = m_and(m_and(open, f_lt(f_set(0), l2)), f_lt(*sum_lx * *sum_lx * l2, lx * lx * *sum_l2));
    *code = f_pick(won, new_l, l);
    *sum_lx = f_pick(won, lx, *sum_lx);
    *sum_l2 = f_pick(won, l2, *sum_l2);
    return won;
}

LANE void sweep_tiles(struct scale_fit *fit, const struct batch *b, int first, int unit, int top, int n)
{
    const float *x = b->x + first * unit;
    const int size = unit * LANES;
    vf codes[SWEPT * 16], sum_lx[SWEPT], sum_l2[SWEPT], most[SWEPT];
    for (int k = 0; k < n; k++) {
        most[k] = tile_most(x + k * size, unit);
        vf code_scale = -(float)top / most[k];
        sum_lx[k] = sum_l2[k] = f_set(0);
        for (int i = 0; i < unit; i++) {
            vf v = f_load(x + k * size + i * LANES), q = v * v;
            vf l = scale_code(code_scale * v, top, CLAMP_ABOVE);
            codes[k * unit + i] = l;
            sum_lx[k] += q * v * l;
            sum_l2[k] += q * l * l;
        }
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        vm changed = m_none();
        for (int i = 0; i < unit; i++)
            for (int k = 0; k < n; k++)
                changed = m_or(changed, sweep_one(&codes[k * unit + i], &sum_lx[k], &sum_l2[k],
                                                  f_load(x + k * size + i * LANES), top));
        if (m_bits(changed) == 0)
            break;
    }
    for (int k = 0; k < n; k++) {
        vm flat = f_lt(f_abs(most[k]), f_set(ALL_ZERO));
        vf scale = f_pick(f_lt(f_set(0), sum_l2[k]), sum_lx[k] / sum_l2[k], f_set(0));
        f_store(fit->scale + first + k * LANES, f_pick(flat, f_set(0), scale));
        for (int i = 0; i < unit; i++)
            store_bytes(fit->codes + (first + k * LANES) * unit + i * LANES,
                        i_pick(flat, i_set(0), i_from(codes[k * unit + i]) + top));
    }
}

LANE void sweep_search(struct scale_fit *fit, const struct batch *b, int unit, int top)
{
    int first = 0;
    for (; first + SWEPT * LANES <= b->n_units; first += SWEPT * LANES)
        sweep_tiles(fit, b, first, unit, top, SWEPT);
    for (; first < b->n_units; first += LANES)
        sweep_tiles(fit, b, first, unit, top, 1);
}

/* ---- Codes ------------------------------------------------------------------------------------------------- */

/* The codes that the search found for a unit's weights, in their order. */
LANE void scale_first_codes(uint8_t *codes, const struct batch *b, const struct scale_fit *fit, int u,
                            const struct scale_spec *s)
{
    const float *x = b->src + u * s->unit;
    for (int i = 0; i < s->unit; i += LANES)
        store_bytes(codes + i,
                    clamped(nearest(fit->code_scale[u] * f_load(x + i)), -s->top, s->top - 1) + fit->offset[u]);
}

LANE void sweep_first_codes(uint8_t *codes, const struct scale_fit *fit, int u, int unit)
{
    const uint8_t *from = fit->codes + u / LANES * LANES * unit + u % LANES;
    for (int i = 0; i < unit; i++)
        codes[i] = from[i * LANES];
}

/* Final codes of a super-block; a unit whose stored scale is zero keeps those of its search. */
LANE void scale_codes(uint8_t *codes, const struct batch *b, const struct scale_fit *fit, int first,
                      const int8_t *scales, float factor, const struct scale_spec *s, bool swept)
{
    for (int j = 0; j < SUPER_BLOCK / s->unit; j++, codes += s->unit) {
        const float *x = b->src + (first + j) * s->unit;
        float d = factor * scales[j];
        if (!d && swept) {
            sweep_first_codes(codes, fit, first + j, s->unit);
            continue;
        }
        if (!d) {
            scale_first_codes(codes, b, fit, first + j, s);
            continue;
        }
        for (int i = 0; i < s->unit; i += LANES)
            store_bytes(codes + i, clamped(nearest(f_load(x + i) / d), -s->top, s->top - 1) + s->top);
    }
}

/* ---- Q4_0, Q5_0 -------------------------------------------------------------------------------------------- */

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

/* ---- Q3_K -------------------------------------------------------------------------------------------------- */

/* A super-block's factor and the integers of its units; those of Q3_K are stored plus 32. */
struct scale_super {
    float factor;
    int8_t scales[16];
};

/* The scale with the largest magnitude. */
LANE float largest_scale(const float *scale, int n)
{
    float most = 0;
    for (int j = 0; j < n; j++)
        most = fabsf(scale[j]) > fabsf(most) ? scale[j] : most;
    return most;
}

/* With importances the scales of the units are searched for like weights. */
LANE void share_by_search(struct scale_super *supers, const struct batch *b, const struct scale_fit *fit)
{
    static const struct scale_spec spec = {16, 32, true};
    _Alignas(64) float x[16 * LANES] = {0}, w[16 * LANES] = {0};
    float sums[MAX_UNITS], factors[LANES], code_scales[LANES];
    int32_t offsets[LANES];
    const int n = b->n_units / 16;
    unit_sums(sums, b, 16);
    for (int s = 0; s < n; s++)
        for (int j = 0; j < 16; j++) {
            x[j * LANES + s] = fit->scale[s * 16 + j];
            w[j * LANES + s] = sums[s * 16 + j];
        }
    scale_tile(factors, code_scales, offsets, x, w, &spec);
    for (int s = 0; s < n; s++) {
        supers[s].factor = factors[s];
        for (int j = 0; j < 16; j++) {
            int32_t code = nearest_one(code_scales[s] * fit->scale[s * 16 + j]);
            code = code < -32 ? -32 : code > 31 ? 31 : code;
            supers[s].scales[j] = (int8_t)(code + offsets[s]);
        }
    }
}

LANE void share_by_largest_scale(struct scale_super *super, const float *scale)
{
    float most = largest_scale(scale, 16), code_scale = -32 / most;
    super->factor = most ? 1 / code_scale : 0;
    for (int j = 0; j < 16; j++) {
        int8_t code = (int8_t)nearest_one(code_scale * scale[j]);
        super->scales[j] = !most ? 0 : code < -32 ? 0 : code > 31 ? 63 : (int8_t)(code + 32);
    }
}

static void encode_q3_k(const struct batch *b, uint8_t *out)
{
    static const struct scale_spec spec = {16, 4, false};
    struct scale_fit fit;
    struct scale_super supers[8];
    if (b->weighted) {
        scale_search(&fit, b, &spec);
        share_by_search(supers, b, &fit);
    } else {
        sweep_search(&fit, b, 16, 4);
        for (int s = 0; s < b->n_units / 16; s++)
            share_by_largest_scale(&supers[s], fit.scale + s * 16);
    }
    for (int s = 0; s < b->n_units / 16; s++, out += 110) {
        uint8_t codes[SUPER_BLOCK];
        store_six_bit_scales(out + 96, (const uint8_t *)supers[s].scales);
        float factor = store_fp16(out + 108, supers[s].factor);
        for (int j = 0; j < 16; j++)
            supers[s].scales[j] = (int8_t)(supers[s].scales[j] - 32);
        scale_codes(codes, b, &fit, 16 * s, supers[s].scales, factor, &spec, !b->weighted);
        store_one_bits(out, codes, 2);
        store_two_bits(out + 32, codes, 0);
    }
}

/* ---- Q6_K -------------------------------------------------------------------------------------------------- */

static void encode_q6_k(const struct batch *b, uint8_t *out)
{
    static const struct scale_spec spec = {16, 32, false};
    struct scale_fit fit;
    scale_search(&fit, b, &spec);
    for (int s = 0; s < b->n_units / 16; s++, out += 210) {
        uint8_t codes[SUPER_BLOCK];
        int8_t scales[16];
        float most = largest_scale(fit.scale + s * 16, 16);
        if (fabsf(most) < ALL_ZERO) {
            memset(out, 0, 210);
            continue;
        }
        float code_scale = -128 / most, factor = store_fp16(out + 208, 1 / code_scale);
        for (int j = 0; j < 16; j++) {
            int32_t code = nearest_one(code_scale * fit.scale[s * 16 + j]);
            scales[j] = (int8_t)(code < 127 ? code : 127);
        }
        memcpy(out + 192, scales, 16);
        scale_codes(codes, b, &fit, 16 * s, scales, factor, &spec, false);
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < 2; k++)
                for (int i = 0; i < 32; i++)
                    out[64 * half + 32 * k + i] = (uint8_t)((codes[128 * half + 32 * k + i] & 15) |
                                                            codes[128 * half + 32 * k + i + 64] << 4);
        store_two_bits(out + 128, codes, 4);
    }
}
