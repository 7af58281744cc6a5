/* rows.c - quantizing rows safely, by the fast kernels where they serve.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/convert.h"
#include "quant/kernels.h"
#include "quant/quant.h"

int64_t quant_first_nonfinite(const float *x, int64_t n)
{
    enum { STEP = 1024 };
    for (int64_t start = 0; start < n; start += STEP) {
        const int64_t end = n - start < STEP ? n : start + STEP;
        uint32_t found = 0;
        for (int64_t i = start; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            found |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        for (int64_t i = start; found && i < end; i++)
            if (!isfinite(x[i]))
                return i;
    }
    return -1;
}

/* Least importance beside a mean of 1: too small to outweigh a column that matters, large enough
 * that products with small weights do not underflow. */
#define FLOOR_RATIO 1e-4

int64_t quant_floor_imatrix(float *imatrix, int64_t n)
{
    double sum = 0;
    int64_t n_good = 0, changed = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(imatrix[i]) && imatrix[i] > 0) {
            sum += imatrix[i];
            n_good++;
        }
    }
    /* The means of extreme rows are brought into the range in which sums of products stay finite. */
    double mean = n_good ? sum / (double)n_good : 1;
    const int shift = mean > 1e12 || mean < 1e-12 ? -ilogb(mean) : 0;
    mean = ldexp(mean, shift);
    const float floor_value = n_good ? (float)(FLOOR_RATIO * mean) : 1.0f;
    for (int64_t i = 0; i < n; i++) {
        const float old = imatrix[i];
        const bool good = isfinite(old) && old > 0;
        const float scaled = good ? (float)ldexp(old, shift) : 0;
        imatrix[i] = scaled > floor_value ? scaled : floor_value;
        changed += imatrix[i] != old;
    }
    return changed;
}

/* NaN counts as larger than anything. */
static float largest_magnitude(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    float value;
    memcpy(&value, &most, sizeof value);
    return value;
}

/* The largest term of a grid search is below 1e4 * importance * |weight|^3; without an imatrix the part of
 * the importance is played by |weight|. Beyond this bound it may overflow. */
static bool grid_search_overflows(double most_weight, double most_importance)
{
    const double w = !(most_weight <= 1) ? most_weight : 1, q = !(most_importance <= 1) ? most_importance : 1;
    return !(q * w * w * w < 1e33);
}

/* Can the importances be given to ggml as they are? It must not meet values that are no importances, nor
 * a group of zeros by which it would lose the group's weights. */
static bool importances_usable(const struct quant_type *qt, const float *imatrix, int64_t n)
{
    const int64_t step = qt->zero_group ? qt->zero_group : qt->block;
    for (int64_t start = 0; start < n; start += step) {
        unsigned bad = 0, positive = 0;
        for (int64_t i = start; i < start + step; i++) {
            bad |= !(imatrix[i] >= 0) || imatrix[i] > 3e38f;
            positive |= imatrix[i] > 0;
        }
        if (bad || (qt->zero_group && !positive))
            return false;
    }
    return true;
}

/* ---- One type ----------------------------------------------------------------------------------------- */

/* Rows and their importances, with what decides how they can be quantized. */
struct rows {
    const float *src;
    int64_t n_rows, n_per_row;
    const float *imatrix;               /* or NULL */
    float most_weight, most_importance; /* the latter without importances: the largest weight */
};

static struct rows rows_of(const float *src, int64_t n_rows, int64_t n_per_row, const float *imatrix)
{
    struct rows r = {src, n_rows, n_per_row, imatrix, largest_magnitude(src, n_rows * n_per_row), 0};
    r.most_importance = imatrix ? largest_magnitude(imatrix, n_per_row) : r.most_weight;
    return r;
}

static bool search_may_abort(const struct quant_type *qt, const struct rows *r)
{
    return qt->searches_grid && grid_search_overflows(r->most_weight, r->most_importance);
}

