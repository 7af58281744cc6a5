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
#include "quant/quant.h"

/* Kinds of blobs: an imatrix by its hash; the hash of the imatrix of given windows; the path of a user's
 * imatrix by its hash, in the bytes that the system has for it. */
static const char *const IMATRIX_KIND = "imatrix", *const IMATRIX_OF_KIND = "imatrix-of-windows",
                         *const IMATRIX_PATH_KIND = "imatrix-path";

enum { IMATRIX_CONTEXT = 512 };

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define ROW(name_, letter_, arg_, kind_, member_, fallback_, min_, help_)                                   \
    {                                                                                                       \
        name_, letter_, arg_, kind_, offsetof(struct calibrated_arguments, member_), fallback_, min_, help_ \
    }

static const struct option_row rows[] = {
    ROW("file", 'f', "TEXT", OPTION_STRINGS, texts, NULL, 0, "calibration text"),
    ROW("imatrix", 0, "FILE", OPTION_STRING, imatrix, NULL, 0,
        "importance matrix to quantize with; without it one is computed from the texts"),
    ROW("no-imatrix", 0, NULL, OPTION_FLAG, no_imatrix, NULL, 0, "quantize without an importance matrix"),
    ROW("imatrix-chunks", 0, "N", OPTION_INT, imatrix_chunks, "64", 0,
        "windows of 512 tokens for the computed importance matrix; 0: all of the texts"),
    ROW("types", 0, "LIST", OPTION_STRING, types, NULL, 0,
        "candidate types, such as Q4_K,Q6_K,Q8_0; quantize keeps a tensor's own type only if the list names "
        "it or nothing on it fits; without a list those that suit ordinary weights"),
    ROW("sequences", 0, "N", OPTION_INT, sequences, TEXT_OF(FISHER_DEFAULT_SEQUENCES), 1,
        "calibration sequences for the costs, spread evenly over the texts; with --method probe " TEXT_OF(
            PROBE_DEFAULT_SEQUENCES) " unless given, with exact " TEXT_OF(EXACT_DEFAULT_SEQUENCES)),
    ROW("seq-len", 0, "N", OPTION_INT, sequence_length, TEXT_OF(FISHER_DEFAULT_SEQUENCE_LENGTH), 8,
        "tokens of each of them"),
    ROW("chunk", 0, "N", OPTION_INT, chunk, TEXT_OF(FISHER_DEFAULT_CHUNK), 1,
        "tokens over which an error is summed before it is squared; divides the sequence"),
    ROW("seed", 0, "N", OPTION_INT, seed, TEXT_OF(FISHER_DEFAULT_SEED), 0,
        "of the labels drawn from the model"),
    MEMORY_ROW(offsetof(struct calibrated_arguments, memory)),
    ROW("method", 0, "METHOD", OPTION_STRING, method, "fisher", 0,
        "fisher: costs from one backward pass; probe: from a forward pass per tensor, for any model that "
        "libllama runs and memory holds; exact: from a forward pass per tensor and type, for small models"),
};
const struct option_set calibration_options = OPTION_SET(rows);
const struct option_set calibration_methodless_options = {rows, sizeof rows / sizeof *rows - 1};

const char *calibration_run_option(size_t i)
{
    static const char *const names[] = {"imatrix-chunks", "method", "sequences", "seq-len", "chunk", "seed"};
    return i < sizeof names / sizeof *names ? names[i] : NULL;
}

