/* search_scale.h - the scale of a unit: Q4_0, Q5_0, Q3_K, Q6_K.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). A weight is code * scale, codes -top to top - 1, stored plus top.
 * Tried are the scales that put the weight with the largest magnitude at -(top + step/10), for steps from -9
 * to 9: the codes that each gives are fitted by weighted least squares, and the fit that explains most is
 * kept, starting from step 0. The steps do not depend on one another; several are taken together. */

struct scale_spec {
    int unit;
    int top;
    bool wild; /* weights may be infinite or NaN */
};

/* Of every unit of a batch. */
struct scale_fit {
    float scale[MAX_UNITS];
    float code_scale[MAX_UNITS]; /* codes are those of code_scale * x, */
    int32_t offset[MAX_UNITS];   /* plus this: nothing in a unit of zeros */
    uint8_t codes[BATCH];        /* after sweep_search, in tiles as the weights are */
};

/* ---- The search ------------------------------------------------------------------------------------- */

enum { SCALE_REACH = 9, SCALE_STEPS = 2 * SCALE_REACH + 1, STEPS_TOGETHER = 3 };

/* What must be done so that codes stay in their range. Unless weights are wild, code_scale * x is within
 * top + step/10 on both sides but for a rounding, so that the integers nearest to it are
 *   within top - 1 up to step -6,    within top up to step 4,    within top + 1 beyond. */
enum clamping { CLAMP_NOTHING, CLAMP_ABOVE, CLAMP_BOTH, CLAMP_WILD };

LANE vf scale_code(vf t, int top, enum clamping clamping)
{
    if (clamping == CLAMP_WILD)
        return f_from(clamped(nearest(t), -top, top - 1));
    vf l = (t + ROUNDING) - ROUNDING;
    if (clamping != CLAMP_NOTHING)
        l = f_least(l, f_set((float)(top - 1)));
    return clamping == CLAMP_BOTH ? f_most(l, f_set((float)-top)) : l;
}

/* The sums of n fits of a tile; wx: the products of w and x. */
LANE void scale_sums(vf sums[][2], const float *x, const float *w, const float *wx, const vf *code_scale,
                     const struct scale_spec *s, enum clamping clamping, int n)
{
    for (int k = 0; k < n; k++)
        sums[k][0] = sums[k][1] = f_set(0);
    for (int i = 0; i < s->unit * LANES; i += LANES) {
        vf v = f_load(x + i), q = f_load(w + i), qv = f_load(wx + i);
        for (int k = 0; k < n; k++) {
            vf l = scale_code(code_scale[k] * v, s->top, clamping);
            sums[k][0] += qv * l;
            sums[k][1] += q * l * l;
        }
    }
}

LANE void scale_steps(vf sums[][2], const float *x, const float *w, const float *wx, const vf *code_scale,
                      const struct scale_spec *s, enum clamping clamping, int from, int to)
{
    int at = from + SCALE_REACH, end = to + SCALE_REACH + 1;
    for (; at + STEPS_TOGETHER <= end; at += STEPS_TOGETHER)
        scale_sums(sums + at, x, w, wx, code_scale + at, s, clamping, STEPS_TOGETHER);
    for (; at < end; at++)
        scale_sums(sums + at, x, w, wx, code_scale + at, s, clamping, 1);
}

/* The weight with the largest magnitude; of equals the first. */
LANE vf tile_most(const float *x, int unit)
{
    vf most = f_set(0);
    for (int i = 0; i < unit * LANES; i += LANES)
        most = f_pick(f_lt(f_abs(most), f_abs(f_load(x + i))), f_load(x + i), most);
    return most;
}