/* NULL: ggml itself. */
static const struct quant_kernel *kernel_for(const struct quant_type *qt, const struct rows *r,
                                             const struct quant_kernel_set **set)
{
    return r->most_weight < QUANT_KERNEL_MOST ? quant_kernel_find(qt->type, r->imatrix != NULL, set) : NULL;
}

/* Quantizes unless the search might abort; true if all blocks are valid. */
static bool try_rows(const struct quant_type *qt, const struct rows *r, void *dst)
{
    const struct quant_kernel_set *set;
    const struct quant_kernel *kernel = kernel_for(qt, r, &set);
    if (search_may_abort(qt, r))
        return false;
    if (kernel)
        quant_kernel_rows(set, kernel, r->src, dst, r->n_rows, r->n_per_row, r->imatrix);
    else
        ggml_quantize_chunk(qt->type, r->src, dst, 0, r->n_rows, r->n_per_row, r->imatrix);
    return quant_row_valid(qt->type, dst, (size_t)r->n_rows * ggml_row_size(qt->type, r->n_per_row));
}

/* Row by row, so that what becomes of a row does not depend on its company. */
static enum quant_result floor_bad_rows(const struct quant_type *qt, const struct rows *all, uint8_t *dst,
                                        const float *floored)
{
    const int64_t n = all->n_per_row;
    const bool usable = importances_usable(qt, all->imatrix, n);
    for (int64_t row = 0; row < all->n_rows; row++, dst += ggml_row_size(qt->type, n)) {
        const struct rows given = rows_of(all->src + row * n, 1, n, all->imatrix);
        const struct rows safe = rows_of(all->src + row * n, 1, n, floored);
        if (!(usable && try_rows(qt, &given, dst)) && !try_rows(qt, &safe, dst))
            return QUANT_INFEASIBLE;
    }
    return QUANT_FLOORED;
}

static bool importances_serve(const struct quant_type *qt, const struct rows *r)
{
    return !r->imatrix || importances_usable(qt, r->imatrix, r->n_per_row);
}

/* What the type makes of importances, and whether it can be tried at all. */
static bool rows_prepare(const struct quant_type *qt, struct rows *r)
{
    if (!qt || r->n_rows < 1 || !quant_type_fits(qt->type, r->n_per_row))
        return false;
    if (!qt->uses_imatrix && r->imatrix)
        *r = (struct rows){r->src, r->n_rows, r->n_per_row, NULL, r->most_weight, r->most_weight};
    return r->imatrix || !qt->aborts_without;
}

/* After the rows as they are have failed. A lack of memory counts as infeasible: the caller cannot use them.
 */
static enum quant_result rows_floor(const struct quant_type *qt, const struct rows *r, void *dst)
{
    float *floored = r->imatrix ? malloc((size_t)r->n_per_row * sizeof *floored) : NULL;
    if (!floored)
        return QUANT_INFEASIBLE;
    memcpy(floored, r->imatrix, (size_t)r->n_per_row * sizeof *floored);
    quant_floor_imatrix(floored, r->n_per_row);
    const enum quant_result result = floor_bad_rows(qt, r, dst, floored);
    free(floored);
    return result;
}

enum quant_result quant_rows(enum ggml_type type, const float *src, void *dst, int64_t n_rows,
                             int64_t n_per_row, const float *imatrix)
{
    const struct quant_type *qt = quant_type_find(type);
    struct rows r = {src, n_rows, n_per_row, imatrix, 0, 0};
    if (qt && qt->block > 1) /* else nothing depends on it */
        r = rows_of(src, n_rows, n_per_row, imatrix);
    if (!rows_prepare(qt, &r))
        return QUANT_INFEASIBLE;
    if (importances_serve(qt, &r) && try_rows(qt, &r, dst))
        return QUANT_OK;
    return rows_floor(qt, &r, dst);
}

/* ---- Several types --------------------------------------------------------------------------------------
 */

enum { MOST_TARGETS = 64 }; /* together */

