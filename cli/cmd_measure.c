/* cmd_measure.c - allot measure: how far candidates are from the original, with error bars.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cost/fisher.h"
#include "cost/version.h"
#include "describe.h"
#include "job.h"
#include "measure/measure.h"
#include "measure/throughput.h"
#include "seen_text.h"

struct measure_arguments {
    struct common_arguments common;
    struct string_list texts;
    int64_t ctx, windows;
    bool speed;
};

enum { TOKENS_ONE_BY_ONE = 32, REPETITIONS = 5 };

static const struct option_row rows[] = {
    {"file", 'f', "TEXT", OPTION_STRINGS, offsetof(struct measure_arguments, texts), NULL, 0,
     "evaluation text, disjoint from calibration"},
    {"ctx", 0, "N", OPTION_INT, offsetof(struct measure_arguments, ctx), "512", 32,
     "tokens per window; the second half of each is scored"},
    {"windows", 0, "N", OPTION_INT, offsetof(struct measure_arguments, windows), "0", 0,
     "windows per text at most; 0: all"},
    {"speed", 0, NULL, OPTION_FLAG, offsetof(struct measure_arguments, speed), NULL, 0,
     "also time BASE and the candidates: tokens per second of a prompt of --ctx tokens and of 32 tokens one "
     "by "
     "one"},
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct measure_arguments *args = arguments;
    if (!args->texts.n)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "measure: no evaluation text (-f TEXT)");
    if (args->ctx % 2)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--ctx: %" PRId64 " is not even", args->ctx);
    return ALLOT_OK;
}

/* What a measurement is about. */
struct comparison {
    const struct measure_arguments *args;
    const char *base;
    const char *const *candidates;
    int64_t *sizes; /* bytes of each candidate */
    struct measure_result result;
    struct seen_overlap *overlaps; /* of each text with what calibration saw */
    struct throughput *speeds;     /* [1 + n_candidates], the base first; NULL: not asked for */
    struct throughput_options timing;
};

static const struct measure_stats *stats_of(const struct comparison *c, size_t candidate, size_t text)
{
    return &c->result.stats[candidate * (c->result.n_texts + 1) + text];
}

static struct measure_place place_of(const struct comparison *c, size_t candidate)
{
    return measure_place_of(&c->result, c->sizes, candidate);
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Places are of all texts together. */
static void add_place(struct table *t, const struct comparison *c, size_t candidate)
{
    const struct measure_place place = place_of(c, candidate);
    if (place.beaten_by != SIZE_MAX)
        table_cell(t, "beaten by %s", c->candidates[place.beaten_by]);
    else if (place.ties_with != SIZE_MAX)
        table_cell(t, "* tie with %s", c->candidates[place.ties_with]);
    else
        table_cell(t, "*");
}

static void add_row(struct table *t, const struct comparison *c, size_t candidate, size_t text)
{
    const struct measure_stats *s = stats_of(c, candidate, text);
    char size[32];
    table_cell(t, "%s", c->candidates[candidate]);
    table_cell(t, "%s", str_size(size, c->sizes[candidate]));
    table_cell(t, "%.6f ± %.6f", s->kl.mean, s->kl.se);
    table_cell(t, "%.6f", s->kl_median);
    table_cell(t, "%.5f", s->kl_p99);
    table_cell(t, "%.5f", s->kl_p999);
    table_cell(t, "%.4f", s->kl_max);
    table_cell(t, "%.4f", exp(s->nll.mean));
    table_cell(t, "%+.6f ± %.6f", s->ln_ratio.mean, s->ln_ratio.se);
    table_cell(t, "%.3f ± %.3f", 100 * s->same_top.mean, 100 * s->same_top.se);
    if (candidate == 0)
        table_cell(t, "-");
    else
        table_cell(t, "%+.6f ± %.6f%s", s->kl_minus_first.mean, s->kl_minus_first.se,
                   measure_is_tie(s->kl_minus_first) ? " tie" : "");
    if (text == c->result.n_texts)
        add_place(t, c, candidate);
}

/* A text given twice adds windows that tell nothing new. */
static void remark_twins(const struct comparison *c, size_t text)
{
    for (size_t other = 0; other < text; other++)
        if (strcmp(c->result.text_sha256[other], c->result.text_sha256[text]) == 0)
            printf("remark: %s and %s have the same windows, so errors over all texts are too small\n",
                   c->args->texts.items[other], c->args->texts.items[text]);
}

static void remark_overlap(const struct comparison *c, size_t text)
{
    const struct seen_overlap *o = &c->overlaps[text];
    if (o->known && o->share > SEEN_THRESHOLD)
        printf("remark: calibration saw %.1f %% of %s (%s); text that it did not see is a fairer test\n",
               100 * o->share, c->args->texts.items[text], o->what);
}

static const char *timed_model(const struct comparison *c, size_t i)
{
    return i ? c->candidates[i - 1] : c->base;
}

static allot_status print_speeds(const struct comparison *c, struct allot_error *err)
{
    static const char *const headings[] = {"<model", ">prompt", ">generation"};
    struct table t;
    printf("\ntokens per second, %d threads: a prompt of %d tokens, %d tokens one by one; medians of %d\n",
           c->timing.n_threads, c->timing.n_prompt, c->timing.n_generate, c->timing.n_repetitions);
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i <= c->result.n_candidates; i++) {
        table_cell(&t, "%s", timed_model(c, i));
        table_cell(&t, "%.2f", c->speeds[i].prompt);
        table_cell(&t, "%.2f", c->speeds[i].generation);
    }
    return table_print(&t, err);
}

