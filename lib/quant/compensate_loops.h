/* compensate_loops.h - the steps of compensate.c, defined once per set of instructions.
 * SPDX-License-Identifier: MIT
 *
 * Before: COMPENSATE_STEPS, the name of the variable that holds the steps. */
#include <math.h>
#include <string.h>

#include "quant/compensate_steps.h"

/* A group's values are a * level + b; inverse: 1 / a, or 0 where all levels are as good as one. */
struct compensate_affine {
    _Alignas(64) float a[PANEL], b[PANEL], inverse[PANEL];
};

static inline void affine_of(struct compensate_affine *f, const struct compensate_panel *p, int64_t column)
{
    const float *scale = p->scale + column / p->type->group * PANEL,
                *least = p->least + column / p->type->group * PANEL;
    const float *d = p->d + column / p->type->block * PANEL, *min = p->min + column / p->type->block * PANEL;
    for (int r = 0; r < PANEL; r++) {
        f->a[r] = d[r] * scale[r];
        f->b[r] = -(min[r] * least[r]);
        f->inverse[r] = fabsf(f->a[r]) > 1e-30f ? 1 / f->a[r] : 0;
    }
}

/* Overwrites level with the levels nearest to y; NaN gives the lowest. */
static inline void nearest_levels(float *restrict level, const float *restrict y,
                                  const struct compensate_grid *grid)
{
    const float rounding = 12582912.0f; /* leaves integers */
    const float lowest = grid->lowest, highest = grid->highest;
    if (grid->n_steps == 0) {
        for (int r = 0; r < PANEL; r++) {
            float v = y[r] > lowest ? y[r] : lowest;
            v = v < highest ? v : highest;
            level[r] = (v + rounding) - rounding;
        }
        return;
    }
    for (int r = 0; r < PANEL; r++)
        level[r] = lowest;
    for (int k = 0; k < grid->n_steps; k++) {
        const float middle = grid->middle[k], step = grid->step[k];
        for (int r = 0; r < PANEL; r++)
            level[r] += y[r] > middle ? step : 0;
    }
}

static inline void add_multiple(float *restrict y, float factor, const float *restrict x)
{
    for (int r = 0; r < PANEL; r++)
        y[r] += factor * x[r];
}

static void round_step(struct compensate_panel *p, int64_t first, float *x, float *loss)
{
    struct compensate_affine f;
    _Alignas(64) float y[PANEL];
    for (int j = 0; j < STEP; j++, x += PANEL) {
        const int64_t column = first + j;
        const float *u = p->factor + column * p->n + column;
        const float inverse = 1 / u[0];
        float *restrict level = p->level + column * PANEL, *restrict error = p->error + column * PANEL;
        if (column % p->type->group == 0)
            affine_of(&f, p, column);
        for (int r = 0; r < PANEL; r++)
            y[r] = (x[r] - f.b[r]) * f.inverse[r];
        nearest_levels(level, y, &p->grid);
        for (int r = 0; r < PANEL; r++) {
            error[r] = ((f.a[r] * level[r] + f.b[r]) - x[r]) * inverse;
            loss[r] += error[r] * error[r];
        }
        for (int k = 1; k < STEP - j; k++)
            add_multiple(x + k * PANEL, u[k], error);
    }
}

static void descend_step(struct compensate_panel *p, int64_t first, float *g, float *change)
{
    struct compensate_affine f;
    _Alignas(64) float y[PANEL], next[PANEL];
    for (int j = 0; j < STEP; j++, g += PANEL, change += PANEL) {
        const int64_t column = first + j;
        const float *h = p->moment + column * p->n + column;
        const float own = h[0], inverse = 1 / own;
        const float *restrict weight = p->weight + column * PANEL;
        float *restrict level = p->level + column * PANEL, *restrict error = p->error + column * PANEL;
        if (column % p->type->group == 0)
            affine_of(&f, p, column);
        for (int r = 0; r < PANEL; r++)
            y[r] = level[r] - g[r] * inverse * f.inverse[r];
        nearest_levels(next, y, &p->grid);
        for (int r = 0; r < PANEL; r++) {
            const float by = f.a[r] * (next[r] - level[r]);
            const bool better = by * (2 * g[r] + own * by) < 0;
            change[r] = better ? by : 0;
            level[r] = better ? next[r] : level[r];
            error[r] = (f.a[r] * level[r] + f.b[r]) - weight[r];
        }
        for (int k = 1; k < STEP - j; k++)
            add_multiple(g + k * PANEL, h[k], change);
    }
}

