/* search_ternary.h - weights of three values: IQ1_S and IQ1_M.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h); grids.h says what a grid and a code word are. A weight is
 * scale * (code - 1 + shift), the code 0, 1 or 2 and the shift 1/8 or -1/8 for a unit of IQ1_S, for either
 * half of a unit of IQ1_M; the codes of a group of eight must be a point of the grid. A unit is coded in
 * three steps:
 *
 *   1. Its weights are sorted. A *split* of them, the first `low` with code 0 and those from `high` on with
 *      code 2, and a choice of shifts has a best scale, sum_qx / sum_q2, and a score, sum_qx^2 / sum_q2, by
 *      which that scale reduces the weighted squared error; q is code - 1 + shift. ggml tries all splits and
 *      keeps the first with the highest score. A scale below zero is then turned around. search_splits.h has
 *      this step.
 *   2. The word of a group that is no point becomes the neighbour with the least error. If there was one, the
 *      scale is fitted again.
 *   3. The scales of a super-block become integers times one factor, which IQ1_M fits to all weights. */

/* ---- Points ------------------------------------------------------------------------------------------ */

/* A group of weights that is coded anew. */
struct ternary_group {
    const float *x, *w;
    float scale;
    bool minus;
};

/* The neighbour that replaces a word. */
LANE uint16_t ternary_neighbour(const struct ternary_group *of, const struct quant_grid *g, int32_t entry)
{
    static const float values[2][8] = {{-0.875f, 0.125f, 1.125f, 0, -0.875f, 0.125f, 1.125f, 0},
                                       {-1.125f, -0.125f, 0.875f, 0, -1.125f, -0.125f, 0.875f, 0}};
    static const struct grid_search search = {.size = 8, .bits = 2};
    ef terms[8], scaled = e_set(of->scale) * e_load(values[of->minus]);
    for (int i = 0; i < 8; i++) {
        ef d = scaled - e_set(of->x[i]);
        terms[i] = e_set(of->w[i]) * d * d;
    }
    return grid_nearest(terms, grid_list(g, entry), grid_steps(entry), &search);
}

/* Whether the error that ggml computes is one that can be the least. */
static bool has_error(const struct ternary_group *of, unsigned word)
{
    float error = 0;
    for (int i = 0; i < 8; i++) {
        float d = of->scale * ternary_value(word >> (2 * i) & 3, of->minus) - of->x[i];
        error += of->w[i] * d * d;
    }
    return error < FLT_MAX;
}

/* Step 2 but for the scale. */
LANE void unit_points(struct ternary_fit *fit, const struct batch *b, int u, const struct quant_grid *g,
                      const struct ternary_spec *s)
{
    fit->off[u] = 0;
    fit->failed[u] = false;
    if (fit->empty[u]) {
        fit->scale[u] = 0;
        fit->choice[u] = 0;
        fit->words[0][u] = fit->words[1][u] = (int32_t)(g->points[0] * 0x10001u);
        return;
    }
    for (int k = 0; k < s->unit / 8; k++) {
        const int up = 16 * (k % 2), at = u * s->unit + 8 * k;
        const uint32_t words = (uint32_t)fit->words[k / 2][u], word = words >> up & 0xffff;
        const int32_t entry = g->map[fit->near[u] >> k & 1 ? word + GRID_SHORT : word];
        if (entry >= 0)
            continue;
        const struct ternary_group of = {b->src + at, b->weight + at, fit->scale[u],
                                         shift_is_minus(fit->choice[u], 8 * k >= s->unit / 2)};
        const uint32_t other = ternary_neighbour(&of, g, entry);
        if (!fit->certain[u] && !has_error(&of, other))
            fit->failed[u] = true;
        fit->off[u] = -1;
        fit->words[k / 2][u] = (int32_t)(words ^ (word ^ other) << up);
    }
}