/* scales, code_scales, offsets: as in scale_fit, of the tile's units. */
LANE void scale_tile(float *scales, float *code_scales, int32_t *offsets, const float *x, const float *w,
                     const struct scale_spec *s)
{
    _Alignas(64) float wx[32 * LANES];
    vf most = tile_most(x, s->unit), code_scale[SCALE_STEPS], sums[SCALE_STEPS][2];
    for (int i = 0; i < s->unit * LANES; i += LANES)
        f_store(wx + i, f_load(w + i) * f_load(x + i));
    for (int step = -SCALE_REACH; step <= SCALE_REACH; step++)
        code_scale[step + SCALE_REACH] = -((float)s->top + 0.1f * (float)step) / most;
    if (s->wild) {
        scale_steps(sums, x, w, wx, code_scale, s, CLAMP_WILD, -SCALE_REACH, SCALE_REACH);
    } else {
        scale_steps(sums, x, w, wx, code_scale, s, CLAMP_NOTHING, -SCALE_REACH, -6);
        scale_steps(sums, x, w, wx, code_scale, s, CLAMP_ABOVE, -5, 4);
        scale_steps(sums, x, w, wx, code_scale, s, CLAMP_BOTH, 5, SCALE_REACH);
    }
    vf lx = sums[SCALE_REACH][0], l2 = sums[SCALE_REACH][1], best_code_scale = code_scale[SCALE_REACH];
    vf scale = f_pick(f_ne(l2, f_set(0)), lx / l2, f_set(0)), best = scale * lx;
    for (int at = 0; at < SCALE_STEPS; at++) {
        if (at == SCALE_REACH)
            continue;
        lx = sums[at][0];
        l2 = sums[at][1];
        vm won = m_and(f_lt(f_set(0), l2), f_lt(best * l2, lx * lx));
        scale = f_pick(won, lx / l2, scale);
        best = f_pick(won, scale * lx, best);
        best_code_scale = f_pick(won, code_scale[at], best_code_scale);
    }
    vm zeros = f_lt(f_abs(most), f_set(ALL_ZERO));
    vi offset = i_pick(zeros, i_set(0), i_set(s->top));
    f_store(scales, f_pick(zeros, f_set(0), scale));
    f_store(code_scales, f_pick(zeros, f_set(0), best_code_scale));
    memcpy(offsets, &offset, sizeof offset);
}

LANE void scale_search(struct scale_fit *fit, const struct batch *b, const struct scale_spec *s)
{
    for (int u = 0; u < b->n_units; u += LANES)
        scale_tile(fit->scale + u, fit->code_scale + u, fit->offset + u, b->x + u * s->unit,
                   b->w + u * s->unit, s);
}

/* ---- Q3_K without importances: code after code ------------------------------------------------------ */

/* Codes start from those of step 0, and single ones are changed as long as that helps. ggml ends with a sweep
 * that changes nothing; in its lane another would change nothing either. */
enum { SWEPT_TOGETHER = 2, SWEEPS = 5 }; /* tiles; sweeps at most */

/* A weight of a tile; returns the lanes in which its code changed. */
LANE vm sweep_weight(vf *code, vf sums[2], vf v, int top)
{
    vf q = v * v, l = *code;
    vf lx = sums[0] - q * v * l, l2 = sums[1] - q * l * l;
    vf new_l = f_from(clamped(nearest(v * l2 / lx), -top, top - 1));
    vm open = m_and(f_lt(f_set(0), lx), f_ne(new_l, l));
    if (m_bits(open) == 0)
        return open;
    lx += q * v * new_l;
    l2 += q * new_l * new_l;
    vm won = m_and(m_and(open, f_lt(f_set(0), l2)), f_lt(sums[0] * sums[0] * l2, lx * lx * sums[1]));
    *code = f_pick(won, new_l, l);
    sums[0] = f_pick(won, lx, sums[0]);
    sums[1] = f_pick(won, l2, sums[1]);
    return won;
}

