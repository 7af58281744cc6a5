/* cmd_replay.c - allot replay: a search again, and what differs.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "search.h"

struct replay_arguments {
    struct common_arguments common;
    struct string_list texts, evals;
    const char *imatrix;
    int64_t memory;
};

#define ROW(name_, letter_, arg_, kind_, member_, help_)                                        \
    {                                                                                           \
        name_, letter_, arg_, kind_, offsetof(struct replay_arguments, member_), NULL, 0, help_ \
    }
static const struct option_row rows[] = {
    ROW("file", 'f', "TEXT", OPTION_STRINGS, texts,
        "calibration text of the search; without it costs on record"),
    ROW("eval", 0, "TEXT", OPTION_STRINGS, evals, "its evaluation texts, in the same order"),
    ROW("imatrix", 0, "FILE", OPTION_STRING, imatrix, "the importance matrix that it was given, if it was"),
    MEMORY_ROW(offsetof(struct replay_arguments, memory)),
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct replay_arguments *args = arguments;
    return args->evals.n ? ALLOT_OK
                         : allot_fail(err, ALLOT_ERR_ARGUMENT, "replay: no evaluation text (--eval TEXT)");
}

/* ---- What differs ------------------------------------------------------------------------------------ */

struct differences {
    json_t *list; /* {"what", "then", "now"} */
};

static void add_difference(struct differences *d, const char *what, const char *then, const char *now)
{
    json_t *object = json_object();
    json_put(object, "what", json_text(what));
    json_put(object, "then", json_text(then));
    json_put(object, "now", json_text(now));
    json_array_append_new(d->list, object);
}

static const char *text_at(const json_t *document, const char *key, const char *inner)
{
    const json_t *value = json_object_get(document, key);
    const char *text = json_string_value(inner ? json_object_get(value, inner) : value);
    return text ? text : "-";
}

static void compare_text(struct differences *d, const char *what, const char *then, const char *now)
{
    if (strcmp(then, now) != 0)
        add_difference(d, what, then, now);
}

static void compare_lists(struct differences *d, const char *key, const json_t *then, const json_t *now)
{
    const json_t *a = json_object_get(then, key), *b = json_object_get(now, key);
    const size_t n = json_array_size(a) > json_array_size(b) ? json_array_size(a) : json_array_size(b);
    for (size_t i = 0; i < n; i++) {
        char what[64];
        const char *hash_a = json_string_value(json_object_get(json_array_get(a, i), "sha256")),
                   *hash_b = json_string_value(json_object_get(json_array_get(b, i), "sha256"));
        snprintf(what, sizeof what, "%s text %zu (SHA-256 of its tokens)", key, i + 1);
        compare_text(d, what, hash_a ? hash_a : "-", hash_b ? hash_b : "-");
    }
}

static const json_t *find_candidate(const json_t *document, const char *name)
{
    size_t i;
    json_t *candidate;
    json_array_foreach(json_object_get(document, "candidates"), i,
                       candidate) if (strcmp(text_at(candidate, "name", NULL), name) == 0) return candidate;
    return NULL;
}

static double mean_kl(const json_t *candidate)
{
    const json_t *kl = json_object_get(candidate, "kl");
    return json_is_object(kl) ? json_number_value(json_object_get(kl, "mean")) : NAN;
}

/* KL is the same if it is to ten digits: sums over threads' windows have one order, processors have not one
 * rounding. */
static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-10 * fabs(a);
}

static void compare_candidate(struct differences *d, const json_t *then, const json_t *now)
{
    char what[320], numbers[2][32];
    const char *name = text_at(then, "name", NULL);
    snprintf(what, sizeof what, "%.250s: state", name);
    compare_text(d, what, text_at(then, "state", NULL), now ? text_at(now, "state", NULL) : "absent");
    if (now == NULL)
        return;
    if (!json_equal(json_object_get(then, "types"), json_object_get(now, "types"))) {
        snprintf(what, sizeof what, "%.250s: types", name);
        add_difference(d, what, "those of the result", "others");
    }
    if (!same_number(mean_kl(then), mean_kl(now))) {
        snprintf(what, sizeof what, "%.250s: KL", name);
        snprintf(numbers[0], sizeof numbers[0], "%.12g", mean_kl(then));
        snprintf(numbers[1], sizeof numbers[1], "%.12g", mean_kl(now));
        add_difference(d, what, numbers[0], numbers[1]);
    }
}

static void compare(struct differences *d, const json_t *then, const json_t *now)
{
    size_t i;
    json_t *candidate;
    compare_text(d, "allot", text_at(then, "allot", NULL), text_at(now, "allot", NULL));
    compare_text(d, "llama.cpp", text_at(then, "llama.cpp", NULL), text_at(now, "llama.cpp", NULL));
    compare_text(d, "model (SHA-256)", text_at(then, "model", "sha256"), text_at(now, "model", "sha256"));
    compare_text(d, "imatrix (SHA-256)", text_at(then, "imatrix", "sha256"),
                 text_at(now, "imatrix", "sha256"));
    compare_lists(d, "calibration", then, now);
    compare_lists(d, "evaluation", then, now);
    json_array_foreach(json_object_get(then, "candidates"), i, candidate)
        compare_candidate(d, candidate, find_candidate(now, text_at(candidate, "name", NULL)));
    json_array_foreach(json_object_get(now, "candidates"), i,
                       candidate) if (find_candidate(then, text_at(candidate, "name", NULL)) == NULL)
        add_difference(d, text_at(candidate, "name", NULL), "absent", text_at(candidate, "state", NULL));
}

