/* predict.c - the KL of a combination of layouts from what each costs alone.  SPDX-License-Identifier: MIT */
#include "search/predict.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

#define LEAST_THRESHOLD 2.5
#define LAST_THRESHOLD 9.0
#define THRESHOLD_STEP 0.5
#define LEAST_A 0.5
#define MOST_A 2.0
#define MOST_INTERACTION 0.5 /* |b X| as a share of A */

/* ---- The fit ------------------------------------------------------------------------------- */

static double additive(const struct combination *c)
{
    double sum = 0;
    for (size_t i = 0; i < c->n_terms; i++)
        sum += c->terms[i].cost;
    return sum;
}

/* The sum over pairs is half of what the square of the sum has over the sum of squares; term by term, so that
 * nothing cancels. */
static double interaction(const struct combination *c, double threshold)
{
    double sum = 0, pairs = 0;
    for (size_t i = 0; i < c->n_terms; i++) {
        double x = c->terms[i].cost * fmax(0, threshold - c->terms[i].bits);
        pairs += x * sum;
        sum += x;
    }
    return pairs;
}

static bool has_evidence(const struct predict_row *row)
{
    double sum = additive(&row->of);
    return isfinite(sum) && sum > 0 && isfinite(row->kl) && row->kl > 0;
}

/* Normal equations of the residuals 1 - a p - b q, p = A / KL and q = X / KL. */
struct squares {
    double pp, pq, qq, p, q;
    double most_b;
};

static struct squares add_rows(const struct predict_row *rows, size_t n, double threshold)
{
    struct squares s = {.most_b = INFINITY};
    for (size_t i = 0; i < n; i++) {
        double a = additive(&rows[i].of), x = interaction(&rows[i].of, threshold), p, q;
        if (!has_evidence(&rows[i]))
            continue;
        p = a / rows[i].kl;
        q = x / rows[i].kl;
        s.pp += p * p;
        s.pq += p * q;
        s.qq += q * q;
        s.p += p;
        s.q += q;
        if (x > 0)
            s.most_b = fmin(s.most_b, MOST_INTERACTION * a / x);
    }
    return s;
}

static double clamp(double x, double least, double most)
{
    return fmin(fmax(x, least), most);
}

/* Less the constant number of rows. */
static double loss(const struct squares *s, double a, double b)
{
    return a * a * s->pp + 2 * a * b * s->pq + b * b * s->qq - 2 * (a * s->p + b * s->q);
}

/* The least squares within the box: inside, or else on one of its four sides, the loss being convex. */
static void solve(const struct squares *s, double *a, double *b)
{
    const double det = s->pp * s->qq - s->pq * s->pq;
    double best = INFINITY;

    if (!(s->qq > 0)) { /* no pair is below the threshold */
        *a = clamp(s->p / s->pp, LEAST_A, MOST_A);
        *b = 0;
        return;
    }
    if (det > 1e-12 * s->pp * s->qq) {
        *a = (s->p * s->qq - s->q * s->pq) / det;
        *b = (s->q * s->pp - s->p * s->pq) / det;
        if (*a >= LEAST_A && *a <= MOST_A && fabs(*b) <= s->most_b)
            return;
    }
    for (int side = 0; side < 4; side++) {
        double edge_a = side == 0 ? LEAST_A : MOST_A, edge_b = side == 2 ? -s->most_b : s->most_b, value;
        if (side < 2)
            edge_b = clamp((s->q - edge_a * s->pq) / s->qq, -s->most_b, s->most_b);
        else
            edge_a = clamp((s->p - edge_b * s->pq) / s->pp, LEAST_A, MOST_A);
        value = loss(s, edge_a, edge_b);
        if (value < best) {
            best = value;
            *a = edge_a;
            *b = edge_b;
        }
    }
}

static double fit(const struct predictor *p, const struct combination *c)
{
    const double linear = p->a * additive(c), most = MOST_INTERACTION * linear;
    if (p->b == 0)
        return linear;
    return linear + clamp(p->b * interaction(c, p->threshold), -most, most);
}

static double mean_error(const struct predictor *p, const struct predict_row *rows, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (has_evidence(&rows[i]))
            sum += fabs(rows[i].kl - fit(p, &rows[i].of)) / rows[i].kl;
    return sum / (double)p->n_rows;
}

struct predictor predict_fit(const struct predict_row *rows, size_t n)
{
    struct predictor best = {.a = 1};

