/* report_map.c - layers x roles of the report: types of survivors, costs.  SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "constraints.h"
#include "describe.h"
#include "quant/quant.h"
#include "search/roles.h"

enum { MOST_LAYERS = 1024, CELL_HEIGHT = 20, LABEL_CHARACTERS = 20, PAGE_WIDTH = 1060 };

/* ---- Colours --------------------------------------------------------------------------------------- */

/* Pale yellow, teal, dark violet: lightness falls all the way, so that no colour vision is needed. */
struct colour {
    int red, green, blue;
};

static const struct colour unknown = {150, 150, 150};

/* shade: 0 to 1; NAN: not known. */
static struct colour colour_of(double shade)
{
    static const double stops[][3] = {{255, 243, 199}, {127, 200, 178}, {38, 125, 142}, {52, 22, 94}};
    enum { N_STEPS = sizeof stops / sizeof *stops - 1 };
    if (isnan(shade))
        return unknown;
    const double x = fmin(fmax(shade, 0), 1) * N_STEPS;
    const int i = x >= N_STEPS ? N_STEPS - 1 : (int)x;
    int mixed[3];
    for (int k = 0; k < 3; k++)
        mixed[k] = (int)lround(stops[i][k] + (x - i) * (stops[i + 1][k] - stops[i][k]));
    return (struct colour){mixed[0], mixed[1], mixed[2]};
}

/* What can be read on it, in both schemes. */
static const char *ink_on(struct colour c)
{
    return 0.299 * c.red + 0.587 * c.green + 0.114 * c.blue > 140 ? "#000" : "#fff";
}

/* ---- One map --------------------------------------------------------------------------------------- */

struct cell {
    const char *tensor;
    char role[64]; /* "": no tensor of a layer */
    int layer;
    double shade;
    const char *letter; /* one, or "" */
    const char *value;  /* for the title, and for tensors outside the layers */
};

static struct cell make_cell(const char *tensor, double shade, const char *letter, const char *value)
{
    struct cell cell = {.tensor = tensor, .shade = shade, .letter = letter, .value = value};
    cell.layer = role_layer(tensor);
    if (cell.layer < 0 || cell.layer >= MOST_LAYERS || !layer_role(cell.role, tensor))
        cell.role[0] = '\0';
    return cell;
}

/* Those outside the layers first. */
static int compare_cells(const void *a, const void *b)
{
    const struct cell *x = a, *y = b;
    if (!*x->role || !*y->role)
        return !*x->role && !*y->role ? strcmp(x->tensor, y->tensor) : !*y->role - !*x->role;
    const int roles = compare_roles(x->role, y->role);
    return roles ? roles : x->layer - y->layer;
}

static void draw_cell(struct strbuf *sb, const struct cell *cell, int x, int y, int width)
{
    const struct colour c = colour_of(cell->shade);
    strbuf_addf(sb, "<g><title>");
    report_escape(sb, cell->tensor);
    strbuf_addf(sb, ": ");
    report_escape(sb, cell->value);
    strbuf_addf(sb, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#%02x%02x%02x\"/>", x,
                y, width - 1, CELL_HEIGHT - 1, c.red, c.green, c.blue);
    if (*cell->letter)
        strbuf_addf(sb, "<text text-anchor=\"middle\" x=\"%.1f\" y=\"%d\" style=\"fill:%s\">%s</text>",
                    x + (width - 1) / 2.0, y + 14, ink_on(c), cell->letter);
    strbuf_addf(sb, "</g>\n");
}

