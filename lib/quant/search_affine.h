/* search_affine.h - scale and least value of a unit: Q4_1, Q5_1, Q2_K, Q4_K, Q5_K.
 * SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). A weight is code * scale - least, codes 0 to `top`. Tried are the
 * scales that stretch the range of the unit over top + offset codes; the codes that each gives are fitted by
 * weighted least squares, and the fit with the least error is kept. A better fit's own least value is where
 * the next scales start from, so that the steps follow one another. */

struct affine_spec {
    int unit;
    int top;
    float first, step; /* offsets of the scales that are tried */
    int n_steps;
    bool absolute; /* errors count by their magnitude, not their square */
};

/* Of every unit of a batch. */
struct affine_fit {
    float scale[MAX_UNITS], least[MAX_UNITS];     /* least: what is subtracted */
    float code_scale[MAX_UNITS], base[MAX_UNITS]; /* codes are those of code_scale * (x - base) */
};

/* Codes of a tile of a unit's weights under code_scale and base. */
LANE vf affine_code(vf x, vf code_scale, vf base, float top, bool small)
{
    vf t = code_scale * (x - base);
    return small ? nearest_small(t, 0, top) : f_from(clamped(nearest(t), 0, (int32_t)top));
}

LANE vf affine_loss(vf code, vf x, vf scale, vf least, bool absolute)
{
    vf d = scale * code + least - x;
    return absolute ? f_abs(d) : d * d;
}

/* One step for n tiles together: the sums of the fit, and the codes. */
LANE void affine_sums(vf sums[][3], float *codes, const float *x, const float *w, const vf *code_scale,
                      const vf *base, const struct affine_spec *s, bool small, int n)
{
    for (int k = 0; k < n; k++)
        for (int j = 0; j < 3; j++)
            sums[k][j] = f_set(0);
    for (int i = 0; i < s->unit; i++) {
        for (int k = 0; k < n; k++) {
            int at = (k * s->unit + i) * LANES;
            vf v = f_load(x + at), l = affine_code(v, code_scale[k], base[k], (float)s->top, small);
            vf wl = f_load(w + at) * l;
            f_store(codes + at, l);
            sums[k][0] += wl;
            sums[k][1] += wl * l;
            sums[k][2] += wl * v;
        }
    }
}

LANE void affine_error(vf *error, const float *codes, const float *x, const float *w, const vf *scale,
                       const vf *least, const struct affine_spec *s, int n)
{
    for (int k = 0; k < n; k++)
        error[k] = f_set(0);
    for (int i = 0; i < s->unit; i++)
        for (int k = 0; k < n; k++) {
            int at = (k * s->unit + i) * LANES;
            error[k] += f_load(w + at) *
                        affine_loss(f_load(codes + at), f_load(x + at), scale[k], least[k], s->absolute);
        }
}

enum { TOGETHER = 2 }; /* tiles, so that the chains of additions do not wait for themselves */

