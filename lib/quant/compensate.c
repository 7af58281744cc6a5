/* compensate.c - rows in panels, compensated by matrix products.  SPDX-License-Identifier: MIT
 *
 * Each sweep over the columns looks back: what the columns of a span need of all others is one product when
 * the span's turn comes, (SPAN,n) times (n,PANEL), and within the span the same is done once more for
 * steps. Nothing is carried from pass to pass but the errors themselves. */
#include "quant/compensate.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/gemm.h"
#include "base/num.h"
#include "quant/kernels.h"

#define COMPENSATE_STEPS compensate_steps_plain
#include "quant/compensate_loops.h"

/* ---- What rows share ------------------------------------------------------------------------------------
 */

static allot_status check_moment(const float *moment, int64_t n, double *mean, struct allot_error *err)
{
    double sum = 0;
    const int64_t bad = quant_first_nonfinite(moment, n * n);
    if (bad >= 0)
        return allot_fail(err, ALLOT_ERR_NUMERIC, "the second moment of inputs %lld and %lld is not finite",
                          (long long)(bad / n), (long long)(bad % n));
    for (int64_t i = 0; i < n; i++) {
        if (moment[i * n + i] < 0)
            return allot_fail(err, ALLOT_ERR_NUMERIC, "the second moment of input %lld is negative",
                              (long long)i);
        sum += moment[i * n + i];
    }
    *mean = sum / (double)n;
    return ALLOT_OK;
}

/* moment = the given one with `added` on its diagonal. */
static void damp(struct compensation *c, const float *moment, double shrinkage, double added)
{
    for (int64_t i = 0; i < c->n; i++)
        c->moment[i * c->n + i] = (float)((1 + shrinkage) * (double)moment[i * c->n + i] + added);
}

allot_status compensation_init(struct compensation *c, const float *moment, int64_t n, double shrinkage,
                               double damping, struct allot_error *err)
{
    /* What is tried first after none, and after how many tens every matrix would do: then the diagonal is a
     * thousand times the sum of all else. */
    const double least = 1e-6;
    const int64_t bytes = n * n * (int64_t)sizeof(float);
    double mean = 0;
    *c = (struct compensation){0};
    if (n < 1 || n > INT_MAX || !(damping >= 0) || !isfinite(damping) || !(shrinkage >= 0) ||
        !isfinite(shrinkage))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%lld inputs with a damping of %g cannot be compensated",
                          (long long)n, damping);
    allot_status status = check_moment(moment, n, &mean, err);
    if (status != ALLOT_OK)
        return status;
    *c = (struct compensation){n, malloc((size_t)bytes), malloc((size_t)bytes)};
    if (c->moment == NULL || c->factor == NULL) {
        compensation_release(c);
        return allot_fail_memory(err, 2 * (size_t)bytes, "the second moment of inputs and its factor");
    }
    memcpy(c->moment, moment, (size_t)bytes);
    const double unit = mean > 0 ? mean : 1;
    for (double share = damping > 0 || mean > 0 ? damping : 1; share <= 1e4 * (double)n;
         share = share > 0 ? 10 * share : least) {
        damp(c, moment, shrinkage, share * unit);
        memcpy(c->factor, c->moment, (size_t)bytes);
        if (gemm_inverse_factor(c->factor, n) && quant_first_nonfinite(c->factor, n * n) < 0)
            return ALLOT_OK;
    }
    compensation_release(c);
    return allot_fail(err, ALLOT_ERR_NUMERIC, "no damping makes the second moment of inputs definite");
}

void compensation_release(struct compensation *c)
{
    free(c->moment);
    free(c->factor);
    *c = (struct compensation){0};
}

bool compensate_fits(enum ggml_type type)
{
    return scalar_type_find(type) != NULL;
}

/* ---- Panels ---------------------------------------------------------------------------------------------
 */

struct compensate_grid compensate_grid_of(const struct scalar_type *type)
{
    struct compensate_grid grid = {.lowest = (float)type->first, .highest = (float)type->last};
    if (!type->table)
        return grid;
    const struct scalar_levels *levels = scalar_levels_of(type);
    grid.lowest = levels->level[0];
    grid.highest = levels->level[levels->n - 1];
    grid.n_steps = levels->n - 1;
    for (int k = 0; k < grid.n_steps; k++) {
        grid.middle[k] = (levels->level[k] + levels->level[k + 1]) / 2;
        grid.step[k] = levels->level[k + 1] - levels->level[k];
    }
    return grid;
}

