/* report_page.c - the result of a search as one page that loads nothing.  SPDX-License-Identifier: MIT */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- Words and numbers ----------------------------------------------------------------------------- */

const char *report_family_name(enum family family)
{
    static const char *const names[N_FAMILIES] = {"exact", "plain mix", "learned layout", "hybrid",
                                                  "allot's plan"};
    return names[family];
}

const char *report_verdict_name(enum report_verdict verdict)
{
    static const char *const names[] = {"found lower", "tie", "tried and lost", "nothing of its size"};
    return names[verdict];
}

void report_add_kl(struct strbuf *sb, struct report_mean kl)
{
    if (isnan(kl.mean))
        strbuf_addf(sb, "-");
    else
        strbuf_addf(sb, "%.6f ± %.6f", kl.mean, kl.se);
}

/* The error by the derivative of exp. */
void report_add_ratio(struct strbuf *sb, struct report_mean ln_ratio)
{
    const double ratio = exp(ln_ratio.mean);
    if (isnan(ratio))
        strbuf_addf(sb, "-");
    else if (ratio < 1e4 && ratio * ln_ratio.se < 1e4)
        strbuf_addf(sb, "%.4f ± %.4f", ratio, ratio * ln_ratio.se);
    else
        strbuf_addf(sb, "%.3g ± %.3g", ratio, ratio * ln_ratio.se);
}

static int compare_bytes(const void *a, const void *b)
{
    const struct report_candidate *x = *(const struct report_candidate *const *)a,
                                  *y = *(const struct report_candidate *const *)b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes) - (x->bytes < y->bytes) : (x > y) - (x < y);
}

const struct report_candidate **report_survivors(const struct report_result *result, size_t *n)
{
    const struct report_candidate **survivors = calloc(result->n_candidates + 1, sizeof *survivors);
    *n = 0;
    for (size_t i = 0; survivors && i < result->n_candidates; i++)
        if (result->candidates[i].state == STATE_SURVIVOR)
            survivors[(*n)++] = &result->candidates[i];
    if (*n)
        qsort(survivors, *n, sizeof *survivors, compare_bytes);
    return survivors;
}

/* Control characters and U+FFFE, U+FFFF are none of XML's; bytes are valid UTF-8. */
void report_escape(struct strbuf *sb, const char *text)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    for (const char *s = text; *s; s++) {
        const char *entity = *s == '&'                             ? "&amp;"
                             : *s == '<'                           ? "&lt;"
                             : *s == '>'                           ? "&gt;"
                             : *s == '"'                           ? "&quot;"
                             : *s == '\''                          ? "&#39;"
                             : *s == '\n' || *s == '\t'            ? " "
                             : (unsigned char)*s < 32 || *s == 127 ? replacement
                             : strncmp(s, "\xEF\xBF\xBE", 3) == 0 || strncmp(s, "\xEF\xBF\xBF", 3) == 0
                                 ? replacement
                                 : NULL;
        if (entity)
            strbuf_addf(sb, "%s", entity);
        else
            strbuf_add(sb, s, 1);
        if (entity == replacement && (unsigned char)*s > 127)
            s += 2;
    }
}

/* ---- Tables ---------------------------------------------------------------------------------------- */

/* headings: those of numbers start with '>'. */
static void open_table(struct strbuf *sb, const char *const *headings, size_t n)
{
    strbuf_addf(sb, "<div class=\"wide\"><table><thead><tr>");
    for (size_t i = 0; i < n; i++)
        strbuf_addf(sb, headings[i][0] == '>' ? "<th class=\"r\">%s</th>" : "<th>%s</th>",
                    headings[i] + (headings[i][0] == '>'));
    strbuf_addf(sb, "</tr></thead><tbody>\n");
}

static void close_table(struct strbuf *sb)
{
    strbuf_addf(sb, "</tbody></table></div>\n");
}

static void text_cell(struct strbuf *sb, const char *text)
{
    strbuf_addf(sb, "<td class=\"name\">");
    report_escape(sb, text ? text : "-");
    strbuf_addf(sb, "</td>");
}

