/* test_weight.c - weight costs against plain sums over all rows of what ggml quantizes; threads,
 * interruption, resuming, samples. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cost/moments.h"
#include "cost/version.h"
#include "cost/weight.h"
#include "folder.h"
#include "gguf/convert.h"
#include "quant/quant.h"
#include "random_model.h"
#include "stored.h"

enum { SEED = 91 };

static const enum ggml_type types[] = {GGML_TYPE_Q2_K, GGML_TYPE_IQ3_S, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K,
                                       GGML_TYPE_Q8_0};
enum { N_TYPES = sizeof types / sizeof *types };

/* No matrix has more rows than a sample, so that all of them count. */
static const struct weight_case {
    const char *name;
    struct random_model model; /* layers, width, ff, vocab, heads, kv_heads, head_dim */
} cases[] = {
    {"llama", {2, 256, 96, 200, 4, 2, 64, .seed = 1}},
    {"llama, tied", {1, 64, 96, 256, 2, 1, 32, .tied = true, .seed = 2}},
    {"experts", {1, 64, 32, 100, 4, 2, 16, .arch = "qwen3moe", .experts = 4, .used = 2, .seed = 3}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* What the imatrix holds. */
enum contents { NOTHING, SQUARES, MEANS, N_CONTENTS };

static struct allot_error err;
static struct gguf_model *model;
static struct imatrix im;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* ---- An imatrix whose means and squares belong together -------------------------------------------------
 */

static void add_entry(const struct gguf_tensor *t, enum contents contents)
{
    const int64_t n = t->ne[0] * t->ne[2];
    float *sums = malloc((size_t)n * sizeof *sums), *linear = malloc((size_t)n * sizeof *linear);
    int64_t *counts = malloc((size_t)t->ne[2] * sizeof *counts);
    for (int64_t m = 0; m < t->ne[2]; m++)
        counts[m] = t->ne[2] == 1 ? 50 : m == 1 ? 0 : 10 + 7 * m; /* nobody takes expert 1 */
    for (int64_t i = 0; i < n; i++) {
        const double count = (double)counts[i / t->ne[0]];
        const double mean = 0.7 * rng_normal(SEED, (uint64_t)i), spread = rng_uniform(SEED + 1, (uint64_t)i);
        linear[i] = (float)(count * mean);
        sums[i] = (float)(count * (mean * mean + spread * spread));
    }
    check(imatrix_add(&im, t->name, t->ne[0], t->ne[2], sums, counts, &err));
    for (size_t i = 0; i < im.n_entries; i++)
        if (strcmp(im.entries[i].name, t->name) == 0 && contents == MEANS) {
            im.entries[i].linear = linear;
            linear = NULL;
        }
    free(linear);
}

static void open_case(const struct weight_case *c, enum contents contents)
{
    const char *path = in_folder("model.gguf");
    print_message("%s, imatrix %d\n", c->name, (int)contents);
    assert_true(random_model_write(path, &c->model));
    check(gguf_model_open(&model, path, &err));
    im = (struct imatrix){.chunk_count = 3, .chunk_size = 64};
    for (int64_t i = 0; i < model->n_tensors && contents != NOTHING; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        if (gguf_tensor_quantizable(t) && (c->model.tied || strcmp(t->name, "token_embd.weight") != 0))
            add_entry(t, contents);
    }
    if (contents == NOTHING)
        return;
    /* by way of a file, as means come from elsewhere */
    path = in_folder("made.gguf");
    check(imatrix_write(&im, path, &err));
    imatrix_release(&im);
    check(imatrix_read(&im, path, &err));
}

static void close_case(void)
{
    imatrix_release(&im);
    gguf_model_close(model);
}

/* ---- Costs -------------------------------------------------------------------------------------------- */

/* Stops after so many reports, if that is not negative. */
static bool report(void *user, const char *stage, int64_t done, int64_t total)
{
    int *left = user;
    assert_true(done <= total);
    return strcmp(stage, "weight") == 0 && *left >= 0 && (*left)-- == 0;
}

static struct stored *run(int n_threads, int stop_after)
{
    struct archive *archive;
    struct pool *pool;
    const struct weight_options options = {types, N_TYPES};
    const struct allot_progress progress = {report, NULL, &stop_after};
    const struct imatrix *given = im.n_entries > 0 ? &im : NULL;
    struct weight_result result;
    struct stored *s = calloc(1, sizeof *s);
    int64_t set, done = stop_after < 0 ? 0 : stop_after;
    const struct archive_cost_key key = {"model", "", "imatrix", "weight", "params", cost_version()};
    check(pool_new(&pool, n_threads, &err));
    check(archive_open(&archive, in_folder("costs.allot"), &err));
    check(archive_cost_set(archive, &key, &set, &err));
    if (stop_after >= 0)
        assert_int_equal(weight_run(&result, model, pool, given, &options, archive, set, &progress, &err),
                         ALLOT_ERR_INTERRUPTED);
    check(weight_run(&result, model, pool, given, &options, archive, set, NULL, &err));
    assert_int_equal(result.n_resumed, done);
    check(archive_cost_each(archive, set, true, keep_row, s, &err));
    check(weight_run(&result, model, pool, given, &options, archive, set, NULL, &err));
    assert_int_equal(result.n_resumed, result.n_tensors);
    archive_close(archive);
    pool_free(pool);
    unlink(in_folder("costs.allot"));
    return s;
}

/* ---- The same in plain ways ------------------------------------------------------------------------------
 */

/* E |D x|^2 of a matrix over all its rows: the second moment of each d . x with every pair of inputs,
 * E x_i x_j = m_i m_j for i != j. */
static double plain_square(const float *d, int64_t n_rows, int64_t n_in, const double *s, const double *m)
{
    double sum = 0;
    for (int64_t r = 0; r < n_rows; r++, d += n_in)
        for (int64_t i = 0; i < n_in; i++)
            for (int64_t j = 0; j < n_in; j++)
                sum += (double)d[i] * d[j] * (i == j ? s[i] : m[i] * m[j]);
    return sum;
}

/* The moments of a matrix's inputs, from the entry's sums; 1 and 0 without. */
static void plain_moments(const struct imatrix_entry *e, int64_t matrix, int64_t n_in, double *s, double *m)
{
    for (int64_t i = 0; i < n_in; i++) {
        const double count = e ? (double)e->counts[matrix] : 0;
        s[i] = count > 0 ? e->sums[matrix * n_in + i] / count : 1;
        m[i] = count > 0 && e->linear ? e->linear[matrix * n_in + i] / count : 0;
    }
}

/* E |W x|^2 of a token over all rows, whichever of the stacked matrices it takes. */
static double plain_energy(const struct gguf_tensor *t)
{
    const int64_t n_in = t->ne[0], n_out = t->ne[1];
    const struct imatrix_entry *e = imatrix_find(&im, t->name);
    float *w = malloc((size_t)(n_in * n_out) * sizeof *w);
    double s[1024], m[1024], sum = 0, n_tokens = 0;
    for (int64_t k = 0; k < t->ne[2]; k++) {
        const double share = e ? (double)e->counts[k] : 1;
        check(gguf_tensor_to_f32(model, t, k * n_out, n_out, w, NULL, &err));
        plain_moments(e, k, n_in, s, m);
        sum += share * plain_square(w, n_out, n_in, s, m);
        n_tokens += share;
    }
    free(w);
    return sum / n_tokens;
}

/* The share that the tensor's part has in the stream when it has been added: embedding, then of each layer
 * attention and feed-forward part. */
static double plain_share(const struct gguf_tensor *t, int n_used)
{
    const struct gguf_tensor *embedding = gguf_model_tensor(model, "token_embd.weight"), *last;
    double s[1024], m[1024], stream, energy = 0;
    char name[64];
    if (t->layer < 0)
        return 1;
    plain_moments(NULL, 0, embedding->ne[0], s, m);
    float *w = malloc((size_t)embedding->n_elements * sizeof *w);
    check(gguf_tensor_to_f32(model, embedding, 0, embedding->n_rows, w, NULL, &err));
    stream = plain_square(w, embedding->n_rows, embedding->ne[0], s, m) / (double)embedding->n_rows;
    free(w);
    for (int layer = 0; layer <= t->layer; layer++)
        for (int ffn = 0; ffn < 2; ffn++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, ffn ? "ffn_down" : "attn_output");
            last = gguf_model_tensor(model, name);
            if (last == NULL) {
                snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", layer);
                last = gguf_model_tensor(model, name);
            }
            energy = plain_energy(last) / (last->ne[2] > 1 ? n_used : 1);
            stream += energy;
            if (layer == t->layer && ffn == (strstr(t->name, "ffn") != NULL))
                return energy / stream;
        }
    fail_msg("%s: where does it belong?", t->name);
    return 0;
}

static double plain_error(const struct gguf_tensor *t, enum ggml_type type)
{
    const int64_t n_in = t->ne[0], n_out = t->ne[1], size = n_in * n_out;
    const struct imatrix_entry *e = imatrix_find(&im, t->name);
    const bool embeds = strcmp(t->name, "token_embd.weight") == 0;
    const bool maps = !embeds || gguf_model_tensor(model, "output.weight") == NULL;
    float *w = malloc((size_t)size * sizeof *w), *back = malloc((size_t)size * sizeof *w);
    float *importances = malloc((size_t)n_in * sizeof *w);
    uint8_t *bytes = malloc(ggml_row_size(type, size));
    double s[1024], m[1024], noise[2] = {0}, signal[2] = {0};
    assert_true(n_in <= 1024);
    for (int64_t k = 0; k < t->ne[2]; k++) {
        const double share = e ? (double)e->counts[k] : 1;
        check(gguf_tensor_to_f32(model, t, k * n_out, n_out, w, NULL, &err));
        plain_moments(e, k, n_in, s, m);
        for (int64_t i = 0; i < n_in; i++)
            importances[i] = e && e->counts[k] ? e->sums[k * n_in + i] / (float)e->counts[k] : 1;
        ggml_quantize_chunk(type, w, bytes, 0, n_out, n_in, e ? importances : NULL);
        ggml_get_type_traits(type)->to_float(bytes, back, size);
        for (int64_t i = 0; i < size; i++)
            back[i] -= w[i];
        noise[0] += share * plain_square(back, n_out, n_in, s, m);
        signal[0] += share * plain_square(w, n_out, n_in, s, m);
        plain_moments(NULL, k, n_in, s, m);
        noise[1] += plain_square(back, n_out, n_in, s, m);
        signal[1] += plain_square(w, n_out, n_in, s, m);
    }
    free(w);
    free(back);
    free(importances);
    free(bytes);
    return (maps ? noise[0] / signal[0] : 0) + (embeds ? noise[1] / signal[1] : 0);
}

static void compare_row(const struct stored_row *r, int n_used)
{
    const struct gguf_tensor *t = gguf_model_tensor(model, r->tensor);
    const enum ggml_type type = quant_type_by_name(r->type)->type;
    assert_non_null(t);
    const double cost = plain_error(t, type) * plain_share(t, n_used);
    assert_true(r->feasible && cost > 0);
    assert_int_equal(r->bytes, (int64_t)ggml_row_size(type, t->ne[0]) * t->n_rows);
    if (!(fabs(r->cost - cost) <= 1e-5 * cost) || r->std_err != 0)
        fail_msg("%s as %s: %.9g +- %.3g, plainly %.9g", r->tensor, r->type, r->cost, r->std_err, cost);
}

static void test_plainly(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++)
        for (enum contents contents = NOTHING; contents < N_CONTENTS; contents++) {
            open_case(&cases[k], contents);
            struct stored *s = run(2, -1);
            assert_true(s->n > 10);
            for (size_t i = 0; i < s->n; i++)
                compare_row(&s->rows[i], cases[k].model.used);
            free(s);
            close_case();
        }
}