/* Columns of PANEL floats: weights, levels and errors; scales and leasts; d and min; work, changes and
 * products of a span. */
static int64_t panel_columns(const struct scalar_type *type, int64_t n)
{
    return 3 * n + 2 * (n / type->group) + 2 * (n / type->block) + 3 * SPAN;
}

int64_t compensate_scratch_floats(enum ggml_type type, int64_t n_per_row)
{
    const struct scalar_type *t = scalar_type_find(type);
    return t != NULL ? panel_columns(t, n_per_row) * PANEL : 0;
}

static struct compensate_panel panel_in(float *scratch, const struct scalar_type *type,
                                        const struct compensation *c)
{
    struct compensate_panel p = {.type = type, .grid = compensate_grid_of(type), .n = c->n};
    const int64_t groups = c->n / type->group, blocks = c->n / type->block;
    p.moment = c->moment;
    p.factor = c->factor;
    p.weight = scratch;
    p.level = p.weight + c->n * PANEL;
    p.error = p.level + c->n * PANEL;
    p.scale = p.error + c->n * PANEL;
    p.least = p.scale + groups * PANEL;
    p.d = p.least + groups * PANEL;
    p.min = p.d + blocks * PANEL;
    p.work = p.min + blocks * PANEL;
    p.change = p.work + SPAN * PANEL;
    p.product = p.change + SPAN * PANEL;
    return p;
}

/* What the levels of all codes are. */
static void code_levels(float *level, const struct scalar_type *type)
{
    const struct scalar_levels *levels = type->table ? scalar_levels_of(type) : NULL;
    for (int code = 0; code < 256; code++)
        level[code] = (float)(type->lowest + code);
    if (levels == NULL)
        return;
    for (int code = 0; code < 256; code++)
        level[code] = 0; /* of the zero with a sign */
    for (int i = 0; i < levels->n; i++)
        level[levels->code[i]] = levels->level[i];
}

static void load_block(struct compensate_panel *p, const struct scalar_block *b, int64_t block, int r,
                       const float *level)
{
    const int groups = p->type->block / p->type->group;
    for (int i = 0; i < p->type->block; i++)
        p->level[(block * p->type->block + i) * PANEL + r] = level[b->codes[i]];
    for (int k = 0; k < groups; k++) {
        p->scale[(block * groups + k) * PANEL + r] = b->scales[k];
        p->least[(block * groups + k) * PANEL + r] = b->leasts[k];
    }
    p->d[block * PANEL + r] = b->d;
    p->min[block * PANEL + r] = b->min;
}

/* Levels and scales of the rows that are not kept out. */
static void load_rows(struct compensate_panel *p, const uint8_t *bytes, int n_rows, const bool *skip)
{
    const size_t row_bytes = ggml_row_size(p->type->type, p->n);
    float level[256];
    code_levels(level, p->type);
    for (int64_t block = 0; block < p->n / p->type->block; block++)
        for (int r = 0; r < PANEL; r++) {
            struct scalar_block b = {0};
            if (skip != NULL && skip[r])
                continue;
            if (r < n_rows)
                scalar_load(p->type, &b, bytes + (size_t)r * row_bytes + block * p->type->block_bytes);
            load_block(p, &b, block, r, level);
        }
}

static void load_weights(struct compensate_panel *p, const float *src, int n_rows)
{
    for (int64_t first = 0; first < p->n; first += STEP)
        for (int r = 0; r < PANEL; r++)
            for (int64_t i = first; i < first + STEP; i++)
                p->weight[i * PANEL + r] = r < n_rows ? src[r * p->n + i] : 0;
}

static uint8_t code_of(const struct scalar_type *type, const struct scalar_levels *levels, float level,
                       uint8_t old)
{
    if (levels == NULL)
        return (uint8_t)((int)level - type->lowest);
    for (int i = 0; i < levels->n; i++)
        if (levels->level[i] == level)
            return levels->code[i];
    return old;
}

