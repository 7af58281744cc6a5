/* search_result.c - what survived, what replaced the rest, and how well predictions ranked.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "cost/version.h"
#include "describe.h"
#include "measure/rank.h"
#include "search.h"
#include "search_files.h"
#include "seen_text.h"

/* All that was measured whole, sources first. */
struct judged {
    const struct search *s;
    const struct build **builds;
    const struct source **sources; /* NULL: an attempt */
    struct measured *files;
    struct verdict *verdicts;
    size_t n;
    double rank; /* of measured with predicted KL */
    size_t n_ranked;
};

static void judged_release(struct judged *j)
{
    free(j->builds);
    free(j->sources);
    free(j->files);
    free(j->verdicts);
}

static void add_build(struct judged *j, const struct build *b, const struct source *source)
{
    if (!b->measured)
        return;
    j->builds[j->n] = b;
    j->sources[j->n] = source;
    j->files[j->n++] = build_measured(b, j->s);
}

static allot_status rank_predictions(struct judged *j, struct allot_error *err)
{
    double *measured = calloc(j->n + 1, sizeof *measured), *predicted = calloc(j->n + 1, sizeof *predicted);
    allot_status status =
        measured && predicted ? ALLOT_OK : allot_fail_memory(err, j->n * sizeof *measured, "predictions");
    for (size_t i = 0; i < j->n && status == ALLOT_OK; i++)
        if (isfinite(j->builds[i]->predicted)) {
            measured[j->n_ranked] = j->files[i].kl;
            predicted[j->n_ranked++] = j->builds[i]->predicted;
        }
    if (status == ALLOT_OK)
        status = rank_correlation(&j->rank, measured, predicted, j->n_ranked, err);
    free(measured);
    free(predicted);
    return status;
}

static allot_status judge(struct judged *j, const struct search *s, struct allot_error *err)
{
    const size_t most = s->n_sources + s->n_attempts + 1;
    *j = (struct judged){.s = s,
                         .builds = calloc(most, sizeof *j->builds),
                         .sources = calloc(most, sizeof *j->sources),
                         .files = calloc(most, sizeof *j->files),
                         .verdicts = calloc(most, sizeof *j->verdicts)};
    if (!j->builds || !j->sources || !j->files || !j->verdicts)
        return allot_fail_memory(err, most * sizeof *j->files, "files");
    for (size_t i = 0; i < s->n_sources; i++)
        add_build(j, &s->sources[i].build, &s->sources[i]);
    for (size_t i = 0; i < s->n_attempts; i++)
        add_build(j, &s->attempts[i], NULL);
    allot_status status = survivors_find(j->verdicts, NULL, j->files, j->n, SURVIVORS_SPACING, err);
    return status == ALLOT_OK ? rank_predictions(j, err) : status;
}

/* The lowest KL of other files no larger than file i; n if there is none. */
static size_t best_beside(const struct judged *j, size_t i)
{
    size_t best = j->n;
    for (size_t k = 0; k < j->n; k++)
        if (k != i && j->files[k].bytes <= j->files[i].bytes &&
            (best == j->n || j->files[k].kl < j->files[best].kl))
            best = k;
    return best;
}

