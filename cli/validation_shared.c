/* validation_shared.c - costs of the sequences that two sets have in common.  SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "quant/quant.h"
#include "validation.h"

/* Where the sequences of the reference are among those of the set. */
struct shared {
    const struct validation *v;
    double *costs;  /* (n_tensors, GGML_TYPE_COUNT) */
    int64_t *which; /* [n] */
    int64_t n, of, n_tokens;
};

static void fill_in(double *costs, const struct validation *v, size_t set)
{
    const struct gguf_model *model = v->job.model;
    for (int64_t i = 0; i < model->n_tensors * GGML_TYPE_COUNT; i++)
        costs[i] = NAN;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct tensor_costs *of = &v->sets[set].costs.tensors[i];
        for (size_t c = 0; c < of->n; c++)
            costs[i * GGML_TYPE_COUNT + of->choices[c].type] = of->choices[c].cost;
    }
}

/* which[i]: where the i-th sequence of the part is in the whole; false if one is not there. Both are in the
 * order of the text, as a rule. */
static bool find_all(int64_t *which, const struct text_windows *part, const struct text_windows *whole)
{
    const size_t bytes = (size_t)whole->n_ctx * sizeof *whole->ids;
    int64_t at = 0;
    for (int64_t i = 0; i < part->n && part->n_ctx == whole->n_ctx; i++) {
        int64_t tries = 0;
        while (tries < whole->n &&
               memcmp(part->ids + i * part->n_ctx, whole->ids + at * whole->n_ctx, bytes)) {
            at = (at + 1) % whole->n;
            tries++;
        }
        if (tries == whole->n)
            return false;
        which[i] = at;
    }
    return part->n_ctx == whole->n_ctx;
}

static bool take_row(void *user, const char *tensor_name, const struct archive_cost *row)
{
    const struct shared *s = user;
    const struct gguf_model *model = s->v->job.model;
    const struct gguf_tensor *tensor = gguf_model_tensor(model, tensor_name);
    const struct quant_type *type = quant_type_by_name(row->type);
    if (!tensor || !type || !row->feasible || row->n_u == 0 || row->n_u % (size_t)s->of)
        return false;
    double *cost = &s->costs[(tensor - model->tensors) * GGML_TYPE_COUNT + type->type], std_err;
    if (!isnan(*cost))
        *cost = fisher_cost_of(&std_err, row->u, row->n_u, s->which, s->n, s->of, s->n_tokens);
    return false;
}

allot_status validation_shared_costs(double *costs, int64_t *n_shared, const struct validation *v, size_t set,
                                     size_t reference, struct allot_error *err)
{
    const struct judged_set *whole = &v->sets[set], *part = &v->sets[reference];
    const struct text_windows *windows = &v->windows[whole->text], *of = &v->windows[part->text];
    *n_shared = 0;
    fill_in(costs, v, set);
    if (whole->text == EVAL_TEXT || part->text == EVAL_TEXT)
        return ALLOT_OK;
    if (whole->text == part->text) {
        *n_shared = of->n;
        return ALLOT_OK;
    }
    if (strcmp(whole->costs.set.method, "fisher") != 0)
        return ALLOT_OK;
    struct shared s = {v,     costs,      calloc((size_t)of->n + 1, sizeof *s.which),
                       of->n, windows->n, windows->n_ctx};
    allot_status status =
        s.which ? ALLOT_OK : allot_fail_memory(err, (size_t)of->n * sizeof *s.which, "sequences");
    if (status == ALLOT_OK && find_all(s.which, of, windows)) {
        *n_shared = of->n;
        status = archive_cost_each(v->job.archive, whole->costs.set.id, true, take_row, &s, err);
    }
    free(s.which);
    return status;
}
