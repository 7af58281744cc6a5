/* overlap.c - how much of one set of windows occurs in another.  SPDX-License-Identifier: MIT */
#include "text/overlap.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/num.h"
#include "base/rng.h"

/* n-grams of the others by their hash, open addressing; the first of equal ones. */
struct table {
    const int32_t **grams; /* NULL: free */
    uint64_t mask;
};

static uint64_t hash_gram(const int32_t *ids)
{
    uint64_t hash = 0;
    for (int i = 0; i < OVERLAP_LENGTH; i++)
        hash = rng_mix(hash + (uint32_t)ids[i] + 0x9e3779b97f4a7c15u);
    return hash;
}

/* Where the n-gram is or would go. */
static const int32_t **find_gram(const struct table *table, const int32_t *ids)
{
    uint64_t at = hash_gram(ids) & table->mask;
    while (table->grams[at] != NULL && memcmp(table->grams[at], ids, OVERLAP_LENGTH * sizeof *ids) != 0)
        at = (at + 1) & table->mask;
    return &table->grams[at];
}

static int64_t grams_per_window(const struct text_windows *windows)
{
    return most(windows->n_ctx - OVERLAP_LENGTH + 1, 0);
}

static allot_status table_init(struct table *table, const struct text_windows *windows,
                               struct allot_error *err)
{
    const int64_t per_window = grams_per_window(windows);
    uint64_t size = 16;
    while (size < 2 * (uint64_t)(windows->n * per_window))
        size *= 2;
    table->mask = size - 1;
    table->grams = calloc(size, sizeof *table->grams);
    if (table->grams == NULL)
        return allot_fail_memory(err, size * sizeof *table->grams, "the tokens of a text");
    for (int64_t w = 0; w < windows->n; w++)
        for (int64_t i = 0; i < per_window; i++) {
            const int32_t *ids = windows->ids + w * windows->n_ctx + i, **place = find_gram(table, ids);
            if (*place == NULL)
                *place = ids;
        }
    return ALLOT_OK;
}

allot_status overlap_measure(struct overlap *out, const struct text_windows *windows,
                             const struct text_windows *others, struct allot_error *err)
{
    struct table table;
    allot_status status = table_init(&table, others, err);
    if (status != ALLOT_OK)
        return status;
    *out = (struct overlap){.n_tokens = windows->n * windows->n_ctx};
    for (int64_t w = 0; w < windows->n; w++) {
        int64_t covered_to = 0; /* tokens of the window before it are done with */
        for (int64_t i = 0; i < grams_per_window(windows); i++)
            if (*find_gram(&table, windows->ids + w * windows->n_ctx + i) != NULL) {
                out->n_covered += i + OVERLAP_LENGTH - most(i, covered_to);
                covered_to = i + OVERLAP_LENGTH;
            }
    }
    free(table.grams);
    return ALLOT_OK;
}

double overlap_share(const struct overlap *overlap)
{
    return overlap->n_tokens > 0 ? (double)overlap->n_covered / (double)overlap->n_tokens : 0;
}