static const char *verdict_of(const struct measured *found, const struct measured *anchor)
{
    return measured_better(found, anchor) ? "lower" : measured_better(anchor, found) ? "lost" : "tie";
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static json_t *mean_json(struct measure_mean mean)
{
    return json_mean(mean.mean, mean.se);
}

static void put_figures(json_t *object, const struct build *b, const struct search *s, size_t text)
{
    json_put(object, "kl", b->measured ? mean_json(build_kl(b, s, text)) : json_null());
    json_put(object, "ln_ppl_ratio", b->measured ? mean_json(build_ln_ppl(b, s, text)) : json_null());
}

static json_t *groups_json(const struct build *b, const struct search *s)
{
    if (b->options == NULL)
        return json_null();
    json_t *object = json_object();
    for (size_t g = 0; g < s->n_groups; g++) {
        json_put(object, role_name(s->groups[g].role),
                 json_text(group_option_name(&s->groups[g].options[b->options[g]])));
    }
    return object;
}

static json_t *build_types_json(const struct build *b, const struct search *s)
{
    const struct gguf_model *model = s->job.model;
    json_t *object = json_object();
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (gguf_tensor_quantizable(&model->tensors[i]))
            json_put(object, model->tensors[i].name, json_text(type_label(b->types[i])));
    return object;
}

/* verdict: of a measured one, else NULL. */
static json_t *candidate_json(const struct judged *j, const struct build *b, const struct source *source,
                              const struct verdict *verdict)
{
    const struct search *s = j->s;
    json_t *object = json_object(), *texts = json_array();
    const char *state = b->failure[0] ? "failed" : !verdict || verdict->removal ? "removed" : "survivor";
    const char *reason = b->failure[0] ? b->failure
                         : verdict     ? verdict->line
                         : source && source->learning_only
                             ? "only learned from: its groups are used, the whole is no candidate"
                             : "not measured: the search was over before";
    json_put(object, "name", json_text(b->name));
    json_put(object, "family", json_text(family_names[b->family]));
    json_put(object, "source", source ? json_text(source->origin) : json_null());
    json_put(object, "bytes", json_integer(b->bytes));
    json_put(object, "bits_per_weight",
             json_number(bits_per_weight(b->data_bytes, model_parameters(s->job.model))));
    put_figures(object, b, s, s->args->evals.n);
    for (size_t t = 0; t < s->args->evals.n && b->measured; t++) {
        json_t *text = json_object();
        put_figures(text, b, s, t);
        json_array_append_new(texts, text);
    }
    json_put(object, "texts", b->measured ? json_incref(texts) : json_null());
    json_decref(texts);
    json_put(object, "predicted", json_number(b->predicted));
    json_put(object, "confidence", json_number(b->confidence));
    json_put(object, "tried_because", b->reason[0] ? json_text(b->reason) : json_null());
    json_put(object, "state", json_text(state));
    json_put(object, "reason", reason[0] ? json_text(reason) : json_null());
    json_put(object, "replaced_by",
             verdict && verdict->removal ? json_text(j->files[verdict->by].name) : json_null());
    json_put(object, "groups", groups_json(b, s));
    json_put(object, "types", build_types_json(b, s));
    return object;
}

static const struct verdict *find_verdict(const struct judged *j, const struct build *b)
{
    for (size_t i = 0; i < j->n; i++)
        if (j->builds[i] == b)
            return &j->verdicts[i];
    return NULL;
}

static json_t *candidates_json(const struct judged *j)
{
    const struct search *s = j->s;
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_sources; i++)
        json_array_append_new(list, candidate_json(j, &s->sources[i].build, &s->sources[i],
                                                   find_verdict(j, &s->sources[i].build)));
    for (size_t i = 0; i < s->n_attempts; i++)
        json_array_append_new(list,
                              candidate_json(j, &s->attempts[i], NULL, find_verdict(j, &s->attempts[i])));
    return list;
}

