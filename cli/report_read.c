/* report_read.c - the result of a search, field by field.  SPDX-License-Identifier: MIT */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

/* ---- Fields that know where they are ------------------------------------------------------------- */

/* A value in the document; `name`, or [index] where that is NULL, in `parent`. */
struct field {
    const struct field *parent;
    const char *name;
    size_t index;
    json_t *value; /* NULL: missing */
};

/* The first failure counts; after it nothing is read. */
struct reader {
    const char *path;
    allot_status status;
    struct allot_error *err;
};

static void add_place(struct strbuf *sb, const struct field *f)
{
    if (f->parent)
        add_place(sb, f->parent);
    if (f->name)
        strbuf_addf(sb, "%s%s", sb->len ? "." : "", f->name);
    else if (f->parent)
        strbuf_addf(sb, "[%zu]", f->index);
}

static bool is_absent(const struct field *f)
{
    return !f->value || json_is_null(f->value);
}

static void refuse(struct reader *r, const struct field *f, const char *what)
{
    struct strbuf place = {0};
    if (r->status != ALLOT_OK)
        return;
    add_place(&place, f);
    r->status = allot_fail(r->err, ALLOT_ERR_FORMAT, "%s: %s: %s%s", r->path,
                           place.len ? place.data : "the document", f->value ? "" : "is missing; it ", what);
    strbuf_release(&place);
}

static struct field member(struct reader *r, const struct field *object, const char *name)
{
    if (!json_is_object(object->value))
        refuse(r, object, "must be an object");
    return (struct field){.parent = object, .name = name, .value = json_object_get(object->value, name)};
}

static struct field element(const struct field *list, size_t index)
{
    return (struct field){.parent = list, .index = index, .value = json_array_get(list->value, index)};
}

/* Room for the items of a list or object; 0 and NULL if it is neither what it must be nor there. */
static void *make_items(struct reader *r, size_t *n, const struct field *f, size_t size, bool object)
{
    *n = 0;
    if (r->status != ALLOT_OK)
        return NULL;
    if (object ? !json_is_object(f->value) : !json_is_array(f->value)) {
        refuse(r, f, object ? "must be an object" : "must be a list");
        return NULL;
    }
    const size_t n_items = object ? json_object_size(f->value) : json_array_size(f->value);
    void *items = calloc(n_items + 1, size);
    if (!items)
        r->status = allot_fail_memory(r->err, n_items * size, "a search result");
    else
        *n = n_items;
    return items;
}

static const char *read_text(struct reader *r, const struct field *f)
{
    if (!json_is_string(f->value))
        refuse(r, f, "must be a text");
    return json_string_value(f->value);
}

static const char *text_of(struct reader *r, const struct field *object, const char *name)
{
    const struct field f = member(r, object, name);
    return read_text(r, &f);
}

static const char *optional_text_of(struct reader *r, const struct field *object, const char *name)
{
    const struct field f = member(r, object, name);
    return is_absent(&f) ? NULL : read_text(r, &f);
}

static int64_t integer_of(struct reader *r, const struct field *object, const char *name, int64_t least)
{
    const struct field f = member(r, object, name);
    const int64_t value = json_integer_value(f.value), most = (int64_t)1 << 62;
    if (!json_is_integer(f.value) || value < least || value > most)
        refuse(r, &f, least > 0 ? "must be a whole number above 0" : "must be a whole number, 0 or more");
    return value;
}

static double number_of(struct reader *r, const struct field *object, const char *name, double least,
                        double most, const char *what)
{
    const struct field f = member(r, object, name);
    const double value = json_number_value(f.value);
    if (!json_is_number(f.value) || !(value >= least && value <= most))
        refuse(r, &f, what);
    return value;
}

static double optional_number_of(struct reader *r, const struct field *object, const char *name, double least,
                                 double most, const char *what)
{
    const struct field f = member(r, object, name);
    return is_absent(&f) ? NAN : number_of(r, object, name, least, most, what);
}

/* Numbers beyond these are no KL, cost, or logarithm of a ratio of perplexities that means anything. */
static const double MOST = 1e9, MOST_LN = 100;
static const char at_least_0[] = "must be a number from 0 to 1e9";