static void draw_role(struct strbuf *sb, const char *role, int x, int y)
{
    const size_t n = strlen(role);
    strbuf_addf(sb, "<text class=\"tick\" text-anchor=\"end\" x=\"%d\" y=\"%d\"><title>", x - 6, y + 14);
    report_escape(sb, role);
    strbuf_addf(sb, "</title>");
    if (n > LABEL_CHARACTERS) { /* its end tells more than its start; a cut character's rest goes too */
        const char *rest = role + n - LABEL_CHARACTERS + 1;
        while (((unsigned char)*rest & 0xC0) == 0x80)
            rest++;
        strbuf_addf(sb, "…");
        role = rest;
    }
    report_escape(sb, role);
    strbuf_addf(sb, "</text>\n");
}

/* cells: sorted, all of layers. */
static void draw_layers(struct strbuf *sb, const struct cell *cells, size_t n, const char *label)
{
    int n_layers = 0, n_roles = 0;
    size_t label_length = 0;
    for (size_t i = 0; i < n; i++) {
        label_length = (size_t)most((int64_t)label_length, (int64_t)strlen(cells[i].role));
        n_layers = cells[i].layer >= n_layers ? cells[i].layer + 1 : n_layers;
        n_roles += i == 0 || strcmp(cells[i].role, cells[i - 1].role) != 0;
    }
    const int left = 12 + 7 * (int)least((int64_t)label_length, LABEL_CHARACTERS),
              width = (int)least(24, most(14, (PAGE_WIDTH - left) / n_layers)),
              every = width >= 20 ? 1 : 2 + (n_layers > 100), right = left + n_layers * width + 10,
              bottom = n_roles * CELL_HEIGHT;
    strbuf_addf(
        sb, "<div class=\"wide\"><svg class=\"map\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"",
        right, bottom + 36);
    report_escape(sb, label);
    strbuf_addf(sb, "\">\n");
    for (size_t i = 0, role = 0; i < n; i++) {
        role += i > 0 && strcmp(cells[i].role, cells[i - 1].role) != 0;
        if (i == 0 || strcmp(cells[i].role, cells[i - 1].role) != 0)
            draw_role(sb, cells[i].role, left, (int)role * CELL_HEIGHT);
        draw_cell(sb, &cells[i], left + cells[i].layer * width, (int)role * CELL_HEIGHT, width);
    }
    for (int layer = 0; layer < n_layers; layer += every)
        strbuf_addf(sb, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">%d</text>",
                    left + layer * width + (width - 1) / 2.0, bottom + 14, layer);
    strbuf_addf(sb, "<text class=\"axis\" x=\"%d\" y=\"%d\">layer</text></svg></div>\n", left, bottom + 31);
}

static void draw_map(struct strbuf *sb, struct cell *cells, size_t n, const char *label)
{
    size_t n_outside = 0;
    qsort(cells, n, sizeof *cells, compare_cells);
    while (n_outside < n && !*cells[n_outside].role)
        n_outside++;
    if (n_outside < n)
        draw_layers(sb, cells + n_outside, n - n_outside, label);
    if (n_outside)
        strbuf_addf(sb, "<p>Outside the map: ");
    for (size_t i = 0; i < n_outside; i++) {
        strbuf_addf(sb, "%s<span class=\"name\">", i ? ", " : "");
        report_escape(sb, cells[i].tensor);
        strbuf_addf(sb, "</span> ");
        report_escape(sb, cells[i].value);
    }
    if (n_outside)
        strbuf_addf(sb, ".</p>\n");
}

/* ---- Types ----------------------------------------------------------------------------------------- */

struct type_key {
    const char *name;
    double bits; /* per weight; NAN: no type that allot knows */
    char letter[2];
};

struct type_keys {
    struct type_key *items;
    size_t n;
};

static double bits_of(const char *name)
{
    const struct quant_type *type = quant_type_by_name(name);
    return type ? type_bits(type->type) : NAN;
}

/* 1.5 bits are palest, 8.5 and more darkest, in every report. */
static double shade_of_bits(double bits)
{
    return (bits - 1.5) / 7;
}