/* Scales of a tile fitted to the words, where a word was no point. */
LANE void refit_ternary(struct ternary_fit *fit, const struct batch *b, int first,
                        const struct ternary_spec *s)
{
    const float *x = b->x + first * s->unit, *w = b->w + first * s->unit;
    vi choice = i_load(fit->choice + first), off = i_load(fit->off + first);
    vf qx = f_set(0), q2 = f_set(0);
    if (m_bits(i_eq(off, i_set(0))) == (1u << LANES) - 1)
        return;
    for (int h = 0; h < 2; h++) {
        vf least = least_value(choice, h);
        vi words = i_load(fit->words[s->unit > 16 ? h : 0] + first);
        for (int i = 0; i < s->unit / 2; i++) {
            int at = h * (s->unit / 2) + i;
            vf q = f_from(i_down(words, i_set(2 * (at % 16))) & 3) + least;
            vf wq = f_load(w + at * LANES) * q;
            qx += wq * f_load(x + at * LANES);
            q2 += wq * q;
        }
    }
    vm fits = m_andnot(m_and(f_lt(f_set(0), qx), f_lt(f_set(0), q2)), i_eq(off, i_set(0)));
    f_store(fit->scale + first, f_pick(fits, qx / q2, f_load(fit->scale + first)));
}

/* False without a grid (grids.h). The blocks are zeros then, which will not be taken for ggml's. */
LANE bool ternary_search(struct ternary_fit *fit, const struct batch *b, const struct quant_grid *g,
                         const struct ternary_spec *s)
{
    if (!g)
        return false;
    for (int first = 0; first < b->n_units; first += LANES) {
        split_tile(fit, b, first, s);
        for (int u = first; u < first + LANES && u < b->n_units; u++)
            unit_points(fit, b, u, g, s);
        for (int u = b->n_units; u < first + LANES; u++)
            fit->off[u] = 0;
        refit_ternary(fit, b, first, s);
    }
    return true;
}

/* ---- Super-blocks ------------------------------------------------------------------------------------ */

/* The integers of n units' scales and their factor; false if there is nothing but zeros. */
LANE bool ternary_levels(uint8_t *levels, float *factor, const float *scale, int n)
{
    float most = 0;
    for (int j = 0; j < n; j++)
        most = most > scale[j] ? most : scale[j];
    const float d = most / 15, per_unit = 1 / d;
    for (int j = 0; j < n; j++) {
        int32_t level = nearest_one(0.5f * (per_unit * scale[j] - 1));
        levels[j] = (uint8_t)(level < 0 ? 0 : level > 7 ? 7 : level);
    }
    *factor = d;
    return most != 0;
}

/* Where ggml would stop the program, or read what is not there, it shall do so itself. */
LANE bool block_failed(const struct ternary_fit *fit, int first, int n)
{
    bool failed = false;
    for (int u = first; u < first + n; u++)
        failed |= fit->failed[u] || !(fit->scale[u] >= 0);
    return failed;
}

/* Index of the point of group k of unit u. */
LANE unsigned point_of(const struct ternary_fit *fit, int u, int k, const struct quant_grid *g)
{
    return (unsigned)g->map[(uint32_t)fit->words[k / 2][u] >> 16 * (k % 2) & 0xffff];
}

LANE void store_iq1_s(uint8_t *out, const struct ternary_fit *fit, int first, const struct quant_grid *g)
{
    uint8_t levels[8];
    float d;
    const bool any = ternary_levels(levels, &d, fit->scale + first, 8);
    store_fp16(out, d * 1.125f);
    for (int j = 0; j < 8; j++) {
        unsigned high = 0;
        for (int k = 0; k < 4; k++) {
            unsigned point = point_of(fit, first + j, k, g);
            out[2 + 4 * j + k] = (uint8_t)point;
            high |= point >> 8 << (3 * k);
        }
        if (any)
            high |= (unsigned)levels[j] << 12 | (fit->choice[first + j] == 3 ? 0x8000u : 0);
        out[34 + 2 * j] = (uint8_t)high;
        out[35 + 2 * j] = (uint8_t)(high >> 8);
    }
}

static void encode_iq1_s(const struct batch *b, uint8_t *out)
{
    static const struct ternary_spec spec = {32, false, 1e-12f};
    const struct quant_grid *g = quant_grid_of(GGML_TYPE_IQ1_S);
    struct ternary_fit fit;
    if (!ternary_search(&fit, b, g, &spec)) {
        memset(out, 0, (size_t)b->n_units / 8 * 50);
        return;
    }
    for (int u = 0; u < b->n_units; u += 8, out += 50) {
        if (block_failed(&fit, u, 8))
            block_by_ggml(b, GGML_TYPE_IQ1_S, u / 8, out);
        else
            store_iq1_s(out, &fit, u, g);
    }
}