static void store_block(const struct compensate_panel *p, int64_t block, int r, uint8_t *out)
{
    const struct scalar_type *type = p->type;
    const struct scalar_levels *levels = type->table ? scalar_levels_of(type) : NULL;
    const int groups = type->block / type->group;
    struct scalar_block b;
    scalar_load(type, &b, out);
    for (int i = 0; i < type->block; i++)
        b.codes[i] = code_of(type, levels, p->level[(block * type->block + i) * PANEL + r], b.codes[i]);
    for (int k = 0; k < groups; k++) {
        b.scales[k] = (int8_t)p->scale[(block * groups + k) * PANEL + r];
        b.leasts[k] = (uint8_t)p->least[(block * groups + k) * PANEL + r];
    }
    b.d = p->d[block * PANEL + r];
    b.min = p->min[block * PANEL + r];
    scalar_store(type, &b, out);
}

static void store_rows(const struct compensate_panel *p, uint8_t *bytes, int n_rows, const bool *skip)
{
    const size_t row_bytes = ggml_row_size(p->type->type, p->n);
    for (int64_t block = 0; block < p->n / p->type->block; block++)
        for (int r = 0; r < n_rows; r++)
            if (!skip[r])
                store_block(p, block, r, bytes + (size_t)r * row_bytes + block * p->type->block_bytes);
}

/* ---- Sweeps ---------------------------------------------------------------------------------------------
 */

/* Those for the instructions of the kernels that quantize, so that what masks these masks them too. */
static const struct compensate_steps *steps_for_processor(void)
{
    const struct quant_kernel_set *set = quant_kernel_sets()[0];
#if defined(__x86_64__)
    if (set != NULL && strcmp(set->name, "avx512") == 0)
        return &compensate_steps_avx512;
    if (set != NULL && strcmp(set->name, "avx2") == 0)
        return &compensate_steps_avx2;
#endif
    (void)set;
    return &compensate_steps_plain;
}

/* y (n_out,PANEL) = beta y + alpha m' x, of the rows [in, in + n_in) and columns [out, out + n_out) of a
 * matrix m (n,n) and x (n_in,PANEL). */
static void multiply(float *y, const struct compensate_panel *p, const float *m, int64_t in, int64_t n_in,
                     int64_t out, int64_t n_out, const float *x, float alpha, float beta)
{
    gemm_strided(true, false, (int)n_out, PANEL, (int)n_in, alpha, m + in * p->n + out, (int)p->n, x, PANEL,
                 beta, y, PANEL);
}

/* Each row's objective, by the moment's symmetry from one of its triangles. */
static void objectives(double *sums, const struct compensate_panel *p, const struct compensate_steps *steps)
{
    for (int r = 0; r < PANEL; r++)
        sums[r] = 0;
    for (int64_t first = 0; first < p->n; first += SPAN) {
        const int64_t n = least(SPAN, p->n - first);
        float part[PANEL] = {0};
        if (first > 0)
            multiply(p->work, p, p->moment, 0, first, first, n, p->error, 2, 0);
        multiply(p->work, p, p->moment, first, n, first, n, p->error + first * PANEL, 1, first > 0);
        steps->add_products(part, p->error + first * PANEL, p->work, n);
        for (int r = 0; r < PANEL; r++)
            sums[r] += part[r];
    }
}

/* GPTQ. With u' u = H^-1 the objective is |(q-w) u^-1|^2: a column's error in units of u's diagonal is made
 * up for by u's row in the columns to come, and losses are the squares of such errors. */
static void round_panel(struct compensate_panel *p, const struct compensate_steps *steps, double *losses)
{
    for (int r = 0; r < PANEL; r++)
        losses[r] = 0;
    for (int64_t first = 0; first < p->n; first += SPAN) {
        const int64_t n = least(SPAN, p->n - first);
        float loss[PANEL] = {0};
        memcpy(p->work, p->weight + first * PANEL, sizeof *p->work * (size_t)(n * PANEL));
        if (first > 0)
            multiply(p->work, p, p->factor, 0, first, first, n, p->error, 1, 1);
        for (int64_t at = 0; at < n; at += STEP) {
            steps->round(p, first + at, p->work + at * PANEL, loss);
            if (at + STEP < n)
                multiply(p->work + (at + STEP) * PANEL, p, p->factor, first + at, STEP, first + at + STEP,
                         n - at - STEP, p->error + (first + at) * PANEL, 1, 1);
        }
        for (int r = 0; r < PANEL; r++)
            losses[r] += loss[r];
    }
}