static allot_status print(const struct differences *d, const json_t *now, bool json, struct allot_error *err)
{
    static const char *const headings[] = {"<what", "<then", "<now"};
    struct table t;
    size_t i;
    json_t *one;
    if (json)
        return json_print(
            json_pack("{s:b,s:O}", "same", json_array_size(d->list) == 0, "differences", d->list), err);
    if (json_array_size(d->list) == 0) {
        printf("the same: %zu candidates, their types, KL and what became of them\n",
               json_array_size(json_object_get(now, "candidates")));
        return ALLOT_OK;
    }
    table_init(&t, headings, sizeof headings / sizeof *headings);
    json_array_foreach(d->list, i, one)
    {
        table_cell(&t, "%s", text_at(one, "what", NULL));
        table_cell(&t, "%s", text_at(one, "then", NULL));
        table_cell(&t, "%s", text_at(one, "now", NULL));
    }
    return table_print(&t, err);
}

/* ---- Again -------------------------------------------------------------------------------------------- */

static allot_status read_result(json_t **document, const char *path, struct allot_error *err)
{
    json_error_t why;
    *document = json_load_file(path, 0, &why);
    if (*document == NULL)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: %s", path, why.text);
    if (strcmp(text_at(*document, "format", NULL), "allot search result") != 0 ||
        !json_is_array(json_object_get(*document, "arguments")) ||
        !json_is_array(json_object_get(*document, "candidates")))
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s is no result of 'allot search' that can be replayed",
                          path);
    return ALLOT_OK;
}

/* The arguments of the search, from the document's list of options and what the user gave. words: [n + 1],
 * stays while they are used. */
static allot_status take_arguments(struct search_arguments *search, char **words, const json_t *document,
                                   const struct replay_arguments *args, struct string_list *operands,
                                   struct allot_error *err)
{
    size_t n_sets, i, n = 0;
    const struct option_set *const *sets = search_option_sets(&n_sets);
    struct common_arguments *common = &search->calibrated.sized.common;
    json_t *word;
    json_array_foreach(json_object_get(document, "arguments"), i, word)
    {
        if (!json_is_string(word))
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: arguments[%zu] is no text",
                              args->common.operands.items[0], i);
        words[n++] = (char *)json_string_value(word);
    }
    allot_status status = options_parse(sets, n_sets, search, (int)n, words, operands, &common->given, err);
    if (status == ALLOT_OK && operands->n > 0)
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: arguments: '%s' is no option",
                            args->common.operands.items[0], operands->items[0]);
    common->threads = args->common.threads;
    common->archive = args->common.archive;
    for (i = 0; i < args->texts.n && status == ALLOT_OK; i++)
        status = string_list_add(&search->calibrated.texts, args->texts.items[i], err);
    for (i = 0; i < args->evals.n && status == ALLOT_OK; i++)
        status = string_list_add(&search->evals, args->evals.items[i], err);
    if (status == ALLOT_OK)
        status = string_list_add(&common->operands, args->common.operands.items[1], err);
    search->calibrated.imatrix = args->imatrix;
    search->calibrated.memory = args->memory;
    search->output = NULL;
    return status == ALLOT_OK ? command_search.check(search, err) : status;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct replay_arguments *args = arguments;
    struct search_arguments search = {0};
    struct string_list operands = {0};
    struct differences d = {json_array()};
    json_t *then = NULL, *now = NULL;
    size_t n_sets;
    allot_status status = read_result(&then, args->common.operands.items[0], err);
    char **words = calloc(json_array_size(json_object_get(then, "arguments")) + 1, sizeof *words);
    if (status == ALLOT_OK && (words == NULL || d.list == NULL))
        status = allot_fail_memory(err, 4096, "arguments");
    if (status == ALLOT_OK)
        status = take_arguments(&search, words, then, args, &operands, err);
    if (status == ALLOT_OK)
        status = search_run(&search, progress, &now, err);
    if (status == ALLOT_OK) {
        compare(&d, then, now);
        command_end_progress(progress);
        status = print(&d, now, args->common.json, err);
    }
    const struct option_set *const *sets = search_option_sets(&n_sets);
    options_release(sets, n_sets, &search);
    string_list_release(&search.calibrated.sized.common.given);
    string_list_release(&search.calibrated.sized.common.operands);
    string_list_release(&operands);
    free(words);
    json_decref(then);
    json_decref(now);
    json_decref(d.list);
    return status;
}

const struct command command_replay = {
    .name = "replay",
    .synopsis = "RESULT MODEL [-f CALIB...] --eval TEXT... [options]",
    .summary = "repeat a search from its result, and say what differs",
    .description = "Takes the options and sources from result.json of 'allot search', searches again in this "
                   "model with these "
                   "texts, and says what is not as it was: versions, model, importance matrix, texts, and of "
                   "each candidate "
                   "the types, the KL and whether it survived. What the archive has on record is not "
                   "measured again; name "
                   "another with --archive to measure everything.",
    .options = {&options},
    .arguments_size = sizeof(struct replay_arguments),
    .min_operands = 2,
    .max_operands = 2,
    .check = check,
    .run = run,
};
