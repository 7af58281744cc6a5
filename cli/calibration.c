/* calibration.c - the imatrix and the costs of a model from calibration texts, kept in its archive.
 * SPDX-License-Identifier: MIT */
#include "calibration.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "cost/collect.h"
#include "cost/version.h"
#include "own_text.h"
#include "quant/quant.h"
#include "seen_text.h"

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define ROW(name_, letter_, arg_, kind_, member_, fallback_, min_, help_)                                   \
    {                                                                                                       \
        name_, letter_, arg_, kind_, offsetof(struct calibrated_arguments, member_), fallback_, min_, help_ \
    }

static const struct option_row rows[] = {
    ROW("file", 'f', "TEXT", OPTION_STRINGS, texts, NULL, 0,
        "calibration text; without any, and without costs on record for quantize, the model writes its own"),
    ROW("imatrix", 0, "FILE", OPTION_STRING, imatrix, NULL, 0,
        "importance matrix to quantize with; without it one is computed from the texts"),
    ROW("no-imatrix", 0, NULL, OPTION_FLAG, no_imatrix, NULL, 0, "quantize without an importance matrix"),
    ROW("imatrix-chunks", 0, "N", OPTION_INT, imatrix_chunks, "64", 0,
        "windows of 512 tokens for the computed importance matrix, and for compensated rounding; 0: all of "
        "the texts, or 64 of the model's "
        "own"),
    ROW("types", 0, "LIST", OPTION_STRING, types, NULL, 0,
        "candidate types, such as Q4_K,Q6_K,Q8_0; quantize keeps a tensor's own type only if the list names "
        "it or nothing on it fits; without a list those that suit ordinary weights"),
    ROW("sequences", 0, "N", OPTION_INT, sequences, TEXT_OF(FISHER_DEFAULT_SEQUENCES), 1,
        "calibration sequences for the costs, spread evenly over the texts; with --method probe " TEXT_OF(
            PROBE_DEFAULT_SEQUENCES) " unless given, with exact " TEXT_OF(EXACT_DEFAULT_SEQUENCES)),
    ROW("seq-len", 0, "N", OPTION_INT, sequence_length, TEXT_OF(FISHER_DEFAULT_SEQUENCE_LENGTH), 8,
        "tokens of each of them"),
    ROW("chunk", 0, "N", OPTION_INT, chunk, TEXT_OF(FISHER_DEFAULT_CHUNK), 1,
        "tokens over which an error is summed before it is squared, beside four times as many; "
        "divides the sequence"),
    ROW("seed", 0, "N", OPTION_INT, seed, TEXT_OF(FISHER_DEFAULT_SEED), 0,
        "of the labels drawn from the model"),
    ROW("text-seed", 0, "N", OPTION_INT, text_seed, "1", 0, "of the text that the model writes without -f"),
    MEMORY_ROW(offsetof(struct calibrated_arguments, memory)),
    ROW("method", 0, "METHOD", OPTION_STRING, method, "fisher", 0,
        "fisher: costs from one backward pass; probe: from a forward pass per tensor, for any model that "
        "libllama runs and memory holds; exact: from a forward pass per tensor and type, for small models; "
        "weight: from weights and imatrix alone, for a preview (relative errors, not nats)"),
};
const struct option_set calibration_options = OPTION_SET(rows);
const struct option_set calibration_methodless_options = {rows, sizeof rows / sizeof *rows - 1};

static const struct option_row rounding_rows[] = {
    ROW("rounding", 0, "HOW", OPTION_STRING, rounding, "ggml", 0,
        "ggml: the bytes of llama-quantize; compensated: codes chosen so that the errors of a row make up "
        "for "
        "each other on the texts, where windows held out bear that out"),
};
const struct option_set rounding_options = OPTION_SET(rounding_rows);

const char *calibration_run_option(size_t i)
{
    static const char *const names[] = {"imatrix-chunks", "method", "sequences", "seq-len",
                                        "chunk",          "seed",   "text-seed"};
    return i < sizeof names / sizeof *names ? names[i] : NULL;
}