static void test_threads_and_resuming(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_CASES; k++) {
        open_case(&cases[k], MEANS);
        struct stored *s = run(2, -1), *one = run(1, -1), *late = run(3, 4);
        assert_int_equal(one->n, s->n);
        assert_int_equal(late->n, s->n);
        assert_memory_equal(one->rows, s->rows, s->n * sizeof s->rows[0]);
        assert_memory_equal(late->rows, s->rows, s->n * sizeof s->rows[0]);
        free(s);
        free(one);
        free(late);
        close_case();
    }
}

/* ---- Samples ------------------------------------------------------------------------------------------- */

static void test_sample(void **state)
{
    static const struct {
        int64_t n_rows, n_matrices, n;
    } rows[] = {
        {1, 1, 1},     {256, 1, 256}, {257, 1, 256}, {511, 1, 256},    {151936, 1, 256},
        {1000, 8, 32}, {20, 8, 20},   {768, 128, 8}, {768, 100000, 8}, {5, 100000, 5},
    };
    int64_t sample[WEIGHT_SAMPLE_ROWS];
    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const int64_t n = weight_sample(sample, rows[k].n_rows, rows[k].n_matrices);
        assert_int_equal(n, rows[k].n);
        for (int64_t i = 0; i < n; i++) /* one of each stretch, so that none comes twice */
            assert_true(sample[i] >= i * rows[k].n_rows / n && sample[i] < (i + 1) * rows[k].n_rows / n);
    }
    /* of heads of 64 rows, both halves */
    int64_t upper = 0, n = weight_sample(sample, 64 * 256, 1);
    for (int64_t i = 0; i < n; i++)
        upper += sample[i] % 64 >= 32;
    assert_in_range(upper, 96, 160);
}

