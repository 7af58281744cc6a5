/* cmd_report.c - allot report: the result of a search as a page.  SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "job.h"
#include "output.h"
#include "report.h"

struct report_arguments {
    struct common_arguments common;
    const char *output, *markdown;
};

static const struct option_row rows[] = {
    {"output", 'o', "FILE", OPTION_STRING, offsetof(struct report_arguments, output), NULL, 0,
     "write the page there: HTML"},
    {"markdown", 0, "FILE", OPTION_STRING, offsetof(struct report_arguments, markdown), NULL, 0,
     "write tables for a model card there: Markdown"},
};
static const struct option_set options = OPTION_SET(rows);

static allot_status check(const void *arguments, struct allot_error *err)
{
    const struct report_arguments *args = arguments;
    if (!args->output && !args->markdown)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "report: nothing to write (-o FILE, --markdown FILE)");
    if (args->output && args->markdown && file_same_place(args->output, args->markdown))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "report: -o and --markdown are the same file");
    return ALLOT_OK;
}

typedef allot_status format(struct strbuf *sb, const struct report_result *result, struct allot_error *err);

static allot_status write_as(const char *path, format *as, const struct report_result *result,
                             struct allot_error *err)
{
    struct strbuf sb = {0};
    if (!path)
        return ALLOT_OK;
    allot_status status = as(&sb, result, err);
    if (status == ALLOT_OK)
        status = file_write_all(path, sb.data, sb.len, err);
    strbuf_release(&sb);
    return status;
}

static allot_status print_summary(const struct report_arguments *args, const struct report_result *result,
                                  struct allot_error *err)
{
    size_t n;
    free(report_survivors(result, &n));
    if (args->common.json) {
        json_t *document = json_object();
        json_put(document, "html", args->output ? json_text(args->output) : json_null());
        json_put(document, "markdown", args->markdown ? json_text(args->markdown) : json_null());
        json_put(document, "survivors", json_integer((json_int_t)n));
        json_put(document, "candidates", json_integer((json_int_t)result->n_candidates));
        return json_print(document, err);
    }
    printf("%zu survivors of %zu candidates\nwritten: %s%s%s\n", n, result->n_candidates,
           args->output ? args->output : "", args->output && args->markdown ? ", " : "",
           args->markdown ? args->markdown : "");
    return ALLOT_OK;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct report_arguments *args = arguments;
    const char *path = args->common.operands.items[0];
    const struct model_job no_model = {0};
    const struct job_inputs inputs = {{path}, NULL};
    struct report_result result = {0};
    (void)progress;
    allot_status status = job_check_output(&no_model, &inputs, args->output, err);
    if (status == ALLOT_OK)
        status = job_check_output(&no_model, &inputs, args->markdown, err);
    if (status == ALLOT_OK)
        status = report_read(&result, path, err);
    if (status == ALLOT_OK)
        status = write_as(args->output, report_html, &result, err);
    if (status == ALLOT_OK)
        status = write_as(args->markdown, report_markdown, &result, err);
    if (status == ALLOT_OK)
        status = print_summary(args, &result, err);
    report_release(&result);
    return status;
}

const struct command command_report = {
    .name = "report",
    .synopsis = "RESULT (-o FILE | --markdown FILE) [options]",
    .summary = "the result of a search as one page, or as tables for a model card",
    .description =
        "Reads the JSON document that a search ends with (docs/search-result.md) and writes what people want "
        "to see of it: the survivors with KL, size and perplexity, the plot of size against KL with every "
        "candidate, why the others were removed, how the anchors fared, maps of types and costs by layer and "
        "role, predictions beside measurements, and the identities of everything. The page is one file "
        "without "
        "scripts that loads nothing from elsewhere.",
    .options = {&options},
    .arguments_size = sizeof(struct report_arguments),
    .min_operands = 1,
    .max_operands = 1,
    .check = check,
    .run = run,
};
