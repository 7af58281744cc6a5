/* report_markdown.c - the result of a search as tables for a model card.  SPDX-License-Identifier: MIT */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* What Markdown or HTML would take for markup is escaped. */
static void add_text(struct strbuf *sb, const char *text)
{
    for (const char *s = text ? text : "-"; *s; s++) {
        if (*s == '<' || *s == '>' || *s == '&')
            strbuf_addf(sb, "%s", *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : "&amp;");
        else if ((unsigned char)*s < 32 || *s == 127)
            strbuf_addf(sb, " ");
        else if (text && strchr("\\`*_{}[]()#+!|~$@:", *s))
            strbuf_addf(sb, "\\%c", *s);
        else
            strbuf_add(sb, s, 1);
    }
}

static void cell(struct strbuf *sb, const char *text)
{
    strbuf_addf(sb, " ");
    add_text(sb, text);
    strbuf_addf(sb, " |");
}

static void score_cells(struct strbuf *sb, const struct report_score *score)
{
    strbuf_addf(sb, " ");
    report_add_kl(sb, score->kl);
    strbuf_addf(sb, " | ");
    report_add_ratio(sb, score->ln_ppl_ratio);
    strbuf_addf(sb, " |");
}

static void add_survivors(struct strbuf *sb, const struct report_result *result,
                          const struct report_candidate *const *survivors, size_t n)
{
    char size[32];
    strbuf_addf(sb, "| name | family | source | size | bits/weight | KL (nats/token) | PPL ratio |");
    for (size_t t = 0; t < result->n_evaluation; t++) {
        strbuf_addf(sb, " KL, ");
        add_text(sb, result->evaluation[t].name);
        strbuf_addf(sb, " | PPL ratio |");
    }
    strbuf_addf(sb, "\n|---|---|---|--:|--:|--:|--:|");
    for (size_t t = 0; t < result->n_evaluation; t++)
        strbuf_addf(sb, "--:|--:|");
    for (size_t i = 0; i < n; i++) {
        const struct report_candidate *c = survivors[i];
        strbuf_addf(sb, "\n|");
        cell(sb, c->name);
        strbuf_addf(sb, " %s |", report_family_name(c->family));
        cell(sb, c->source);
        strbuf_addf(sb, " %s | %.3f |", str_size(size, c->bytes), c->bits_per_weight);
        score_cells(sb, &c->score);
        for (size_t t = 0; t < result->n_evaluation; t++)
            score_cells(sb, &c->texts[t]);
    }
    strbuf_addf(sb, "\n");
}

static void add_anchors(struct strbuf *sb, const struct report_result *result)
{
    char size[32];
    if (result->n_anchors == 0)
        return;
    strbuf_addf(
        sb,
        "\n### Anchors\n\n| anchor | size | KL (nats/token) | verdict | best of its size | its KL less the "
        "anchor's |\n|---|--:|--:|---|---|--:|\n");
    for (size_t i = 0; i < result->n_anchors; i++) {
        const struct report_anchor *a = &result->anchors[i];
        strbuf_addf(sb, "|");
        cell(sb, a->name);
        strbuf_addf(sb, " %s | ", str_size(size, a->bytes));
        report_add_kl(sb, a->kl);
        strbuf_addf(sb, " | %s |", report_verdict_name(a->verdict));
        cell(sb, a->found);
        if (isnan(a->difference.mean))
            strbuf_addf(sb, " - |\n");
        else
            strbuf_addf(sb, " %+.6f ± %.6f |\n", a->difference.mean, a->difference.se);
    }
}

static void add_removed(struct strbuf *sb, const struct report_result *result, size_t n_survivors)
{
    char size[32];
    if (n_survivors == result->n_candidates)
        return;
    strbuf_addf(
        sb,
        "\n### Removed\n\n| name | size | KL (nats/token) | reason | replaced by |\n|---|--:|--:|---|---|\n");
    for (size_t i = 0; i < result->n_candidates; i++) {
        const struct report_candidate *c = &result->candidates[i];
        if (c->state == STATE_SURVIVOR)
            continue;
        strbuf_addf(sb, "|");
        cell(sb, c->name);
        strbuf_addf(sb, " %s | ", str_size(size, c->bytes));
        report_add_kl(sb, c->score.kl);
        strbuf_addf(sb, " | %s", c->state == STATE_FAILED ? "failed: " : "");
        add_text(sb, c->reason);
        strbuf_addf(sb, " |");
        cell(sb, c->replaced_by);
        strbuf_addf(sb, "\n");
    }
}

static void identity(struct strbuf *sb, const char *what, const char *name, const char *sha256)
{
    strbuf_addf(sb, "- %s: ", what);
    add_text(sb, name);
    if (sha256) {
        strbuf_addf(sb, " (SHA-256 ");
        add_text(sb, sha256);
        strbuf_addf(sb, ")");
    }
    strbuf_addf(sb, "\n");
}

static void add_manifest(struct strbuf *sb, const struct report_result *result)
{
    strbuf_addf(sb, "\n### Manifest\n\n");
    identity(sb, "model", result->model, result->model_sha256);
    if (result->imatrix)
        identity(sb, "importance matrix", result->imatrix, result->imatrix_sha256);
    for (size_t i = 0; i < result->n_calibration; i++)
        identity(sb, "calibration", result->calibration[i].name, result->calibration[i].sha256);
    for (size_t i = 0; i < result->n_evaluation; i++)
        identity(sb, "evaluation", result->evaluation[i].name, result->evaluation[i].sha256);
    identity(sb, "allot", result->allot, NULL);
    identity(sb, "llama.cpp", result->llama_cpp, NULL);
}

allot_status report_markdown(struct strbuf *sb, const struct report_result *result, struct allot_error *err)
{
    size_t n;
    const struct report_candidate **survivors = report_survivors(result, &n);
    if (!survivors)
        return allot_fail_memory(err, result->n_candidates * sizeof *survivors, "the survivors");
    strbuf_addf(sb, "## Quantizations of ");
    add_text(sb, result->model);
    strbuf_addf(
        sb, "\n\nKL is the divergence of the next-token distribution from the original's, in nats per token, "
            "± one "
            "standard error; PPL ratio is the perplexity over the original's. All files were rebuilt from "
            "the same model and measured on the same texts.\n\n");
    if (result->cut_short)
        strbuf_addf(sb, "The search was ended by its budget: it had more to try.\n\n");
    if (n)
        add_survivors(sb, result, survivors, n);
    else
        strbuf_addf(sb, "No file survived.\n");
    add_anchors(sb, result);
    if (!isnan(result->spearman))
        strbuf_addf(sb, "\nRank correlation of predicted with measured KL: %.4f over %" PRId64 " files.\n",
                    result->spearman, result->n_predicted);
    add_removed(sb, result, n);
    add_manifest(sb, result);
    free(survivors);
    return strbuf_check(sb, err);
}
