/* fixture.h - texts, changed copies of the tiny model, and the stock tools, for the tests of lib/measure.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEST_MEASURE_FIXTURE_H
#define ALLOT_TEST_MEASURE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "folder.h"
#include "ggml.h"
#include "gguf.h"
#include "measure/measure.h"
#include "tiny.h"

/* English that the tiny model knows a little about, the same on every machine: sentences from a small
 * grammar. */
static inline const char *write_english(const char *name, unsigned start, int n_sentences)
{
    static const char *const subjects[] = {"The program", "A small file",  "This function",
                                           "The user",    "Every license", "The first section",
                                           "Your copy",   "The server"};
    static const char *const verbs[] = {"returns",   "is part of",      "may not change",
                                        "writes",    "depends on",      "can be used with",
                                        "describes", "does not contain"};
    static const char *const objects[] = {"the source code",  "a list of values",
                                          "the same rights",  "other work",
                                          "an error message", "the terms of this agreement",
                                          "all of the data",  "its name and address"};
    static const char *const ends[] = {
        ".\n", ", if it exists. ", " and nothing else. ",          " when the system starts. ",
        ". ",  "; see below.\n\n", " (unless stated otherwise). ", ". "};
    const char *path = in_folder(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    unsigned x = start;
    for (int i = 0; i < n_sentences; i++) {
        x = x * 1664525u + 1013904223u;
        fprintf(file, "%s %s %s%s", subjects[x >> 29], verbs[x >> 26 & 7], objects[x >> 23 & 7],
                ends[x >> 20 & 7]);
    }
    assert_int_equal(fclose(file), 0);
    return path;
}

/* Copies the tiny model, all of it in memory, after letting `change` at its metadata and tensors. */
static inline const char *write_changed(const char *name, void (*change)(struct gguf_context *metadata,
                                                                         struct ggml_context *tensors))
{
    struct ggml_context *tensors = NULL;
    struct gguf_context *source =
        gguf_init_from_file(tiny_path, (struct gguf_init_params){.no_alloc = false, .ctx = &tensors});
    assert_non_null(source);
    struct gguf_context *copy = gguf_init_empty();
    gguf_set_kv(copy, source);
    struct ggml_tensor *members[128];
    int64_t n = gguf_get_n_tensors(source);
    assert_true(n <= 128);
    for (int64_t i = 0; i < n; i++)
        members[i] = ggml_get_tensor(tensors, gguf_get_tensor_name(source, i));
    change(copy, tensors); /* it may rename some */
    for (int64_t i = 0; i < n; i++)
        gguf_add_tensor(copy, members[i]);
    const char *path = in_folder(name);
    assert_true(gguf_write_to_file(copy, path, false));
    gguf_free(copy);
    gguf_free(source);
    ggml_free(tensors);
    return path;
}

/* Runs a stock tool with its output in a file; the exit code, 128 + signal if it was killed. */
static inline int run_tool(const char *output, const char *tool, const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "'" STOCK_TOOLS_DIR "/%s' %s >'%s' 2>&1", tool, arguments, output);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The tiny model as llama-quantize makes it. */
static inline const char *write_quantized(const char *name, const char *type)
{
    char arguments[1400];
    const char *path = in_folder(name);
    snprintf(arguments, sizeof arguments, "'%s' '%s' %s 1", tiny_path, path, type);
    if (run_tool(in_folder("quantize.log"), "llama-quantize", arguments) != 0)
        fail_msg("llama-quantize %s failed", arguments);
    return path;
}

static inline void assert_message(const struct allot_error *err, const char *part)
{
    if (strstr(err->message, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->message, part);
    assert_null(strchr(err->message, '\n'));
}

static inline void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %.9g, want %.9g within %g", got, want, tolerance);
}

#endif