static int compare_keys(const void *a, const void *b)
{
    const struct type_key *x = a, *y = b;
    const double p = isnan(x->bits) ? HUGE_VAL : x->bits, q = isnan(y->bits) ? HUGE_VAL : y->bits;
    return p != q ? (p > q) - (p < q) : strcmp(x->name, y->name);
}

/* All types of the survivors once, by bits, with letters as far as those go. */
static allot_status collect_types(struct type_keys *keys, const struct report_candidate *const *survivors,
                                  size_t n, struct allot_error *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n_all = 0, k = 0;
    for (size_t s = 0; s < n; s++)
        n_all += survivors[s]->types.n;
    keys->items = calloc(n_all + 1, sizeof *keys->items);
    if (!keys->items)
        return allot_fail_memory(err, n_all * sizeof *keys->items, "the types");
    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; i < survivors[s]->types.n; i++) {
            const char *name = survivors[s]->types.items[i].value;
            keys->items[k++] = (struct type_key){.name = name, .bits = bits_of(name)};
        }
    qsort(keys->items, n_all, sizeof *keys->items, compare_keys);
    for (k = 0; k < n_all; k++)
        if (keys->n == 0 || strcmp(keys->items[k].name, keys->items[keys->n - 1].name) != 0)
            keys->items[keys->n++] = keys->items[k];
    for (k = 0; k < keys->n; k++)
        keys->items[k].letter[0] = k < sizeof letters - 1 ? letters[k] : '?';
    return ALLOT_OK;
}

static const struct type_key *find_key(const struct type_keys *keys, const char *name)
{
    const struct type_key wanted = {.name = name, .bits = bits_of(name)};
    return bsearch(&wanted, keys->items, keys->n, sizeof *keys->items, compare_keys);
}

static void draw_keys(struct strbuf *sb, const struct type_keys *keys)
{
    strbuf_addf(sb, "<ul class=\"keys\">");
    for (size_t k = 0; k < keys->n; k++) {
        const struct colour c = colour_of(shade_of_bits(keys->items[k].bits));
        strbuf_addf(sb, "<li><span style=\"background:#%02x%02x%02x;color:%s\">%s</span> ", c.red, c.green,
                    c.blue, ink_on(c), keys->items[k].letter);
        report_escape(sb, keys->items[k].name);
        if (isnan(keys->items[k].bits))
            strbuf_addf(sb, " (unknown)");
        else
            strbuf_addf(sb, " (%.4g bits)", keys->items[k].bits);
        strbuf_addf(sb, "</li>\n");
    }
    strbuf_addf(sb, "</ul>\n");
}

static allot_status draw_types(struct strbuf *sb, const struct report_candidate *c, size_t number,
                               const struct type_keys *keys, struct allot_error *err)
{
    char label[64];
    struct cell *cells = calloc(c->types.n + 1, sizeof *cells);
    if (!cells)
        return allot_fail_memory(err, c->types.n * sizeof *cells, "a map");
    for (size_t i = 0; i < c->types.n; i++) {
        const struct type_key *key = find_key(keys, c->types.items[i].value);
        cells[i] = make_cell(c->types.items[i].key, shade_of_bits(key->bits), key->letter, key->name);
    }
    strbuf_addf(sb, "<section><h3>%zu. <span class=\"name\">", number);
    report_escape(sb, c->name);
    strbuf_addf(sb, "</span></h3>\n");
    snprintf(label, sizeof label, "Types of survivor %zu by layer and role", number);
    draw_map(sb, cells, c->types.n, label);
    strbuf_addf(sb, "</section>\n");
    free(cells);
    return ALLOT_OK;
}