/* ---- Scales ---------------------------------------------------------------------------------------------
 */

/* What the objective is in small changes x of a and y of b of one group:
 * 2 x lg + 2 y og + x^2 ll + 2 x y lo + y^2 oo, per row; `one` is the vector of ones. */
struct group_sums {
    _Alignas(64) float lg[PANEL], og[PANEL], ll[PANEL], lo[PANEL];
    float oo;
};

static void sum_group(struct group_sums *s, const struct compensate_panel *p, int64_t first, const float *g)
{
    const float *level = p->level + first * PANEL;
    memset(s, 0, sizeof *s);
    for (int i = 0; i < p->type->group; i++, g += PANEL) {
        const float *h = p->moment + (first + i) * p->n + first;
        const float *restrict own = level + i * PANEL;
        _Alignas(64) float product[PANEL] = {0};
        for (int k = 0; k < p->type->group; k++) {
            add_multiple(product, h[k], level + k * PANEL);
            s->oo += h[k];
        }
        for (int r = 0; r < PANEL; r++) {
            s->lg[r] += own[r] * g[r];
            s->og[r] += g[r];
            s->ll[r] += own[r] * product[r];
            s->lo[r] += product[r];
        }
    }
}

static inline float change_by(const struct group_sums *s, int r, float x, float y)
{
    return x * (2 * s->lg[r] + x * s->ll[r]) + y * (2 * (s->og[r] + x * s->lo[r]) + y * s->oo);
}

/* The integer nearest to x, within the bounds. */
static inline float bounded_integer(float x, float lowest, float highest)
{
    const float rounding = 12582912.0f;
    x = x > lowest ? x : lowest;
    x = x < highest ? x : highest;
    return (x + rounding) - rounding;
}

/* Integers: of each scale one lower to one higher the best least, or, where there are none, the best scale.
 * x and y: what a and b change by. */
static void refit_integers(struct compensate_panel *p, const struct group_sums *s, int64_t first, float *x,
                           float *y)
{
    const struct scalar_type *type = p->type;
    float *restrict scale = p->scale + first / type->group * PANEL, *restrict low =
                                                                        p->least +
                                                                        first / type->group * PANEL;
    const float *d = p->d + first / type->block * PANEL, *min = p->min + first / type->block * PANEL;
    const float lowest = (float)type->least_scale, highest = (float)type->most_scale,
                most_low = (float)type->most_least;
    const int tries = type->most_least > 0 ? 3 : 1;
    for (int r = 0; r < PANEL; r++) {
        float best = 0, best_scale = scale[r], best_low = low[r];
        x[r] = y[r] = 0;
        for (int t = 0; t < tries; t++) {
            const float wanted = scale[r] + (tries == 1 ? -s->lg[r] / (s->ll[r] * d[r]) : (float)(t - 1));
            const float next = bounded_integer(wanted, lowest, highest), by = d[r] * (next - scale[r]);
            const float sought = low[r] + (s->og[r] + by * s->lo[r]) / (s->oo * min[r]);
            const float next_low = tries == 1 ? low[r] : bounded_integer(sought, 0, most_low);
            const float by_low = -(min[r] * (next_low - low[r]));
            const float gain = change_by(s, r, by, by_low);
            const bool better = gain < best;
            best = better ? gain : best;
            best_scale = better ? next : best_scale;
            best_low = better ? next_low : best_low;
            x[r] = better ? by : x[r];
            y[r] = better ? by_low : y[r];
        }
        scale[r] = best_scale;
        low[r] = best_low;
    }
}

static inline float to_half(float x)
{
    return ggml_fp16_to_fp32(ggml_fp32_to_fp16(x));
}

/* d, and min if there is one, of a block that is one group. */
static void refit_halves(struct compensate_panel *p, const struct group_sums *s, int64_t first, float *x,
                         float *y)
{
    float *d = p->d + first / p->type->block * PANEL, *min = p->min + first / p->type->block * PANEL;
    const bool two = p->type->most_least > 0;
    for (int r = 0; r < PANEL; r++) {
        const float both = s->ll[r] * s->oo - s->lo[r] * s->lo[r];
        const float best = two ? (s->lo[r] * s->og[r] - s->oo * s->lg[r]) / both : -s->lg[r] / s->ll[r];
        const float next = to_half(d[r] + best), by = next - d[r];
        const float next_min = two ? to_half(min[r] + (s->og[r] + by * s->lo[r]) / s->oo) : min[r];
        const float by_min = -(next_min - min[r]);
        const bool better = isfinite(next) && isfinite(next_min) && change_by(s, r, by, by_min) < 0;
        x[r] = better ? by : 0;
        y[r] = better ? by_min : 0;
        d[r] = better ? next : d[r];
        min[r] = better ? next_min : min[r];
    }
}