static void size_cell(struct strbuf *sb, int64_t bytes)
{
    char size[32];
    strbuf_addf(sb, "<td class=\"r\" title=\"%" PRId64 " bytes\">%s</td>", bytes, str_size(size, bytes));
}

static void kl_cell(struct strbuf *sb, struct report_mean kl)
{
    strbuf_addf(sb, "<td class=\"r\">");
    report_add_kl(sb, kl);
    strbuf_addf(sb, "</td>");
}

static void ratio_cell(struct strbuf *sb, struct report_mean ln_ratio)
{
    strbuf_addf(sb, "<td class=\"r\">");
    report_add_ratio(sb, ln_ratio);
    strbuf_addf(sb, "</td>");
}

/* ---- Sections -------------------------------------------------------------------------------------- */

static void add_survivors(struct strbuf *sb, const struct report_candidate *const *survivors, size_t n)
{
    static const char *const headings[] = {">#",    "name",         "family",           "source",
                                           ">size", ">bits/weight", ">KL (nats/token)", ">PPL ratio"};
    if (n == 0) {
        strbuf_addf(sb, "<p>None: nothing that was built and measured is worth its bytes.</p>\n");
        return;
    }
    open_table(sb, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < n; i++) {
        const struct report_candidate *c = survivors[i];
        strbuf_addf(sb, "<tr><td class=\"r\">%zu</td>", i + 1);
        text_cell(sb, c->name);
        strbuf_addf(sb, "<td>%s</td>", report_family_name(c->family));
        text_cell(sb, c->source);
        size_cell(sb, c->bytes);
        strbuf_addf(sb, "<td class=\"r\">%.3f</td>", c->bits_per_weight);
        kl_cell(sb, c->score.kl);
        ratio_cell(sb, c->score.ln_ppl_ratio);
        strbuf_addf(sb, "</tr>\n");
    }
    close_table(sb);
}

/* Rows are survivors, a pair of columns for each text. */
static void add_survivors_by_text(struct strbuf *sb, const struct report_result *result,
                                  const struct report_candidate *const *survivors, size_t n)
{
    if (n == 0 || result->n_evaluation == 0)
        return;
    strbuf_addf(sb,
                "<h3>By text</h3>\n<div class=\"wide\"><table><thead><tr><th class=\"r\" rowspan=\"2\">#</th>"
                "<th rowspan=\"2\">name</th>");
    for (size_t t = 0; t < result->n_evaluation; t++) {
        strbuf_addf(sb, "<th class=\"name\" colspan=\"2\">");
        report_escape(sb, result->evaluation[t].name);
        strbuf_addf(sb, "</th>");
    }
    strbuf_addf(sb, "</tr><tr>");
    for (size_t t = 0; t < result->n_evaluation; t++)
        strbuf_addf(sb, "<th class=\"r\">KL (nats/token)</th><th class=\"r\">PPL ratio</th>");
    strbuf_addf(sb, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < n; i++) {
        strbuf_addf(sb, "<tr><td class=\"r\">%zu</td>", i + 1);
        text_cell(sb, survivors[i]->name);
        for (size_t t = 0; t < result->n_evaluation; t++) {
            kl_cell(sb, survivors[i]->texts[t].kl);
            ratio_cell(sb, survivors[i]->texts[t].ln_ppl_ratio);
        }
        strbuf_addf(sb, "</tr>\n");
    }
    close_table(sb);
}