/* What each method needs, and the options that it does not heed. */
static const struct method {
    const char *name;
    enum calibration_means means;
    int64_t default_sequences;
    const char *unheeded[5];
} methods[] = {
    {"fisher", BY_NET, FISHER_DEFAULT_SEQUENCES, {NULL}},
    {"probe", BY_LIBLLAMA, PROBE_DEFAULT_SEQUENCES, {"chunk", "seed"}},
    {"exact", BY_NET, EXACT_DEFAULT_SEQUENCES, {"chunk", "seed"}},
    {"weight", BY_EITHER, 0, {"chunk", "seed", "sequences", "seq-len"}},
};
enum { N_METHODS = sizeof methods / sizeof *methods };

static const struct method *find_method(const struct calibrated_arguments *args)
{
    for (size_t i = 0; i < N_METHODS; i++)
        if (strcmp(args->method, methods[i].name) == 0)
            return &methods[i];
    return NULL;
}

static allot_status check_method(const struct calibrated_arguments *args, struct allot_error *err)
{
    const struct method *method = find_method(args);
    if (!method)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--method: '%s' is not one of fisher, probe, exact, weight", args->method);
    for (size_t i = 0; method->unheeded[i]; i++)
        if (string_list_has(&args->sized.common.given, method->unheeded[i]))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --method %s exclude each other",
                              method->unheeded[i], method->name);
    return ALLOT_OK;
}

static bool by_weight(const struct calibrated_arguments *args)
{
    return strcmp(args->method, "weight") == 0;
}

bool calibration_needs_text(const struct calibrated_arguments *args)
{
    return !by_weight(args) || !(args->imatrix || args->no_imatrix);
}

bool calibration_wanted(const struct calibrated_arguments *args)
{
    const char *name;
    for (size_t i = 0; (name = calibration_run_option(i)) != NULL; i++)
        if (string_list_has(&args->sized.common.given, name))
            return true;
    return args->texts.n > 0;
}

json_t *calibration_text_seed(const struct calibrated_arguments *args)
{
    return args->texts.n || !calibration_needs_text(args) ? json_null() : json_integer(args->text_seed);
}

allot_status calibration_check(const struct calibrated_arguments *args, struct allot_error *err)
{
    struct type_set set;
    if (check_method(args, err) != ALLOT_OK)
        return err->status;
    if (strcmp(args->method, "fisher") == 0 && args->sequence_length % args->chunk != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--chunk: %" PRId64 " does not divide --seq-len %" PRId64,
                          args->chunk, args->sequence_length);
    if (args->imatrix && args->no_imatrix)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--imatrix and --no-imatrix exclude each other");
    if ((args->imatrix || args->no_imatrix) && !rounding_compensates(args->rounding) &&
        string_list_has(&args->sized.common.given, "imatrix-chunks"))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--imatrix-chunks and --%s exclude each other",
                          args->imatrix ? "imatrix" : "no-imatrix");
    if (string_list_has(&args->sized.common.given, "text-seed") &&
        (args->texts.n || !calibration_needs_text(args)))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--text-seed is heeded only where the model writes the text itself");
    if (rounding_check(args->rounding, &args->texts, err) != ALLOT_OK)
        return err->status;
    if (rounding_compensates(args->rounding) && strcmp(args->method, "fisher") != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--rounding compensated and --method %s exclude each other: its costs are fisher's",
                          args->method);
    return type_set_parse(&set, args->types, err);
}

allot_status calibration_rounding(struct rounding_job *out, const struct model_job *job,
                                  const struct calibrated_arguments *args, struct allot_error *err)
{
    return rounding_job_open(out, args->rounding, job, &args->texts, IMATRIX_CONTEXT, args->imatrix_chunks,
                             err);
}

enum calibration_means calibration_method(const struct calibrated_arguments *args)
{
    return calibration_needs_text(args) ? find_method(args)->means : BY_NOTHING;
}

static int64_t n_sequences(const struct calibrated_arguments *args)
{
    if (string_list_has(&args->sized.common.given, "sequences"))
        return args->sequences;
    return find_method(args)->default_sequences;
}