/* Errors of columns whose levels or scales have changed. */
static void renew_errors(struct compensate_panel *p, int64_t first, int64_t n)
{
    struct compensate_affine f;
    for (int64_t column = first; column < first + n; column++) {
        const float *restrict level = p->level + column * PANEL, *restrict weight =
                                                                     p->weight + column * PANEL;
        float *restrict error = p->error + column * PANEL;
        if (column % p->type->group == 0)
            affine_of(&f, p, column);
        for (int r = 0; r < PANEL; r++)
            error[r] = (f.a[r] * level[r] + f.b[r]) - weight[r];
    }
}

static void find_errors(struct compensate_panel *p)
{
    renew_errors(p, 0, p->n);
}

static void refit_step(struct compensate_panel *p, int64_t first, float *g, float *change)
{
    const int group = p->type->group;
    _Alignas(64) float x[PANEL], y[PANEL];
    /* A column's own change, and those of the columns after it, are missing in its product. */
    for (int i = 0; i < STEP; i++)
        for (int k = i; k < STEP; k++)
            add_multiple(g + i * PANEL, p->moment[(first + i) * p->n + first + k], change + k * PANEL);
    for (int at = 0; at < STEP; at += group) {
        struct group_sums s;
        sum_group(&s, p, first + at, g + at * PANEL);
        if (p->type->block == group)
            refit_halves(p, &s, first + at, x, y);
        else
            refit_integers(p, &s, first + at, x, y);
        for (int i = at; i < at + group; i++) {
            const float *restrict level = p->level + (first + i) * PANEL;
            float *restrict total = change + i * PANEL;
            _Alignas(64) float by[PANEL];
            for (int r = 0; r < PANEL; r++) {
                by[r] = x[r] * level[r] + y[r];
                total[r] += by[r];
            }
            for (int k = at + group; k < STEP; k++)
                add_multiple(g + k * PANEL, p->moment[(first + i) * p->n + first + k], by);
        }
    }
    renew_errors(p, first, STEP);
}

static void direct(const struct compensate_panel *p, int64_t first, enum compensate_factor which,
                   float *direction)
{
    for (int64_t column = first; column < first + SPAN; column++, direction += PANEL) {
        const float *level = p->level + column * PANEL;
        const float *scale = p->scale + column / p->type->group * PANEL,
                    *low = p->least + column / p->type->group * PANEL;
        for (int r = 0; r < PANEL; r++)
            direction[r] = which == FACTOR_D ? scale[r] * level[r] : -low[r];
    }
}

static void move(struct compensate_panel *p, int64_t first, enum compensate_factor which,
                 const float *direction, const float *product, float *g)
{
    float *factor = (which == FACTOR_D ? p->d : p->min) + first / p->type->block * PANEL;
    float slope[PANEL] = {0}, bend[PANEL] = {0}, by[PANEL];
    for (int i = 0; i < SPAN; i++)
        for (int r = 0; r < PANEL; r++) {
            slope[r] += direction[i * PANEL + r] * g[i * PANEL + r];
            bend[r] += direction[i * PANEL + r] * product[i * PANEL + r];
        }
    for (int r = 0; r < PANEL; r++) {
        const float next = to_half(factor[r] - slope[r] / bend[r]);
        by[r] = next - factor[r];
        const bool better = isfinite(next) && by[r] * (2 * slope[r] + by[r] * bend[r]) < 0;
        factor[r] = better ? next : factor[r];
        by[r] = better ? by[r] : 0;
    }
    for (int i = 0; i < SPAN; i++)
        for (int r = 0; r < PANEL; r++)
            g[i * PANEL + r] += by[r] * product[i * PANEL + r];
    renew_errors(p, first, SPAN);
}

static void add_products(float *sums, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++, a += PANEL, b += PANEL)
        for (int r = 0; r < PANEL; r++)
            sums[r] += a[r] * b[r];
}

const struct compensate_steps COMPENSATE_STEPS = {
    .find_errors = find_errors,
    .round = round_step,
    .descend = descend_step,
    .refit = refit_step,
    .direct = direct,
    .move = move,
    .add_products = add_products,
};