LANE void sweep_tiles(struct scale_fit *fit, const struct batch *b, int first, const struct scale_spec *s,
                      int n)
{
    const int size = s->unit * LANES;
    const float *x = b->x + first * s->unit;
    vf codes[SWEPT_TOGETHER][16], sums[SWEPT_TOGETHER][2], most[SWEPT_TOGETHER];
    for (int k = 0; k < n; k++) {
        most[k] = tile_most(x + k * size, s->unit);
        vf code_scale = -(float)s->top / most[k];
        sums[k][0] = sums[k][1] = f_set(0);
        for (int i = 0; i < s->unit; i++) {
            vf v = f_load(x + k * size + i * LANES), q = v * v;
            vf l = codes[k][i] = scale_code(code_scale * v, s->top, CLAMP_ABOVE);
            sums[k][0] += q * v * l;
            sums[k][1] += q * l * l;
        }
    }
    vm changed = m_not(m_none());
    for (int sweep = 0; sweep < SWEEPS && m_bits(changed) != 0; sweep++) {
        changed = m_none();
        for (int i = 0; i < s->unit; i++)
            for (int k = 0; k < n; k++) {
                vf v = f_load(x + k * size + i * LANES);
                changed = m_or(changed, sweep_weight(&codes[k][i], sums[k], v, s->top));
            }
    }
    for (int k = 0; k < n; k++) {
        vm zeros = f_lt(f_abs(most[k]), f_set(ALL_ZERO));
        vf scale = f_pick(f_lt(f_set(0), sums[k][1]), sums[k][0] / sums[k][1], f_set(0));
        f_store(fit->scale + first + k * LANES, f_pick(zeros, f_set(0), scale));
        for (int i = 0; i < s->unit; i++)
            store_bytes(fit->codes + first * s->unit + k * size + i * LANES,
                        i_pick(zeros, i_set(0), i_from(codes[k][i]) + s->top));
    }
}

LANE void sweep_search(struct scale_fit *fit, const struct batch *b, const struct scale_spec *s)
{
    int first = 0;
    for (; first + SWEPT_TOGETHER * LANES <= b->n_units; first += SWEPT_TOGETHER * LANES)
        sweep_tiles(fit, b, first, s, SWEPT_TOGETHER);
    for (; first < b->n_units; first += LANES)
        sweep_tiles(fit, b, first, s, 1);
}

/* ---- Codes ------------------------------------------------------------------------------------------ */

/* The codes that the search found for a unit's weights, in their order. */
LANE void scale_first_codes(uint8_t *codes, const struct batch *b, const struct scale_fit *fit, int u,
                            const struct scale_spec *s)
{
    const float *x = b->src + u * s->unit;
    for (int i = 0; i < s->unit; i += LANES)
        store_bytes(codes + i, clamped(nearest(fit->code_scale[u] * f_load(x + i)), -s->top, s->top - 1) +
                                   fit->offset[u]);
}

LANE void sweep_first_codes(uint8_t *codes, const struct scale_fit *fit, int u, const struct scale_spec *s)
{
    const uint8_t *from = fit->codes + (u - u % LANES) * s->unit + u % LANES;
    for (int i = 0; i < s->unit; i++)
        codes[i] = from[i * LANES];
}

/* Final codes of a super-block whose units have the scales factor * scales[j]; a unit whose scale is zero
 * keeps those of its search. */
LANE void scale_codes(uint8_t *codes, const struct batch *b, const struct scale_fit *fit, int first,
                      const int8_t *scales, float factor, const struct scale_spec *s, bool swept)
{
    for (int j = 0; j < SUPER_BLOCK / s->unit; j++, codes += s->unit) {
        const float *x = b->src + (first + j) * s->unit;
        float scale = factor * scales[j];
        if (scale) {
            for (int i = 0; i < s->unit; i += LANES)
                store_bytes(codes + i, clamped(nearest(f_load(x + i) / scale), -s->top, s->top - 1) + s->top);
        } else if (swept) {
            sweep_first_codes(codes, fit, first + j, s);
        } else {
            scale_first_codes(codes, b, fit, first + j, s);
        }
    }
}

/* ---- Q4_0, Q5_0 ------------------------------------------------------------------------------------- */

LANE void encode_scale_32(const struct batch *b, uint8_t *out, int top)
{
    const struct scale_spec spec = {32, top, false};
    struct scale_fit fit;
    uint8_t codes[BATCH];
    scale_search(&fit, b, &spec);
    for (int u = 0; u < b->n_units; u++)
        scale_first_codes(codes + u * 32, b, &fit, u, &spec);
    for (int u = 0; u < b->n_units; u++, out += top == 8 ? 18 : 22) {
        store_fp16(out, fit.scale[u]);
        if (top == 8)
            store_nibbles(out + 2, codes + u * 32, 16);
        else
            store_five_bits(out + 2, codes + u * 32);
    }
}

static void encode_q4_0(const struct batch *b, uint8_t *out)
{
    if (b->weighted)
        encode_scale_32(b, out, 8);
    else
        encode_plain(b, out, 15, true);
}

static void encode_q5_0(const struct batch *b, uint8_t *out)
{
    if (b->weighted)
        encode_scale_32(b, out, 16);
    else
        encode_plain(b, out, 31, true);
}

