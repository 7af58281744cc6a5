/* report.h - the result of a search, read, and as a page.  SPDX-License-Identifier: MIT
 *
 * docs/search-result.md describes the document. Nothing of it is trusted: fields are checked as they are
 * read, text is escaped as it is written. */
#ifndef ALLOT_CLI_REPORT_H
#define ALLOT_CLI_REPORT_H

#include <jansson.h>

#include "allot.h"
#include "base/strbuf.h"
#include "search/dominance.h"

enum report_state { STATE_SURVIVOR, STATE_REMOVED, STATE_FAILED };
enum report_verdict { VERDICT_LOWER, VERDICT_TIE, VERDICT_LOST, VERDICT_NONE };

struct report_mean {
    double mean, se; /* NAN, NAN: not measured */
};

struct report_text {
    const char *name, *sha256;
    int64_t ctx, windows, tokens;
};

struct report_score {
    struct report_mean kl, ln_ppl_ratio;
};

/* A group and its layout, a tensor and its type, a figure and its value. */
struct report_pair {
    const char *key, *value;
};

struct report_pairs {
    struct report_pair *items;
    size_t n;
};

struct report_candidate {
    const char *name, *source, *reason, *replaced_by; /* but for the name NULL: not said */
    enum family family;
    enum report_state state;
    int64_t bytes;
    double bits_per_weight;
    struct report_score score;    /* of all texts */
    struct report_score *texts;   /* [n_evaluation], or NULL */
    double predicted, confidence; /* NAN: not said */
    struct report_pairs groups, types;
};

struct report_anchor {
    const char *name, *found; /* found: NULL if nothing was */
    int64_t bytes;
    struct report_mean kl, difference;
    enum report_verdict verdict;
};

struct report_cost {
    const char *tensor, *type;
    double cost;
};

struct report_result {
    json_t *document; /* owns all text */
    const char *allot, *llama_cpp, *model, *model_sha256, *architecture;
    int64_t model_bytes, n_layers;
    const char *imatrix, *imatrix_sha256; /* NULL: none */
    struct report_text *calibration, *evaluation;
    size_t n_calibration, n_evaluation;
    const char **groups;
    size_t n_groups;
    struct report_candidate *candidates;
    size_t n_candidates;
    struct report_anchor *anchors;
    size_t n_anchors;
    bool cut_short;  /* its budget ended the search */
    double spearman; /* NAN: not said */
    int64_t n_predicted;
    struct report_cost *costs;
    size_t n_costs;
    struct report_pairs validation;
};

/* Errors are "PATH: FIELD: what is wrong", ALLOT_ERR_FORMAT. */
allot_status report_read(struct report_result *out, const char *path, struct allot_error *err);
void report_release(struct report_result *result);

/* Survivors by size, the smallest first; caller frees. n: how many. NULL without memory. */
const struct report_candidate **report_survivors(const struct report_result *result, size_t *n);
const char *report_family_name(enum family family);
const char *report_verdict_name(enum report_verdict verdict);
/* "1.0123 ± 0.0011" of the perplexities themselves, "-" if not measured; likewise "0.001234 ± 0.000021". */
void report_add_ratio(struct strbuf *sb, struct report_mean ln_ratio);
void report_add_kl(struct strbuf *sb, struct report_mean kl);

/* One page without scripts that loads nothing: HTML, and well-formed as XML. */
allot_status report_html(struct strbuf *sb, const struct report_result *result, struct allot_error *err);
/* A model card's part: tables. */
allot_status report_markdown(struct strbuf *sb, const struct report_result *result, struct allot_error *err);

/* ---- Parts of the page ------------------------------------------------------------------------------ */

/* Text as HTML content or between double quotes; what XML cannot hold becomes U+FFFD. */
void report_escape(struct strbuf *sb, const char *text);

/* Size against KL of all that was measured, numbered as in the table of survivors (n of them); a line says
 * what could not be drawn. */
void report_plot(struct strbuf *sb, const struct report_result *result,
                 const struct report_candidate *const *survivors, size_t n_survivors);
/* Predicted against measured KL. */
void report_scatter(struct strbuf *sb, const struct report_result *result);
/* Layers x roles of the types of each survivor, one legend for all. */
allot_status report_type_maps(struct strbuf *sb, const struct report_candidate *const *survivors, size_t n,
                              struct allot_error *err);
/* Layers x roles of the costs of the type that most tensors have costs of. */
allot_status report_cost_map(struct strbuf *sb, const struct report_result *result, struct allot_error *err);

#endif