static allot_status open_net(struct calibration *c, const struct gguf_model *model,
                             enum calibration_means means, struct allot_error *err)
{
    struct allot_error cause;
    allot_status status = net_open(&c->net, model, &cause);
    c->has_net = status == ALLOT_OK;
    if (status == ALLOT_OK || (status == ALLOT_ERR_UNSUPPORTED && means == BY_EITHER))
        return ALLOT_OK;
    return allot_fail(
        err, status, "%s%s", cause.message,
        status == ALLOT_ERR_UNSUPPORTED ? "; --method probe works for any model that libllama runs" : "");
}

allot_status calibration_open(struct calibration *c, struct model_job *job, struct pool *pool, int64_t memory,
                              enum calibration_means means, struct allot_error *err)
{
    memset(c, 0, sizeof *c);
    const bool uses_net = means == BY_NET || means == BY_EITHER;
    allot_status status = uses_net ? open_net(c, job->model, means, err) : ALLOT_OK;
    if (status != ALLOT_OK)
        return status;
    c->job = job;
    c->pool = pool;
    c->folder = file_folder(job->archive_path);
    c->memory = (struct memory_budget){memory ? memory : memory_default_limit(), c->folder};
    status = c->folder ? ALLOT_OK : allot_fail_memory(err, strlen(job->archive_path), "a path");
    if (status == ALLOT_OK && means != BY_NOTHING)
        status = text_vocab_open(&c->vocab, model_first_path(job->model), err);
    if (status != ALLOT_OK)
        calibration_close(c);
    return status;
}

/* Few sequences are some of the default ones, so that costs of different methods tell of the same text. */
static allot_status read_sequences(struct calibration *c, const struct calibrated_arguments *args,
                                   struct allot_error *err)
{
    const struct string_list *texts = &args->texts;
    const int64_t n = n_sequences(args), n_read = n > FISHER_DEFAULT_SEQUENCES ? n : FISHER_DEFAULT_SEQUENCES;
    allot_status status = text_windows_from_files(&c->sequences, c->vocab, texts->items, texts->n,
                                                  (int32_t)args->sequence_length, n_read, err);
    return status == ALLOT_OK ? text_windows_thin(&c->sequences, n, err) : status;
}

allot_status calibration_read(struct calibration *c, const struct calibrated_arguments *args,
                              const struct allot_progress *progress, struct allot_error *err)
{
    const struct string_list *texts = &args->texts;
    allot_status status = ALLOT_OK;
    if (args->imatrix)
        status = job_imatrix_read(&c->imatrix, args->imatrix, c->job->model, progress, err);
    else if (!args->no_imatrix && texts->n)
        status = text_windows_from_files(&c->imatrix_windows, c->vocab, texts->items, texts->n,
                                         IMATRIX_CONTEXT, args->imatrix_chunks, err);
    if (status == ALLOT_OK && !by_weight(args) && texts->n)
        status = read_sequences(c, args, err);
    if (status == ALLOT_OK && c->has_net && !by_weight(args) && args->sequence_length > c->net.n_ctx_trained)
        allot_note(progress,
                   "%s was trained on %" PRId64 " tokens of context, the sequences have %" PRId64
                   ": shorter ones tell more of text within it",
                   c->job->model->path, c->net.n_ctx_trained, args->sequence_length);
    return status;
}

allot_status calibration_more_sequences(struct text_windows *out, const struct calibration *c,
                                        const struct calibrated_arguments *args, int64_t n,
                                        struct allot_error *err)
{
    return text_windows_from_files(out, c->vocab, args->texts.items, args->texts.n, c->sequences.n_ctx, n,
                                   err);
}

void calibration_close(struct calibration *c)
{
    job_imatrix_release(&c->imatrix);
    text_windows_release(&c->imatrix_windows);
    text_windows_release(&c->sequences);
    text_vocab_close(c->vocab);
    net_release(&c->net);
    free(c->folder);
    memset(c, 0, sizeof *c);
}

/* ---- Texts of the model's own ------------------------------------------------------------------ */

allot_status calibration_own_windows(struct calibration *c, int32_t n_ctx, int64_t max_windows, int64_t seed,
                                     const struct allot_progress *progress, struct allot_error *err)
{
    const int64_t n = max_windows < 1 ? IMATRIX_WINDOWS : max_windows;
    allot_note(progress,
               "no calibration text is given: the model writes its own, %" PRId64
               " windows of %d tokens for the importance matrix",
               n, n_ctx);
    return own_text_windows(&c->imatrix_windows, c->job, c->pool, OWN_TEXT_IMATRIX, n, n_ctx, seed, progress,
                            err);
}