static void add_anchors(struct strbuf *sb, const struct report_result *result)
{
    static const char *const headings[] = {
        "anchor", ">size", ">KL (nats/token)", "verdict", "best of its size", ">its KL less the anchor's"};
    if (result->n_anchors == 0) {
        strbuf_addf(sb, "<p>The search had no anchors.</p>\n");
        return;
    }
    open_table(sb, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < result->n_anchors; i++) {
        const struct report_anchor *a = &result->anchors[i];
        strbuf_addf(sb, "<tr>");
        text_cell(sb, a->name);
        size_cell(sb, a->bytes);
        kl_cell(sb, a->kl);
        strbuf_addf(sb, "<td class=\"v%d\">%s</td>", (int)a->verdict, report_verdict_name(a->verdict));
        text_cell(sb, a->found);
        if (isnan(a->difference.mean))
            strbuf_addf(sb, "<td class=\"r\">-</td>");
        else
            strbuf_addf(sb, "<td class=\"r\">%+.6f ± %.6f</td>", a->difference.mean, a->difference.se);
        strbuf_addf(sb, "</tr>\n");
    }
    close_table(sb);
}

/* Layout names of the survivors that tell them. */
static void add_layouts(struct strbuf *sb, const struct report_result *result,
                        const struct report_candidate *const *survivors, size_t n)
{
    size_t n_told = 0;
    for (size_t i = 0; i < n; i++)
        n_told += survivors[i]->groups.n > 0;
    if (n_told == 0 || result->n_groups == 0) {
        strbuf_addf(sb, "<p>No survivor was put together from layouts of groups.</p>\n");
        return;
    }
    strbuf_addf(sb, "<div class=\"wide\"><table><thead><tr><th class=\"r\">#</th><th>name</th>");
    for (size_t g = 0; g < result->n_groups; g++) {
        strbuf_addf(sb, "<th class=\"name\">");
        report_escape(sb, result->groups[g]);
        strbuf_addf(sb, "</th>");
    }
    strbuf_addf(sb, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < n; i++) {
        const struct report_pairs *groups = &survivors[i]->groups;
        if (groups->n == 0)
            continue;
        strbuf_addf(sb, "<tr><td class=\"r\">%zu</td>", i + 1);
        text_cell(sb, survivors[i]->name);
        for (size_t g = 0; g < result->n_groups; g++) {
            const char *layout = NULL;
            for (size_t k = 0; k < groups->n && !layout; k++)
                if (strcmp(groups->items[k].key, result->groups[g]) == 0)
                    layout = groups->items[k].value;
            text_cell(sb, layout);
        }
        strbuf_addf(sb, "</tr>\n");
    }
    close_table(sb);
}

static void add_removed(struct strbuf *sb, const struct report_result *result, size_t n_survivors)
{
    static const char *const headings[] = {"name",   "family",     ">size", ">KL (nats/token)",
                                           "reason", "replaced by"};
    if (n_survivors == result->n_candidates) {
        strbuf_addf(sb, "<p>Nothing was removed.</p>\n");
        return;
    }
    open_table(sb, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < result->n_candidates; i++) {
        const struct report_candidate *c = &result->candidates[i];
        if (c->state == STATE_SURVIVOR)
            continue;
        strbuf_addf(sb, "<tr class=\"removed\">");
        text_cell(sb, c->name);
        strbuf_addf(sb, "<td>%s</td>", report_family_name(c->family));
        size_cell(sb, c->bytes);
        kl_cell(sb, c->score.kl);
        strbuf_addf(sb, "<td>%s", c->state == STATE_FAILED ? "failed: " : "");
        report_escape(sb, c->reason);
        strbuf_addf(sb, "</td>");
        text_cell(sb, c->replaced_by);
        strbuf_addf(sb, "</tr>\n");
    }
    close_table(sb);
}

static void add_prediction(struct strbuf *sb, const struct report_result *result)
{
    if (!isnan(result->spearman))
        strbuf_addf(sb,
                    "<p>Rank correlation (Spearman) of predicted with measured KL: %.4f over %" PRId64
                    " files.</p>\n",
                    result->spearman, result->n_predicted);
    report_scatter(sb, result);
}

