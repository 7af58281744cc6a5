/* report_plot.c - scatter plots of the report: size against KL, prediction against measurement.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Axes ------------------------------------------------------------------------------------------ */

/* From data to the page. */
struct axis {
    bool log;
    double low, high; /* data, after log10 where log */
    double from, to;  /* user units of the SVG */
    double per_unit;  /* labels show data / per_unit */
};

static double at(const struct axis *axis, double value)
{
    const double x = axis->log ? log10(value) : value;
    return axis->from + (axis->to - axis->from) * ((x - axis->low) / (axis->high - axis->low));
}

struct range {
    double low, high;
};

static void widen(struct range *range, double value)
{
    range->low = fmin(range->low, value);
    range->high = fmax(range->high, value);
}

static const struct range no_range = {HUGE_VAL, -HUGE_VAL};

/* At least a factor of 4, so that ticks at 1, 2 and 5 give two or more. */
static struct axis log_axis(struct range data, double from, double to)
{
    double low = log10(data.low), high = log10(data.high);
    const double pad = fmax(0.04 * (high - low), (log10(4) - (high - low)) / 2);
    return (struct axis){true, low - pad, high + pad, from, to, 1};
}

static struct axis linear_axis(struct range data, double from, double to, double per_unit)
{
    const double pad = fmax(0.06 * (data.high - data.low), 0.02 * data.high);
    return (struct axis){false, fmax(data.low - pad, 0), data.high + pad, from, to, per_unit};
}