allot_status report_type_maps(struct strbuf *sb, const struct report_candidate *const *survivors, size_t n,
                              struct allot_error *err)
{
    struct type_keys keys = {0};
    allot_status status = collect_types(&keys, survivors, n, err);
    if (status == ALLOT_OK && keys.n)
        draw_keys(sb, &keys);
    else if (status == ALLOT_OK)
        strbuf_addf(sb, "<p>The result does not tell the survivors' types.</p>\n");
    strbuf_addf(sb, "<div class=\"maps\">\n");
    for (size_t i = 0; i < n && status == ALLOT_OK; i++)
        if (survivors[i]->types.n)
            status = draw_types(sb, survivors[i], i + 1, &keys, err);
    strbuf_addf(sb, "</div>\n");
    free(keys.items);
    return status;
}

/* ---- Costs ----------------------------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The type that most costs are of, the first by name of several. NULL: no costs. */
static allot_status commonest_type(const char **type, const struct report_result *result,
                                   struct allot_error *err)
{
    const size_t n = result->n_costs;
    const char **names = calloc(n + 1, sizeof *names);
    size_t most_of = 0;
    *type = NULL;
    if (!names)
        return allot_fail_memory(err, n * sizeof *names, "the types");
    for (size_t i = 0; i < n; i++)
        names[i] = result->costs[i].type;
    qsort(names, n, sizeof *names, compare_texts);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && strcmp(names[end], names[i]) == 0; end++)
            ;
        if (end - i > most_of) {
            most_of = end - i;
            *type = names[i];
        }
    }
    free(names);
    return ALLOT_OK;
}

static void draw_scale(struct strbuf *sb, double low, double high)
{
    strbuf_addf(sb, "<p class=\"scale\">%.2g ", low);
    for (int i = 0; i <= 16; i++) {
        const struct colour c = colour_of(i / 16.0);
        strbuf_addf(sb, "<span style=\"background:#%02x%02x%02x\"></span>", c.red, c.green, c.blue);
    }
    strbuf_addf(sb, " %.2g nats per token, log scale; grey: no cost above 0</p>\n", high);
}

/* Of one type, at cells' colours; texts: room for each value as text. */
static void draw_costs(struct strbuf *sb, const struct report_result *result, const char *type,
                       struct cell *cells, char (*texts)[40])
{
    double low = HUGE_VAL, high = 0;
    size_t n = 0;
    for (size_t i = 0; i < result->n_costs; i++)
        if (strcmp(result->costs[i].type, type) == 0 && result->costs[i].cost > 0) {
            low = fmin(low, result->costs[i].cost);
            high = fmax(high, result->costs[i].cost);
        }
    for (size_t i = 0; i < result->n_costs; i++) {
        const struct report_cost *cost = &result->costs[i];
        if (strcmp(cost->type, type) != 0)
            continue;
        const double shade = cost->cost <= 0 ? NAN
                             : high > low    ? log(cost->cost / low) / log(high / low)
                                             : 0.5;
        snprintf(texts[n], sizeof texts[n], "%.3g nats per token", cost->cost);
        cells[n] = make_cell(cost->tensor, shade, "", texts[n]);
        n++;
    }
    strbuf_addf(sb, "<p>What each tensor costs in ");
    report_escape(sb, type);
    strbuf_addf(sb, ", all others left exact.</p>\n");
    if (high > 0)
        draw_scale(sb, low, high);
    draw_map(sb, cells, n, "Costs by layer and role");
}

allot_status report_cost_map(struct strbuf *sb, const struct report_result *result, struct allot_error *err)
{
    const size_t n = result->n_costs;
    const char *type;
    if (commonest_type(&type, result, err) != ALLOT_OK)
        return err->status;
    if (!type) {
        strbuf_addf(sb, "<p>The result holds no costs.</p>\n");
        return ALLOT_OK;
    }
    struct cell *cells = calloc(n, sizeof *cells);
    char(*texts)[40] = calloc(n, sizeof *texts);
    allot_status status = ALLOT_OK;
    if (cells && texts)
        draw_costs(sb, result, type, cells, texts);
    else
        status = allot_fail_memory(err, n * (sizeof *cells + sizeof *texts), "a map");
    free(cells);
    free(texts);
    return status;
}