    for (size_t i = 0; i < n; i++)
        best.n_rows += has_evidence(&rows[i]);
    if (best.n_rows > 0)
        best.mean_error = mean_error(&best, rows, n);
    if (best.n_rows < PREDICT_FEW_ROWS)
        return best;
    best.mean_error = INFINITY;
    for (double t = LEAST_THRESHOLD; t <= LAST_THRESHOLD; t += THRESHOLD_STEP) {
        struct predictor p = {.n_rows = best.n_rows, .threshold = t};
        const struct squares s = add_rows(rows, n, t);
        solve(&s, &p.a, &p.b);
        p.mean_error = mean_error(&p, rows, n);
        if (p.mean_error < best.mean_error)
            best = p;
    }
    return best;
}

/* ---- The projection ------------------------------------------------------------------------ */

void isotonic_regression(double *y, const double *weight, size_t *start, size_t n)
{
    /* Blocks end to end: at a block's start its sums, which start[] leads to from its end. */
    for (size_t i = 0; i < n; i++) {
        size_t first = i;
        double sum = weight[i] * y[i], of = weight[i];
        while (first > 0 && y[start[first - 1]] >= sum / of) {
            first = start[first - 1];
            sum = of = 0;
            for (size_t k = first; k <= i; k++) {
                sum += weight[k] * y[k]; /* y within a finished block is its mean */
                of += weight[k];
            }
        }
        for (size_t k = first; k <= i; k++) {
            y[k] = sum / of;
            start[k] = first;
        }
    }
}

struct place {
    double additive;
    size_t index;
};

static int compare_places(const void *a, const void *b)
{
    double x = ((const struct place *)a)->additive, y = ((const struct place *)b)->additive;
    return (x > y) - (x < y);
}

/* Buffers for n combinations in additive order; one `level` for each distinct A. */
struct projection {
    struct place *places;
    double *y, *weight;
    size_t *level, *start;
    double *least; /* A of a level */
};

static allot_status projection_init(struct projection *p, size_t n, struct allot_error *err)
{
    *p = (struct projection){.places = calloc(n + 1, sizeof *p->places),
                             .y = calloc(n + 1, sizeof *p->y),
                             .weight = calloc(n + 1, sizeof *p->weight),
                             .level = calloc(n + 1, sizeof *p->level),
                             .start = calloc(n + 1, sizeof *p->start),
                             .least = calloc(n + 1, sizeof *p->least)};
    if (p->places == NULL || p->y == NULL || p->weight == NULL || p->level == NULL || p->start == NULL ||
        p->least == NULL)
        return allot_fail_memory(err, n * sizeof *p->places, "predictions");
    return ALLOT_OK;
}

static void projection_release(struct projection *p)
{
    free(p->places);
    free(p->y);
    free(p->weight);
    free(p->level);
    free(p->start);
    free(p->least);
}

static double lesser_ratio(double x, double y)
{
    return x == y ? 1 : x < y ? x / y : y / x;
}

allot_status predict_all(struct prediction *out, const struct predictor *predictor,
                         const struct combination *combinations, size_t n, struct allot_error *err)
{
    const double rows = (double)predictor->n_rows + 1;
    struct projection p;
    size_t known = 0, levels = 0;
    allot_status status = projection_init(&p, n, err);

    for (size_t i = 0; i < n && status == ALLOT_OK; i++) {
        double sum = additive(&combinations[i]);
        out[i] = (struct prediction){sum, NAN, NAN};
        if (isfinite(sum))
            p.places[known++] = (struct place){sum, i};
    }
    if (status == ALLOT_OK)
        qsort(p.places, known, sizeof *p.places, compare_places);
    for (size_t i = 0; i < known; i++) {
        double y = fit(predictor, &combinations[p.places[i].index]);
        if (i == 0 || p.places[i].additive > p.places[i - 1].additive) {
            p.y[levels] = p.weight[levels] = 0;
            p.least[levels++] = p.places[i].additive;
        }
        p.level[i] = levels - 1;
        p.weight[levels - 1]++;
        p.y[levels - 1] += (y - p.y[levels - 1]) / p.weight[levels - 1];
    }
    isotonic_regression(p.y, p.weight, p.start, levels);
    for (size_t i = 0, end = 0; i < known; i++) {
        const size_t level = p.level[i], first = p.start[level];
        struct prediction *o = &out[p.places[i].index];
        if (end <= level)
            for (end = level + 1; end < levels && p.start[end] == first; end++)
                ;
        o->kl = p.y[level];
        o->confidence = rows / (rows + PREDICT_FEW_ROWS) * lesser_ratio(o->kl, o->additive) *
                        lesser_ratio(p.least[first], p.least[end - 1]);
    }
    projection_release(&p);
    return status;
}
