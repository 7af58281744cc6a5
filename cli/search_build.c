/* search_build.c - types in the model's place, measured or remembered.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mean.h"
#include "search.h"
#include "search_files.h"

/* Of the file that allot writes with the build's types. */
static allot_status count_bytes(struct build *b, const struct search *s, struct allot_error *err)
{
    struct type_plan plan = {.types = b->types};
    allot_status status = type_plan_measure(&plan, s->job.model, &s->keys, err);
    b->bytes = plan.file_bytes;
    b->data_bytes = plan.data_bytes;
    return status;
}

/* Would both have one name of a file? */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((search_name_byte(*a) ? *a : '_') != (search_name_byte(*b) ? *b : '_'))
            return false;
    return *a == *b;
}

static bool name_taken(const struct search *s, const char *name, const struct build *own)
{
    for (size_t i = 0; i < s->n_sources; i++)
        if (s->sources[i].build.name && &s->sources[i].build != own &&
            same_name(s->sources[i].build.name, name))
            return true;
    for (size_t i = 0; i < s->n_attempts; i++)
        if (&s->attempts[i] != own && same_name(s->attempts[i].name, name))
            return true;
    return false;
}

allot_status build_init(struct build *b, struct search *s, enum family family, const enum ggml_type *types,
                        struct allot_error *err, const char *name, ...)
{
    const size_t n = (size_t)s->job.model->n_tensors, n_windows = (size_t)s->windows.n;
    char text[256];
    va_list args;
    va_start(args, name);
    vsnprintf(text, sizeof text, name, args);
    va_end(args);
    const size_t length = strlen(text);
    for (int k = 2; name_taken(s, text, b) && length + 12 < sizeof text; k++)
        snprintf(text + length, sizeof text - length, "-%d", k);
    *b = (struct build){.name = strdup(text),
                        .family = family,
                        .types = calloc(n + 1, sizeof *b->types),
                        .kl = calloc(n_windows, sizeof *b->kl),
                        .ln_ppl = calloc(n_windows, sizeof *b->ln_ppl),
                        .predicted = NAN,
                        .confidence = NAN};
    if (!b->name || !b->types || !b->kl || !b->ln_ppl) {
        build_release(b);
        return allot_fail_memory(err, n * sizeof *b->types, "builds");
    }
    memcpy(b->types, types, n * sizeof *types);
    return count_bytes(b, s, err);
}

void build_release(struct build *b)
{
    free(b->name);
    free(b->types);
    free(b->kl);
    free(b->ln_ppl);
    free(b->options);
    memset(b, 0, sizeof *b);
}

static bool budget_left(struct search *s)
{
    const struct search_arguments *args = s->args;
    if (s->over_budget)
        return false;
    if (args->builds > 0 && s->n_tried >= args->builds)
        allot_note(s->progress, "search: all of --builds %lld are used", (long long)args->builds);
    else if (args->hours > 0 && seconds_now() - s->started > 3600 * args->hours)
        allot_note(s->progress, "search: --hours %g are over; the same command goes on from here",
                   args->hours);
    else
        return true;
    s->over_budget = true;
    return false;
}

/* The untouched model is run when the first measurement is wanted: what is wrong with it is no build's fault.
 */
static allot_status try_out(struct build *b, struct search *s, const struct trial_step *step,
                            struct allot_error *err)
{
    const struct tried with = {&s->job, &s->imatrix, &s->windows};
    struct allot_error why;
    double seconds;
    if (!s->begun && trial_begin(s->trial, &seconds, err) != ALLOT_OK)
        return err->status;
    s->begun = true;
    const allot_status status =
        tried_measure(b->kl, b->ln_ppl, &with, s->trial, b->types, b->name, step, s->progress, &why);
    b->measured = status == ALLOT_OK;
    if (status == ALLOT_ERR_NUMERIC) {
        snprintf(b->failure, sizeof b->failure, "%.255s", why.message);
        return ALLOT_OK;
    }
    if (status == ALLOT_ERR_INTERRUPTED)
        return allot_fail(err, status, "%s", why.message);
    return status == ALLOT_OK ? ALLOT_OK : allot_fail(err, status, "%s: %s", b->name, why.message);
}

allot_status build_measure(struct build *b, struct search *s, const struct trial_step *step,
                           struct allot_error *err)
{
    const struct tried with = {&s->job, &s->imatrix, &s->windows};
    if (b->measured || !budget_left(s))
        return ALLOT_OK;
    allot_status status = tried_recall(&b->measured, b->kl, b->ln_ppl, &with, b->types, err);
    s->n_tried++;
    s->n_recalled += b->measured;
    if (status != ALLOT_OK || b->measured)
        return status;
    return try_out(b, s, step, err);
}

struct measured build_measured(const struct build *b, const struct search *s)
{
    const struct measure_mean kl = build_kl(b, s, s->args->evals.n);
    return (struct measured){
        .name = b->name,
        .family = b->family,
        .bytes = b->bytes,
        .kl = b->measured ? kl.mean : NAN,
        .windows = b->measured ? b->kl : NULL,
        .n_windows = b->measured ? (size_t)s->windows.n : 0,
        .std_err = b->measured ? kl.se : NAN,
        .options = b->options,
    };
}

static struct measure_mean mean_of(const double *values, const struct search *s, size_t text)
{
    const size_t n_texts = s->args->evals.n, first = text == n_texts ? 0 : s->first_window[text],
                 end = text == n_texts ? (size_t)s->windows.n : s->first_window[text + 1];
    struct mean mean = {0};
    for (size_t w = first; w < end; w++)
        mean_add(&mean, values[w]);
    return (struct measure_mean){mean.mean, mean_std_err(&mean)};
}

struct measure_mean build_kl(const struct build *b, const struct search *s, size_t text)
{
    return mean_of(b->kl, s, text);
}

struct measure_mean build_ln_ppl(const struct build *b, const struct search *s, size_t text)
{
    return mean_of(b->ln_ppl, s, text);
}

double build_cost(const struct build *b, const struct search *s)
{
    struct type_plan plan = {.types = b->types};
    type_plan_predict(&plan, s->job.model, &s->costs);
    return plan.predicted.in_nats && plan.predicted.n_unknown == 0 ? plan.predicted.cost : (double)NAN;
}