/* n tiles that start at unit `first` of the batch. */
LANE void affine_tiles(struct affine_fit *fit, const struct batch *b, int first, const struct affine_spec *s,
                       int n)
{
    const float *x = b->x + first * s->unit, *w = b->w + first * s->unit;
    vf lowest[TOGETHER], low[TOGETHER], high[TOGETHER], sum_w[TOGETHER], sum_x[TOGETHER], scale[TOGETHER],
        best[TOGETHER];
    vf code_scale[TOGETHER], base[TOGETHER], best_code_scale[TOGETHER], sums[TOGETHER][3];
    vm flat[TOGETHER];
    _Alignas(64) float codes[TOGETHER * 32 * LANES];
    for (int k = 0; k < n; k++) {
        const float *xt = x + k * s->unit * LANES, *wt = w + k * s->unit * LANES;
        low[k] = high[k] = f_load(xt);
        sum_w[k] = f_load(wt);
        sum_x[k] = sum_w[k] * low[k];
        for (int i = 1; i < s->unit; i++) {
            vf v = f_load(xt + i * LANES), q = f_load(wt + i * LANES);
            low[k] = f_least(v, low[k]);
            high[k] = f_most(v, high[k]);
            sum_w[k] += q;
            sum_x[k] += q * v;
        }
        low[k] = f_pick(f_lt(f_set(0), low[k]), f_set(0), low[k]);
        flat[k] = f_le(high[k], low[k]);
        base[k] = lowest[k] = low[k];
        best_code_scale[k] = f_pick(flat[k], f_set(0), (float)s->top / (high[k] - low[k]));
        scale[k] = 1 / best_code_scale[k];
        best[k] = f_set(0);
        for (int i = 0; i < s->unit; i++) {
            vf v = f_load(xt + i * LANES);
            vf l = affine_code(v, best_code_scale[k], low[k], (float)s->top, false);
            best[k] += f_load(wt + i * LANES) * affine_loss(l, v, scale[k], low[k], s->absolute);
        }
    }
    for (int step = 0; step <= s->n_steps; step++) {
        unsigned small = ~0u;
        vf try_scale[TOGETHER], try_least[TOGETHER], error[TOGETHER];
        vm fits[TOGETHER];
        for (int k = 0; k < n; k++) {
            code_scale[k] = (s->first + s->step * (float)step + (float)s->top) / (high[k] - low[k]);
            vf span = f_most(f_abs(high[k] - low[k]), f_abs(lowest[k] - low[k]));
            small &= m_bits(m_or(flat[k], f_le(f_abs(code_scale[k] * span), f_set(ROUNDING_MOST))));
        }
        if (small == ((1u << LANES) - 1))
            affine_sums(sums, codes, x, w, code_scale, low, s, true, n);
        else
            affine_sums(sums, codes, x, w, code_scale, low, s, false, n);
        for (int k = 0; k < n; k++) {
            vf sum_l = sums[k][0], sum_l2 = sums[k][1], sum_xl = sums[k][2];
            vf d = sum_w[k] * sum_l2 - sum_l * sum_l;
            fits[k] = m_andnot(f_lt(f_set(0), d), flat[k]);
            try_scale[k] = (sum_w[k] * sum_xl - sum_x[k] * sum_l) / d;
            try_least[k] = (sum_l2 * sum_x[k] - sum_l * sum_xl) / d;
            vm above = f_lt(f_set(0), try_least[k]);
            try_least[k] = f_pick(above, f_set(0), try_least[k]);
            try_scale[k] = f_pick(above, sum_xl / sum_l2, try_scale[k]);
        }
        affine_error(error, codes, x, w, try_scale, try_least, s, n);
        for (int k = 0; k < n; k++) {
            vm won = m_and(fits[k], f_lt(error[k], best[k]));
            best[k] = f_pick(won, error[k], best[k]);
            best_code_scale[k] = f_pick(won, code_scale[k], best_code_scale[k]);
            base[k] = f_pick(won, low[k], base[k]);
            scale[k] = f_pick(won, try_scale[k], scale[k]);
            low[k] = f_pick(won, try_least[k], low[k]);
        }
    }
    for (int k = 0; k < n; k++) {
        int at = first + k * LANES;
        f_store(fit->scale + at, f_pick(flat[k], f_set(0), scale[k]));
        f_store(fit->least + at, -low[k]);
        f_store(fit->code_scale + at, best_code_scale[k]);
        f_store(fit->base + at, base[k]);
    }
}

LANE void affine_search(struct affine_fit *fit, const struct batch *b, const struct affine_spec *s)
{
    int first = 0;
    for (; first + TOGETHER * LANES <= b->n_units; first += TOGETHER * LANES)
        affine_tiles(fit, b, first, s, TOGETHER);
    for (; first < b->n_units; first += LANES)
        affine_tiles(fit, b, first, s, 1);
}

/* The codes that the search found for a unit's weights, in their order. */
LANE void affine_first_codes(uint8_t *codes, const struct batch *b, const struct affine_fit *fit, int u,
                             const struct affine_spec *s)
{
    const float *x = b->src + u * s->unit;
    for (int i = 0; i < s->unit; i += LANES)
        store_bytes(codes + i,
                    clamped(nearest(fit->code_scale[u] * (f_load(x + i) - fit->base[u])), 0, s->top));
}