/* Terms of the sums that IQ1_M fits a super-block's factor by, in the order of the weights. */
LANE void factor_terms(float *qx, float *q2, const struct batch *b, const struct ternary_fit *fit, int u,
                       uint8_t level)
{
    const int choice = fit->choice[u];
    float least[16];
    for (int i = 0; i < 16; i++)
        least[i] = ternary_value(0, shift_is_minus(choice, i / 8));
    for (int i = 0; i < 16; i += LANES) {
        vf code = f_from(i_down(i_set(fit->words[0][u]), 2 * (i_lanes() + i)) & 3);
        vf q = (code + f_load(least + i)) * (float)(2 * level + 1), wq = f_load(b->weight + 16 * u + i) * q;
        f_store(qx + 16 * u + i, wq * f_load(b->src + 16 * u + i));
        f_store(q2 + 16 * u + i, wq * q);
    }
}

/* Sums over super-blocks, in the order of their weights; several at a time, for a sum waits for the one
 * before. */
static void super_sums(float *sums, const float *terms, int n)
{
    float s[BATCH / SUPER_BLOCK] = {0};
    if (n == BATCH / SUPER_BLOCK) {
        for (int i = 0; i < SUPER_BLOCK; i++)
            for (int k = 0; k < BATCH / SUPER_BLOCK; k++)
                s[k] += terms[k * SUPER_BLOCK + i];
    } else {
        for (int k = 0; k < n; k++)
            for (int i = 0; i < SUPER_BLOCK; i++)
                s[k] += terms[k * SUPER_BLOCK + i];
    }
    memcpy(sums, s, sizeof s);
}

/* levels: of 16 units; d: the factor, NULL if there are only zeros. */
LANE void store_iq1_m(uint8_t *out, const struct ternary_fit *fit, int first, const uint8_t *levels,
                      const float *d, const struct quant_grid *g)
{
    uint16_t scales[4] = {0};
    for (int j = 0; j < 16; j++) {
        const int u = first + j, choice = fit->choice[u];
        unsigned a = point_of(fit, u, 0, g), b = point_of(fit, u, 1, g);
        unsigned shifts = (shift_is_minus(choice, 0) ? 0x08u : 0) | (shift_is_minus(choice, 1) ? 0x80u : 0);
        out[2 * j] = (uint8_t)a;
        out[2 * j + 1] = (uint8_t)b;
        out[32 + j] = (uint8_t)(a >> 8 | b >> 8 << 4 | (d ? shifts : 0));
        scales[j / 4] = (uint16_t)(scales[j / 4] | levels[j] << (3 * (j % 4)));
    }
    if (!d)
        memset(scales, 0, sizeof scales);
    ggml_fp16_t half = d ? ggml_fp32_to_fp16(*d * 1.1125f) : 0;
    for (int k = 0; k < 4; k++)
        scales[k] = (uint16_t)(scales[k] | (half >> (4 * k) & 15) << 12);
    memcpy(out + 48, scales, sizeof scales);
}

static void encode_iq1_m(const struct batch *b, uint8_t *out)
{
    static const struct ternary_spec spec = {16, true, 1e-7f};
    const struct quant_grid *g = quant_grid_of(GGML_TYPE_IQ1_M);
    const int n_supers = b->n_units / 16;
    struct ternary_fit fit;
    uint8_t levels[MAX_UNITS];
    float d[8], sum_qx[8], sum_q2[8], qx[BATCH], q2[BATCH];
    bool any[8];
    if (!ternary_search(&fit, b, g, &spec)) {
        memset(out, 0, (size_t)n_supers * 56);
        return;
    }
    for (int s = 0; s < n_supers; s++)
        any[s] = ternary_levels(levels + 16 * s, &d[s], fit.scale + 16 * s, 16);
    for (int u = 0; u < b->n_units; u++)
        factor_terms(qx, q2, b, &fit, u, levels[u]);
    super_sums(sum_qx, qx, n_supers);
    super_sums(sum_q2, q2, n_supers);
    for (int s = 0; s < n_supers; s++, out += 56) {
        if (sum_q2[s] > 0)
            d[s] = sum_qx[s] / sum_q2[s];
        if (block_failed(&fit, 16 * s, 16))
            block_by_ggml(b, GGML_TYPE_IQ1_M, s, out);
        else
            store_iq1_m(out, &fit, 16 * s, levels + 16 * s, any[s] ? &d[s] : NULL, g);
    }
}