/* Where it is not needed, it may be absent. */
static struct report_mean mean_of(struct reader *r, const struct field *object, const char *name,
                                  double least, double most, const char *what, bool needed)
{
    const struct field f = member(r, object, name);
    if (!needed && is_absent(&f))
        return (struct report_mean){NAN, NAN};
    return (struct report_mean){number_of(r, &f, "mean", least, most, what),
                                number_of(r, &f, "se", 0, MOST, at_least_0)};
}

static struct report_mean kl_of(struct reader *r, const struct field *object, const char *name, bool needed)
{
    return mean_of(r, object, name, 0, MOST, at_least_0, needed);
}

/* One of the words of a list that ends with NULL. */
static int word_of(struct reader *r, const struct field *object, const char *name, const char *const *words)
{
    const struct field f = member(r, object, name);
    const char *text = json_string_value(f.value);
    struct strbuf what = {0};
    for (int i = 0; words[i]; i++) {
        if (text && strcmp(text, words[i]) == 0) {
            strbuf_release(&what);
            return i;
        }
        strbuf_addf(&what, "%s\"%s\"", i ? ", " : "must be one of ", words[i]);
    }
    refuse(r, &f, what.data ? what.data : "is none of the words");
    strbuf_release(&what);
    return 0;
}

/* ---- Parts of the document ------------------------------------------------------------------------ */

static void read_pairs(struct reader *r, struct report_pairs *out, const struct field *object,
                       const char *name)
{
    const struct field f = member(r, object, name);
    const char *key;
    json_t *value;
    size_t i = 0;
    if (is_absent(&f))
        return;
    out->items = make_items(r, &out->n, &f, sizeof *out->items, true);
    if (!out->items)
        return;
    json_object_foreach(f.value, key, value)
    {
        const struct field item = {.parent = &f, .name = key, .value = value};
        out->items[i++] = (struct report_pair){key, read_text(r, &item)};
    }
}

static void read_texts(struct reader *r, struct report_text **out, size_t *n, const struct field *root,
                       const char *name)
{
    const struct field list = member(r, root, name);
    *out = make_items(r, n, &list, sizeof **out, false);
    for (size_t i = 0; i < *n; i++) {
        const struct field f = element(&list, i);
        (*out)[i] = (struct report_text){.name = text_of(r, &f, "name"),
                                         .sha256 = text_of(r, &f, "sha256"),
                                         .ctx = integer_of(r, &f, "ctx", 1),
                                         .windows = integer_of(r, &f, "windows", 0),
                                         .tokens = integer_of(r, &f, "tokens", 0)};
    }
}

static void read_score(struct reader *r, struct report_score *out, const struct field *f, bool needed)
{
    out->kl = kl_of(r, f, "kl", needed);
    out->ln_ppl_ratio =
        mean_of(r, f, "ln_ppl_ratio", -MOST_LN, MOST_LN, "must be a number from -100 to 100", needed);
}

static void read_scores(struct reader *r, struct report_candidate *c, const struct field *f,
                        size_t n_evaluation)
{
    const bool needed = c->state == STATE_SURVIVOR;
    size_t n;
    read_score(r, &c->score, f, needed);
    const struct field list = member(r, f, "texts");
    if (!needed && is_absent(&list))
        return;
    c->texts = make_items(r, &n, &list, sizeof *c->texts, false);
    if (c->texts && n != n_evaluation)
        refuse(r, &list, "must have one entry for each text of \"evaluation\"");
    for (size_t t = 0; t < n && r->status == ALLOT_OK; t++) {
        const struct field text = element(&list, t);
        read_score(r, &c->texts[t], &text, true);
    }
}