static allot_status own_sequences(struct calibration *c, const struct calibrated_arguments *args,
                                  const struct allot_progress *progress, struct allot_error *err)
{
    allot_note(progress,
               "no calibration text is given: the model writes its own, %" PRId64 " sequences of %" PRId64
               " tokens for the costs",
               n_sequences(args), args->sequence_length);
    c->own_sequences = true;
    return own_text_windows(&c->sequences, c->job, c->pool, OWN_TEXT_COSTS, n_sequences(args),
                            (int32_t)args->sequence_length, args->text_seed, progress, err);
}
/* ---- Costs --------------------------------------------------------------------------------------------- */

allot_status calibration_types(enum ggml_type out[static GGML_TYPE_COUNT], size_t *n,
                               const struct calibrated_arguments *args, struct allot_error *err)
{
    struct type_set named, allowed;
    size_t n_all, kept = 0;
    allot_status status = type_set_parse(&named, args->types, err);
    if (status == ALLOT_OK)
        status = constraint_types(&allowed, args->types, args->sized.constraints.compat, err);
    if (status != ALLOT_OK)
        return status;
    n_all = calibration_candidates(out, &named);
    for (size_t i = 0; i < n_all; i++)
        if (!allowed.given || allowed.has[out[i]])
            out[kept++] = out[i];
    *n = kept;
    return ALLOT_OK;
}

size_t calibration_candidates(enum ggml_type out[static GGML_TYPE_COUNT], const struct type_set *set)
{
    size_t n_known, n = 0;
    const struct quant_type *known = quant_types(&n_known);
    for (size_t i = 0; i < n_known; i++)
        if (set->given ? set->has[known[i].type] : known[i].default_candidate)
            out[n++] = known[i].type;
    return n;
}

static allot_status find_set(struct archive_cost_set_info *info, struct model_job *job, int64_t set_id,
                             struct allot_error *err)
{
    struct archive_cost_set_info *sets = NULL;
    size_t n = 0;
    allot_status status = archive_cost_sets(job->archive, job->sha256, &sets, &n, err);
    bool found = false;
    for (size_t i = 0; status == ALLOT_OK && i < n && !found; i++)
        if ((found = sets[i].id == set_id))
            *info = sets[i];
    free(sets);
    if (status == ALLOT_OK && !found)
        return allot_fail(err, ALLOT_ERR_INTERNAL, "%s: the new set of costs is not there",
                          job->archive_path);
    return status;
}

/* Finds or makes the set of these costs, and marks it as used. Costs from no text have none in their key: the
 * imatrix, if there is one, stands for its own. */
static allot_status open_set(int64_t *set_id, const struct calibration *c, const struct job_imatrix *im,
                             const char *method, const char *params, struct allot_error *err)
{
    const struct text_windows *windows = &c->sequences;
    const struct archive_cost_key key = {
        .model_sha256 = c->job->sha256,
        .text_sha256 = windows->sha256, /* "" without */
        .imatrix_sha256 = im->present ? im->data.sha256 : "",
        .method = method,
        .params = params,
        .version = cost_version(),
    };
    allot_status status = archive_cost_set(c->job->archive, &key, set_id, err);
    if (status == ALLOT_OK)
        status = archive_cost_set_touch(c->job->archive, *set_id, windows->n * windows->n_ctx, err);
    if (status == ALLOT_OK && windows->n > 0)
        status = seen_text_put(c->job->archive, windows, c->own_sequences, err);
    return status;
}

static allot_status fisher_costs(struct calibration_result *result, int64_t *set_id, struct calibration *c,
                                 const struct fisher_options *options, const struct job_imatrix *im,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    char params[FISHER_PARAMS];
    fisher_params(params, options);
    allot_status status = open_set(set_id, c, im, "fisher", params, err);
    if (status == ALLOT_OK)
        status = fisher_run(&result->fisher, &c->net, c->pool, &c->sequences, im->present ? &im->data : NULL,
                            options, c->job->archive, *set_id, progress, err);
    result->n_unsuited = result->fisher.n_unsuited;
    result->n_resumed = result->fisher.n_resumed;
    return status;
}

