/* rank-costs.c - costs of an archive against exact KL, pair by pair.  SPDX-License-Identifier: MIT
 *
 * usage: rank-costs MODEL ARCHIVE IMATRIX TEXT CTX WINDOWS SCRATCH.gguf     (IMATRIX -: none)
 *
 * For every feasible pair of the newest set of costs of each method and its parameters, writes SCRATCH.gguf,
 * MODEL with that one tensor in that one type, and measures its KL against MODEL with libllama as `allot
 * measure` does. Prints for each method the rank correlation (Spearman) of cost and KL over all pairs, the
 * least over the pairs of a single type with at least 8 tensors, and the median of KL over cost. Pairs with a
 * KL under 1e-9 are noise and left out. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive/archive.h"
#include "cost/imatrix.h"
#include "measure/measure.h"
#include "measure/rank.h"
#include "quant/quant.h"
#include "quant/quantize.h"

enum { MAX_PAIRS = 20000, MAX_METHODS = 8, LEAST_PER_TYPE = 8 };

static const double NOISE = 1e-9;

struct pair {
    int64_t tensor;
    enum ggml_type type;
    double kl;                /* < 0: not measured yet */
    double cost[MAX_METHODS]; /* NAN: none */
};

static struct allot_error err;
static struct gguf_model *model;
static struct pair pairs[MAX_PAIRS];
static size_t n_pairs;
static struct archive_cost_set_info methods[MAX_METHODS];
static size_t n_methods;

static void check(allot_status status)
{
    if (status == ALLOT_OK)
        return;
    fprintf(stderr, "rank-costs: %s\n", err.message);
    exit(1);
}

static struct pair *find_pair(int64_t tensor, enum ggml_type type)
{
    for (size_t i = 0; i < n_pairs; i++)
        if (pairs[i].tensor == tensor && pairs[i].type == type)
            return &pairs[i];
    if (n_pairs == MAX_PAIRS)
        exit(1);
    struct pair *p = &pairs[n_pairs++];
    *p = (struct pair){.tensor = tensor, .type = type, .kl = -1};
    for (size_t m = 0; m < MAX_METHODS; m++)
        p->cost[m] = NAN;
    return p;
}

static bool take_row(void *user, const char *tensor, const struct archive_cost *row)
{
    const size_t *method = user;
    const struct gguf_tensor *t = gguf_model_tensor(model, tensor);
    const struct quant_type *type = quant_type_by_name(row->type);
    if (t != NULL && type != NULL && row->feasible)
        find_pair(t - model->tensors, type->type)->cost[*method] = row->cost;
    return false;
}

static void read_costs(const char *path)
{
    struct archive *archive;
    struct archive_cost_set_info *sets;
    char sha256[65];
    size_t n;
    check(archive_open_to_read(&archive, path, &err));
    check(gguf_model_sha256(model, sha256, NULL, &err));
    check(archive_cost_sets(archive, sha256, &sets, &n, &err));
    for (size_t i = 0; i < n && n_methods < MAX_METHODS; i++) {
        bool seen = false;
        for (size_t m = 0; m < n_methods; m++)
            seen |= strcmp(methods[m].method, sets[i].method) == 0 &&
                    strcmp(methods[m].params, sets[i].params) == 0;
        if (seen)
            continue;
        methods[n_methods] = sets[i];
        check(archive_cost_each(archive, sets[i].id, false, take_row, &n_methods, &err));
        n_methods++;
    }
    free(sets);
    archive_close(archive);
}

static float **read_importances(const char *path)
{
    struct imatrix im = {0};
    float **weights = calloc((size_t)model->n_tensors, sizeof *weights);
    char reason[128];
    if (strcmp(path, "-") != 0)
        check(imatrix_read(&im, path, &err));
    for (int64_t i = 0; i < model->n_tensors; i++)
        check(imatrix_weights(&im, &model->tensors[i], &weights[i], reason, &err));
    imatrix_release(&im);
    return weights;
}

/* One pair: a file, and what measure says of it. */
static double exact_kl(const struct pair *p, float **weights, struct pool *pool, const char *text,
                       const struct measure_options *options, const char *scratch)
{
    enum ggml_type *types = calloc((size_t)model->n_tensors, sizeof *types);
    struct quantize_result written;
    struct measure_result result;
    for (int64_t i = 0; i < model->n_tensors; i++)
        types[i] = i == p->tensor ? p->type : model->tensors[i].type;
    const struct quantize_job job = {.model = model,
                                     .types = types,
                                     .imatrix = (const float *const *)weights,
                                     .out_path = scratch,
                                     .identity = "rank-costs"};
    check(quantize_write(&job, pool, &written, NULL, &err));
    check(measure_run(&result, model->path, &scratch, 1, &text, 1, options, NULL, &err));
    double kl = result.stats[0].kl.mean;
    measure_result_release(&result);
    unlink(scratch);
    free(types);
    return kl;
}

/* Spearman over the pairs of a type (GGML_TYPE_COUNT: all); n of them. */
static double rank_type(size_t method, enum ggml_type type, size_t *n, double *median_ratio)
{
    double *cost = calloc(n_pairs + 1, sizeof *cost), *kl = calloc(n_pairs + 1, sizeof *kl);
    *n = 0;
    for (size_t i = 0; i < n_pairs; i++)
        if (!isnan(pairs[i].cost[method]) && pairs[i].kl > NOISE &&
            (type == GGML_TYPE_COUNT || pairs[i].type == type)) {
            cost[*n] = pairs[i].cost[method];
            kl[(*n)++] = pairs[i].kl;
        }
    double result;
    check(rank_correlation(&result, cost, kl, *n, &err));
    for (size_t i = 0; i < *n; i++)
        kl[i] /= cost[i];
    *median_ratio = rank_quartiles(kl, *n).median;
    free(cost);
    free(kl);
    return result;
}

static void print_method(size_t m)
{
    size_t n, n_type;
    double ratio, unused, least = 1;
    double all = rank_type(m, GGML_TYPE_COUNT, &n, &ratio);
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        double one = rank_type(m, (enum ggml_type)type, &n_type, &unused);
        if (n_type >= LEAST_PER_TYPE && one < least)
            least = one;
    }
    printf("%s (%s): %zu pairs, KL over cost %.3f, least within a type %.4f, Spearman %.4f\n",
           methods[m].method, methods[m].params, n, ratio, least, all);
}

int main(int argc, char **argv)
{
    struct pool *pool;
    if (argc != 8) {
        fprintf(stderr, "usage: rank-costs MODEL ARCHIVE IMATRIX TEXT CTX WINDOWS SCRATCH.gguf\n");
        return 2;
    }
    const struct measure_options options = {.n_ctx = atoi(argv[5]), .max_windows = atoi(argv[6])};
    check(gguf_model_open(&model, argv[1], &err));
    check(pool_new(&pool, 0, &err));
    read_costs(argv[2]);
    float **weights = read_importances(argv[3]);
    for (size_t i = 0; i < n_pairs; i++)
        pairs[i].kl = exact_kl(&pairs[i], weights, pool, argv[4], &options, argv[7]);
    for (size_t m = 0; m < n_methods; m++)
        print_method(m);
    for (int64_t i = 0; i < model->n_tensors; i++)
        free(weights[i]);
    free(weights);
    pool_free(pool);
    gguf_model_close(model);
    return 0;
}
