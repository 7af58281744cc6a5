/* imatrix_use.c - what an importance matrix gives for a tensor, and how much of a model it covers.
 * SPDX-License-Identifier: MIT */
#include "cost/imatrix.h"

#include "base/error.h"
#include "quant/quant.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_SHOWN 3
#define RANGES_SHOWN 6

/* What graph building appends to the name of a weight without touching the order of its columns. */
static const char *const graph_suffixes[] = {" (reshaped)", " (view)", " (cont)", " (copy)"};

/* The weight's name within an entry's: without those suffixes and without the "BACKEND#...#N" around
 * copies that the scheduler makes. Not NUL-terminated. */
static const char *weight_name(const char *entry_name, size_t *length)
{
    const char *start = entry_name, *mark = strchr(entry_name, '#');
    bool stripped = true;

    if (mark) {
        start = mark + 1;
        mark = strchr(start, '#');
    }
    *length = mark ? (size_t)(mark - start) : strlen(start);
    while (stripped) {
        stripped = false;
        for (size_t i = 0; i < sizeof graph_suffixes / sizeof *graph_suffixes; i++) {
            size_t n = strlen(graph_suffixes[i]);
            if (*length > n && memcmp(start + *length - n, graph_suffixes[i], n) == 0) {
                *length -= n;
                stripped = true;
            }
        }
    }
    return start;
}

static bool is_alias(const char *entry_name, const char *name)
{
    size_t length;
    const char *start = weight_name(entry_name, &length);
    return strlen(name) == length && memcmp(start, name, length) == 0;
}

static const struct imatrix_entry *find_with_aliases(const struct imatrix *im, const char *name)
{
    const struct imatrix_entry *entry = imatrix_find(im, name);
    for (size_t i = 0; i < im->n_entries && !entry; i++)
        if (is_alias(im->entries[i].name, name))
            entry = &im->entries[i];
    return entry;
}

/* The entry that serves the tensor, or NULL and why there is none. */
static const struct imatrix_entry *usable_entry(const struct imatrix *im, const struct gguf_tensor *tensor,
                                                char reason[static 128])
{
    const struct imatrix_entry *entry = find_with_aliases(im, tensor->name);
    int64_t needed = tensor->ne[0] * tensor->ne[2];
    if (!entry) {
        snprintf(reason, 128, "no entry");
        return NULL;
    }
    if (entry->n_per_mat * entry->n_mats != needed) {
        snprintf(reason, 128, "has %" PRId64 " values, the tensor needs %" PRId64,
                 entry->n_per_mat * entry->n_mats, needed);
        return NULL;
    }
    /* One count may stand for all: so it is in legacy files, and for stacks that are no experts. */
    if (entry->n_mats != 1 && entry->n_mats != tensor->ne[2]) {
        snprintf(reason, 128,
                 "has %" PRId64 " matrices of %" PRId64 " values, the tensor needs %" PRId64 " of %" PRId64,
                 entry->n_mats, entry->n_per_mat, tensor->ne[2], tensor->ne[0]);
        return NULL;
    }
    return entry;
}

allot_status imatrix_weights(const struct imatrix *im, const struct gguf_tensor *tensor, float **weights,
                             char reason[static 128], struct allot_error *err)
{
    const struct imatrix_entry *e = usable_entry(im, tensor, reason);
    *weights = NULL;
    if (!e)
        return ALLOT_OK;
    size_t n = (size_t)(e->n_per_mat * e->n_mats);
    float *w = malloc(n * sizeof *w);
    if (!w)
        return allot_fail_memory(err, n * sizeof *w, tensor->name);
    for (int64_t m = 0; m < e->n_mats; m++) {
        float count = (float)e->counts[m];
        for (int64_t i = m * e->n_per_mat; i < (m + 1) * e->n_per_mat; i++) {
            if (count > 0)
                w[i] = e->sums[i] / count;
            else
                w[i] = im->legacy ? e->sums[i] : 1.0f;
        }
    }
    reason[0] = '\0';
    *weights = w;
    return ALLOT_OK;
}

allot_status imatrix_means(const struct imatrix *im, const struct gguf_tensor *tensor, float **means,
                           struct allot_error *err)
{
    char reason[128];
    const struct imatrix_entry *e = usable_entry(im, tensor, reason);
    *means = NULL;
    if (!e || !e->linear)
        return ALLOT_OK;
    float *m = malloc((size_t)(e->n_per_mat * e->n_mats) * sizeof *m);
    if (!m)
        return allot_fail_memory(err, (size_t)(e->n_per_mat * e->n_mats) * sizeof *m, tensor->name);
    for (int64_t i = 0; i < e->n_per_mat * e->n_mats; i++) {
        const int64_t count = e->counts[i / e->n_per_mat];
        m[i] = count > 0 ? e->linear[i] / (float)count : 0;
    }
    *means = m;
    return ALLOT_OK;
}