static void read_candidate(struct reader *r, struct report_candidate *c, const struct field *f,
                           size_t n_evaluation)
{
    static const char *const states[] = {"survivor", "removed", "failed", NULL};
    c->name = text_of(r, f, "name");
    c->family = (enum family)(FAMILY_PLAIN + word_of(r, f, "family", family_names + FAMILY_PLAIN));
    c->state = (enum report_state)word_of(r, f, "state", states);
    c->source = optional_text_of(r, f, "source");
    c->reason = c->state == STATE_SURVIVOR ? optional_text_of(r, f, "reason") : text_of(r, f, "reason");
    c->replaced_by = optional_text_of(r, f, "replaced_by");
    c->bytes = integer_of(r, f, "bytes", 1);
    c->bits_per_weight = number_of(r, f, "bits_per_weight", 0, MOST, at_least_0);
    c->predicted = optional_number_of(r, f, "predicted", 0, MOST, at_least_0);
    c->confidence = optional_number_of(r, f, "confidence", 0, 1, "must be a number from 0 to 1");
    read_scores(r, c, f, n_evaluation);
    read_pairs(r, &c->groups, f, "groups");
    read_pairs(r, &c->types, f, "types");
}

/* A name in `f` must be that of a candidate. */
static void check_name(struct reader *r, const json_t *names, const struct field *f, const char *name)
{
    const struct field reference = member(r, f, name);
    if (r->status == ALLOT_OK && !is_absent(&reference) &&
        !json_object_get(names, json_string_value(reference.value)))
        refuse(r, &reference, "must be the name of a candidate");
}

static void read_candidates(struct reader *r, struct report_result *out, const struct field *root,
                            json_t *names)
{
    const struct field list = member(r, root, "candidates");
    out->candidates = make_items(r, &out->n_candidates, &list, sizeof *out->candidates, false);
    for (size_t i = 0; i < out->n_candidates && r->status == ALLOT_OK; i++) {
        const struct field f = element(&list, i), name = member(r, &f, "name");
        read_candidate(r, &out->candidates[i], &f, out->n_evaluation);
        if (r->status == ALLOT_OK && json_object_get(names, out->candidates[i].name))
            refuse(r, &name, "must not be the name of another candidate");
        if (r->status == ALLOT_OK && json_object_set_new(names, out->candidates[i].name, json_true()) != 0)
            r->status = allot_fail_memory(r->err, 64, "names");
    }
    for (size_t i = 0; i < out->n_candidates && r->status == ALLOT_OK; i++) {
        const struct field f = element(&list, i);
        check_name(r, names, &f, "replaced_by");
    }
}

static void read_anchors(struct reader *r, struct report_result *out, const struct field *root,
                         const json_t *names)
{
    static const char *const verdicts[] = {"lower", "tie", "lost", "none", NULL};
    const struct field list = member(r, root, "anchors");
    out->anchors = make_items(r, &out->n_anchors, &list, sizeof *out->anchors, false);
    for (size_t i = 0; i < out->n_anchors && r->status == ALLOT_OK; i++) {
        const struct field f = element(&list, i);
        out->anchors[i] =
            (struct report_anchor){.name = text_of(r, &f, "name"),
                                   .found = optional_text_of(r, &f, "found"),
                                   .bytes = integer_of(r, &f, "bytes", 1),
                                   .kl = kl_of(r, &f, "kl", true),
                                   .difference = mean_of(r, &f, "difference", -MOST, MOST,
                                                         "must be a number from -1e9 to 1e9", false),
                                   .verdict = (enum report_verdict)word_of(r, &f, "verdict", verdicts)};
        check_name(r, names, &f, "found");
    }
}

static void read_costs(struct reader *r, struct report_result *out, const struct field *root)
{
    const struct field list = member(r, root, "costs");
    out->costs = make_items(r, &out->n_costs, &list, sizeof *out->costs, false);
    for (size_t i = 0; i < out->n_costs && r->status == ALLOT_OK; i++) {
        const struct field f = element(&list, i);
        out->costs[i] =
            (struct report_cost){text_of(r, &f, "tensor"), text_of(r, &f, "type"),
                                 number_of(r, &f, "cost", -MOST, MOST, "must be a number from -1e9 to 1e9")};
    }
}