/* 1, 2 or 5 times a power of ten. */
static double round_step(double least)
{
    const double power = pow(10, floor(log10(least))), m = least / power;
    return power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

typedef void draw_tick(struct strbuf *sb, const struct axis *axis, const struct axis *other, double value);

static void each_tick(struct strbuf *sb, const struct axis *axis, const struct axis *other, draw_tick *draw)
{
    static const double multiples[] = {1, 2, 5};
    if (!axis->log) {
        const double step = round_step((axis->high - axis->low) / axis->per_unit / 8) * axis->per_unit;
        for (double k = ceil(axis->low / step); k * step <= axis->high; k++)
            draw(sb, axis, other, k * step);
        return;
    }
    const double decades = axis->high - axis->low, step = fmax(1, round_step(decades / 8));
    for (double e = floor(axis->low / step) * step; e <= axis->high; e += step)
        for (size_t m = 0; m < (decades > 3 ? 1 : 3); m++) {
            const double value = multiples[m] * pow(10, e);
            if (log10(value) >= axis->low && log10(value) <= axis->high)
                draw(sb, axis, other, value);
        }
}

static void tick_below(struct strbuf *sb, const struct axis *x, const struct axis *y, double value)
{
    strbuf_addf(sb,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%.6g</text>\n",
                at(x, value), y->from, at(x, value), y->to, at(x, value), y->from + 17, value / x->per_unit);
}

static void tick_left(struct strbuf *sb, const struct axis *y, const struct axis *x, double value)
{
    strbuf_addf(sb,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%.6g</text>\n",
                x->from, at(y, value), x->to, at(y, value), x->from - 7, at(y, value) + 4,
                value / y->per_unit);
}

static void draw_axes(struct strbuf *sb, const struct axis *x, const struct axis *y, const char *x_title,
                      const char *y_title)
{
    each_tick(sb, x, y, tick_below);
    each_tick(sb, y, x, tick_left);
    strbuf_addf(sb,
                "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                "<text class=\"axis\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>"
                "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(%.1f %.1f) "
                "rotate(-90)\">%s</text>\n",
                x->from, y->to, x->to - x->from, y->from - y->to, (x->from + x->to) / 2, y->from + 38,
                x_title, x->from - 58, (y->from + y->to) / 2, y_title);
}

/* ---- Marks ----------------------------------------------------------------------------------------- */

enum { RADIUS = 5 };

/* A shape for each family, so that colour is not needed to tell them apart. `kind`: more classes. */
static void draw_mark(struct strbuf *sb, enum family family, double x, double y, const char *kind)
{
    static const char *const shapes[N_FAMILIES] = {
        [FAMILY_PLAIN] = "M-5-5h10v10h-10z",
        [FAMILY_LEARNED] = "M0-6.5L6.2 4.5H-6.2z",
        [FAMILY_HYBRID] = "M0-7L7 0L0 7L-7 0z",
        [FAMILY_PLAN] = "M-5.6 0a5.6 5.6 0 1 0 11.2 0a5.6 5.6 0 1 0-11.2 0z",
    };
    strbuf_addf(sb, "<path class=\"mark f%d%s\" transform=\"translate(%.1f %.1f)\" d=\"%s\"",
                family - FAMILY_PLAIN, kind, x, y, shapes[family]);
}

static void draw_title(struct strbuf *sb, const struct report_candidate *c)
{
    char size[32];
    strbuf_addf(sb, "<title>");
    report_escape(sb, c->name);
    strbuf_addf(sb, " (%s): %s, KL ", report_family_name(c->family), str_size(size, c->bytes));
    report_add_kl(sb, c->score.kl);
    if (c->reason) {
        strbuf_addf(sb, "; %s: ", c->state == STATE_SURVIVOR ? "kept" : "removed");
        report_escape(sb, c->reason);
    }
    if (c->replaced_by) {
        strbuf_addf(sb, "; replaced by ");
        report_escape(sb, c->replaced_by);
    }
    strbuf_addf(sb, "</title>");
}

static void draw_error_bar(struct strbuf *sb, const struct axis *y, double x, struct report_mean kl,
                           const char *kind)
{
    const double top = fmax(at(y, kl.mean + kl.se), y->to),
                 bottom = kl.mean > kl.se ? fmin(at(y, kl.mean - kl.se), y->from) : y->from;
    strbuf_addf(sb, "<path class=\"bar%s\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh8M%.1f %.1fh8\"/>", kind, x, top,
                bottom, x - 4, top, x - 4, bottom);
}

/* Families and whatever else, in a row above the plot. */
static void draw_legend(struct strbuf *sb, double x, double y, bool size_plot)
{
    static const double widths[N_FAMILIES] = {
        [FAMILY_PLAIN] = 90, [FAMILY_LEARNED] = 120, [FAMILY_HYBRID] = 72, [FAMILY_PLAN] = 102};
    strbuf_addf(sb, "<g class=\"legend\">");
    for (int f = FAMILY_PLAIN; f < N_FAMILIES; f++) {
        draw_mark(sb, (enum family)f, x + 6, y, "");
        strbuf_addf(sb, "/><text x=\"%.1f\" y=\"%.1f\">%s</text>", x + 17, y + 4,
                    report_family_name((enum family)f));
        x += widths[f];
    }
    if (size_plot) {
        draw_mark(sb, FAMILY_PLAIN, x + 6, y, " gone");
        strbuf_addf(sb, "/><text x=\"%.1f\" y=\"%.1f\">removed (any shape)</text>", x + 17, y + 4);
        x += 152;
        strbuf_addf(sb,
                    "<path class=\"bar\" d=\"M%.1f %.1fv14m-4-14h8m-8 14h8\"/>"
                    "<text x=\"%.1f\" y=\"%.1f\">± 1 standard error</text>"
                    "<path class=\"front\" d=\"M%.1f %.1fh24\"/><text x=\"%.1f\" y=\"%.1f\">survivors</text>",
                    x + 6, y - 7, x + 17, y + 4, x + 148, y, x + 178, y + 4);
    }
    strbuf_addf(sb, "</g>\n");
}

/* ---- Numbers beside survivors ------------------------------------------------------------------- */

struct box {
    double left, top, right, bottom;
};

static bool boxes_meet(struct box a, struct box b)
{
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

static bool is_free(struct box box, const struct box *taken, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (boxes_meet(box, taken[i]))
            return false;
    return true;
}

/* Where there is room for it near its mark, which lies at (x, y); else the title alone tells. */
static void draw_number(struct strbuf *sb, struct box *taken, size_t *n_taken, struct box plot, double x,
                        double y, size_t number)
{
    enum { NEAR = 13, N_DIRECTIONS = 8, N_RINGS = 3, HEIGHT = 12 };
    char text[24];
    const int digits = snprintf(text, sizeof text, "%zu", number);
    const double width = 7.0 * digits + 2;
    for (int k = 0; k < N_DIRECTIONS * N_RINGS; k++) {
        const double angle = -M_PI / 4 + M_PI / 4 * (k % N_DIRECTIONS),
                     far = NEAR * (1 + 0.6 * (k / N_DIRECTIONS));
        const double cx = x + (far + width / 3) * cos(angle), cy = y + far * sin(angle);
        const struct box box = {cx - width / 2, cy - HEIGHT / 2.0, cx + width / 2, cy + HEIGHT / 2.0};
        if (box.left < plot.left || box.right > plot.right || box.top < plot.top ||
            box.bottom > plot.bottom || !is_free(box, taken, *n_taken))
            continue;
        taken[(*n_taken)++] = box;
        strbuf_addf(sb, "<text class=\"number\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", cx,
                    cy + 4, text);
        return;
    }
}

/* ---- Size against KL ------------------------------------------------------------------------------- */

enum { WIDTH = 860, HEIGHT = 480, LEFT = 78, RIGHT = 18, TOP = 34, BOTTOM = 50, MOST_NUMBERS = 200 };

static bool can_plot(const struct report_candidate *c)
{
    return c->score.kl.mean > 0;
}

static void draw_candidate(struct strbuf *sb, const struct report_candidate *c, const struct axis *x,
                           const struct axis *y)
{
    const char *kind = c->state == STATE_SURVIVOR ? "" : " gone";
    const double at_x = at(x, (double)c->bytes);
    strbuf_addf(sb, "<g>");
    draw_error_bar(sb, y, at_x, c->score.kl, kind);
    draw_mark(sb, c->family, at_x, at(y, c->score.kl.mean), kind);
    strbuf_addf(sb, ">");
    draw_title(sb, c);
    strbuf_addf(sb, "</path></g>\n");
}

static void draw_numbers(struct strbuf *sb, const struct report_result *result,
                         const struct report_candidate *const *survivors, size_t n_survivors,
                         const struct axis *x, const struct axis *y)
{
    const struct box plot = {x->from, y->to, x->to, y->from};
    struct box *taken = malloc((result->n_candidates + MOST_NUMBERS) * sizeof *taken);
    size_t n = 0;
    if (!taken) {
        sb->failed = true;
        return;
    }
    for (size_t i = 0; i < result->n_candidates; i++) {
        const struct report_candidate *c = &result->candidates[i];
        if (!can_plot(c) || (n_survivors > MOST_NUMBERS && c->state != STATE_SURVIVOR))
            continue;
        const double cx = at(x, (double)c->bytes), cy = at(y, c->score.kl.mean);
        taken[n++] = (struct box){cx - RADIUS, cy - RADIUS, cx + RADIUS, cy + RADIUS};
    }
    for (size_t i = 0; i < n_survivors && i < MOST_NUMBERS; i++)
        if (can_plot(survivors[i]))
            draw_number(sb, taken, &n, plot, at(x, (double)survivors[i]->bytes),
                        at(y, survivors[i]->score.kl.mean), i + 1);
    free(taken);
}

static void draw_front(struct strbuf *sb, const struct report_candidate *const *survivors, size_t n,
                       const struct axis *x, const struct axis *y)
{
    const char *step = "M";
    strbuf_addf(sb, "<path class=\"front\" d=\"");
    for (size_t i = 0; i < n; i++)
        if (can_plot(survivors[i])) {
            strbuf_addf(sb, "%s%.1f %.1f", step, at(x, (double)survivors[i]->bytes),
                        at(y, survivors[i]->score.kl.mean));
            step = "L";
        }
    strbuf_addf(sb, "%s\"/>\n", *step == 'M' ? "M0 0" : "");
}

/* What has no place in the plot. */
static void tell_missing(struct strbuf *sb, size_t n_unmeasured, size_t n_zero)
{
    if (n_unmeasured)
        strbuf_addf(sb, " Not drawn: %zu that %s not measured.", n_unmeasured,
                    n_unmeasured == 1 ? "was" : "were");
    if (n_zero)
        strbuf_addf(sb, " Not drawn: %zu whose KL is 0.", n_zero);
}

void report_plot(struct strbuf *sb, const struct report_result *result,
                 const struct report_candidate *const *survivors, size_t n_survivors)
{
    struct range sizes = no_range, kls = no_range;
    size_t n_unmeasured = 0, n_zero = 0;
    for (size_t i = 0; i < result->n_candidates; i++) {
        const struct report_candidate *c = &result->candidates[i];
        n_unmeasured += isnan(c->score.kl.mean);
        n_zero += c->score.kl.mean == 0;
        if (!can_plot(c))
            continue;
        widen(&sizes, (double)c->bytes);
        widen(&kls, c->score.kl.mean);
        widen(&kls, fmin(c->score.kl.mean + c->score.kl.se, 10 * c->score.kl.mean));
    }
    if (sizes.low > sizes.high) {
        strbuf_addf(sb, "<p>Nothing to draw: no candidate has a measured KL above 0.</p>\n");
        return;
    }
    const bool gb = sizes.high >= 2e9, mb = sizes.high >= 2e6;
    const struct axis x = linear_axis(sizes, LEFT, WIDTH - RIGHT,
                                      gb   ? 1e9
                                      : mb ? 1e6
                                           : 1e3),
                      y = log_axis(kls, HEIGHT - BOTTOM, TOP);
    strbuf_addf(sb,
                "<figure><svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" "
                "aria-label=\"Size against KL divergence of all candidates\">\n",
                WIDTH, HEIGHT);
    draw_legend(sb, LEFT, 14, true);
    draw_axes(sb, &x, &y,
              gb   ? "file size (GB)"
              : mb ? "file size (MB)"
                   : "file size (kB)",
              "KL divergence (nats per token, log scale)");
    draw_front(sb, survivors, n_survivors, &x, &y);
    for (int pass = 0; pass < 2; pass++) /* survivors on top */
        for (size_t i = 0; i < result->n_candidates; i++)
            if (can_plot(&result->candidates[i]) && pass == (result->candidates[i].state == STATE_SURVIVOR))
                draw_candidate(sb, &result->candidates[i], &x, &y);
    draw_numbers(sb, result, survivors, n_survivors, &x, &y);
    strbuf_addf(sb,
                "</svg><figcaption>Numbers are those of the survivors' table; point at a mark for its name "
                "and, of one removed, the reason. Errors shorter than a mark lie behind it.");
    tell_missing(sb, n_unmeasured, n_zero);
    strbuf_addf(sb, "</figcaption></figure>\n");
}

/* ---- Prediction against measurement ----------------------------------------------------------- */

void report_scatter(struct strbuf *sb, const struct report_result *result)
{
    enum { SIDE = 480 };
    struct range both = no_range;
    for (size_t i = 0; i < result->n_candidates; i++) {
        const struct report_candidate *c = &result->candidates[i];
        if (can_plot(c) && c->predicted > 0) {
            widen(&both, c->predicted);
            widen(&both, c->score.kl.mean);
        }
    }
    if (both.low > both.high) {
        strbuf_addf(sb, "<p>No candidate has both a predicted and a measured KL.</p>\n");
        return;
    }
    const struct axis x = log_axis(both, LEFT, SIDE - RIGHT), y = log_axis(both, SIDE - BOTTOM, TOP);
    strbuf_addf(sb,
                "<figure><svg class=\"plot small\" viewBox=\"0 0 %d %d\" role=\"img\" "
                "aria-label=\"Predicted against measured KL divergence\">\n",
                SIDE, SIDE);
    draw_legend(sb, LEFT, 14, false);
    draw_axes(sb, &x, &y, "predicted KL (nats per token, log scale)",
              "measured KL (nats per token, log scale)");
    strbuf_addf(sb, "<path class=\"front\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", x.from, y.from, x.to, y.to);
    for (size_t i = 0; i < result->n_candidates; i++) {
        const struct report_candidate *c = &result->candidates[i];
        if (!can_plot(c) || !(c->predicted > 0))
            continue;
        draw_mark(sb, c->family, at(&x, c->predicted), at(&y, c->score.kl.mean), "");
        strbuf_addf(sb, ">");
        draw_title(sb, c);
        strbuf_addf(sb, "</path>\n");
    }
    strbuf_addf(
        sb,
        "</svg><figcaption>On the dashed line the measured KL is the predicted one.</figcaption></figure>\n");
}
