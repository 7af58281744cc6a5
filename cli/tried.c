/* tried.c - what types in a model's place measured, kept in the archive.  SPDX-License-Identifier: MIT */
#include "tried.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"
#include "cost/version.h"
#include "describe.h"
#include "output.h"

enum { SETTINGS_SIZE = 160 };

/* Whatever the measured numbers depend on, besides model and windows. */
static allot_status identify(char hex[static HASH_HEX], char settings[static SETTINGS_SIZE],
                             const struct tried *t, const enum ggml_type *types, struct allot_error *err)
{
    const struct gguf_model *model = t->job->model;
    struct hash *hash;
    allot_status status = hash_new(&hash, err);
    if (status != ALLOT_OK)
        return status;
    hash_update_str(hash, "types");
    hash_update_str(hash, t->imatrix->present ? t->imatrix->data.sha256 : "");
    for (int64_t i = 0; i < model->n_tensors; i++)
        if (types[i] != model->tensors[i].type) {
            hash_update_str(hash, model->tensors[i].name);
            hash_update_str(hash, type_label(types[i]));
        }
    hash_final(hash, hex);
    snprintf(settings, SETTINGS_SIZE, "types in place, all positions, %s", cost_version());
    return ALLOT_OK;
}

/* values [n], or NULL: not wanted. */
static bool read_values(double *values, const json_t *document, const char *key, size_t n)
{
    const json_t *list = json_object_get(document, key);
    if (values == NULL)
        return true;
    if (json_array_size(list) != n)
        return false;
    for (size_t w = 0; w < n; w++) {
        const json_t *value = json_array_get(list, w);
        if (!json_is_number(value))
            return false;
        values[w] = json_number_value(value);
    }
    return true;
}

allot_status tried_recall(bool *found, double *kl, double *ln_ppl, const struct tried *t,
                          const enum ggml_type *types, struct allot_error *err)
{
    char hex[HASH_HEX], settings[SETTINGS_SIZE], *text = NULL;
    const size_t n = (size_t)t->windows->n;
    allot_status status = identify(hex, settings, t, types, err);
    *found = false;
    if (status == ALLOT_OK)
        status = archive_measurement(t->job->archive, t->job->sha256, hex, t->windows->sha256, settings,
                                     &text, err);
    json_t *document = status == ALLOT_OK && text != NULL ? json_loads(text, 0, NULL) : NULL;
    if (document != NULL)
        *found =
            read_values(kl, document, "kl_windows", n) && read_values(ln_ppl, document, "ln_ppl_windows", n);
    json_decref(document);
    free(text);
    return status;
}

static json_t *values_json(const double *values, int64_t n)
{
    json_t *list = json_array();
    for (int64_t w = 0; w < n; w++)
        json_array_append_new(list, json_real(values[w]));
    return list;
}

static allot_status record(const double *kl, const double *ln_ppl, const struct tried *t,
                           const enum ggml_type *types, const char *label, struct allot_error *err)
{
    char hex[HASH_HEX], settings[SETTINGS_SIZE];
    const int64_t n = t->windows->n;
    double sum = 0;
    if (archive_is_read_only(t->job->archive))
        return ALLOT_OK;
    for (int64_t w = 0; w < n; w++)
        sum += kl[w];
    json_t *document = json_object();
    json_put(document, "kl", json_number(sum / (double)n));
    json_put(document, "kl_windows", values_json(kl, n));
    if (ln_ppl != NULL)
        json_put(document, "ln_ppl_windows", values_json(ln_ppl, n));
    json_put(document, "types", json_text(label));
    char *text = json_dumps(document, JSON_COMPACT | JSON_REAL_PRECISION(17));
    allot_status status = identify(hex, settings, t, types, err);
    if (status == ALLOT_OK && text == NULL)
        status = allot_fail_memory(err, 4096, "a measurement");
    if (status == ALLOT_OK)
        status = archive_measurement_put(t->job->archive, t->job->sha256, hex, t->windows->sha256, settings,
                                         text, err);
    free(text);
    json_decref(document);
    return status;
}

allot_status tried_measure(double *kl, double *ln_ppl, const struct tried *t, struct trial *trial,
                           const enum ggml_type *types, const char *label, const struct trial_step *step,
                           const struct allot_progress *progress, struct allot_error *err)
{
    const allot_status status = trial_measure(kl, ln_ppl, trial, types, step, progress, err);
    if (status == ALLOT_ERR_INTERRUPTED)
        return allot_fail(err, status,
                          "interrupted at %s; what was measured before it is kept in %s, and the same "
                          "command goes on from there",
                          label, t->job->archive_path);
    return status == ALLOT_OK ? record(kl, ln_ppl, t, types, label, err) : status;
}