static void add_validation(struct strbuf *sb, const struct report_result *result)
{
    static const char *const headings[] = {"figure", "value"};
    if (result->validation.n == 0)
        return;
    strbuf_addf(sb, "<h2>Validation</h2>\n");
    open_table(sb, headings, 2);
    for (size_t i = 0; i < result->validation.n; i++) {
        strbuf_addf(sb, "<tr>");
        text_cell(sb, result->validation.items[i].key);
        text_cell(sb, result->validation.items[i].value);
        strbuf_addf(sb, "</tr>\n");
    }
    close_table(sb);
}

static void manifest_row(struct strbuf *sb, const char *what, const char *name, const char *sha256,
                         const struct report_text *text)
{
    strbuf_addf(sb, "<tr><td>%s</td>", what);
    text_cell(sb, name);
    text_cell(sb, sha256);
    strbuf_addf(sb, "<td>");
    if (text)
        strbuf_addf(sb, "%" PRId64 " windows of %" PRId64 ", %" PRId64 " tokens", text->windows, text->ctx,
                    text->tokens);
    strbuf_addf(sb, "</td></tr>\n");
}

static void add_manifest(struct strbuf *sb, const struct report_result *result)
{
    static const char *const headings[] = {"what", "name", "SHA-256", ""};
    open_table(sb, headings, sizeof headings / sizeof *headings);
    manifest_row(sb, "model", result->model, result->model_sha256, NULL);
    manifest_row(sb, "importance matrix", result->imatrix, result->imatrix_sha256, NULL);
    for (size_t i = 0; i < result->n_calibration; i++)
        manifest_row(sb, "calibration", result->calibration[i].name, result->calibration[i].sha256,
                     &result->calibration[i]);
    for (size_t i = 0; i < result->n_evaluation; i++)
        manifest_row(sb, "evaluation", result->evaluation[i].name, result->evaluation[i].sha256,
                     &result->evaluation[i]);
    manifest_row(sb, "allot", result->allot, NULL, NULL);
    manifest_row(sb, "llama.cpp", result->llama_cpp, NULL, NULL);
    close_table(sb);
}

/* ---- The page -------------------------------------------------------------------------------------- */

/* Families differ in shape too; these colours stay apart for the common kinds of colour blindness. */
static const char style[] =
    ":root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--faint:#59626d;--line:#d5dae0;--f0:#4a4a4a;"
    "--f1:#b35a00;--f2:#8a3c9c;--f3:#0064b0;--gone:#a9b0b8;--good:#00664d;--bad:#a03000}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#14181d;--ink:#e4e8ec;--faint:#9aa5b0;--line:#353d46;"
    "--f0:#d8d8d8;--f1:#f0a04b;--f2:#d48fe2;--f3:#62b5f5;--gone:#5d666f;--good:#4fc9a4;--bad:#f58f66}}\n"
    "body{background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:72rem;"
    "margin:0 auto;padding:1rem 1.2rem 3rem}\n"
    "h1{font-size:1.5rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px "
    "solid "
    "var(--line)}h3{font-size:1rem;margin:1.4rem 0 .4rem}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid "
    "var(--line);vertical-align:top}"
    "thead "
    "th{color:var(--faint);font-weight:600;vertical-align:bottom}.r{text-align:right;white-space:nowrap}"
    ".name{unicode-bidi:isolate;overflow-wrap:anywhere;min-width:3rem;max-width:24rem}\n"
    ".removed "
    "td{color:var(--faint)}.v0{color:var(--good);font-weight:600}.v2{color:var(--bad);font-weight:600}"
    "p,figcaption{max-width:60rem}figcaption,.scale{color:var(--faint);font-size:.87rem}figure{margin:1rem "
    "0}\n"
    "svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .tick{fill:var(--faint);font-size:11px}"
    ".plot{width:100%;max-width:60rem;height:auto;display:block}.small{max-width:34rem}.map{display:block}"
    ".map g text{font-size:11px}.maps{display:flex;flex-wrap:wrap;gap:0 2.5rem}.maps "
    "section{max-width:100%}.grid{stroke:var(--line);stroke-width:1}"
    ".frame{fill:none;stroke:var(--faint)}.bar{fill:none;stroke:var(--ink);stroke-width:1.2}"
    ".front{fill:none;stroke:var(--faint);stroke-dasharray:5 4}"
    ".mark{stroke:var(--page);stroke-width:1}.f0{fill:var(--f0)}.f1{fill:var(--f1)}.f2{fill:var(--f2)}"
    ".f3{fill:var(--f3)}.mark.gone{fill:var(--gone)}.bar.gone{stroke:var(--gone)}.number{font-weight:600}\n"
    ".keys{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.3rem 1.1rem}"
    ".keys span{display:inline-block;width:1.4em;text-align:center;font-size:.8rem}"
    ".scale span{display:inline-block;width:1em;height:.8em}\n";