/* The factors of a block that is a span. */
static void refit_factors(struct compensate_panel *p, const struct compensate_steps *steps, int64_t first)
{
    const int n_factors = p->type->most_least > 0 ? 2 : 1;
    for (int which = 0; which < n_factors; which++) {
        steps->direct(p, first, (enum compensate_factor)which, p->change);
        multiply(p->product, p, p->moment, first, SPAN, first, SPAN, p->change, 1, 0);
        steps->move(p, first, (enum compensate_factor)which, p->change, p->product, p->work);
    }
}

static void descend_panel(struct compensate_panel *p, const struct compensate_steps *steps, bool scales)
{
    for (int64_t first = 0; first < p->n; first += SPAN) {
        const int64_t n = least(SPAN, p->n - first);
        multiply(p->work, p, p->moment, 0, p->n, first, n, p->error, 1, 0);
        if (scales && p->type->block == SPAN)
            refit_factors(p, steps, first);
        for (int64_t at = 0; at < n; at += STEP) {
            float *g = p->work + at * PANEL;
            steps->descend(p, first + at, g, p->change);
            if (scales)
                steps->refit(p, first + at, g, p->change);
            if (at + STEP < n)
                multiply(p->work + (at + STEP) * PANEL, p, p->moment, first + at, STEP, first + at + STEP,
                         n - at - STEP, p->change, 1, 1);
        }
    }
}

static void compensate_panel(struct compensate_panel *p, const struct compensation_options *options,
                             const float *src, uint8_t *bytes, int n_rows)
{
    const struct compensate_steps *steps = steps_for_processor();
    double before[PANEL], after[PANEL];
    bool kept[PANEL];
    load_weights(p, src, n_rows);
    load_rows(p, bytes, n_rows, NULL);
    steps->find_errors(p);
    objectives(before, p, steps);
    round_panel(p, steps, after);
    for (int r = 0; r < PANEL; r++)
        kept[r] = after[r] < before[r];
    load_rows(p, bytes, n_rows, kept); /* others descend from where they were */
    steps->find_errors(p);
    for (int pass = 0; pass < options->passes; pass++)
        descend_panel(p, steps, options->scales && p->type->factor == FACTOR_FP16);
    objectives(after, p, steps);
    for (int r = 0; r < PANEL; r++)
        kept[r] = !(after[r] < before[r]);
    store_rows(p, bytes, n_rows, kept);
}

allot_status compensate_rows(enum ggml_type type, const float *src, void *bytes, int64_t n_rows,
                             int64_t n_per_row, const struct compensation *c,
                             const struct compensation_options *options, float *scratch,
                             struct allot_error *err)
{
    const struct scalar_type *t = scalar_type_find(type);
    if (t == NULL)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "rows of type %s cannot be compensated",
                          ggml_type_name(type));
    if (n_per_row != c->n || !quant_type_fits(type, n_per_row) || n_rows < 0 || options->passes < 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%lld rows of %lld weights of type %s cannot be compensated for %lld inputs in %d "
                          "passes",
                          (long long)n_rows, (long long)n_per_row, ggml_type_name(type), (long long)c->n,
                          options->passes);
    struct compensate_panel p = panel_in(scratch, t, c);
    for (int64_t row = 0; row < n_rows; row += PANEL)
        compensate_panel(&p, options, src + row * c->n,
                         (uint8_t *)bytes + (size_t)row * ggml_row_size(type, c->n),
                         (int)least(PANEL, n_rows - row));
    return ALLOT_OK;
}

double compensation_objective(const float *moment, const float *errors, int64_t n_rows, int64_t n,
                              float *scratch)
{
    double sum = 0;
    for (int64_t row = 0; row < n_rows; row += PANEL) {
        const int64_t rows = least(PANEL, n_rows - row);
        const float *e = errors + row * n;
        gemm_forward_here(scratch, e, moment, rows, n, n);
        for (int64_t i = 0; i < rows * n; i++)
            sum += (double)e[i] * (double)scratch[i];
    }
    return sum;
}