static allot_status print_text(const struct comparison *c, struct allot_error *err)
{
    static const char *const headings[] = {
        "<candidate", ">size", ">KL (nats/token)", ">median",     ">99%",        ">99.9%",
        ">max",       ">PPL",  ">ln PPL ratio",    ">same top %", ">KL - first", "<front"};
    const size_t n_texts = c->result.n_texts;
    allot_status status = ALLOT_OK;
    for (size_t text = n_texts == 1 ? 1 : 0; status == ALLOT_OK && text <= n_texts; text++) {
        const struct measure_stats *first = stats_of(c, 0, text);
        struct table t;
        if (n_texts == 1)
            printf("%s", c->args->texts.items[0]);
        else
            printf("%s%s", text ? "\n" : "", text < n_texts ? c->args->texts.items[text] : "all texts");
        printf(": %" PRId64 " windows, %" PRId64 " tokens scored; base %s: PPL %.4f\n", first->n_windows,
               first->n_tokens, c->base, exp(first->nll_base.mean));
        table_init(&t, headings, sizeof headings / sizeof *headings - (text < n_texts));
        for (size_t candidate = 0; candidate < c->result.n_candidates; candidate++)
            add_row(&t, c, candidate, text);
        status = table_print(&t, err);
    }
    for (size_t text = 0; status == ALLOT_OK && text < n_texts; text++) {
        remark_overlap(c, text);
        remark_twins(c, text);
    }
    return status == ALLOT_OK && c->speeds ? print_speeds(c, err) : status;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_mean(json_t *object, const char *key, struct measure_mean value)
{
    json_put(object, key, json_mean(value.mean, value.se));
}

static json_t *stats_json(const struct measure_stats *s)
{
    json_t *object = json_object();
    json_put(object, "windows", json_integer(s->n_windows));
    json_put(object, "tokens", json_integer(s->n_tokens));
    put_mean(object, "kl", s->kl);
    json_put(object, "kl_se_tokens", json_number(s->kl_se_tokens));
    json_put(object, "kl_median", json_number(s->kl_median));
    json_put(object, "kl_p90", json_number(s->kl_p90));
    json_put(object, "kl_p99", json_number(s->kl_p99));
    json_put(object, "kl_p999", json_number(s->kl_p999));
    json_put(object, "kl_max", json_number(s->kl_max));
    put_mean(object, "nll_base", s->nll_base);
    put_mean(object, "nll", s->nll);
    json_put(object, "ppl_base", json_number(exp(s->nll_base.mean)));
    json_put(object, "ppl", json_number(exp(s->nll.mean)));
    put_mean(object, "ln_ppl_ratio", s->ln_ratio);
    put_mean(object, "same_top", s->same_top);
    json_put(object, "delta_p_rms", json_number(s->dp_rms));
    put_mean(object, "kl_minus_first", s->kl_minus_first);
    json_put(object, "tie_with_first", json_boolean(measure_is_tie(s->kl_minus_first)));
    return object;
}

/* Where the candidate stands beside every other, all texts pooled. */
static void put_place(json_t *pooled, const struct comparison *c, size_t candidate)
{
    const struct measure_place place = place_of(c, candidate);
    json_t *differences = json_array();
    for (size_t other = 0; other < c->result.n_candidates; other++) {
        const struct measure_mean d = c->result.differences[candidate * c->result.n_candidates + other];
        json_array_append_new(differences, json_pack("{s:o,s:o,s:b}", "mean", json_number(d.mean), "se",
                                                     json_number(d.se), "tie", (int)measure_is_tie(d)));
    }
    json_put(pooled, "kl_minus", differences); /* in the order of "candidates" */
    json_put(pooled, "front", json_boolean(place.beaten_by == SIZE_MAX));
    json_put(pooled, "beaten_by",
             place.beaten_by == SIZE_MAX ? json_null() : json_text(c->candidates[place.beaten_by]));
    json_put(pooled, "ties_with",
             place.ties_with == SIZE_MAX ? json_null() : json_text(c->candidates[place.ties_with]));
}

static json_t *speeds_json(const struct comparison *c)
{
    json_t *object = json_object(), *models = json_array();
    for (size_t i = 0; i <= c->result.n_candidates; i++) {
        json_t *entry = json_object();
        json_put(entry, "path", json_text(timed_model(c, i)));
        json_put(entry, "prompt_tokens_per_second", json_number(c->speeds[i].prompt));
        json_put(entry, "generation_tokens_per_second", json_number(c->speeds[i].generation));
        json_array_append_new(models, entry);
    }
    json_put(object, "threads", json_integer(c->timing.n_threads));
    json_put(object, "prompt_tokens", json_integer(c->timing.n_prompt));
    json_put(object, "generated_tokens", json_integer(c->timing.n_generate));
    json_put(object, "repetitions", json_integer(c->timing.n_repetitions));
    json_put(object, "models", models);
    return object;
}

static json_t *overlap_json(const struct comparison *c, size_t text)
{
    const struct seen_overlap *o = &c->overlaps[text];
    json_t *entry = json_object();
    json_put(entry, "text", json_text(c->args->texts.items[text]));
    json_put(entry, "share", o->known ? json_number(o->share) : json_null());
    json_put(entry, "seen_by", o->known ? json_text(o->what) : json_null());
    return entry;
}

static allot_status print_json(const struct comparison *c, struct allot_error *err)
{
    json_t *document = json_object(), *candidates = json_array(), *overlaps = json_array();
    for (size_t candidate = 0; candidate < c->result.n_candidates; candidate++) {
        json_t *entry = json_object(), *texts = json_array();
        for (size_t text = 0; text < c->result.n_texts; text++) {
            json_t *stats = stats_json(stats_of(c, candidate, text));
            json_put(stats, "text", json_text(c->args->texts.items[text]));
            json_put(stats, "text_sha256", json_text(c->result.text_sha256[text]));
            json_array_append_new(texts, stats);
        }
        json_put(entry, "path", json_text(c->candidates[candidate]));
        json_put(entry, "bytes", json_integer(c->sizes[candidate]));
        json_put(entry, "texts", texts);
        json_t *pooled = stats_json(stats_of(c, candidate, c->result.n_texts));
        put_place(pooled, c, candidate);
        json_put(entry, "pooled", pooled);
        json_array_append_new(candidates, entry);
    }
    for (size_t text = 0; text < c->result.n_texts; text++)
        json_array_append_new(overlaps, overlap_json(c, text));
    json_put(document, "base", json_text(c->base));
    json_put(document, "ctx", json_integer(c->args->ctx));
    json_put(document, "calibration_overlap", overlaps);
    json_put(document, "candidates", candidates);
    if (c->speeds)
        json_put(document, "speed", speeds_json(c));
    return json_print(document, err);
}

/* ---- Keeping results ----------------------------------------------------------------------------------- */

static allot_status store_candidate(const struct comparison *c, struct model_job *job, size_t candidate,
                                    const struct allot_progress *progress, struct allot_error *err)
{
    struct gguf_model *model = NULL;
    char sha256[65], settings[192];
    allot_status status = gguf_model_open(&model, c->candidates[candidate], err);
    if (status == ALLOT_OK)
        status = cached_model_sha256(job->archive, model, sha256, progress, err);
    gguf_model_close(model);
    snprintf(settings, sizeof settings, "ctx=%" PRId64 " windows=%" PRId64 " %s", c->args->ctx,
             c->args->windows, cost_version());
    for (size_t text = 0; status == ALLOT_OK && text < c->result.n_texts; text++) {
        json_t *stats = stats_json(stats_of(c, candidate, text));
        char *document = json_dumps(stats, JSON_COMPACT | JSON_REAL_PRECISION(12));
        status = document ? archive_measurement_put(job->archive, job->sha256, sha256,
                                                    c->result.text_sha256[text], settings, document, err)
                          : allot_fail_memory(err, 4096, "a measurement");
        free(document);
        json_decref(stats);
    }
    return status;
}

/* The measurement is done and printed whether or not it can be kept. */
static void store_results(const struct comparison *c, const struct allot_progress *progress)
{
    struct model_job job = {0};
    struct allot_error err = {0};
    allot_status status = model_job_open(&job, c->base, &c->args->common, &err);
    if (status == ALLOT_OK)
        status = model_job_archive(&job, ARCHIVE_CREATE, &err);
    if (status == ALLOT_OK)
        status = model_job_hash(&job, progress, &err);
    for (size_t candidate = 0; status == ALLOT_OK && candidate < c->result.n_candidates; candidate++)
        status = store_candidate(c, &job, candidate, progress, &err);
    model_job_release(&job);
    if (status != ALLOT_OK)
        allot_note(progress, "the measurement was not kept: %s", err.message);
}

static allot_status candidate_sizes(struct comparison *c, size_t n, struct allot_error *err)
{
    c->sizes = calloc(n, sizeof *c->sizes);
    if (!c->sizes)
        return allot_fail_memory(err, n * sizeof *c->sizes, "sizes");
    allot_status status = ALLOT_OK;
    for (size_t i = 0; status == ALLOT_OK && i < n; i++) {
        struct gguf_model *model = NULL;
        status = gguf_model_open(&model, c->candidates[i], err);
        if (status == ALLOT_OK)
            c->sizes[i] = model->total_bytes;
        gguf_model_close(model);
    }
    return status;
}

/* ---- What calibration saw of the texts ---------------------------------------------------------- */

static allot_status compare_texts(struct comparison *c, const struct model_job *job, struct allot_error *err)
{
    struct text_vocab *vocab = NULL;
    allot_status status = text_vocab_open(&vocab, model_first_path(job->model), err);
    for (size_t text = 0; text < c->args->texts.n && status == ALLOT_OK; text++) {
        struct text_windows windows;
        status = text_windows_from_files(&windows, vocab, &c->args->texts.items[text], 1,
                                         (int32_t)c->args->ctx, c->args->windows, err);
        if (status != ALLOT_OK)
            break;
        status = seen_text_overlap(&c->overlaps[text], job->archive, job->sha256, &windows, err);
        text_windows_release(&windows);
    }
    text_vocab_close(vocab);
    return status;
}

/* Of the windows that are measured. The measurement goes on without an archive, or with one that fails. */
static allot_status find_overlaps(struct comparison *c, const struct allot_progress *progress,
                                  struct allot_error *err)
{
    struct model_job job = {0};
    struct allot_error cause = {0};
    c->overlaps = calloc(c->args->texts.n + 1, sizeof *c->overlaps);
    if (!c->overlaps)
        return allot_fail_memory(err, c->args->texts.n * sizeof *c->overlaps, "texts");
    allot_status status = model_job_open(&job, c->base, &c->args->common, &cause);
    if (status == ALLOT_OK && access(job.archive_path, F_OK) == 0) {
        status = model_job_archive(&job, ARCHIVE_OPPORTUNISTIC, &cause);
        if (status == ALLOT_OK && job.archive)
            status = model_job_hash(&job, progress, &cause);
        if (status == ALLOT_OK && job.archive)
            status = compare_texts(c, &job, &cause);
    }
    model_job_release(&job);
    if (status == ALLOT_ERR_INTERRUPTED) {
        *err = cause;
        return status;
    }
    if (status != ALLOT_OK)
        allot_note(progress, "whether calibration saw the texts is not known: %s", cause.message);
    return ALLOT_OK;
}

static allot_status measure_speeds(struct comparison *c, const struct allot_progress *progress,
                                   struct allot_error *err)
{
    const struct string_list *models = &c->args->common.operands;
    c->timing = (struct throughput_options){.text = c->args->texts.items[0],
                                            .n_prompt = (int32_t)c->args->ctx,
                                            .n_generate = TOKENS_ONE_BY_ONE,
                                            .n_repetitions = REPETITIONS,
                                            .n_threads = (int)c->args->common.threads};
    c->speeds = calloc(models->n, sizeof *c->speeds);
    if (!c->speeds)
        return allot_fail_memory(err, models->n * sizeof *c->speeds, "speeds");
    return throughput_measure(c->speeds, &c->timing.n_threads, models->items, models->n, &c->timing, progress,
                              err);
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct measure_arguments *args = arguments;
    const struct string_list *operands = &args->common.operands;
    struct comparison c = {.args = args, .base = operands->items[0], .candidates = operands->items + 1};
    const struct measure_options measure = {
        .n_ctx = (int32_t)args->ctx, .max_windows = args->windows, .n_threads = (int)args->common.threads};

    allot_status status = candidate_sizes(&c, operands->n - 1, err);
    if (status == ALLOT_OK)
        status = measure_run(&c.result, c.base, c.candidates, operands->n - 1, args->texts.items,
                             args->texts.n, &measure, progress, err);
    if (status == ALLOT_OK)
        status = find_overlaps(&c, progress, err);
    if (status == ALLOT_OK)
        store_results(&c, progress);
    if (status == ALLOT_OK && args->speed)
        status = measure_speeds(&c, progress, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = args->common.json ? print_json(&c, err) : print_text(&c, err);
    measure_result_release(&c.result);
    free(c.sizes);
    free(c.overlaps);
    free(c.speeds);
    return status;
}

const struct command command_measure = {
    .name = "measure",
    .synopsis = "BASE CANDIDATE... -f TEXT... [options]",
    .summary = "KL divergence, perplexity and top-token agreement with the original",
    .description =
        "Runs BASE and the candidates over the texts with libllama's own kernels, on the windows "
        "and positions of "
        "llama-perplexity --kl-divergence, and prints mean KL divergence with its standard error "
        "over windows, "
        "percentiles, perplexity, the paired change of ln PPL, and how often the likeliest token "
        "is the same. KL - first is the paired difference of KL to the first candidate; within "
        "two standard errors it is called a tie. The front is marked * where no other candidate that "
        "is no larger has a lower KL, all texts together and beyond a tie; else the best of those "
        "that have is named. "
        "Results are kept in BASE's archive where that can be written; where it holds what "
        "calibration saw, texts that share more than 2 % of their tokens with it are named.",
    .options = {&options},
    .arguments_size = sizeof(struct measure_arguments),
    .min_operands = 2,
    .max_operands = SIZE_MAX,
    .check = check,
    .run = run,
};