void imatrix_shares(const struct imatrix *im, const struct gguf_tensor *tensor, int64_t *shares)
{
    char reason[128];
    const struct imatrix_entry *e = im ? usable_entry(im, tensor, reason) : NULL;
    int64_t sum = 0;
    for (int64_t m = 0; e && e->n_mats == tensor->ne[2] && m < e->n_mats; m++)
        sum += shares[m] = e->counts[m];
    for (int64_t m = 0; sum == 0 && m < tensor->ne[2]; m++)
        shares[m] = 1;
}

/* Appends to a line of 512 bytes; what does not fit is cut. */
static void append(char line[static 512], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(char line[static 512], const char *format, ...)
{
    size_t n = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, 512 - n, format, args);
    va_end(args);
}

/* Does llama.cpp expect an entry for this tensor? */
static bool wants_entry(const struct gguf_tensor *t)
{
    return gguf_tensor_quantizable(t) && quant_name_needs_imatrix(t->name);
}

struct coverage {
    int n_wanted, n_covered;
    int n_named, n_ranges;       /* missing tensors outside missing blocks; runs of missing blocks */
    int first_block, last_block; /* the run being collected; first_block -1: none */
    char names[512], blocks[512];
};

static void end_block_run(struct coverage *c)
{
    if (c->first_block < 0)
        return;
    if (c->n_ranges++ < RANGES_SHOWN) {
        append(c->blocks, "%s%d", c->n_ranges > 1 ? ", " : "", c->first_block);
        if (c->last_block > c->first_block)
            append(c->blocks, "-%d", c->last_block);
    } else if (c->n_ranges == RANGES_SHOWN + 1) {
        append(c->blocks, ", ...");
    }
    c->first_block = -1;
}

/* Counts one group of tensors of the same layer, [first, last) in the model's order. */
static void cover_layer(struct coverage *c, const struct imatrix *im, const struct gguf_model *model,
                        int64_t first, int64_t last)
{
    int layer = model->tensors[first].layer, n_wanted = 0, n_missing = 0;
    char reason[128];

    for (int64_t i = first; i < last; i++)
        if (wants_entry(&model->tensors[i])) {
            n_wanted++;
            n_missing += usable_entry(im, &model->tensors[i], reason) == NULL;
        }
    c->n_wanted += n_wanted;
    c->n_covered += n_wanted - n_missing;
    if (layer >= 0 && n_wanted > 0 && n_missing == n_wanted) {
        if (c->first_block < 0 || layer != c->last_block + 1) {
            end_block_run(c);
            c->first_block = layer;
        }
        c->last_block = layer;
        return;
    }
    for (int64_t i = first; i < last && n_missing > 0; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        if (!wants_entry(t) || usable_entry(im, t, reason))
            continue;
        if (c->n_named++ < NAMES_SHOWN)
            append(c->names, "%s%s (%s)", c->n_named > 1 ? ", " : "", t->name, reason);
    }
}

/* Entries that no tensor of the model answers to. */
static void append_strangers(char line[static 512], const struct imatrix *im, const struct gguf_model *model)
{
    int n = 0;
    for (size_t i = 0; i < im->n_entries; i++) {
        char name[GGML_MAX_NAME];
        size_t length;
        const char *start = weight_name(im->entries[i].name, &length);
        if (length < sizeof name) {
            memcpy(name, start, length);
            name[length] = '\0';
            if (gguf_model_tensor(model, name))
                continue;
        }
        if (n++ < NAMES_SHOWN)
            append(line, "%s%.100s", n > 1 ? ", " : "; not in the model: ", im->entries[i].name);
    }
    if (n > NAMES_SHOWN)
        append(line, " and %d more", n - NAMES_SHOWN);
}

void imatrix_coverage(const struct imatrix *im, const struct gguf_model *model, char line[static 512])
{
    struct coverage c = {.first_block = -1};

    line[0] = '\0';
    for (int64_t first = 0, last; first < model->n_tensors; first = last) {
        for (last = first + 1; last < model->n_tensors; last++)
            if (model->tensors[last].layer != model->tensors[first].layer)
                break;
        cover_layer(&c, im, model, first, last);
    }
    end_block_run(&c);
    if (c.n_covered == c.n_wanted)
        return;
    append(line, "the imatrix covers %d of %d quantizable tensors", c.n_covered, c.n_wanted);
    if (c.n_ranges > 0)
        append(line, "; nothing for block%s %s", strpbrk(c.blocks, ",-") ? "s" : "", c.blocks);
    if (c.n_named > 0)
        append(line, "; missing: %s", c.names);
    if (c.n_named > NAMES_SHOWN)
        append(line, " and %d more", c.n_named - NAMES_SHOWN);
    append_strangers(line, im, model);
}
