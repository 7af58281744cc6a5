/* identity.h - do the fast quantizers give ggml's bytes? Weights and importances of many kinds, between pages
 * that nobody may touch.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEST_QUANT_IDENTITY_H
#define ALLOT_TEST_QUANT_IDENTITY_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/num.h"
#include "base/rng.h"
#include "quant/kernels.h"

/* ---- Buffers between guard pages -------------------------------------------------------------------- */

struct guarded {
    uint8_t *map, *data; /* data: n bytes that end at a guard page, or begin behind one */
    size_t map_bytes, n;
};

static inline bool guarded_new(struct guarded *g, size_t n, bool at_start)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (size_t)rounded_up((int64_t)n, (int64_t)page);
    g->n = n;
    g->map_bytes = inner + 2 * page;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED)
        return false;
    g->data = g->map + page + (at_start ? 0 : inner - n);
    return mprotect(g->map, page, PROT_NONE) == 0 && mprotect(g->map + page + inner, page, PROT_NONE) == 0;
}

static inline void guarded_free(struct guarded *g)
{
    munmap(g->map, g->map_bytes);
}

/* ---- Weights ---------------------------------------------------------------------------------------- */

enum weight_kind {
    NORMAL,
    HEAVY_TAILED,
    CONSTANT,
    ZEROS,
    SINGLE,
    DENORMAL,
    HUGE_VALUES,
    ALTERNATING,
    NEARLY_EQUAL,
    FEW_VALUES, /* ties */
    MIXED,      /* all of the above, changing within a super-block */
    GIVEN,      /* real rows */
    WEIGHT_KINDS
};

static const char *const weight_names[] = {"normal",       "heavy-tailed", "constant", "zeros",
                                           "single",       "denormal",     "huge",     "alternating",
                                           "nearly equal", "few values",   "mixed",    "real rows"};

static inline float weight_of(enum weight_kind kind, uint64_t key, uint64_t i)
{
    const uint64_t run = i / 32;
    const double level = 0.02 * exp(rng_normal(key + 3, run));
    const double noise = rng_normal(key, i), uniform = rng_uniform(key + 1, i);
    switch (kind) {
    case NORMAL:
        return (float)(level * noise);
    case HEAVY_TAILED:
        return (float)(level * noise * noise * noise / (0.01 + uniform));
    case CONSTANT:
        return (float)(level * (run % 2 ? 1 : -1));
    case ZEROS:
        return rng_u64(key, run) % 2 ? 0.0f : -0.0f;
    case SINGLE:
        return i % 32 == rng_u64(key, run) % 32 ? (float)(level * noise) : 0;
    case DENORMAL:
        return (float)(1e-41 * noise);
    case HUGE_VALUES:
        return (float)copysign(pow(10, 16.999 * uniform), noise);
    case ALTERNATING:
        return (float)(level * (i % 2 ? 1 : -1) * (rng_u64(key, run) % 3 ? 1 : uniform));
    case NEARLY_EQUAL:
        return (float)(level * (run % 2 ? 1 : -1) * (1 + 1e-6 * noise));
    case FEW_VALUES:
        return (float)(0.01 * ((int)(rng_u64(key, i) % 7) - 3));
    default: /* runs of eight weights */
        return weight_of((enum weight_kind)(rng_u64(key + 2, i / 8) % FEW_VALUES), key + 5, i);
    }
}

/* ---- Importances ------------------------------------------------------------------------------------ */

enum importance_kind { NONE, UNIFORM, LOG_NORMAL, WITH_ZEROS, EXTREME, IMPORTANCE_KINDS };

static const char *const importance_names[] = {"none", "uniform", "log-normal", "with zeros",
                                               "1e-30 to 1e30"};

static inline float importance_of(enum importance_kind kind, uint64_t key, uint64_t i)
{
    const double normal = rng_normal(key + 7, i), uniform = rng_uniform(key + 8, i);
    switch (kind) {
    case UNIFORM:
        return rng_u64(key + 9, 0) % 2 ? 1 : (float)uniform;
    case LOG_NORMAL:
        return (float)exp(3 * normal);
    case WITH_ZEROS:
        return rng_u64(key + 9, i / 8) % 3 == 0 || uniform < 0.2 ? 0 : (float)exp(normal);
    default:
        return (float)pow(10, 60 * uniform - 30);
    }
}

/* ---- Comparing ---------------------------------------------------------------------------------------- */

struct sample {
    struct guarded x, q, theirs, ours;
    int64_t n_rows, n_per_row;
    bool weighted;
};

static inline void sample_free(struct sample *s)
{
    guarded_free(&s->x);
    guarded_free(&s->q);
    guarded_free(&s->theirs);
    guarded_free(&s->ours);
}

/* Grid searches of ggml abort when their sums overflow, and quant_rows keeps such rows away from them. */
static inline void keep_below(struct sample *s, double bound)
{
    float *x = (float *)s->x.data;
    for (int64_t i = 0; i < s->n_rows * s->n_per_row; i++)
        if (fabs((double)x[i]) > bound)
            x[i] = (float)copysign(bound * (0.5 + 0.5 / (double)(1 + i % 9)), x[i]);
}

/* About `most` weights of a type; given: real ones to take from, or NULL. False: no memory, or fewer than a
 * row of real ones. */