static void read_validation(struct reader *r, struct report_pairs *out, const struct field *root)
{
    const struct field list = member(r, root, "validation");
    if (is_absent(&list))
        return;
    out->items = make_items(r, &out->n, &list, sizeof *out->items, false);
    for (size_t i = 0; i < out->n && r->status == ALLOT_OK; i++) {
        const struct field f = element(&list, i);
        out->items[i] = (struct report_pair){text_of(r, &f, "what"), text_of(r, &f, "value")};
    }
}

static void read_head(struct reader *r, struct report_result *out, const struct field *root)
{
    static const char *const formats[] = {"allot search result", NULL};
    word_of(r, root, "format", formats);
    const struct field version = member(r, root, "version"), model = member(r, root, "model"),
                       imatrix = member(r, root, "imatrix"), prediction = member(r, root, "prediction");
    if (integer_of(r, root, "version", 1) != 1)
        refuse(r, &version, "must be 1, the only one that this program reads");
    out->allot = text_of(r, root, "allot");
    out->llama_cpp = text_of(r, root, "llama.cpp");
    out->model = text_of(r, &model, "name");
    out->model_sha256 = text_of(r, &model, "sha256");
    out->model_bytes = integer_of(r, &model, "bytes", 1);
    out->architecture = text_of(r, &model, "architecture");
    out->n_layers = integer_of(r, &model, "layers", 0);
    if (!is_absent(&imatrix)) {
        out->imatrix = text_of(r, &imatrix, "name");
        out->imatrix_sha256 = text_of(r, &imatrix, "sha256");
    }
    const struct field complete = member(r, root, "complete");
    out->cut_short = json_is_false(complete.value);
    out->spearman = NAN;
    if (!is_absent(&prediction)) {
        out->spearman = number_of(r, &prediction, "spearman", -1, 1, "must be a number from -1 to 1");
        out->n_predicted = integer_of(r, &prediction, "rows", 0);
    }
}

static void read_groups(struct reader *r, struct report_result *out, const struct field *root)
{
    const struct field list = member(r, root, "groups");
    out->groups = make_items(r, &out->n_groups, &list, sizeof *out->groups, false);
    for (size_t i = 0; i < out->n_groups; i++) {
        const struct field f = element(&list, i);
        out->groups[i] = read_text(r, &f);
    }
}

static allot_status load(json_t **document, const char *path, struct allot_error *err)
{
    struct file_map map;
    json_error_t cause;
    if (file_map_open(&map, path, err) != ALLOT_OK)
        return err->status;
    *document = json_loadb(map.size ? (const char *)map.data : "", map.size, JSON_REJECT_DUPLICATES, &cause);
    file_map_close(&map);
    return *document
               ? ALLOT_OK
               : allot_fail(err, ALLOT_ERR_FORMAT, "%s: no JSON (line %d: %s)", path, cause.line, cause.text);
}

allot_status report_read(struct report_result *out, const char *path, struct allot_error *err)
{
    struct reader r = {.path = path, .status = ALLOT_OK, .err = err};
    *out = (struct report_result){0};
    if (load(&out->document, path, err) != ALLOT_OK)
        return err->status;
    const struct field root = {.value = out->document};
    json_t *names = json_object();
    read_head(&r, out, &root);
    read_texts(&r, &out->calibration, &out->n_calibration, &root, "calibration");
    read_texts(&r, &out->evaluation, &out->n_evaluation, &root, "evaluation");
    read_groups(&r, out, &root);
    read_candidates(&r, out, &root, names);
    read_anchors(&r, out, &root, names);
    read_costs(&r, out, &root);
    read_validation(&r, &out->validation, &root);
    json_decref(names);
    if (r.status != ALLOT_OK)
        report_release(out);
    return r.status;
}

void report_release(struct report_result *result)
{
    for (size_t i = 0; i < result->n_candidates; i++) {
        free(result->candidates[i].texts);
        free(result->candidates[i].groups.items);
        free(result->candidates[i].types.items);
    }
    free(result->calibration);
    free(result->evaluation);
    free(result->groups);
    free(result->candidates);
    free(result->anchors);
    free(result->costs);
    free(result->validation.items);
    json_decref(result->document);
    *result = (struct report_result){0};
}