/* error = what comes back - x. */
static bool find_error(enum ggml_type type, const uint8_t *bytes, const float *x, float *error, int64_t n)
{
    if (!gguf_to_f32(type, bytes, error, n))
        return false;
    for (int64_t i = 0; i < n; i++)
        error[i] -= x[i];
    return true;
}

/* A target that no kernel serves, or whose rows have failed. */
static void target_alone(struct quant_target *t, const struct rows *all)
{
    const int64_t n = all->n_rows * all->n_per_row;
    uint8_t *bytes = malloc((size_t)n * sizeof(float) + 1);
    t->result = bytes ? quant_rows(t->type, all->src, bytes, all->n_rows, all->n_per_row, all->imatrix)
                      : QUANT_INFEASIBLE;
    if (t->result != QUANT_INFEASIBLE && !find_error(t->type, bytes, all->src, t->error, n))
        t->result = QUANT_INFEASIBLE;
    free(bytes);
}

/* One batch of weights in one type. */
static bool target_batch(struct quant_target *t, const struct quant_kernel *kernel, const struct batch *batch,
                         int64_t start)
{
    const int64_t n = (int64_t)batch->n_units * batch->unit;
    uint8_t bytes[2 * BATCH];
    kernel->encode(batch, bytes);
    return quant_row_valid(t->type, bytes, ggml_row_size(t->type, n)) &&
           find_error(t->type, bytes, batch->src, t->error + start, n);
}

/* Targets whose batches are laid out alike. */
struct family {
    const struct quant_kernel *kernels[MOST_TARGETS]; /* of each target; NULL: not of the family */
    struct quant_target *targets;
    size_t n;
};

static void family_batch(void *user, const struct batch *batch, int64_t start)
{
    const struct family *f = user;
    for (size_t i = 0; i < f->n; i++)
        if (f->kernels[i] && !target_batch(&f->targets[i], f->kernels[i], batch, start))
            f->targets[i].result = QUANT_INFEASIBLE; /* until it has been tried alone */
}

static void rows_all(struct quant_target *targets, size_t n, const struct rows *all)
{
    struct family left = {.targets = targets, .n = n};
    const float *imatrix[MOST_TARGETS]; /* what each type makes of it */
    const struct quant_kernel_set *set = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct quant_type *qt = quant_type_find(targets[i].type);
        struct rows r = *all;
        if (rows_prepare(qt, &r) && importances_serve(qt, &r) && !search_may_abort(qt, &r))
            left.kernels[i] = kernel_for(qt, &r, &set);
        imatrix[i] = r.imatrix;
        targets[i].result = left.kernels[i] ? QUANT_OK : QUANT_INFEASIBLE;
    }
    /* The first that is left takes all of its family along. */
    for (size_t first = 0; first < n; first++) {
        const struct quant_kernel *like = left.kernels[first];
        struct family f = {.targets = targets, .n = n};
        for (size_t i = first; like && i < n; i++) {
            if (!left.kernels[i] || imatrix[i] != imatrix[first] ||
                !quant_kernels_alike(left.kernels[i], like, imatrix[i] != NULL))
                continue;
            f.kernels[i] = left.kernels[i];
            left.kernels[i] = NULL;
        }
        if (like)
            quant_kernel_batches(set, like, all->src, all->n_rows, all->n_per_row, imatrix[first],
                                 family_batch, &f);
    }
    for (size_t i = 0; i < n; i++)
        if (targets[i].result != QUANT_OK)
            target_alone(&targets[i], all);
}

void quant_rows_all(struct quant_target *targets, size_t n, const float *src, int64_t n_rows,
                    int64_t n_per_row, const float *imatrix)
{
    const struct rows all = rows_of(src, n_rows, n_per_row, imatrix);
    for (; n > MOST_TARGETS; targets += MOST_TARGETS, n -= MOST_TARGETS)
        rows_all(targets, MOST_TARGETS, &all);
    rows_all(targets, n, &all);
}