static void open_page(struct strbuf *sb, const struct report_result *result)
{
    strbuf_addf(
        sb, "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta "
            "charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
            "'unsafe-inline'; img-src data:\"/>\n<title>");
    report_escape(sb, result->model);
    strbuf_addf(sb, ": quantizations compared</title>\n<style>\n%s</style></head>\n<body>\n<h1>", style);
    report_escape(sb, result->model);
    strbuf_addf(sb, ": quantizations compared</h1>\n");
}

static void add_summary(struct strbuf *sb, const struct report_result *result, size_t n_survivors)
{
    char size[32];
    size_t n_measured = 0;
    for (size_t i = 0; i < result->n_candidates; i++)
        n_measured += !isnan(result->candidates[i].score.kl.mean);
    strbuf_addf(sb,
                "<p>Of %zu candidates %zu were built and measured with libllama's own kernels; the %zu below "
                "survive, and why the others did not is told with each. The model is of "
                "architecture ",
                result->n_candidates, n_measured, n_survivors);
    report_escape(sb, result->architecture);
    strbuf_addf(sb,
                ", %" PRId64
                " layers, %s. Layouts learned from others were rebuilt from it: the layout is compared, "
                "not the published file.</p>\n",
                result->n_layers, str_size(size, result->model_bytes));
    if (result->cut_short)
        strbuf_addf(sb, "<p>The search was ended by its budget: it had more to try.</p>\n");
    strbuf_addf(
        sb, "<p>KL is the divergence of the file's next-token distribution from the original's, in nats per "
            "token; ± is one standard error with windows of text as samples. PPL ratio is the perplexity "
            "over the original's.</p>\n");
}

allot_status report_html(struct strbuf *sb, const struct report_result *result, struct allot_error *err)
{
    size_t n;
    const struct report_candidate **survivors = report_survivors(result, &n);
    if (!survivors)
        return allot_fail_memory(err, result->n_candidates * sizeof *survivors, "the survivors");
    open_page(sb, result);
    add_summary(sb, result, n);
    strbuf_addf(sb, "<h2>Survivors</h2>\n");
    add_survivors(sb, survivors, n);
    report_plot(sb, result, survivors, n);
    add_survivors_by_text(sb, result, survivors, n);
    strbuf_addf(sb, "<h2>Anchors</h2>\n");
    add_anchors(sb, result);
    strbuf_addf(sb, "<h2>Types of the survivors</h2>\n");
    allot_status status = report_type_maps(sb, survivors, n, err);
    strbuf_addf(sb, "<h2>Layouts of groups</h2>\n");
    add_layouts(sb, result, survivors, n);
    strbuf_addf(sb, "<h2>Costs</h2>\n");
    if (status == ALLOT_OK)
        status = report_cost_map(sb, result, err);
    strbuf_addf(sb, "<h2>Prediction</h2>\n");
    add_prediction(sb, result);
    strbuf_addf(sb, "<h2>Removed</h2>\n");
    add_removed(sb, result, n);
    add_validation(sb, result);
    strbuf_addf(sb, "<h2>Manifest</h2>\n");
    add_manifest(sb, result);
    strbuf_addf(sb, "</body></html>\n");
    free(survivors);
    return status == ALLOT_OK ? strbuf_check(sb, err) : status;
}