/* ---- Q4_1, Q5_1 ------------------------------------------------------------------------------------- */

LANE void encode_affine_32(const struct batch *b, uint8_t *out, int top)
{
    const struct affine_spec spec = {32, top, -0.9f, 0.05f, 36, false};
    struct affine_fit fit;
    uint8_t codes[BATCH];
    affine_search(&fit, b, &spec);
    for (int u = 0; u < b->n_units; u++)
        affine_first_codes(codes + u * 32, b, &fit, u, &spec);
    for (int u = 0; u < b->n_units; u++, out += top == 15 ? 20 : 24) {
        store_fp16(out, fit.scale[u]);
        store_fp16(out + 2, -fit.least[u]);
        if (top == 15)
            store_nibbles(out + 4, codes + u * 32, 16);
        else
            store_five_bits(out + 4, codes + u * 32);
    }
}

static void encode_q4_1(const struct batch *b, uint8_t *out)
{
    if (b->weighted)
        encode_affine_32(b, out, 15);
    else
        encode_plain(b, out, 15, false);
}

static void encode_q5_1(const struct batch *b, uint8_t *out)
{
    if (b->weighted)
        encode_affine_32(b, out, 31);
    else
        encode_plain(b, out, 31, false);
}

/* ---- Q2_K, Q4_K, Q5_K: scales and least values share a super-block's two ------------------------------ */

/* A super-block's two factors and the integers of its units. */
struct affine_super {
    float scale, least; /* as float32, before they are stored */
    uint8_t scales[16], leasts[16];
};

/* Without importances the largest decides, and the others are rounded. A negative scale becomes what a byte
 * makes of it. */
LANE void share_by_largest(struct affine_super *super, const float *scale, const float *least, int n, int top)
{
    float most_scale = 0, most_least = 0;
    for (int j = 0; j < n; j++) {
        most_scale = scale[j] > most_scale ? scale[j] : most_scale;
        most_least = least[j] > most_least ? least[j] : most_least;
    }
    float per_scale = most_scale > 0 ? (float)top / most_scale : 0;
    float per_least = most_least > 0 ? (float)top / most_least : 0;
    for (int j = 0; j < n; j++) {
        super->scales[j] = (uint8_t)nearest_one(per_scale * scale[j]);
        super->leasts[j] = (uint8_t)nearest_one(per_least * least[j]);
    }
    super->scale = most_scale / (float)top;
    super->least = most_least / (float)top;
}

/* Sums of a unit's weights. */
LANE void unit_sums(float *sums, const struct batch *b, int unit)
{
    for (int first = 0; first < b->n_units; first += LANES) {
        vf sum = f_set(0);
        for (int i = 0; i < unit; i++)
            sum += f_load(b->w + (first * unit + i * LANES));
        f_store(sums + first, sum);
    }
}

/* The factors of all super-blocks of a batch; `top`: the largest integer that a unit's can be. */
LANE void affine_share(struct affine_super *supers, const struct batch *b, const struct affine_fit *fit,
                       int unit, int top)
{
    const int n = SUPER_BLOCK / unit, n_supers = b->n_units / n;
    if (!b->weighted) {
        for (int s = 0; s < n_supers; s++)
            share_by_largest(&supers[s], fit->scale + s * n, fit->least + s * n, n, top);
        return;
    }
    float sums[MAX_UNITS];
    struct refit refit;
    unit_sums(sums, b, unit);
    for (int s = 0; s < n_supers; s++)
        for (int j = 0; j < n; j++) {
            refit.x[j][s] = fit->scale[s * n + j];
            refit.x[j][s + 8] = fit->least[s * n + j];
            refit.w[j][s] = refit.w[j][s + 8] = sums[s * n + j];
        }
    for (int j = 0; j < n; j++)
        for (int s = n_supers; s < 8; s++)
            refit.x[j][s] = refit.x[j][s + 8] = refit.w[j][s] = refit.w[j][s + 8] = 0;
    refit_search(&refit, n, top);
    for (int s = 0; s < n_supers; s++) {
        supers[s].scale = refit.scale[s];
        supers[s].least = refit.scale[s + 8];
        for (int j = 0; j < n; j++) {
            supers[s].scales[j] = refit.codes[j][s];
            supers[s].leasts[j] = refit.codes[j][s + 8];
        }
    }
}