allot_status calibration_check(const struct calibrated_arguments *args, struct allot_error *err)
{
    static const char *const of_fisher[] = {"chunk", "seed"};
    struct type_set set;
    const bool fisher = strcmp(args->method, "fisher") == 0;
    if (!fisher && strcmp(args->method, "probe") != 0 && strcmp(args->method, "exact") != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--method: '%s' is not one of fisher, probe, exact",
                          args->method);
    for (size_t i = 0; !fisher && i < sizeof of_fisher / sizeof *of_fisher; i++)
        if (string_list_has(&args->sized.common.given, of_fisher[i]))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s and --method %s exclude each other",
                              of_fisher[i], args->method);
    if (fisher && args->sequence_length % args->chunk != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--chunk: %" PRId64 " does not divide --seq-len %" PRId64,
                          args->chunk, args->sequence_length);
    if (args->imatrix && args->no_imatrix)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--imatrix and --no-imatrix exclude each other");
    if ((args->imatrix || args->no_imatrix) && string_list_has(&args->sized.common.given, "imatrix-chunks"))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--imatrix-chunks and --%s exclude each other",
                          args->imatrix ? "imatrix" : "no-imatrix");
    return type_set_parse(&set, args->types, err);
}

enum calibration_means calibration_method(const struct calibrated_arguments *args)
{
    return strcmp(args->method, "probe") == 0 ? BY_LIBLLAMA : BY_NET;
}

static int64_t n_sequences(const struct calibrated_arguments *args)
{
    if (string_list_has(&args->sized.common.given, "sequences"))
        return args->sequences;
    if (strcmp(args->method, "exact") == 0)
        return EXACT_DEFAULT_SEQUENCES;
    return calibration_method(args) == BY_LIBLLAMA ? PROBE_DEFAULT_SEQUENCES : args->sequences;
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
    allot_status status = means == BY_LIBLLAMA ? ALLOT_OK : open_net(c, job->model, means, err);
    if (status != ALLOT_OK)
        return status;
    c->job = job;
    c->pool = pool;
    c->folder = file_folder(job->archive_path);
    c->memory = (struct memory_budget){memory ? memory : memory_default_limit(), c->folder};
    status = c->folder ? ALLOT_OK : allot_fail_memory(err, strlen(job->archive_path), "a path");
    if (status == ALLOT_OK)
        status = text_vocab_open(&c->vocab, model_first_path(job->model), err);
    if (status != ALLOT_OK)
        calibration_close(c);
    return status;
}