/* ---- Q3_K, Q6_K: the scales of a super-block share a factor ----------------------------------------- */

/* Of n scales the one with the largest magnitude; of equals the first. */
LANE float largest_scale(const float *scale, int n)
{
    float most = 0;
    for (int j = 0; j < n; j++)
        most = fabsf(scale[j]) > fabsf(most) ? scale[j] : most;
    return most;
}

/* Q3_K's factor of a super-block and the integers of its units, -32 to 31. */
struct scale_super {
    float factor;
    int8_t scales[16];
};

/* With importances the scales are searched for as if they were weights. They need not be finite where the
 * importances are extreme. */
LANE void share_by_search(struct scale_super *supers, const struct batch *b, const struct scale_fit *fit)
{
    static const struct scale_spec spec = {16, 32, true};
    float sums[MAX_UNITS];
    unit_sums(sums, b, 16);
    for (int first = 0; first < b->n_units / 16; first += LANES) {
        const int n = b->n_units / 16 - first < LANES ? b->n_units / 16 - first : LANES;
        _Alignas(64) float x[16 * LANES] = {0}, w[16 * LANES] = {0};
        float factors[LANES], code_scales[LANES];
        int32_t offsets[LANES];
        for (int s = 0; s < n; s++)
            for (int j = 0; j < 16; j++) {
                x[j * LANES + s] = fit->scale[(first + s) * 16 + j];
                w[j * LANES + s] = sums[(first + s) * 16 + j];
            }
        scale_tile(factors, code_scales, offsets, x, w, &spec);
        for (int s = 0; s < n; s++) {
            supers[first + s].factor = factors[s];
            for (int j = 0; j < 16; j++)
                supers[first + s].scales[j] =
                    (int8_t)(clamped_one(nearest_one(code_scales[s] * x[j * LANES + s]), -32, 31) +
                             offsets[s] - 32);
        }
    }
}

/* Without them the largest becomes -32 and the others are rounded, to what a byte makes of them. */
LANE void share_by_largest_scale(struct scale_super *super, const float *scale)
{
    float most = largest_scale(scale, 16), code_scale = -32 / most;
    super->factor = most ? 1 / code_scale : 0;
    for (int j = 0; j < 16; j++)
        super->scales[j] =
            most ? (int8_t)clamped_one((int8_t)nearest_one(code_scale * scale[j]), -32, 31) : (int8_t)-32;
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
        sweep_search(&fit, b, &spec);
        for (int s = 0; s < b->n_units / 16; s++)
            share_by_largest_scale(&supers[s], fit.scale + s * 16);
    }
    for (int s = 0; s < b->n_units / 16; s++, out += 110) {
        uint8_t codes[SUPER_BLOCK];
        float factor = store_fp16(out + 108, supers[s].factor);
        scale_codes(codes, b, &fit, 16 * s, supers[s].scales, factor, &spec, !b->weighted);
        store_one_bits(out, codes, 2);
        store_two_bits(out + 32, codes, 0);
        store_six_bit_scales(out + 96, supers[s].scales);
    }
}

static void encode_q6_k(const struct batch *b, uint8_t *out)
{
    static const struct scale_spec spec = {16, 32, false};
    struct scale_fit fit;
    scale_search(&fit, b, &spec);
    for (int s = 0; s < b->n_units / 16; s++, out += 210) {
        const float *scale = fit.scale + s * 16, most = largest_scale(scale, 16), code_scale = -128 / most;
        uint8_t codes[SUPER_BLOCK];
        int8_t scales[16];
        if (fabsf(most) < ALL_ZERO) {
            memset(out, 0, 210);
            continue;
        }
        for (int j = 0; j < 16; j++) {
            int32_t code = nearest_one(code_scale * scale[j]);
            scales[j] = (int8_t)(code < 127 ? code : 127);
        }
        memcpy(out + 192, scales, sizeof scales);
        float factor = store_fp16(out + 208, 1 / code_scale);
        scale_codes(codes, b, &fit, 16 * s, scales, factor, &spec, false);
        store_nibbles(out, codes, 64);
        store_nibbles(out + 64, codes + 128, 64);
        store_two_bits(out + 128, codes, 4);
    }
}