static inline bool sample_new(struct sample *s, const struct quant_type *type, enum weight_kind kind,
                              enum importance_kind importances, uint64_t key, const float *given,
                              int64_t n_given, int64_t most)
{
    static const int row_blocks[] = {1, 1, 2, 3, 5, 8, 16, 18, 64};
    int64_t blocks = row_blocks[rng_u64(key, 1) % (sizeof row_blocks / sizeof *row_blocks)];
    if (type->block < SUPER_BLOCK && rng_u64(key, 5) % 8 == 0)
        blocks *= 10; /* rows longer than a batch */
    const bool at_start = rng_u64(key, 2) % 2;
    s->n_per_row = blocks * type->block;
    s->n_rows = 1 + (int64_t)(rng_u64(key, 3) % (uint64_t)(1 + most / s->n_per_row));
    if (given && s->n_rows * s->n_per_row > n_given)
        s->n_rows = n_given / s->n_per_row;
    s->weighted = importances != NONE;
    const int64_t n = s->n_rows * s->n_per_row;
    if (n < 1)
        return false;
    const size_t bytes = (size_t)s->n_rows * ggml_row_size(type->type, s->n_per_row);
    if (!guarded_new(&s->x, sizeof(float) * (size_t)n, at_start) ||
        !guarded_new(&s->q, sizeof(float) * (size_t)s->n_per_row, at_start) ||
        !guarded_new(&s->theirs, bytes, at_start) || !guarded_new(&s->ours, bytes, at_start))
        return false;
    float *x = (float *)s->x.data, *q = (float *)s->q.data;
    for (int64_t i = 0; i < s->n_per_row; i++)
        q[i] = s->weighted ? importance_of(importances, key, (uint64_t)i) : 0;
    const int64_t from = given ? (int64_t)(rng_u64(key, 4) % (uint64_t)(n_given - n + 1)) / 32 * 32 : 0;
    for (int64_t i = 0; i < n; i++)
        x[i] = given ? given[from + i] : weight_of(kind, key, (uint64_t)i);
    if (type->searches_grid)
        keep_below(s, importances == EXTREME ? 8 : importances == NONE ? 1e8 : 1e9);
    return true;
}

static inline bool kernel_takes(const struct quant_kernel *kernel, bool importances)
{
    return (importances ? kernel->with : kernel->without) != WEIGHT_GGML;
}

/* Index of the first byte that differs, or -1. theirs has been filled. */
static inline int64_t first_difference(struct sample *s, const struct quant_kernel_set *set,
                                       const struct quant_kernel *kernel)
{
    memset(s->ours.data, 0xee, s->ours.n);
    quant_kernel_rows(set, kernel, (const float *)s->x.data, s->ours.data, s->n_rows, s->n_per_row,
                      s->weighted ? (const float *)s->q.data : NULL);
    for (size_t i = 0; i < s->ours.n; i++)
        if (s->ours.data[i] != s->theirs.data[i])
            return (int64_t)i;
    return -1;
}

static inline const struct quant_kernel *kernel_of(const struct quant_kernel_set *set, enum ggml_type type)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->kernels[i].type == type)
            return &set->kernels[i];
    return NULL;
}

/* Compares all sets with ggml on at least n weights of a kind (0: one sample of a few blocks); the weights
 * compared, or -1 after a message on stderr that says how to repeat it. */
static inline int64_t compare_kind(const struct quant_type *type, enum weight_kind kind,
                                   enum importance_kind importances, uint64_t seed, const float *given,
                                   int64_t n_given, int64_t n)
{
    const struct quant_kernel_set *const *sets = quant_kernel_sets();
    const struct quant_kernel *first = sets[0] ? kernel_of(sets[0], type->type) : NULL;
    int64_t done = 0;
    if (!first || !kernel_takes(first, importances != NONE))
        return 0;
    for (uint64_t trial = 0; done == 0 || done < n; trial++) {
        struct sample s;
        const uint64_t key = seed + 1000003 * trial + 101 * (uint64_t)kind + 17 * (uint64_t)importances;
        if (!sample_new(&s, type, kind, importances, key, given, n_given, n == 0 ? 1024 : 16384)) {
            fprintf(stderr, "identity: no memory, or too few real weights\n");
            return -1;
        }
        ggml_quantize_chunk(type->type, (const float *)s.x.data, s.theirs.data, 0, s.n_rows, s.n_per_row,
                            s.weighted ? (const float *)s.q.data : NULL);
        for (const struct quant_kernel_set *const *set = sets; *set; set++) {
            const int64_t at = first_difference(&s, *set, kernel_of(*set, type->type));
            if (at < 0)
                continue;
            fprintf(
                stderr,
                "%s %s: weights %s, importances %s, seed %llu, trial %llu: byte %lld of %zu (%lld rows of "
                "%lld) is %02x, ggml's %02x\n",
                (*set)->name, type->name, weight_names[kind], importance_names[importances],
                (unsigned long long)seed, (unsigned long long)trial, (long long)at, s.ours.n,
                (long long)s.n_rows, (long long)s.n_per_row, s.ours.data[at], s.theirs.data[at]);
            return -1;
        }
        done += s.n_rows * s.n_per_row;
        sample_free(&s);
    }
    return done;
}

#endif
