/* cmd_imatrix.c - allot imatrix: the importance matrix of a text.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "calibration.h"
#include "output.h"

struct imatrix_arguments {
    struct common_arguments common;
    struct string_list texts;
    const char *output;
    int64_t ctx, chunks, text_seed, memory;
};

static const struct option_row rows[] = {
    {"file", 'f', "TEXT", OPTION_STRINGS, offsetof(struct imatrix_arguments, texts), NULL, 0,
     "calibration text; without any the model writes its own"},
    {"output", 'o', "FILE", OPTION_STRING, offsetof(struct imatrix_arguments, output), NULL, 0,
     "where the importance matrix goes, in llama.cpp's GGUF form"},
    {"ctx", 0, "N", OPTION_INT, offsetof(struct imatrix_arguments, ctx), "512", 8, "tokens per window"},
    {"chunks", 0, "N", OPTION_INT, offsetof(struct imatrix_arguments, chunks), "0", 0,
     "windows at most, spread evenly over the texts; 0: all, or 64 of the model's own"},
    {"text-seed", 0, "N", OPTION_INT, offsetof(struct imatrix_arguments, text_seed), "1", 0,
     "of the text that the model writes without -f"},
    MEMORY_ROW(offsetof(struct imatrix_arguments, memory)),
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct imatrix_arguments *args = arguments;
    if (args->texts.n && string_list_has(&args->common.given, "text-seed"))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--text-seed and --file exclude each other");
    if (!args->output)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "imatrix: no output file (-o FILE)");
    return ALLOT_OK;
}

static allot_status print_result(const struct imatrix_arguments *args, const struct imatrix *im,
                                 struct allot_error *err)
{
    int64_t n_tokens = (int64_t)im->chunk_count * im->chunk_size;
    if (args->common.json) {
        json_t *document = json_object();
        json_put(document, "file", json_text(args->output));
        json_put(document, "entries", json_integer((json_int_t)im->n_entries));
        json_put(document, "windows", json_integer(im->chunk_count));
        json_put(document, "tokens", json_integer(n_tokens));
        json_put(document, "sha256", json_text(im->sha256));
        return json_print(document, err);
    }
    printf("%s: %zu entries from %" PRId64 " tokens (%" PRId32 " windows of %" PRId32 ")\n", args->output,
           im->n_entries, n_tokens, im->chunk_count, im->chunk_size);
    return ALLOT_OK;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct imatrix_arguments *args = arguments;
    struct model_job job = {0};
    struct calibration calibration = {0};
    struct job_imatrix im = {0};
    struct pool *pool = NULL;
    const struct job_inputs inputs = {.texts = &args->texts};

    allot_status status = model_job_open(&job, args->common.operands.items[0], &args->common, err);
    if (status == ALLOT_OK)
        status = job_check_output(&job, &inputs, args->output, err);
    if (status == ALLOT_OK)
        status = pool_new(&pool, (int)args->common.threads, err);
    if (status == ALLOT_OK)
        status = calibration_open(&calibration, &job, pool, args->memory, BY_EITHER, err);
    if (status == ALLOT_OK && args->texts.n)
        status = text_windows_from_files(&calibration.imatrix_windows, calibration.vocab, args->texts.items,
                                         args->texts.n, (int32_t)args->ctx, args->chunks, err);
    if (status == ALLOT_OK)
        status = model_job_archive(&job, ARCHIVE_OPPORTUNISTIC, err);
    if (status == ALLOT_OK && job.archive)
        status = model_job_hash(&job, progress, err);
    if (status == ALLOT_OK && !args->texts.n)
        status = calibration_own_windows(&calibration, (int32_t)args->ctx, args->chunks, args->text_seed,
                                         progress, err);
    if (status == ALLOT_OK)
        status = calibration_imatrix(&im, &calibration, &calibration.imatrix_windows,
                                     args->texts.n ? &args->texts : NULL, progress, err);
    if (status == ALLOT_OK)
        status = imatrix_write(&im.data, args->output, err);
    command_end_progress(progress);
    if (status == ALLOT_OK)
        status = print_result(args, &im.data, err);
    job_imatrix_release(&im);
    calibration_close(&calibration);
    pool_free(pool);
    model_job_release(&job);
    return status;
}

const struct command command_imatrix = {
    .name = "imatrix",
    .synopsis = "MODEL [-f TEXT...] -o FILE [options]",
    .summary = "importance matrix of calibration texts, in llama.cpp's form",
    .description =
        "Runs the texts through the model and writes the sums of squares of the inputs of every matrix, as "
        "llama-imatrix does, in the GGUF form that llama-quantize reads. Where allot does not know the "
        "model's architecture, libllama runs it, and memory has to hold it. Without "
        "-f the text is sampled from the model itself, by libllama too.",
    .options = {&options},
    .arguments_size = sizeof(struct imatrix_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