static json_t *anchors_json(const struct judged *j)
{
    json_t *list = json_array();
    for (size_t i = 0; i < j->n; i++) {
        const size_t best = best_beside(j, i);
        if (!j->sources[i])
            continue;
        json_t *object = json_object();
        json_put(object, "name", json_text(j->files[i].name));
        json_put(object, "bytes", json_integer(j->files[i].bytes));
        json_put(object, "kl", mean_json(build_kl(j->builds[i], j->s, j->s->args->evals.n)));
        if (best < j->n) {
            const struct difference d = measured_difference(&j->files[best], &j->files[i]);
            json_put(object, "found", json_text(j->files[best].name));
            json_put(object, "difference", mean_json((struct measure_mean){d.kl, d.std_err}));
        }
        json_put(object, "verdict",
                 json_text(best < j->n ? verdict_of(&j->files[best], &j->files[i]) : "none"));
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *alone_json(const struct search *s)
{
    json_t *list = json_array();
    for (size_t g = 0; g < s->n_groups; g++)
        for (size_t k = 1; k < s->groups[g].n_options; k++) {
            const struct group_option *option = &s->groups[g].options[k];
            json_t *object = json_object();
            json_put(object, "group", json_text(role_name(s->groups[g].role)));
            json_put(object, "layout", json_text(option->of->name));
            json_put(object, "bytes", json_integer(option->alone.bytes));
            put_figures(object, &option->alone, s, s->args->evals.n);
            json_put(object, "kept", json_boolean(option->stays));
            const char *reason = option->alone.failure[0] ? option->alone.failure : option->pruned.line;
            json_put(object, "reason", reason[0] ? json_text(reason) : json_null());
            json_array_append_new(list, object);
        }
    return list;
}

static json_t *anomalies_json(const struct search *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_anomalies; i++) {
        const struct anomaly_rule *rule = &s->anomalies[i];
        const struct group *group = &s->groups[rule->swap.group];
        json_t *object = json_object();
        json_put(object, "group", json_text(role_name(group->role)));
        json_put(object, "lower", json_text(group_option_name(&group->options[rule->swap.lower])));
        json_put(object, "higher", json_text(group_option_name(&group->options[rule->swap.higher])));
        json_put(object, "better", json_integer((json_int_t)rule->better));
        json_put(object, "tied", json_integer((json_int_t)rule->tied));
        json_put(object, "worse", json_integer((json_int_t)rule->worse));
        json_put(object, "verdict", json_text(anomaly_verdict_name(rule->verdict)));
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *costs_json(const struct search *s)
{
    const struct gguf_model *model = s->job.model;
    json_t *list = json_array();
    for (int64_t i = 0; i < model->n_tensors; i++)
        for (size_t c = 0; c < s->costs.tensors[i].n; c++) {
            const struct plan_choice *choice = &s->costs.tensors[i].choices[c];
            json_t *object = json_object();
            json_put(object, "tensor", json_text(model->tensors[i].name));
            json_put(object, "type", json_text(type_label((enum ggml_type)choice->type)));
            json_put(object, "cost", json_number(choice->cost));
            json_array_append_new(list, object);
        }
    return list;
}

static json_t *model_json(const struct search *s)
{
    const struct gguf_model *model = s->job.model;
    char *architecture = gguf_model_str(model, "general.architecture");
    enum role *roles = calloc((size_t)model->n_tensors + 1, sizeof *roles);
    struct allot_error unused;
    int n_layers = 0;
    if (roles)
        model_roles(roles, &n_layers, model, &unused);
    free(roles);
    json_t *object =
        json_pack("{s:o,s:o,s:o,s:o,s:o}", "name", json_text(file_base_name(model->path)), "sha256",
                  json_text(s->job.sha256), "bytes", json_integer(model->total_bytes), "architecture",
                  json_text(architecture ? architecture : ""), "layers", json_integer(n_layers));
    free(architecture);
    return object;
}

/* What the costs are of; how it was cut is known where the archive has it. */
static json_t *calibration_json(const struct search *s)
{
    const struct archive_cost_set_info *set = &s->costs.set;
    const struct string_list *texts = &s->args->calibrated.texts;
    struct strbuf name = {0};
    struct text_windows windows = {0};
    struct allot_error unused;
    bool own;
    json_t *list = json_array(), *object = json_object();
    for (size_t i = 0; i < texts->n; i++)
        strbuf_addf(&name, "%s%s", i ? ", " : "", file_base_name(texts->items[i]));
    if (seen_text_get(&windows, &own, s->job.archive, set->text_sha256, &unused) != ALLOT_OK)
        windows = (struct text_windows){0};
    json_put(object, "name", json_text(texts->n && name.data ? name.data : "of the costs on record"));
    json_put(object, "sha256", json_text(set->text_sha256));
    json_put(object, "ctx", json_integer(windows.n_ctx));
    json_put(object, "windows", json_integer(windows.n));
    json_put(object, "tokens", json_integer(set->n_tokens));
    text_windows_release(&windows);
    strbuf_release(&name);
    json_array_append_new(list, object);
    return list;
}

static json_t *evaluation_json(const struct search *s)
{
    json_t *list = json_array();
    for (size_t t = 0; t < s->args->evals.n; t++) {
        const int64_t n = (int64_t)(s->first_window[t + 1] - s->first_window[t]);
        json_t *object = json_object();
        json_put(object, "name", json_text(file_base_name(s->args->evals.items[t])));
        json_put(object, "sha256", json_text(s->text_sha256[t]));
        json_put(object, "ctx", json_integer(s->windows.n_ctx));
        json_put(object, "windows", json_integer(n));
        json_put(object, "tokens", json_integer(n * s->windows.n_ctx));
        json_array_append_new(list, object);
    }
    return list;
}

/* What the user of a replay says anew (where files are, how much memory and time there is), and the sources,
 * which are told by what finds them. */
static bool left_to_replay(const char *name)
{
    static const char *const names[] = {"file", "eval", "imatrix", "output", "mem", "sources", "hours"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void add_argument(void *user, const char *name, const char *text)
{
    if (!left_to_replay(name))
        json_array_append_new(user, json_text(text));
}

/* What a replay gives to the command: options as they were given, and the sources by name. */
static json_t *arguments_json(const struct search *s)
{
    size_t n_sets;
    const struct option_set *const *sets = search_option_sets(&n_sets);
    struct strbuf sources = {0};
    json_t *list = json_array();
    options_unparse(sets, n_sets, s->args, &s->args->calibrated.sized.common.given, add_argument, list);
    for (size_t i = 0; i < s->n_sources; i++)
        strbuf_addf(&sources, "%s%s", i ? "," : "--sources=", s->sources[i].found_by);
    if (sources.data)
        json_array_append_new(list, json_text(sources.data));
    strbuf_release(&sources);
    return list;
}

static json_t *document_json(const struct judged *j)
{
    const struct search *s = j->s;
    json_t *document = json_object(), *groups = json_array();
    for (size_t g = 0; g < s->n_groups; g++)
        json_array_append_new(groups, json_text(role_name(s->groups[g].role)));
    json_put(document, "format", json_text("allot search result"));
    json_put(document, "version", json_integer(1));
    json_put(document, "allot", json_text(ALLOT_VERSION));
    json_put(document, "llama.cpp", json_text(cost_version()));
    json_put(document, "arguments", arguments_json(s));
    json_put(document, "model", model_json(s));
    if (s->imatrix.present)
        json_put(document, "imatrix",
                 json_pack("{s:o,s:o}", "name",
                           json_text(s->imatrix.path ? file_base_name(s->imatrix.path) : "computed"),
                           "sha256", json_text(s->imatrix.data.sha256)));
    json_put(document, "calibration", calibration_json(s));
    json_put(document, "evaluation", evaluation_json(s));
    json_put(document, "groups", groups);
    json_put(document, "candidates", candidates_json(j));
    json_put(document, "anchors", anchors_json(j));
    json_put(document, "prediction",
             isfinite(j->rank) ? json_pack("{s:o,s:o}", "spearman", json_number(j->rank), "rows",
                                           json_integer((json_int_t)j->n_ranked))
                               : json_null());
    json_put(document, "alone", alone_json(s));
    json_put(document, "anomalies", anomalies_json(s));
    json_put(document, "costs", costs_json(s));
    json_put(document, "builds", json_integer(s->n_tried));
    json_put(document, "recalled", json_integer(s->n_recalled));
    json_put(document, "complete", json_boolean(!s->over_budget));
    return document;
}

/* ---- Text ------------------------------------------------------------------------------------------- */

static allot_status print_files(const struct judged *j, bool survivors, struct allot_error *err)
{
    static const char *const headings[] = {"<name",         "<family", ">size", ">bits", ">KL (nats/token)",
                                           ">ln PPL ratio", "<"};
    const struct search *s = j->s;
    struct table t;
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < j->n; i++) {
        const struct build *b = j->builds[i];
        char size[32];
        const struct measure_mean kl = build_kl(b, s, s->args->evals.n),
                                  ppl = build_ln_ppl(b, s, s->args->evals.n);
        if (survivors != (j->verdicts[i].removal == REMOVAL_NONE))
            continue;
        table_cell(&t, "%s", b->name);
        table_cell(&t, "%s", family_names[b->family]);
        table_cell(&t, "%s", str_size(size, b->bytes));
        table_cell(&t, "%.2f", bits_per_weight(b->data_bytes, model_parameters(s->job.model)));
        table_cell(&t, "%.6f ± %.6f", kl.mean, kl.se);
        table_cell(&t, "%+.5f ± %.5f", ppl.mean, ppl.se);
        table_cell(&t, "%s", survivors ? "" : j->verdicts[i].line);
    }
    return table_print(&t, err);
}

static allot_status print_anchors(const struct judged *j, struct allot_error *err)
{
    static const char *const headings[] = {"<source", ">size", ">KL", "<found", ">difference", "<"};
    struct table t;
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < j->n; i++) {
        const size_t best = best_beside(j, i);
        char size[32];
        if (!j->sources[i])
            continue;
        table_cell(&t, "%s", j->files[i].name);
        table_cell(&t, "%s", str_size(size, j->files[i].bytes));
        table_cell(&t, "%.6f", j->files[i].kl);
        table_cell(&t, "%s", best < j->n ? j->files[best].name : "-");
        if (best < j->n) {
            const struct difference d = measured_difference(&j->files[best], &j->files[i]);
            table_cell(&t, "%+.6f ± %.6f", d.kl, d.std_err);
        } else {
            table_cell(&t, "-");
        }
        table_cell(&t, "%s", best < j->n ? verdict_of(&j->files[best], &j->files[i]) : "nothing smaller");
    }
    return table_print(&t, err);
}

static void print_anomalies(const struct search *s)
{
    for (size_t i = 0; i < s->n_anomalies; i++) {
        const struct anomaly_rule *rule = &s->anomalies[i];
        const struct group *group = &s->groups[rule->swap.group];
        printf("%s%s of %s, smaller than that of %s, is better in %zu contexts, worse in %zu, ties in %zu: "
               "%s\n",
               i ? "" : "\n", role_name(group->role), group_option_name(&group->options[rule->swap.lower]),
               group_option_name(&group->options[rule->swap.higher]), rule->better, rule->worse, rule->tied,
               anomaly_verdict_name(rule->verdict));
    }
}

static void print_failure(const struct build *b)
{
    if (b->failure[0])
        printf("%s could not be measured: %s\n", b->name, b->failure);
}

static void print_failures(const struct search *s)
{
    for (size_t i = 0; i < s->n_sources; i++)
        print_failure(&s->sources[i].build);
    for (size_t g = 0; g < s->n_groups; g++)
        for (size_t k = 1; k < s->groups[g].n_options; k++)
            print_failure(&s->groups[g].options[k].alone);
    for (size_t i = 0; i < s->n_attempts; i++)
        print_failure(&s->attempts[i]);
}

static allot_status print_text(const struct judged *j, struct allot_error *err)
{
    const struct search *s = j->s;
    printf("%s: %" PRId64 " builds (%" PRId64 " of them on record), %" PRId64 " windows of %d tokens\n\n",
           s->job.model->path, s->n_tried, s->n_recalled, s->windows.n, s->windows.n_ctx);
    if (j->n == 0)
        printf(
            "No source was measured whole (those that are only learned from are not), so there is nothing to "
            "compare.\n\n");
    printf("Survivors\n");
    allot_status status = print_files(j, true, err);
    if (status == ALLOT_OK) {
        printf("\nRemoved\n");
        status = print_files(j, false, err);
    }
    if (status == ALLOT_OK) {
        printf("\nThe best no larger than each source\n");
        status = print_anchors(j, err);
    }
    print_failures(s);
    print_anomalies(s);
    if (isfinite(j->rank))
        printf("\nPredicted and measured KL of %zu files have a rank correlation of %.4f\n", j->n_ranked,
               j->rank);
    if (s->over_budget)
        printf("The search is not complete: --builds or --hours ended it\n");
    return status;
}

/* ---- The whole -------------------------------------------------------------------------------------- */

static allot_status write_files(const struct judged *j, struct search *s, const json_t *document,
                                struct allot_error *err)
{
    allot_status status = search_files_imatrix(s->args->output, s, err);
    for (size_t i = 0; i < j->n && status == ALLOT_OK; i++)
        if (j->verdicts[i].removal == REMOVAL_NONE)
            status = search_files_recipe(s->args->output, j->builds[i], s, err);
    return status == ALLOT_OK ? search_files_document(s->args->output, document, err) : status;
}

allot_status search_report(struct search *s, json_t **wanted, struct allot_error *err)
{
    struct judged j = {0};
    allot_status status = judge(&j, s, err);
    json_t *document = status == ALLOT_OK ? document_json(&j) : NULL;
    if (wanted) {
        *wanted = document;
        judged_release(&j);
        return status;
    }
    if (status == ALLOT_OK && s->args->output)
        status = write_files(&j, s, document, err);
    if (status == ALLOT_OK && s->args->calibrated.sized.common.json) {
        status = json_print(document, err);
    } else {
        json_decref(document);
        if (status == ALLOT_OK)
            status = print_text(&j, err);
        if (status == ALLOT_OK && s->args->output)
            printf("\nrecipes of the survivors and result.json, which 'allot report' makes a page of, are in "
                   "%s\n",
                   s->args->output);
    }
    judged_release(&j);
    return status;
}