/* Where rows are more than a sample, all of them are within a few standard errors of it. Shares have errors
 * of their own, but for tensors outside of layers. */
static void test_sampling_error(void **state)
{
    const struct weight_case large = {"many rows", {1, 256, 1024, 3000, 4, 4, 128, .seed = 9}};
    (void)state;
    open_case(&large, SQUARES);
    struct stored *s = run(2, -1);
    int n_sampled = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct stored_row *r = &s->rows[i];
        if (r->std_err == 0 || strcmp(r->type, "Q4_0") != 0)
            continue;
        assert_true(r->std_err < 0.02 * r->cost);
        if (gguf_model_tensor(model, r->tensor)->layer >= 0)
            continue;
        const double cost = plain_error(gguf_model_tensor(model, r->tensor), GGML_TYPE_Q4_0);
        print_message("%s: %.6g +- %.2g, all rows %.6g\n", r->tensor, r->cost, r->std_err, cost);
        assert_true(fabs(r->cost - cost) < 4 * r->std_err);
        n_sampled++;
    }
    assert_int_equal(n_sampled, 2);
    free(s);
    close_case();
}

/* ---- Weights that a type cannot hold ----------------------------------------------------------------------
 */

/* In a row that no sample has. */
static void test_infeasible(void **state)
{
    const struct weight_case large = {"a large weight", {1, 256, 256, 3000, 4, 2, 64, .seed = 5}};
    int64_t sample[WEIGHT_SAMPLE_ROWS], row = 0;
    (void)state;
    open_case(&large, NOTHING);
    const struct gguf_tensor *t = gguf_model_tensor(model, "output.weight");
    const int64_t n = weight_sample(sample, t->n_rows, 1);
    for (int64_t i = 0; i < n; i++)
        row += sample[i] == row;
    const float huge = 1e8f;
    FILE *f = fopen(in_folder("model.gguf"), "r+b");
    assert_non_null(f);
    assert_int_equal(t->type, GGML_TYPE_F32);
    assert_int_equal(fseek(f, (long)(t->file_offset + row * t->row_bytes), SEEK_SET), 0);
    assert_int_equal(fwrite(&huge, sizeof huge, 1, f), 1);
    fclose(f);
    struct stored *s = run(2, -1);
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->rows[i].type, "Q8_0") == 0)
            assert_int_equal(s->rows[i].feasible, strcmp(s->rows[i].tensor, "output.weight") != 0);
    free(s);
    close_case();
}

int main(void)
{
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plainly),
                                       cmocka_unit_test(test_threads_and_resuming),
                                       cmocka_unit_test(test_sample), cmocka_unit_test(test_sampling_error),
                                       cmocka_unit_test(test_infeasible)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