static allot_status probe_costs(struct calibration_result *result, int64_t *set_id, struct calibration *c,
                                const struct probe_options *options, const struct job_imatrix *im,
                                const struct allot_progress *progress, struct allot_error *err)
{
    char params[64];
    probe_params(params);
    allot_status status = open_set(set_id, c, im, "probe", params, err);
    if (status == ALLOT_OK)
        status = probe_run(&result->probe, c->job->model, c->pool, &c->sequences,
                           im->present ? &im->data : NULL, options, c->job->archive, *set_id, progress, err);
    result->n_unsuited = result->probe.n_unsuited;
    result->n_resumed = result->probe.n_resumed;
    return status;
}

static allot_status weight_costs(struct calibration_result *result, int64_t *set_id, struct calibration *c,
                                 const struct weight_options *options, const struct job_imatrix *im,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    char params[64];
    weight_params(params);
    allot_status status = open_set(set_id, c, im, "weight", params, err);
    if (status == ALLOT_OK)
        status = weight_run(&result->weight, c->job->model, c->pool, im->present ? &im->data : NULL, options,
                            c->job->archive, *set_id, progress, err);
    result->n_unsuited = result->weight.n_unsuited;
    result->n_resumed = result->weight.n_resumed;
    return status;
}

static allot_status exact_costs(struct calibration_result *result, int64_t *set_id, struct calibration *c,
                                const struct exact_options *options, const struct job_imatrix *im,
                                const struct allot_progress *progress, struct allot_error *err)
{
    char params[64];
    exact_params(params, &c->net);
    allot_status status = open_set(set_id, c, im, "exact", params, err);
    if (status == ALLOT_OK)
        status = exact_run(&result->exactly, &c->net, c->pool, &c->sequences, im->present ? &im->data : NULL,
                           options, c->job->archive, *set_id, progress, err);
    result->n_unsuited = result->exactly.n_unsuited;
    result->n_resumed = result->exactly.n_resumed;
    return status;
}

allot_status calibration_costs(struct calibration_result *result, struct calibration *c,
                               const struct calibrated_arguments *args, const struct job_imatrix *im,
                               const struct allot_progress *progress, struct allot_error *err)
{
    enum ggml_type types[GGML_TYPE_COUNT];
    size_t n_types;
    int64_t set_id = 0;
    memset(result, 0, sizeof *result);
    allot_status status = calibration_types(types, &n_types, args, err);
    if (status == ALLOT_OK && !args->texts.n && !by_weight(args))
        status = own_sequences(c, args, progress, err);
    if (status != ALLOT_OK)
        return status;
    if (c->rounding)
        status = rounding_job_collect(c->rounding, c->job, c->pool, c->memory.limit, progress, err);
    if (status != ALLOT_OK)
        return status;
    const struct fisher_options fisher = {(int32_t)args->chunk,
                                          (uint64_t)args->seed,
                                          types,
                                          n_types,
                                          &c->memory,
                                          c->rounding ? rounding_job_hooks(c->rounding) : NULL,
                                          c->rounding ? c->rounding->name : NULL};
    const struct probe_options probe = {types, n_types, &c->memory};
    const struct exact_options exact = {types, n_types, &c->memory};
    const struct weight_options weight = {types, n_types};
    result->method = find_method(args)->name;
    if (strcmp(args->method, "exact") == 0)
        status = exact_costs(result, &set_id, c, &exact, im, progress, err);
    else if (by_weight(args))
        status = weight_costs(result, &set_id, c, &weight, im, progress, err);
    else if (strcmp(args->method, "probe") == 0)
        status = probe_costs(result, &set_id, c, &probe, im, progress, err);
    else
        status = fisher_costs(result, &set_id, c, &fisher, im, progress, err);
    if (status == ALLOT_ERR_INTERRUPTED)
        return allot_fail(
            err, status,
            "interrupted; the costs of finished tensors are kept in %s, and the same command goes on "
            "from there",
            c->job->archive_path);
    return status == ALLOT_OK ? find_set(&result->set, c->job, set_id, err) : status;
}