allot_status calibration_read(struct calibration *c, const struct calibrated_arguments *args,
                              const struct allot_progress *progress, struct allot_error *err)
{
    const struct string_list *texts = &args->texts;
    allot_status status = ALLOT_OK;
    if (args->imatrix)
        status = job_imatrix_read(&c->imatrix, args->imatrix, c->job->model, progress, err);
    else if (!args->no_imatrix)
        status = text_windows_from_files(&c->imatrix_windows, c->vocab, texts->items, texts->n,
                                         IMATRIX_CONTEXT, args->imatrix_chunks, err);
    if (status == ALLOT_OK)
        status = text_windows_from_files(&c->sequences, c->vocab, texts->items, texts->n,
                                         (int32_t)args->sequence_length, n_sequences(args), err);
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

/* ---- Imatrices in the archive ---------------------------------------------------------------- */

/* Reads the imatrix with this hash out of the archive, by way of a file in memory; im->present tells if it
 * was there. */
static allot_status load_imatrix(struct job_imatrix *im, struct model_job *job, const char *sha256,
                                 struct allot_error *err)
{
    void *data = NULL;
    size_t size = 0;
    int fd = -1;
    char path[32];
    allot_status status = archive_blob(job->archive, IMATRIX_KIND, sha256, &data, &size, err);
    if (status != ALLOT_OK || !data)
        return status;
    fd = memfd_create("imatrix", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0)
        status = allot_fail_memory(err, size, "an imatrix");
    else
        status = file_pwrite_all(fd, data, size, 0, path, err);
    if (status == ALLOT_OK)
        status = imatrix_read(&im->data, path, err);
    im->present = im->computed = status == ALLOT_OK;
    if (fd >= 0)
        close(fd);
    free(data);
    return status;
}

/* A name beside the archive for the moment in which an imatrix is a file. */
static char *scratch_path(const struct model_job *job)
{
    return text_printf("%s.%ld.imatrix", job->archive_path, (long)getpid());
}

/* Gives a computed imatrix its hash and keeps it under that and under the windows it came from. */
static allot_status store_imatrix(struct job_imatrix *im, struct model_job *job, const char *key,
                                  struct allot_error *err)
{
    struct file_map map = {0};
    char *path = scratch_path(job);
    if (!path)
        return allot_fail_memory(err, 64, "a path");
    allot_status status = imatrix_write(&im->data, path, err);
    if (status == ALLOT_OK)
        status = file_map_open(&map, path, err);
    if (status == ALLOT_OK)
        status = archive_blob_put(job->archive, IMATRIX_KIND, im->data.sha256, map.data, map.size, err);
    file_map_close(&map);
    unlink(path);
    free(path);
    if (status == ALLOT_OK)
        status = archive_blob_put(job->archive, IMATRIX_OF_KIND, key, im->data.sha256, 64, err);
    return status;
}

static allot_status find_imatrix(struct job_imatrix *im, struct model_job *job, const char *key,
                                 struct allot_error *err)
{
    char sha256[65] = "";
    void *data = NULL;
    size_t size = 0;
    allot_status status = archive_blob(job->archive, IMATRIX_OF_KIND, key, &data, &size, err);
    if (status == ALLOT_OK && data && size == 64) {
        memcpy(sha256, data, 64);
        status = load_imatrix(im, job, sha256, err);
    }
    free(data);
    return status;
}

allot_status calibration_imatrix(struct job_imatrix *im, struct calibration *c,
                                 const struct text_windows *windows, const struct string_list *texts,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    char *key = NULL;
    allot_status status = ALLOT_OK;
    memset(im, 0, sizeof *im);
    if (c->job->archive) {
        key = text_printf("%s %s %s%s", c->job->sha256, windows->sha256, cost_version(),
                          c->has_net ? "" : " libllama");
        status = key ? find_imatrix(im, c->job, key, err) : allot_fail_memory(err, 256, "a key");
    }
    if (status == ALLOT_OK && !im->present) {
        status = c->has_net ? imatrix_collect(&im->data, &c->net, c->pool, windows, texts->items, texts->n,
                                              &c->memory, progress, err)
                            : imatrix_collect_decoded(&im->data, c->job->model, c->pool, windows,
                                                      texts->items, texts->n, progress, err);
        im->present = im->computed = status == ALLOT_OK;
        if (status == ALLOT_OK && c->job->archive && !archive_is_read_only(c->job->archive))
            status = store_imatrix(im, c->job, key, err);
    }
    if (status != ALLOT_OK)
        job_imatrix_release(im);
    free(key);
    return status;
}

/* The costs will outlive this run, and be of use only with their imatrix. */
static allot_status remember_path(struct archive *archive, const struct job_imatrix *im,
                                  struct allot_error *err)
{
    char *path = realpath(im->path, NULL);
    if (!path)
        return allot_fail(err, ALLOT_ERR_IO, "%s: cannot resolve the path", im->path);
    allot_status status =
        archive_blob_put(archive, IMATRIX_PATH_KIND, im->data.sha256, path, strlen(path), err);
    free(path);
    return status;
}

allot_status calibration_chosen_imatrix(struct job_imatrix *im, struct calibration *c,
                                        const struct calibrated_arguments *args,
                                        const struct allot_progress *progress, struct allot_error *err)
{
    memset(im, 0, sizeof *im);
    if (args->no_imatrix)
        return ALLOT_OK;
    if (!args->imatrix)
        return calibration_imatrix(im, c, &c->imatrix_windows, &args->texts, progress, err);
    *im = c->imatrix;
    memset(&c->imatrix, 0, sizeof c->imatrix);
    return c->job->archive ? remember_path(c->job->archive, im, err) : ALLOT_OK;
}

/* Reads a user's imatrix from where it was; what is there now may be something else, or nothing. */
static allot_status load_remembered(struct job_imatrix *im, struct model_job *job, const char *sha256,
                                    const struct allot_progress *progress, struct allot_error *err)
{
    void *path = NULL;
    size_t size = 0;
    allot_status status = archive_blob(job->archive, IMATRIX_PATH_KIND, sha256, &path, &size, err);
    if (status == ALLOT_OK && path) {
        char *text = strndup(path, size);
        status = text ? job_imatrix_read(im, text, job->model, progress, err)
                      : allot_fail_memory(err, size, "a path");
        free(text);
        if (status == ALLOT_ERR_IO || status == ALLOT_ERR_FORMAT)
            status = ALLOT_OK;
    }
    free(path);
    return status;
}

allot_status calibration_imatrix_of_set(struct job_imatrix *im, struct model_job *job,
                                        const struct archive_cost_set_info *set,
                                        const struct allot_progress *progress, struct allot_error *err)
{
    memset(im, 0, sizeof *im);
    if (!set->imatrix_sha256[0])
        return ALLOT_OK;
    allot_status status = load_imatrix(im, job, set->imatrix_sha256, err);
    if (status == ALLOT_OK && !im->present)
        status = load_remembered(im, job, set->imatrix_sha256, progress, err);
    if (status == ALLOT_OK && im->present && strcmp(im->data.sha256, set->imatrix_sha256) == 0)
        return ALLOT_OK;
    job_imatrix_release(im);
    if (status != ALLOT_OK)
        return status;
    return allot_fail(
        err, ALLOT_ERR_ARGUMENT,
        "the imatrix of the costs in %s (SHA-256 %.16s...) is no longer where it was; quantize "
        "takes it with --imatrix, and the same 'allot cost' command with its new path makes it known",
        job->archive_path, set->imatrix_sha256);
}

/* ---- Costs
 * ------------------------------------------------------------------------------------------------- */

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

/* Finds or makes the set of these costs, and marks it as used. */
static allot_status open_set(int64_t *set_id, const struct calibration *c, const struct job_imatrix *im,
                             const char *method, const char *params, struct allot_error *err)
{
    const struct text_windows *windows = &c->sequences;
    const struct archive_cost_key key = {
        .model_sha256 = c->job->sha256,
        .text_sha256 = windows->sha256,
        .imatrix_sha256 = im->present ? im->data.sha256 : "",
        .method = method,
        .params = params,
        .version = cost_version(),
    };
    allot_status status = archive_cost_set(c->job->archive, &key, set_id, err);
    if (status == ALLOT_OK)
        status = archive_cost_set_touch(c->job->archive, *set_id, windows->n * windows->n_ctx, err);
    return status;
}

static allot_status fisher_costs(struct calibration_result *result, int64_t *set_id, struct calibration *c,
                                 const struct fisher_options *options, const struct job_imatrix *im,
                                 const struct allot_progress *progress, struct allot_error *err)
{
    char params[64];
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
    result->probed = true;
    allot_status status = open_set(set_id, c, im, "probe", params, err);
    if (status == ALLOT_OK)
        status = probe_run(&result->probe, c->job->model, c->pool, &c->sequences,
                           im->present ? &im->data : NULL, options, c->job->archive, *set_id, progress, err);
    result->n_unsuited = result->probe.n_unsuited;
    result->n_resumed = result->probe.n_resumed;
    return status;
}

static allot_status exact_costs(struct calibration_result *result, int64_t *set_id, struct calibration *c,
                                const struct exact_options *options, const struct job_imatrix *im,
                                const struct allot_progress *progress, struct allot_error *err)
{
    char params[64];
    exact_params(params, &c->net);
    result->exact = true;
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
    if (status != ALLOT_OK)
        return status;
    const struct fisher_options fisher = {(int32_t)args->chunk, (uint64_t)args->seed, types, n_types,
                                          &c->memory};
    const struct probe_options probe = {types, n_types, &c->memory};
    const struct exact_options exact = {types, n_types, &c->memory};
    if (strcmp(args->method, "exact") == 0)
        status = exact_costs(result, &set_id, c, &exact, im, progress, err);
    else if (calibration_method(args) == BY_LIBLLAMA)
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