/* Final codes of a super-block; a unit whose stored scale is zero keeps those of its search. scales: as
 * they are stored, with all their bits. */
LANE void affine_codes(uint8_t *codes, const struct batch *b, const struct affine_fit *fit, int first,
                       const uint8_t *scales, const uint8_t *leasts, float scale, float least,
                       const struct affine_spec *s)
{
    for (int j = 0; j < SUPER_BLOCK / s->unit; j++, codes += s->unit) {
        const float *x = b->src + (first + j) * s->unit;
        float d = scale * scales[j], m = least * leasts[j];
        if (!d) {
            affine_first_codes(codes, b, fit, first + j, s);
            continue;
        }
        for (int i = 0; i < s->unit; i += LANES)
            store_bytes(codes + i, clamped(nearest((f_load(x + i) + m) / d), 0, s->top));
    }
}

static void encode_q2_k(const struct batch *b, uint8_t *out)
{
    static const struct affine_spec with = {16, 3, -0.9f, 0.05f, 36, false},
                                    without = {16, 3, -0.5f, 0.1f, 15, true};
    struct affine_fit fit;
    struct affine_super supers[8];
    if (b->weighted)
        affine_search(&fit, b, &with);
    else
        affine_search(&fit, b, &without);
    affine_share(supers, b, &fit, 16, 15);
    for (int s = 0; s < b->n_units / 16; s++, out += 84) {
        uint8_t codes[SUPER_BLOCK], scales[16], leasts[16];
        for (int j = 0; j < 16; j++) {
            out[j] = (uint8_t)(supers[s].scales[j] | supers[s].leasts[j] << 4);
            scales[j] = out[j] & 15;
            leasts[j] = out[j] >> 4;
        }
        float scale = store_fp16(out + 80, supers[s].scale), least = store_fp16(out + 82, supers[s].least);
        affine_codes(codes, b, &fit, 16 * s, scales, leasts, scale, least, &with);
        store_two_bits(out + 16, codes, 0);
    }
}

LANE void encode_affine_super(const struct batch *b, uint8_t *out, const struct affine_spec *with,
                              const struct affine_spec *without)
{
    const int top = with->top;
    struct affine_fit fit;
    struct affine_super supers[8];
    if (b->weighted)
        affine_search(&fit, b, with);
    else
        affine_search(&fit, b, without);
    affine_share(supers, b, &fit, 32, 63);
    for (int s = 0; s < b->n_units / 8; s++, out += top == 15 ? 144 : 176) {
        uint8_t codes[SUPER_BLOCK], scales[8], leasts[8];
        if (!b->weighted || top == 31) {
            at_most(supers[s].scales, 8, 63);
            at_most(supers[s].leasts, 8, 63);
        }
        store_six_bit_pairs(out + 4, supers[s].scales, supers[s].leasts);
        load_six_bit_pairs(scales, leasts, out + 4);
        float scale = store_fp16(out, supers[s].scale), least = store_fp16(out + 2, supers[s].least);
        affine_codes(codes, b, &fit, 8 * s, scales, leasts, scale, least, with);
        if (top == 31)
            store_one_bits(out + 16, codes, 4);
        for (int j = 0; j < 4; j++)
            store_nibbles(out + (top == 15 ? 16 : 48) + 32 * j, codes + 64 * j, 32);
    }
}

static void encode_q4_k(const struct batch *b, uint8_t *out)
{
    static const struct affine_spec with = {32, 15, -0.9f, 0.05f, 36, false},
                                    without = {32, 15, -1.0f, 0.1f, 20, false};
    encode_affine_super(b, out, &with, &without);
}

static void encode_q5_k(const struct batch *b, uint8_t *out)
{
    static const struct affine_spec with = {32, 31, -0.9f, 0.05f, 36, false},
                                    without = {32, 31, -0.5f, 0.1f, 15, false};
    encode_affine_super(b, out, &with, &without);
}
